#include "carillon/provision/best.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "carillon/provision/parts.h"
#include "carillon/provision/strategies.h"
#include "carillon/provision/testing/sets.h"
#include "carillon/provision/window.h"

namespace carillon::provision {
namespace {

using testing::table1;
using testing::table3;

const std::vector<DeviceType> v100s{testing::v100()};

// Every workload is served in full or explained; no device is overfull, no promise of the model broken.
void check(const Plan& plan, const std::vector<Workload>& workloads, const std::vector<DeviceType>& types) {
  EXPECT_EQ(predicted_violations(plan, workloads, types), 0u);
  std::vector<double> served(workloads.size(), 0);
  std::vector<int> numbers;
  for (const PlannedDevice& device : plan.devices) {
    numbers.push_back(device.number);
    EXPECT_FALSE(device.placements.empty());
    EXPECT_LE(device.units(), types[device.type].units());
    for (const Placement& p : device.placements) {
      EXPECT_GE(p.units, 1);
      EXPECT_GE(p.batch, 1);
      EXPECT_GT(p.rate_rps, 0);
      served[p.workload] += p.rate_rps;
    }
  }
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end());
  for (const Infeasible& left_out : plan.infeasible) {
    EXPECT_EQ(served[left_out.workload], 0);
    served[left_out.workload] = workloads[left_out.workload].rate_rps;
  }
  for (std::size_t w = 0; w < workloads.size(); ++w)
    EXPECT_NEAR(served[w] / workloads[w].rate_rps, 1, 1e-9) << w;
}

TEST(Best, PlansThePapersWorkloads) {
  const BestPlan one = plan_best(table1(), v100s);
  check(one.plan, table1(), v100s);
  EXPECT_EQ(one.plan.devices.size(), 1u);
  EXPECT_TRUE(one.plan.proven_cheapest);
  const BestPlan twelve = plan_best(table3(), v100s);
  check(twelve.plan, table3(), v100s);
  EXPECT_EQ(twelve.plan.devices.size(), 6u);
  EXPECT_TRUE(twelve.plan.proven_cheapest);
  EXPECT_TRUE(twelve.plan.infeasible.empty());
}

TEST(Best, NeverNeedsMoreThanThePapersAlgorithm) {
  Random random(17);
  std::size_t saved = 0;
  for (int round = 0; round < 150; ++round) {
    const auto workloads = testing::random_set(random, 2 + static_cast<int>(random.below(30)));
    BestOptions options;
    options.effort = 3;
    const BestPlan best = plan_best(workloads, v100s, options);
    check(best.plan, workloads, v100s);
    EXPECT_LE(best.lower_bound_usd_per_hour, cost_usd_per_hour(best.plan, v100s) + 1e-9);
    const Plan igniter = plan_igniter(workloads, v100s);
    if (!igniter.infeasible.empty()) continue;
    EXPECT_LE(best.plan.devices.size(), igniter.devices.size()) << "round " << round;
    saved += igniter.devices.size() - best.plan.devices.size();
  }
  EXPECT_GT(saved, 40u);
}

// The least cost over all partitions of the parts, one after another.
double cheapest_by_hand(const std::vector<Part>& parts, const std::vector<DeviceType>& types) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> group(parts.size(), 0);
  std::vector<int> units;
  while (true) {
    double cost = 0;
    const std::size_t groups = 1 + *std::max_element(group.begin(), group.end());
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<std::size_t> members;
      for (std::size_t p = 0; p < parts.size(); ++p)
        if (group[p] == g) members.push_back(p);
      double price = std::numeric_limits<double>::infinity();
      for (std::size_t t = 0; t < types.size(); ++t)
        if (fit(parts, members, types, t, units))
          price = std::min(price, types[t].hardware.price_usd_per_hour);
      cost += price;
    }
    best = std::min(best, cost);
    // The next restricted growth string: group[i] <= 1 + max(group[0..i-1]).
    std::size_t i = parts.size() - 1;
    while (i > 0 &&
           group[i] > *std::max_element(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(i)))
      --i;
    if (i == 0) return best;
    ++group[i];
    std::fill(group.begin() + static_cast<std::ptrdiff_t>(i) + 1, group.end(), 0);
  }
}

TEST(Best, IsExactOnSmallSets) {
  Random random(23);
  const std::vector<DeviceType> two{testing::v100(), testing::half_v100(1.4)};
  for (int round = 0; round < 40; ++round) {
    const auto& types = round % 2 == 0 ? v100s : two;
    const auto workloads = testing::random_set(random, 7);
    std::vector<Infeasible> infeasible;
    bool has_split = false;
    EvenDemands demands;
    const auto parts = make_parts(workloads, types, demands, Split::unequal, true, infeasible, has_split);
    if (has_split || parts.empty()) continue;
    const BestPlan best = plan_best(workloads, types);
    check(best.plan, workloads, types);
    const double cheapest = cheapest_by_hand(parts, types);
    EXPECT_NEAR(cost_usd_per_hour(best.plan, types), cheapest, 1e-6) << "round " << round;
    EXPECT_LE(lower_bound_usd(parts, types), cheapest + 1e-6) << "round " << round;
  }
}

