#include "carillon/simulate/scaling.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {
namespace {

using Kind = Scaling::Order::Kind;
using Ordered = std::vector<std::pair<Kind, std::uint32_t>>;

Ordered ordered(const std::vector<Scaling::Order>& orders) {
  Ordered out;
  for (const Scaling::Order& order : orders) out.emplace_back(order.kind, order.device);
  return out;
}

TimePoint second(int seconds) {
  return TimePoint{} + std::chrono::seconds{seconds};
}

TEST(Scaling, TheFirstDevicesComeAndTheLastGoFirst) {
  Scaling scaling({.wanted = {.quiet = 20s, .give_up = 30s}, .devices = 2, .period = 10s, .start_up = 15s},
                  6);
  provision::AutoscaleWindow::Counters counters;
  EXPECT_EQ(ordered(scaling.look(second(0), counters)), Ordered{});
  // Half of the requests are bad, and both devices busy.
  counters = {.requests = 1000, .bad = 500, .busy = 20s};
  EXPECT_EQ(ordered(scaling.look(second(10), counters)), (Ordered{{Kind::start, 2}, {Kind::start, 3}}));
  EXPECT_TRUE(scaling.starts(2, 1, second(25)));
  EXPECT_FALSE(scaling.starts(2, 1, second(25))) << "it is there";
  // Nothing to do any more.
  scaling.look(second(30), counters);
  EXPECT_EQ(ordered(scaling.look(second(50), counters)), (Ordered{{Kind::leave, 1}, {Kind::leave, 2}}));
  EXPECT_FALSE(scaling.starts(3, 1, second(51))) << "its start was taken back";
  EXPECT_TRUE(scaling.leaves(2));
  EXPECT_EQ(scaling.leaving_for(2, second(52)), 2s);
  scaling.left(2, true, second(52));
  EXPECT_FALSE(scaling.leaves(2));
  // Device 1 still has something to do when it is wanted again.
  counters.requests += 1000;
  counters.bad += 500;
  counters.busy += 16s;
  EXPECT_EQ(ordered(scaling.look(second(60), counters)), (Ordered{{Kind::start, 2}, {Kind::start, 3}}));
  EXPECT_FALSE(scaling.leaves(1));
  EXPECT_TRUE(scaling.starts(2, 2, second(75)));
  const ScalingFigures figures = scaling.take(second(80));
  EXPECT_EQ(figures.cut_off, 1U);
  // Two devices for 25 s, three until 52 s, two until 75 s, three until 80 s.
  EXPECT_DOUBLE_EQ(figures.device_seconds, 2 * 25 + 3 * 27 + 2 * 23 + 3 * 5);
  ASSERT_EQ(figures.looks.size(), 5U);
  EXPECT_EQ(figures.looks[1], (ScalingLook{second(10), 4, 2, 2}));
}

workload::Scenario scaling_steps(int devices) {
  workload::Scenario s;
  s.name = "steps";
  s.devices = devices;
  s.duration = 600s;
  workload::ScenarioModel m{.name = "m", .slo = 100ms, .max_batch = 16};
  m.latency.linear = true;
  m.latency.alpha = 2ms;
  m.latency.beta = 8ms;
  // A device answers some 350 a second.
  m.rate = {{0s, 280}, {100s, 2240}, {300s, 280}};
  s.models.push_back(std::move(m));
  return s;
}

TEST(Scaling, DevicesFollowTheLoadAndNothingIsLostByThat) {
  const workload::Scenario scenario = scaling_steps(16);
  const ScalingOptions options{.wanted = {.quiet = 60s}, .devices = 2, .start_up = 20s};
  const auto once = [&] {
    const auto policy = *schedule::make_scheduler("symphony", environment(scenario));
    Options with;
    with.interval = 10s;
    with.scaling = options;
    return run(scenario, *policy, with);
  };
  const Figures figures = once();
  const auto wanted_at = [&](Duration at) {
    const auto look = std::ranges::find_if(
        figures.scaling.looks, [&](const ScalingLook& each) { return each.at >= TimePoint{} + at; });
    EXPECT_NE(look, figures.scaling.looks.end());
    return look == figures.scaling.looks.end() ? -1 : look->present;
  };
  EXPECT_LE(wanted_at(95s), 2);
  // Within two periods and a start-up after the step.
  EXPECT_GE(wanted_at(150s), 6);
  EXPECT_LE(wanted_at(290s), 9);
  EXPECT_LE(wanted_at(580s), 2);
  std::uint64_t bad = 0, offered = 0;
  for (std::size_t i = 0; i < figures.intervals.size(); ++i) {
    if (i >= 10 && i < 16) continue;  // as the devices start
    bad += figures.intervals[i].late + figures.intervals[i].refused;
    offered += figures.intervals[i].offered;
  }
  EXPECT_LE(static_cast<double>(bad), 0.01 * static_cast<double>(offered));
  EXPECT_EQ(figures.scaling.cut_off, 0U) << "the last devices are the ones that have nothing to do";
  EXPECT_LT(figures.scaling.device_seconds, 4000) << "16 devices throughout are 9600";
  EXPECT_EQ(once().scaling.looks, figures.scaling.looks) << "the same run";
}

}  // namespace
}  // namespace carillon::simulate
