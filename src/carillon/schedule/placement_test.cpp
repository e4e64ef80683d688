#include "carillon/schedule/placement.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::schedule {
namespace {

constexpr TimePoint start{100s};

DeviceId device(std::uint32_t i) {
  return DeviceId{i};
}
ModelId model(std::uint32_t i) {
  return ModelId{i};
}

// `rates[m]` requests a second of each model for ten windows, so that rates are settled; 10 ms a request.
TimePoint feed(Placement& placement, const std::vector<int>& rates, TimePoint from = start) {
  const TimePoint to = from + 20s;
  std::vector<std::pair<TimePoint, std::uint32_t>> arrivals;
  for (std::uint32_t m = 0; m < rates.size(); ++m)
    for (TimePoint t = from; rates[m] > 0 && t < to; t += Duration{1s} / rates[m])
      arrivals.emplace_back(t, m);
  std::sort(arrivals.begin(), arrivals.end());
  for (const auto& [t, m] : arrivals) placement.arrived(model(m), t);
  return to;
}

Placement world(std::size_t models, std::size_t devices) {
  Placement placement(2s);
  for (std::size_t i = 0; i < models; ++i) placement.add_model(10ms);
  for (std::size_t i = 0; i < devices; ++i) placement.add_device();
  return placement;
}

TEST(Placement, WorkIsPouredOverTheDevicesThatHoldAModel) {
  auto p = world(3, 3);
  p.placed(model(0), device(0), start);  // 40/s: 0.4, here only
  p.placed(model(1), device(0), start);  // 50/s: 0.5, on 0 and 1: all of it goes to 1, up to ...
  p.placed(model(1), device(1), start);
  p.placed(model(2), device(2), start);
  feed(p, {40, 50, 0});
  EXPECT_NEAR(p.load(device(0)), 0.45, 0.02);  // ... one level: (0.4 + 0.5) / 2
  EXPECT_NEAR(p.load(device(1)), 0.45, 0.02);
  EXPECT_EQ(p.load(device(2)), 0);
  std::vector<DeviceId> by_load;
  p.visit_by_load([&](DeviceId each) {
    by_load.push_back(each);
    return by_load.size() == 3;
  });
  EXPECT_EQ(by_load.front(), device(2));
  EXPECT_LE(p.load(by_load[1]), p.load(by_load[2]));
  EXPECT_EQ(p.places(model(1)), 2U);
}

TEST(Placement, WhatABatchTookCounts) {
  auto p = world(1, 1);
  p.placed(model(0), device(0), start);
  TimePoint now = start;
  for (int i = 0; i < 2000; ++i, now += 10ms) {  // 100/s in batches of 10 that take 20 ms: 0.2, not 1
    p.arrived(model(0), now);
    if (i % 10 == 9) p.served(model(0), 10, 20ms, now);
  }
  EXPECT_NEAR(p.load(device(0)), 0.2, 0.02);
}

TEST(Placement, ACopyHelpsWhereADeviceIsAskedForMoreThanAnother) {
  auto p = world(2, 2);
  p.placed(model(0), device(0), start);
  p.placed(model(1), device(0), start);
  const TimePoint now = feed(p, {60, 60});
  // 1.2 on one device, none on the other: half of that is 60 requests a second, all of one model.
  EXPECT_NEAR(p.gain_of_copy(model(0), device(1)), 60, 3);
  p.placed(model(0), device(1), now);
  EXPECT_NEAR(p.load(device(0)), 0.6, 0.03);
  EXPECT_NEAR(p.load(device(1)), 0.6, 0.03);
  EXPECT_EQ(p.gain_of_copy(model(1), device(1)), 0) << "nothing is left to relieve";
}

TEST(Placement, WhatChanceMayExplainIsNoReason) {
  auto p = world(2, 2);
  p.placed(model(0), device(0), start);
  p.placed(model(1), device(1), start);
  feed(p, {50, 46});
  EXPECT_GT(p.load(device(0)), p.load(device(1)));
  EXPECT_EQ(p.gain_of_copy(model(0), device(1)), 0);
}

TEST(Placement, RemovalCostsAllRequestsOfTheLastCopyAndWhatOthersCannotTake) {
  auto p = world(2, 2);
  p.placed(model(0), device(0), start);
  p.placed(model(1), device(0), start);
  p.placed(model(1), device(1), start);
  const TimePoint now = feed(p, {30, 20});
  EXPECT_NEAR(p.cost_of_removal(model(0), device(0), now), 30, 1);
  EXPECT_NEAR(p.cost_of_removal(model(1), device(0), now), 0, 0.1) << "device 1 has it all already";
  EXPECT_GT(p.cost_of_removal(model(1), device(1), now), 2) << "it would go where the other is";
  EXPECT_LT(p.cost_of_removal(model(1), device(1), now), 20) << "but it would go on";
}

TEST(Placement, WhatIsAskedForNoMoreSinks) {
  auto p = world(2, 2);
  p.placed(model(0), device(0), start);
  p.placed(model(1), device(1), start);
  TimePoint now = feed(p, {50, 1});
  EXPECT_NEAR(p.rate(model(0), now), 50, 2);
  now = feed(p, {0, 50}, now);
  EXPECT_LT(p.rate(model(0), now), 0.1);
  EXPECT_LT(p.load(device(0)), 0.01) << "though no request of its model came that would have renewed it";
  EXPECT_NEAR(p.load(device(1)), 0.5, 0.02);
}

TEST(Placement, NothingIsLeftOfWhatWasTakenAway) {
  auto p = world(1, 2);
  p.placed(model(0), device(0), start);
  p.placed(model(0), device(1), start);
  const TimePoint now = feed(p, {50});
  p.removed(model(0), device(0), now);
  EXPECT_EQ(p.load(device(0)), 0);
  EXPECT_NEAR(p.load(device(1)), 0.5, 0.02);
  p.removed(model(0), device(1), now);
  EXPECT_EQ(p.load(device(1)), 0);
  EXPECT_EQ(p.places(model(0)), 0U);
}

}  // namespace
}  // namespace carillon::schedule
