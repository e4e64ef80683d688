#include "carillon/schedule/parts/line.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule::parts {
namespace {

Line::Entry line_entry(std::int64_t deadline, std::uint64_t id) {
  return {TimePoint{Duration{deadline}}, RequestId{id}};
}

// Beside a std::set: whatever comes and goes, from wherever.
TEST(Line, IsLikeASet) {
  Random random(1);
  for (const std::uint64_t spread : {std::uint64_t{1}, std::uint64_t{50}, std::uint64_t{1'000'000}}) {
    Line line;
    std::set<Line::Entry> expected;
    std::uint64_t next = 0;
    const auto check = [&] {
      ASSERT_EQ(line.size(), expected.size());
      ASSERT_TRUE(std::equal(line.begin(), line.end(), expected.begin(), expected.end()));
      if (!expected.empty()) {
        ASSERT_EQ(line.back(), *expected.rbegin());
      }
    };
    for (int step = 0; step < 4000; ++step) {
      const bool grows = step % 1000 < 600;
      if (expected.empty() || random.below(10) < (grows ? 8U : 3U)) {
        const auto entry = line_entry(static_cast<std::int64_t>(next * 3 + random.below(spread)), next);
        ++next;
        expected.insert(entry);
        ASSERT_EQ(line.insert(entry), entry == *expected.begin());
      } else if (random.below(2) == 0) {
        auto which = expected.begin();
        std::advance(which, static_cast<std::ptrdiff_t>(random.below(expected.size())));
        ASSERT_TRUE(line.erase(*which));
        ASSERT_FALSE(line.erase(*which));
        expected.erase(which);
      } else {
        const auto low = line_entry(static_cast<std::int64_t>(random.below(next * 3 + 1)), 0);
        const auto from = expected.lower_bound(low);
        const auto found = line.lower_bound(low);
        ASSERT_EQ(found == line.end(), from == expected.end());
        const auto behind = static_cast<std::size_t>(std::distance(from, expected.end()));
        const std::size_t most = random.below(200);
        ASSERT_EQ(line.count_from(found, most), std::min(behind, most));
        const auto after = line.after(found, most);
        ASSERT_EQ(after == line.end(), most >= behind);
        if (most < behind) {
          ASSERT_EQ(*after, *std::next(from, static_cast<std::ptrdiff_t>(most)));
        }
        const std::size_t count = std::min(behind, most / 4);
        std::vector<Line::Entry> went;
        line.erase_from(found, count, [&](const Line::Entry& entry) { went.push_back(entry); });
        const auto to = std::next(from, static_cast<std::ptrdiff_t>(count));
        ASSERT_TRUE(std::equal(went.begin(), went.end(), from, to));
        expected.erase(from, to);
      }
      if (step % 7 == 0) check();
    }
    check();
  }
}

}  // namespace
}  // namespace carillon::schedule::parts
