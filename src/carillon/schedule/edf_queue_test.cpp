// Against a sorted list, in which everything is summed up anew.
#include "carillon/schedule/edf_queue.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule {
namespace {

bool first_of(const EdfQueue::Item& a, const EdfQueue::Item& b) {
  return std::tuple(a.due, a.id) < std::tuple(b.due, b.id);
}

EdfQueue::Place place_in(const std::vector<EdfQueue::Item>& items, TimePoint due, RequestId id) {
  EdfQueue::Place place;
  Duration after{0};
  for (const EdfQueue::Item& item : items) {
    if (std::tuple(item.due, item.id) < std::tuple(due, id)) {
      place.before += item.takes;
    } else {
      after += item.takes;
      place.latest = std::min(place.latest, saturating_add(item.due, -after));
    }
  }
  return place;
}

TEST(EdfQueue, AgreesWithASortedList) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    EdfQueue queue;
    std::vector<EdfQueue::Item> items;
    const auto some_time = [&] {
      return random.below(8) == 0 ? TimePoint::max()
                                  : TimePoint{Duration{static_cast<std::int64_t>(random.below(50))}};
    };
    for (std::uint64_t id = 0; id < 400; ++id) {
      if (!items.empty() && random.below(5) < 2) {
        const auto out = items.begin() + static_cast<std::ptrdiff_t>(random.below(items.size()));
        queue.erase(out->due, out->id);
        items.erase(out);
      } else {
        const EdfQueue::Item item{some_time(), RequestId{id},
                                  Duration{static_cast<std::int64_t>(random.below(20))}};
        queue.insert(item);
        items.insert(std::ranges::upper_bound(items, item, first_of), item);
      }
      ASSERT_EQ(queue.size(), items.size());
      ASSERT_EQ(queue.empty(), items.empty());
      std::vector<RequestId> order;
      Duration total{0};
      queue.visit([&](const EdfQueue::Item& item) {
        order.push_back(item.id);
        total += item.takes;
        return true;
      });
      ASSERT_TRUE(std::ranges::equal(order, items, {}, {}, &EdfQueue::Item::id));
      ASSERT_EQ(queue.total(), total);
      if (!items.empty()) {
        ASSERT_EQ(queue.front().id, items.front().id);
      }
      const TimePoint due = some_time();
      const RequestId where{1000 * random.below(2)};
      const auto found = queue.place(due, where), wanted = place_in(items, due, where);
      ASSERT_EQ(found.before, wanted.before) << "seed " << seed;
      ASSERT_EQ(found.latest, wanted.latest) << "seed " << seed;
    }
  }
}

TEST(EdfQueue, IsVisitedAsFarAsIsWanted) {
  EdfQueue queue;
  for (std::uint64_t id = 0; id < 9; ++id) queue.insert({TimePoint{Duration{9}}, RequestId{id}, 1ns});
  int seen = 0;
  queue.visit([&](const EdfQueue::Item&) { return ++seen < 4; });
  EXPECT_EQ(seen, 4);
}

}  // namespace
}  // namespace carillon::schedule
