#include "carillon/research/sharing/padding.h"

#include <gtest/gtest.h>

namespace carillon::research {
namespace {

constexpr TimePoint now{Duration{1'000'000}};

// 12 blocks; a unit takes 10 us for one, 11 for two, 15 for three, 24 for four.
class PaddingTest : public testing::Test {
 protected:
  std::optional<Padding> chosen(std::vector<Room> rooms, int blocks = 12, int rivals = 1,
                                Duration overhead = 0us, double margin = 0) const {
    return pad(plan_, plan_.kernel(0), blocks, rooms, now, overhead, margin, rivals);
  }
  KernelPlan plan_{std::vector<KernelShape>{{.blocks = 12, .rounds = {10us, 11us, 15us, 24us}}}, 60};
};

TEST_F(PaddingTest, TheQuickestSpreadWhereTheKernelFitsAndNobodyElseWantsUnits) {
  const auto padding = chosen({{now, 60}, {now + 100us, 0}});
  ASSERT_TRUE(padding);
  EXPECT_EQ(padding->blocks, 12);
  EXPECT_EQ(padding->spread, (Spread{.units = 12, .depth = 1, .time = 10us}));
}

TEST_F(PaddingTest, TheLeastUnitTimeWhereOthersWantUnits) {
  // 12*10, 6*11, 4*15, 3*24: the third, which takes less than twice as long as the first.
  EXPECT_EQ(chosen({{now, 60}, {now + 100us, 0}}, 12, 2)->spread,
            (Spread{.units = 4, .depth = 3, .time = 15us}));
}

TEST_F(PaddingTest, RuleOneTheRoomLastsUntilTheEnd) {
  EXPECT_FALSE(chosen({{now, 60}, {now + 9us, 0}}));
  EXPECT_TRUE(chosen({{now, 60}, {now + 10us, 0}}));
  // Six units: two blocks on each, which is a microsecond longer.
  EXPECT_EQ(chosen({{now, 6}, {now + 11us, 0}})->spread, (Spread{.units = 6, .depth = 2, .time = 11us}));
  // Not so long: as many as fit in one round.
  const auto part = chosen({{now, 6}, {now + 10us, 0}});
  ASSERT_TRUE(part);
  EXPECT_EQ(part->blocks, 6);
  EXPECT_EQ(part->spread, (Spread{.units = 6, .depth = 1, .time = 10us}));
}

TEST_F(PaddingTest, WhatFollowsMayTakeSomeOfTheUnits) {
  const auto padding = chosen({{now, 20}, {now + 5us, 4}, {now + 20us, 0}});
  ASSERT_TRUE(padding);
  EXPECT_EQ(padding->blocks, 12);
  EXPECT_EQ(padding->spread, (Spread{.units = 4, .depth = 3, .time = 15us}));
}

TEST_F(PaddingTest, OfThePartsTheOneWithMostBlocksByTime) {
  // One unit: 1/10, 2/11, 3/15, 4/24 blocks a microsecond.
  const auto padding = chosen({{now, 1}, {now + 100us, 0}});
  ASSERT_TRUE(padding);
  EXPECT_EQ(padding->blocks, 3);
}

TEST_F(PaddingTest, OverheadAndMarginCount) {
  EXPECT_TRUE(chosen({{now, 60}, {now + 12us, 0}}, 12, 1, 2us));
  EXPECT_FALSE(chosen({{now, 60}, {now + 11us, 0}}, 12, 1, 2us));
  EXPECT_FALSE(chosen({{now, 60}, {now + 12us, 0}}, 12, 1, 2us, 0.1));
}

TEST_F(PaddingTest, NothingWhereNothingIsFree) {
  EXPECT_FALSE(chosen({{now, 0}, {now + 100us, 60}}));
  EXPECT_FALSE(chosen({{now, -3}, {now + 100us, 60}}));
  EXPECT_FALSE(chosen({}));
}

TEST_F(PaddingTest, FewBlocksTakeFewUnits) {
  EXPECT_EQ(chosen({{now, 60}, {now + 100us, 0}}, 2)->spread, (Spread{.units = 2, .depth = 1, .time = 10us}));
}

TEST(Frugal, TakesNoLongerThanAlonePerRival) {
  const KernelPlan plan(std::vector<KernelShape>{{.blocks = 12, .rounds = {10us, 11us, 15us, 24us}}}, 12);
  const auto spread = [&](int rivals) { return frugal(plan, plan.kernel(0), 12, 12, rivals); };
  EXPECT_EQ(spread(1), (Spread{.units = 12, .depth = 1, .time = 10us}));
  EXPECT_EQ(spread(2), (Spread{.units = 4, .depth = 3, .time = 15us}));
  EXPECT_EQ(spread(3), (Spread{.units = 4, .depth = 3, .time = 15us}));  // three of 24 us cost more
}

}  // namespace
}  // namespace carillon::research