TEST(Best, SplitsWhatOneDeviceCannotServe) {
  const std::vector<Workload> workloads = {{"big", "ssd", 55, 1000}, {"small", "alexnet", 15, 400}};
  const BestPlan best = plan_best(workloads, v100s);
  check(best.plan, workloads, v100s);
  EXPECT_TRUE(best.plan.infeasible.empty());
  EXPECT_EQ(best.plan.devices.size(), 4u) << "a device serves about 320 a second";
  BestOptions whole;
  whole.may_split = false;
  const BestPlan left_out = plan_best(workloads, v100s, whole);
  check(left_out.plan, workloads, v100s);
  ASSERT_EQ(left_out.plan.infeasible.size(), 1u);
  EXPECT_EQ(left_out.plan.infeasible[0].workload, 0u);
  const double largest = left_out.plan.infeasible[0].largest_rate_rps.value();
  EXPECT_GT(largest, 300);
  EXPECT_LT(largest, 350);
  // What is said would do, does; a little more does not.
  for (const double factor : {1.0, 1.001}) {
    const std::vector<Workload> other = {{"big", "ssd", 55, largest * factor}};
    EXPECT_EQ(plan_best(other, v100s, whole).plan.infeasible.empty(), factor == 1) << factor;
  }
}

TEST(Best, SaysWhichSloWouldDo) {
  const std::vector<Workload> workloads = {{"hasty", "vgg19", 3, 10}, {"fine", "vgg19", 60, 10}};
  const BestPlan best = plan_best(workloads, v100s);
  check(best.plan, workloads, v100s);
  ASSERT_EQ(best.plan.infeasible.size(), 1u);
  EXPECT_NE(best.plan.infeasible[0].reason.find("not even a single request"), std::string::npos);
  const double slo = best.plan.infeasible[0].smallest_slo_ms.value();
  EXPECT_GT(slo, 3);
  for (const double factor : {1.0, 0.999}) {
    const std::vector<Workload> other = {{"hasty", "vgg19", slo * factor, 10}};
    EXPECT_EQ(plan_best(other, v100s).plan.infeasible.empty(), factor == 1) << factor;
  }
  // At a rate that no device keeps up with, whatever the SLO, no SLO is named.
  BestOptions whole;
  whole.may_split = false;
  const std::vector<Workload> torrent = {{"torrent", "ssd", 55, 1e6}};
  const Plan plan = plan_best(torrent, v100s, whole).plan;
  ASSERT_EQ(plan.infeasible.size(), 1u);
  EXPECT_FALSE(plan.infeasible[0].smallest_slo_ms);
}

TEST(Best, ChecksTheFirstWorkloadOfADevice) {
  // Where Theorem 1's share is not enough because of the power cap.
  const std::vector<Workload> heavy = {{"a", "vgg19", 60, 500}, {"b", "vgg19", 60, 500}};
  EXPECT_EQ(predicted_violations(plan_igniter(heavy, v100s), heavy, v100s), 1u);
  check(plan_best(heavy, v100s).plan, heavy, v100s);
  // Next to nothing to do: at least a unit each.
  const std::vector<Workload> idle = {{"a", "alexnet", 1000, 0.01}, {"b", "ssd", 1000, 0.01}};
  const BestPlan best = plan_best(idle, v100s);
  check(best.plan, idle, v100s);
  EXPECT_EQ(best.plan.devices.size(), 1u);
}

TEST(Best, MixesTypes) {
  const std::vector<DeviceType> types{testing::v100(), testing::half_v100(1.2)};
  // vgg19 within 20 ms needs most of a V100, and ResNet goes where it is cheap.
  const std::vector<Workload> workloads = {
      {"a", "vgg19", 20, 440}, {"b", "resnet50", 40, 200}, {"c", "ssd", 200, 20}};
  const BestPlan best = plan_best(workloads, types);
  check(best.plan, workloads, types);
  EXPECT_NEAR(cost_usd_per_hour(best.plan, types), 3.06 + 1.2, 1e-9);
  // A dear second type changes nothing.
  const std::vector<DeviceType> dear{testing::v100(), testing::half_v100(100)};
  EXPECT_NEAR(cost_usd_per_hour(plan_best(table3(), dear).plan, dear), 18.36, 1e-9);
  // Models that are known on one type alone go there.
  std::vector<DeviceType> apart = types;
  apart[0].models.models.erase("ssd");
  apart[1].models.models.erase("vgg19");
  const BestPlan forced = plan_best(workloads, apart);
  check(forced.plan, workloads, apart);
  EXPECT_TRUE(forced.plan.infeasible.empty());
}

