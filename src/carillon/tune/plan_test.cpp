#include "carillon/tune/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::tune {
namespace {

std::vector<PlanTrial> waiting(std::initializer_list<double> works) {
  std::vector<PlanTrial> trials;
  for (const double w : works) trials.push_back({.work = w});
  return trials;
}

double makespan(const std::vector<PlanTrial>& trials, std::size_t devices, const PlanModel& model,
                const std::vector<double>& widths) {
  std::vector<std::uint32_t> order(trials.size());
  std::iota(order.begin(), order.end(), 0U);
  return list_schedule(trials, std::vector<PlanDevice>(devices), model, order, widths).makespan;
}

TEST(ListSchedule, OfFigure3_5) {
  const auto trials = waiting({30, 12, 4, 4});
  const PlanModel model{.c = 2, .d = 4};
  EXPECT_DOUBLE_EQ(makespan(trials, 5, model, {3, 1, 0.5, 0.5}), 12);  // StaticFluid's
  EXPECT_DOUBLE_EQ(makespan(trials, 5, model, {1, 1, 1, 1}), 30);      // FIFO's
  EXPECT_DOUBLE_EQ(makespan(trials, 5, model, {3, 2, 0.5, 0.5}), 10);  // the best
}

TEST(ListSchedule, PackedTrialsSlowEachOther) {
  const auto trials = waiting({10, 10});
  EXPECT_DOUBLE_EQ(makespan(trials, 1, {.alpha = 1.2, .c = 2}, {0.5, 0.5}), 12);
  EXPECT_DOUBLE_EQ(makespan(trials, 1, {.alpha = 1.2, .c = 2}, {1, 1}), 20);
  EXPECT_DOUBLE_EQ(makespan(trials, 2, {.alpha = 1.2, .beta = 1.1, .c = 2, .d = 2}, {2, 2}), 11);
}

// A long trial with a device to itself ends sooner, and leaves one device to all others.
TEST(MakePlan, WhereWorkFollowsNobodyHasADeviceForTheSakeOfTheLastEnd) {
  std::vector<PlanTrial> trials = waiting({100, 10, 10, 10});
  for (std::uint32_t i = 0; i < trials.size(); ++i) trials[i].group = i;
  const std::vector<PlanDevice> two(2);
  const PlanModel alone{.alpha = 1.1, .c = 2};
  PlanModel stream = alone;
  stream.followed = 1;
  const Plan last = make_plan(trials, two, alone, nullptr, 100'000);
  EXPECT_EQ(last.of[0].width, 1);
  EXPECT_DOUBLE_EQ(last.makespan, 100);
  const Plan all = make_plan(trials, two, stream, nullptr, 100'000);
  for (const Assignment& a : all.of) {
    EXPECT_EQ(a.width, 0.5);
    EXPECT_EQ(a.start, 0);
  }
  EXPECT_DOUBLE_EQ(all.makespan, 110);
}

TEST(ListSchedule, WhatRunsStartsAtOnceOrThePlanIsNone) {
  auto trials = waiting({10, 10});
  trials[0].has = {0};
  trials[0].width = 1;
  const std::vector<PlanDevice> one(1);
  const std::vector<std::uint32_t> first{0, 1}, second{1, 0};
  const std::vector<double> widths{1, 1};
  EXPECT_DOUBLE_EQ(list_schedule(trials, one, {}, first, widths).makespan, 20);
  EXPECT_TRUE(std::isinf(list_schedule(trials, one, {}, second, widths).makespan));
}

TEST(ListSchedule, AChangeCostsWhatItCosts) {
  auto trials = waiting({10});
  trials[0].has = {0};
  trials[0].width = 1;
  trials[0].cost = 3;
  const std::vector<PlanDevice> two(2);
  const std::vector<std::uint32_t> order{0};
  EXPECT_DOUBLE_EQ(list_schedule(trials, two, {.d = 2}, order, std::vector{1.0}).makespan, 10);
  EXPECT_DOUBLE_EQ(list_schedule(trials, two, {.d = 2}, order, std::vector{2.0}).makespan, 8);
}

TEST(ListSchedule, TheSlowestDeviceSetsThePace) {
  const auto trials = waiting({12});
  const std::vector<PlanDevice> devices{{1}, {4}, {4}};
  const std::vector<std::uint32_t> order{0};
  EXPECT_DOUBLE_EQ(list_schedule(trials, devices, {.d = 3}, order, std::vector{1.0}).makespan, 3);
  EXPECT_DOUBLE_EQ(list_schedule(trials, devices, {.d = 3}, order, std::vector{2.0}).makespan, 1.5);
  // Three, of which one is slow, are worse than the two fast ones, which it then has.
  const Plan plan = list_schedule(trials, devices, {.d = 3}, order, std::vector{3.0});
  EXPECT_DOUBLE_EQ(plan.makespan, 1.5);
  EXPECT_EQ(plan.of[0].devices, (std::vector<std::uint32_t>{1, 2}));
}

TEST(ListSchedule, MemoryBoundsWhoIsTogether) {
  auto trials = waiting({10, 10});
  for (PlanTrial& t : trials) t.memory = Bytes{60};
  const std::vector<std::uint32_t> order{0, 1};
  const std::vector<double> halves{0.5, 0.5};
  const std::vector<PlanDevice> small{{1, Bytes{100}}, {1, Bytes{100}}},
      large{{1, Bytes{120}}, {1, Bytes{20}}};
  EXPECT_NE(list_schedule(trials, small, {.c = 2}, order, halves).of[0].devices,
            list_schedule(trials, small, {.c = 2}, order, halves).of[1].devices);
  const Plan plan = list_schedule(trials, large, {.c = 2}, order, halves);
  EXPECT_EQ(plan.of[0].devices, plan.of[1].devices);
  EXPECT_DOUBLE_EQ(plan.makespan, 10);
}

TEST(WaterLevel, IsWhereTheAreaFits) {
  const std::vector<double> works{30, 12, 4, 4};
  // Scaling costs nothing: all of 50 on five devices, but that the longest has four at most.
  EXPECT_NEAR(water_level(works, {.d = 4}, 5, 1), 10, 1e-6);
  EXPECT_NEAR(water_level(works, {.d = 2}, 5, 1), 15, 1e-6);
  EXPECT_NEAR(water_level(works, {.d = 4}, 5, 2), 5, 1e-6);
  EXPECT_EQ(width_for(30, {.c = 2, .d = 4}, 10, 1), 3);
  EXPECT_EQ(width_for(4, {.c = 2, .d = 4}, 10, 1), 0.5);
  EXPECT_EQ(width_for(100, {.c = 2, .d = 4}, 10, 1), 4);
}

TEST(MakePlan, FindsTheBestOfFigure3_5) {
  const auto trials = waiting({4, 4, 12, 30});
  const Plan plan = make_plan(trials, std::vector<PlanDevice>(5), {.c = 2, .d = 4}, nullptr, 2'000'000);
  EXPECT_DOUBLE_EQ(plan.makespan, 10);
}

// NOTES: StaticFluid takes 10, the best plan 4.58.
TEST(MakePlan, FindsTheBestWhereTheorem1Fails) {
  const auto trials = waiting({10, 5, 3, 2.86});
  const PlanModel model{.c = 3, .d = 4};
  const Plan plan = make_plan(trials, std::vector<PlanDevice>(4), model, nullptr, 2'000'000);
  EXPECT_LT(plan.makespan, 4.6);
  EXPECT_DOUBLE_EQ(makespan(trials, 4, model, {1, 1.0 / 3, 1.0 / 3, 1.0 / 3}), 10);  // 10/20.86*4 = 1.9
}

TEST(MakePlan, IsNeverWorseThanWhatWasKept) {
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    std::vector<PlanTrial> trials(1 + random.below(8));
    KeptPlan kept;
    for (std::uint32_t t = 0; t < trials.size(); ++t) {
      trials[t].work = std::exp(random.normal());
      kept.order.push_back(t);
      kept.widths.push_back(random.below(2) == 0 ? 0.5 : static_cast<double>(1 + random.below(3)));
    }
    std::vector<PlanDevice> devices(1 + random.below(5));
    for (PlanDevice& d : devices) d.rate = random.below(2) == 0 ? 1 : 2;
    const PlanModel model{.alpha = 1.2, .beta = 1.1, .c = 2, .d = 3};
    const double was = list_schedule(trials, devices, model, kept.order, kept.widths).makespan;
    const Plan plan = make_plan(trials, devices, model, &kept, 20'000);
    EXPECT_DOUBLE_EQ(plan.kept, 2 * was);
    EXPECT_LE(plan.makespan, was * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace carillon::tune
