#include "carillon/research/sharing/kernel_plan.h"

#include <gtest/gtest.h>

namespace carillon::research {
namespace {

TEST(KernelPlan, SpreadsOverAllUnitsFirst) {
  const KernelPlan plan(std::vector<KernelShape>{{.blocks = 7, .rounds = {10us, 12us, 15us}},
                                                 {.blocks = 3, .rounds = {20us}},
                                                 {.blocks = 31, .rounds = {10us, 12us, 15us}}},
                        4);
  ASSERT_EQ(plan.kernels(), 3);
  EXPECT_EQ(plan.kernel(0).alone, (Spread{.units = 4, .depth = 2, .time = 12us}));
  EXPECT_EQ(plan.kernel(1).alone, (Spread{.units = 3, .depth = 1, .time = 20us}));
  // 24 blocks in two full rounds, then 7 on 4 units.
  EXPECT_EQ(plan.kernel(2).alone, (Spread{.units = 4, .depth = 3, .time = 15us + 15us + 12us}));
  EXPECT_EQ(plan.alone(), 12us + 20us + 42us);
}

TEST(KernelPlan, RoundsNeverGetQuickerWithDepth) {
  const KernelPlan plan(std::vector<KernelShape>{{.blocks = 9, .rounds = {10us, 9us, 14us, 13us}}}, 1);
  const auto rounds = plan.rounds(plan.kernel(0));
  EXPECT_EQ(std::vector(rounds.begin(), rounds.end()), (std::vector<Duration>{10us, 10us, 14us, 14us}));
}

TEST(KernelPlan, ScalesEveryRound) {
  const KernelPlan plan(std::vector<KernelShape>{{.blocks = 2, .rounds = {10us, 16us}}}, 1, 0.75);
  EXPECT_EQ(plan.round(plan.kernel(0), 1), 7'500ns);
  EXPECT_EQ(plan.alone(), 12us);
}

TEST(KernelPlan, TimesPartsOfAKernel) {
  const KernelPlan plan(std::vector<KernelShape>{{.blocks = 100, .rounds = {10us, 12us, 15us}}}, 10);
  const auto& kernel = plan.kernel(0);
  EXPECT_EQ(plan.time(kernel, 1, 1, 3), 10us);
  EXPECT_EQ(plan.time(kernel, 6, 2, 3), 15us);
  EXPECT_EQ(plan.time(kernel, 7, 2, 3), 15us + 10us);
  EXPECT_EQ(plan.time(kernel, 8, 2, 1), 40us);
}

}  // namespace
}  // namespace carillon::research
