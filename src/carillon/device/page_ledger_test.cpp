#include "carillon/device/page_ledger.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::device {
namespace {

using Pages = std::vector<std::uint32_t>;

Pages take(PageLedger& ledger, std::size_t count) {
  Pages out(count);
  return ledger.take(out) ? out : Pages{};
}

TEST(PageLedger, AGroupOfOneIsAStack) {
  PageLedger ledger(4);
  EXPECT_EQ(take(ledger, 3), (Pages{0, 1, 2}));
  ledger.give_back(Pages{1, 0});
  EXPECT_EQ(take(ledger, 3), (Pages{1, 0, 3}));
  EXPECT_EQ(ledger.free(), 0U);
  EXPECT_TRUE(take(ledger, 1).empty());
}

TEST(PageLedger, SmallNeedsShareAGroupAndLargeOnesGetWholeGroups) {
  PageLedger ledger(16, 4);
  EXPECT_EQ(take(ledger, 1), (Pages{0}));
  EXPECT_EQ(take(ledger, 2), (Pages{1, 2})) << "of the group that is begun";
  EXPECT_EQ(take(ledger, 5), (Pages{4, 5, 6, 7, 3})) << "a whole group, and what was left of the first";
  EXPECT_EQ(take(ledger, 4), (Pages{8, 9, 10, 11}));
  ledger.give_back(Pages{5, 2});
  EXPECT_EQ(take(ledger, 6).size(), 6U) << "whatever there is, where whole groups lack";
  EXPECT_EQ(ledger.free(), 0U);
}

TEST(PageLedger, TheLastGroupMayBeSmaller) {
  PageLedger ledger(6, 4);
  EXPECT_EQ(take(ledger, 6), (Pages{0, 1, 2, 3, 4, 5}));
  ledger.give_back(Pages{5, 4});
  EXPECT_EQ(take(ledger, 2), (Pages{4, 5}));
}

TEST(PageLedger, NoPageIsGivenTwiceInRandomTurns) {
  for (const std::uint32_t group : {1U, 4U, 7U, 64U}) {
    Random random(group);
    PageLedger ledger(333, group);
    std::set<std::uint32_t> taken;
    std::vector<Pages> held;
    for (int turn = 0; turn < 5000; ++turn) {
      if (held.empty() || random.below(2) == 0) {
        const Pages pages = take(ledger, 1 + random.below(40));
        for (const std::uint32_t page : pages) {
          EXPECT_LT(page, 333U);
          EXPECT_TRUE(taken.insert(page).second);
        }
        if (!pages.empty()) held.push_back(pages);
      } else {
        std::swap(held[random.below(held.size())], held.back());
        ledger.give_back(held.back());
        for (const std::uint32_t page : held.back()) taken.erase(page);
        held.pop_back();
      }
      ASSERT_EQ(ledger.free(), 333 - taken.size());
    }
    for (const Pages& pages : held) ledger.give_back(pages);
    EXPECT_EQ(take(ledger, 333).size(), 333U);
  }
}

// What comes and goes leaves whole groups for who needs many.
TEST(PageLedger, LargeNeedsMostlyLieInWholeGroups) {
  Random random(3);
  PageLedger ledger(4096, 4);
  std::vector<Pages> small;
  for (int turn = 0; turn < 4000; ++turn) {
    if (small.size() < 150 || random.below(2) == 0) {
      if (Pages pages = take(ledger, 4 + random.below(13)); !pages.empty()) small.push_back(std::move(pages));
    } else {
      std::swap(small[random.below(small.size())], small.back());
      ledger.give_back(small.back());
      small.pop_back();
    }
    while (small.size() > 220) {
      ledger.give_back(small.back());
      small.pop_back();
    }
  }
  const Pages large = take(ledger, 1000);
  ASSERT_EQ(large.size(), 1000U);
  std::size_t whole = 0;
  for (std::size_t i = 0; i + 4 <= large.size(); ++i)
    whole += large[i] % 4 == 0 && large[i + 1] == large[i] + 1 && large[i + 2] == large[i] + 2 &&
                     large[i + 3] == large[i] + 3
                 ? 1
                 : 0;
  EXPECT_GE(whole, 225U) << "of 250";
}

}  // namespace
}  // namespace carillon::device
