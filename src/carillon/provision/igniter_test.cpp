#include <algorithm>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "carillon/provision/allocation.h"
#include "carillon/provision/strategies.h"
#include "carillon/provision/testing/sets.h"

namespace carillon::provision {
namespace {

using testing::table1;
using testing::table3;

const std::vector<DeviceType> v100s{testing::v100()};

// "W4 325 4" for each placement, by device: workload, share in tenths of a percent, batch.
std::vector<std::vector<std::string>> told(const Plan& plan, const std::vector<Workload>& workloads) {
  std::vector<std::vector<std::string>> devices;
  for (const PlannedDevice& device : plan.devices) {
    auto& lines = devices.emplace_back();
    for (const Placement& p : device.placements) {
      lines.push_back(workloads[p.workload].id + " " + std::to_string(p.units * 25) + " " +
                      std::to_string(p.batch));
    }
  }
  return devices;
}

TEST(Theorem1, GivesThePapersBatchesAndShares) {
  const struct {
    Workload workload;
    int batch;
    double share;
  } rows[] = {
      {{"A", "alexnet", 15, 500}, 4, 10}, {{"R", "resnet50", 40, 400}, 8, 27.5},
      {{"V", "vgg19", 60, 200}, 6, 35},   {{"W4", "resnet50", 20, 400}, 4, 30},
      {{"W12", "ssd", 55, 300}, 8, 92.5},
  };
  for (const auto& [workload, batch, share] : rows) {
    const auto demand = theorem1(v100s[0], workload);
    ASSERT_TRUE(demand) << workload.id;
    EXPECT_EQ(demand->batch, batch) << workload.id;
    EXPECT_EQ(v100s[0].share_pct(demand->least_units), share) << workload.id;
  }
  EXPECT_FALSE(theorem1(v100s[0], {"x", "ssd", 1, 10})) << "delta <= 0";
  EXPECT_FALSE(theorem1(v100s[0], {"x", "ssd", 55, 3000})) << "more than a device";
  EXPECT_FALSE(theorem1(v100s[0], {"x", "bert", 55, 3})) << "no coefficients";
}

TEST(Igniter, PlansTheExampleOfTable1) {
  const Plan plan = plan_igniter(table1(), v100s);
  EXPECT_EQ(told(plan, table1()), (std::vector<std::vector<std::string>>{{"V 375 6", "R 300 8", "A 100 4"}}));
  EXPECT_EQ(predicted_violations(plan, table1(), v100s), 0u);
}

// Figure 14 and section 5.3: six devices, W9 with W10, W1 with W5 and W11, W2 with 7.5% on the last.
TEST(Igniter, PlansThePapersTwelveWorkloads) {
  const Plan plan = plan_igniter(table3(), v100s);
  EXPECT_EQ(told(plan, table3()),
            (std::vector<std::vector<std::string>>{{"W12 925 8"},
                                                   {"W8 750 6", "W6 150 4"},
                                                   {"W7 600 3", "W4 325 4"},
                                                   {"W10 600 2", "W9 375 4"},
                                                   {"W5 450 9", "W1 200 6", "W11 150 1"},
                                                   {"W3 125 8", "W2 75 3"}}));
  EXPECT_NEAR(cost_usd_per_hour(plan, v100s), 18.36, 1e-9);
  EXPECT_EQ(predicted_violations(plan, table3(), v100s), 0u);
}

TEST(Igniter, NeedsSixDevicesInAnyOrder) {
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    auto workloads = table3();
    for (std::size_t k = workloads.size(); k > 1; --k)
      std::swap(workloads[k - 1], workloads[random.below(k)]);
    const Plan plan = plan_igniter(workloads, v100s);
    EXPECT_EQ(plan.devices.size(), 6u);
    EXPECT_EQ(predicted_violations(plan, workloads, v100s), 0u);
  }
}

TEST(Igniter, KeepsToTheTextWhereItErrs) {
  // Alone at full power, so that the device slows down: the device that is opened is not looked at. The first
  // of them enters the device that is there from the start, where it is looked at and gets more.
  const std::vector<Workload> heavy = {{"a", "vgg19", 60, 500}, {"b", "vgg19", 60, 500}};
  const Plan plan = plan_igniter(heavy, v100s);
  ASSERT_EQ(plan.devices.size(), 2u);
  EXPECT_GT(plan.devices[0].units(), plan.devices[1].units());
  EXPECT_EQ(predicted_violations(plan, heavy, v100s), 1u);

  // What Theorem 1 has no share for is left out, and told why.
  const std::vector<Workload> mixed = {{"a", "ssd", 2, 10}, {"b", "ssd", 55, 3000}, {"c", "ssd", 55, 30}};
  const Plan some = plan_igniter(mixed, v100s);
  ASSERT_EQ(some.devices.size(), 1u);
  ASSERT_EQ(some.infeasible.size(), 2u);
  EXPECT_EQ(some.infeasible[0].workload, 0u);
  EXPECT_NE(some.infeasible[0].reason.find("not even a single request"), std::string::npos);
  EXPECT_EQ(some.infeasible[0].largest_rate_rps, 0);
  EXPECT_GT(some.infeasible[0].smallest_slo_ms.value(), 2);
  EXPECT_NE(some.infeasible[1].reason.find("keep up"), std::string::npos);
  EXPECT_GT(some.infeasible[1].largest_rate_rps.value(), 300);
}

TEST(Igniter, TakesTheCheapestType) {
  const std::vector<DeviceType> types{testing::v100(), testing::half_v100(0.5)};
  const Plan plan = plan_igniter(table1(), types);
  ASSERT_FALSE(plan.devices.empty());
  EXPECT_EQ(plan.devices[0].type, 1u);
  EXPECT_LT(cost_usd_per_hour(plan, types), 3.06);
}

TEST(Baselines, PlanThePapersTwelveWorkloads) {
  const Plan ffd = plan_ffd(table3(), v100s);
  EXPECT_EQ(ffd.devices.size(), 5u);
  EXPECT_EQ(predicted_violations(ffd, table3(), v100s), 9u);
  const auto on_first = told(ffd, table3())[0];
  EXPECT_NE(std::find(on_first.begin(), on_first.end(), "W2 75 3"), on_first.end()) << "figure 19";

  const Plan gpulets = plan_gpulets(table3(), v100s);
  EXPECT_EQ(gpulets.devices.size(), 8u);
  EXPECT_EQ(predicted_violations(gpulets, table3(), v100s), 3u);
  for (const PlannedDevice& device : gpulets.devices) EXPECT_LE(device.placements.size(), 2u);

  const Plan gslice = plan_gslice(table3(), v100s), igniter = plan_igniter(table3(), v100s);
  ASSERT_EQ(gslice.devices.size(), 6u);
  for (std::size_t d = 0; d < 6; ++d)
    for (std::size_t i = 0; i < gslice.devices[d].placements.size(); ++i)
      EXPECT_EQ(gslice.devices[d].placements[i].workload, igniter.devices[d].placements[i].workload);
}

// Every allocation of whole units to the demands that meets all limits.
bool meets(const DeviceType& type, std::span<const Demand* const> demands, const std::vector<int>& units) {
  std::vector<profile::Resident> residents;
  for (std::size_t i = 0; i < demands.size(); ++i)
    residents.push_back({demands[i]->model, demands[i]->batch, type.share_pct(units[i])});
  const auto predictions = profile::predict(type.hardware.coefficients, residents);
  for (std::size_t i = 0; i < demands.size(); ++i)
    if (predictions[i].latency_ms > demands[i]->limit_ms) return false;
  return true;
}

TEST(Allocation, IsTheLeastOfAll) {
  DeviceType type = testing::v100();
  type.hardware.coefficients.share_unit_pct = 5;
  Random random(11);
  int fitted = 0;
  for (int round = 0; round < 300; ++round) {
    const auto workloads = testing::random_set(random, 3, 0.7);
    std::vector<Demand> demands;
    for (const Workload& w : workloads)
      if (const auto demand = theorem1(type, w)) demands.push_back(*demand);
    std::vector<const Demand*> pointers;
    for (const Demand& d : demands) pointers.push_back(&d);
    std::vector<int> found;
    const bool fits = least_allocation(type, pointers, found);
    fitted += fits ? 1 : 0;
    // Brute force: the least of each share over all allocations that would do.
    std::vector<int> least(demands.size(), type.units() + 1), units(demands.size(), 1);
    bool any = false;
    while (true) {
      if (std::accumulate(units.begin(), units.end(), 0) <= type.units() && meets(type, pointers, units)) {
        any = true;
        for (std::size_t i = 0; i < units.size(); ++i) least[i] = std::min(least[i], units[i]);
      }
      std::size_t i = 0;
      while (i < units.size() && ++units[i] > type.units()) units[i++] = 1;
      if (i == units.size()) break;
    }
    EXPECT_EQ(fits, any) << "round " << round;
    if (fits && any) {
      EXPECT_EQ(found, least) << "round " << round;
    }
  }
  EXPECT_GT(fitted, 30);
  EXPECT_LT(fitted, 290);
}

}  // namespace
}  // namespace carillon::provision