TEST(Best, ChangesAnExistingPlanAsLittleAsIsWorthIt) {
  auto workloads = table3();
  const Plan existing = plan_best(workloads, v100s).plan;
  BestOptions options;
  options.existing = &existing;
  const BestPlan same = plan_best(workloads, v100s, options);
  check(same.plan, workloads, v100s);
  EXPECT_EQ(same.moved + same.added + same.opened + same.closed, 0u);
  ASSERT_EQ(same.plan.devices.size(), existing.devices.size());

  // One more workload; it finds a place, and nothing else moves.
  workloads.push_back({"W13", "alexnet", 20, 300});
  const BestPlan more = plan_best(workloads, v100s, options);
  check(more.plan, workloads, v100s);
  EXPECT_EQ(more.added, 1u);
  EXPECT_EQ(more.moved, 0u);
  EXPECT_EQ(more.opened, 0u);
  // Nobody but W13 changed device.
  std::map<std::size_t, int> before;
  for (const PlannedDevice& d : existing.devices)
    for (const Placement& p : d.placements) before[p.workload] = d.number;
  for (const PlannedDevice& d : more.plan.devices)
    for (const Placement& p : d.placements)
      if (p.workload < 12) {
        EXPECT_EQ(d.number, before.at(p.workload));
      }

  // One needs more than its device has left: something moves, but not everything.
  workloads = table3();
  workloads[3].rate_rps = 700;
  const BestPlan grown = plan_best(workloads, v100s, options);
  check(grown.plan, workloads, v100s);
  EXPECT_GE(grown.moved, 1u);
  EXPECT_LE(grown.moved, 3u);

  // A device that is no longer worth its price is closed, if moves are cheap; else all stays.
  workloads = table3();
  for (Workload& w : workloads) w.rate_rps /= 3;
  options.move_cost = 0;
  const BestPlan cheap = plan_best(workloads, v100s, options);
  check(cheap.plan, workloads, v100s);
  EXPECT_GE(cheap.closed, 3u);
  options.move_cost = 1000;
  const BestPlan dear = plan_best(workloads, v100s, options);
  check(dear.plan, workloads, v100s);
  EXPECT_EQ(dear.moved + dear.closed, 0u);
}

TEST(Best, RepeatsItselfAndStops) {
  Random random(31);
  const auto workloads = testing::random_set(random, 60);
  const BestPlan first = plan_best(workloads, v100s), second = plan_best(workloads, v100s);
  EXPECT_EQ(first.plan.devices, second.plan.devices);
  BestOptions options;
  int asked = 0;
  options.stop = [&] { return ++asked > 4; };
  const BestPlan stopped = plan_best(workloads, v100s, options);
  check(stopped.plan, workloads, v100s);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_GE(stopped.plan.devices.size(), first.plan.devices.size());
  std::size_t told = 0;
  options.stop = nullptr;
  options.progress = [&](const BestOptions::Progress& p) {
    ++told;
    EXPECT_GE(p.cost_usd_per_hour, p.lower_bound_usd_per_hour);
  };
  plan_best(workloads, v100s, options);
  EXPECT_GT(told, 0u);
}

TEST(Best, LeavesHeadroom) {
  BestOptions options;
  options.headroom = 0.2;
  const BestPlan best = plan_best(table3(), v100s, options);
  check(best.plan, table3(), v100s);
  auto more = table3();
  for (Workload& w : more) w.rate_rps *= 1.2;
  EXPECT_EQ(plan_best(more, v100s).plan.devices.size(), best.plan.devices.size());
  for (const PlannedDevice& device : best.plan.devices) {
    const auto forecasts = forecast(device, table3(), v100s);
    for (std::size_t i = 0; i < forecasts.size(); ++i)
      EXPECT_GE(forecasts[i].throughput_rps, 1.2 * device.placements[i].rate_rps * (1 - 1e-9));
  }
}

// Coefficients from a bad fit may say anything; a plan must still hold what it says.
TEST(Best, HoldsItsPromisesWithAnyCoefficients) {
  Random random(37);
  for (int round = 0; round < 200; ++round) {
    DeviceType type = testing::v100();
    auto& c = type.hardware.coefficients;
    c.alpha_sch *= 4 * random.uniform() - 2;
    c.alpha_f *= 20 * random.uniform();
    c.max_power_w = 80 + 300 * random.uniform();
    c.share_unit_pct = 0.5 + 40 * random.uniform();
    for (auto& [name, m] : type.models.models) {
      for (double* k : {&m.k3, &m.k5, &m.beta_power, &m.beta_cacheutil, &m.alpha_cacheutil, &m.alpha_power})
        *k *= 4 * random.uniform() - 2;
      m.alpha_cache *= 30 * random.uniform();
      if (random.below(4) == 0) m.k1 = -0.01 * m.k2 * random.uniform();
    }
    const std::vector<DeviceType> types{type};
    const auto workloads = testing::random_set(random, 10, 2);
    const BestPlan best = plan_best(workloads, types);
    check(best.plan, workloads, types);
    // The others may break them, but must end.
    plan_igniter(workloads, types);
    plan_gpulets(workloads, types);
    plan_gslice(workloads, types);
  }
}

}  // namespace
}  // namespace carillon::provision
