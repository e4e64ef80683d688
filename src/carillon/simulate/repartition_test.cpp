// Models that move between groups of devices while requests come: what it costs, and with all that can go
// wrong.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/subclusters.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/checker.h"
#include "carillon/simulate/testing/fault_case.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate {
namespace {

using schedule::GroupsOfModels;
using schedule::Subclusters;

// Each model in a group that the dice say.
GroupsOfModels dealt_groups(const workload::Scenario& scenario, std::size_t groups, Random& random) {
  GroupsOfModels division{.groups = groups, .of = {}};
  for (const workload::ScenarioModel& model : scenario.models)
    division.of.emplace(model.name, static_cast<std::uint32_t>(random.below(groups)));
  return division;
}

struct RepartitionTest : ::testing::TestWithParam<std::string> {};

// Ten models of 400 MB, two groups of four devices, and 70% of what these bear in batches of eight.
workload::Scenario ten_models_at_70_percent() {
  return workload::parse_scenario(R"(name = "moves"
duration_s = 30
warmup_s = 1
[cluster]
devices = 8
memory = "4 GB"
network_delay_us = 50
[load]
rate = 7800
process = "poisson"
[[models]]
name = "m"
copies = 10
slo_ms = 25
max_batch = 16
weights = "400 MB"
latency = { alpha_ms = 0.4, beta_ms = 2.5 }
)",
                                  "here")
      .value();
}

GroupsOfModels halves(std::uint32_t from) {
  GroupsOfModels division{.groups = 2, .of = {}};
  for (std::uint32_t m = 0; m < 10; ++m)
    division.of.emplace("m-" + std::to_string(m), (m + from) % 10 < 5 ? 0U : 1U);
  return division;
}

TEST_P(RepartitionTest, NoneIsLostOrLateForIt) {
  workload::Scenario scenario = ten_models_at_70_percent();
  std::uint64_t bad[2] = {};
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    scenario.seed = seed;
    for (const bool moves : {false, true}) {
      const auto subclusters = *schedule::make_subclusters(GetParam(), environment(scenario), halves(0));
      if (moves) subclusters->change(halves(2), TimePoint{10s});
      if (moves) subclusters->change(halves(9), TimePoint{20s});
      const Figures figures = run(scenario, *subclusters, {});
      for (const ModelFigures& model : figures.models) {
        EXPECT_EQ(model.on_time + model.late + model.refused, model.offered);
        bad[moves ? 1 : 0] += model.late + model.refused;
      }
      EXPECT_EQ(subclusters->moving(), 0U);
      if (moves) {
        EXPECT_EQ(subclusters->group(ModelId{0}), 1U);
      }
    }
  }
  // Of 680,000 requests.
  EXPECT_LE(bad[1], bad[0] + bad[0] / 4 + 10) << "without: " << bad[0];
}

// As in faults_test, and models move at random times.
TEST_P(RepartitionTest, PromisesAreKeptWhateverGoesWrong) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const testing::FaultCase c = seed % 3 == 2 ? testing::class_case(seed) : testing::fault_case(seed);
    Random random(seed);
    const auto devices = static_cast<std::uint64_t>(c.scenario.devices);
    const std::size_t groups = 1 + random.below(std::min<std::uint64_t>(devices, 3));
    schedule::Environment told = environment(c.scenario);
    if (seed % 2 == 1) told.preemption = schedule::Preemption::deadline;
    const auto made = *schedule::make_subclusters(GetParam(), told, dealt_groups(c.scenario, groups, random));
    for (int i = 0; i < 6; ++i)
      made->change(dealt_groups(c.scenario, groups, random),
                   TimePoint{} + from_seconds(2 * random.uniform()));
    Options options;
    options.faults = c.faults;
    options.decision_time = c.decision_time;
    testing::Checker checker(c.scenario, options);
    options.observer = &checker;
    checker.finish(run(c.scenario, *made, options));
    EXPECT_EQ(checker.text(), "") << "seed " << seed << ", " << groups << " groups";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RepartitionTest, ::testing::Values("carillon", "symphony"),
                         [](const auto& test) { return schedule::testing::test_name(test.param); });

}  // namespace
}  // namespace carillon::simulate
