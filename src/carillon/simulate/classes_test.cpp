// Requests of all classes on one device, under every policy.
#include "carillon/schedule/classes.h"

#include <string>

#include <gtest/gtest.h>

#include "carillon/schedule/clockwork/clockwork.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/checker.h"

namespace carillon::simulate {
namespace {

workload::Scenario the_scenario() {
  auto scenario =
      workload::read_scenario(CARILLON_SOURCE_DIR "/scenarios/classes.toml", {.duration = 12s, .seed = {}});
  EXPECT_TRUE(scenario) << scenario.error().message;
  return *scenario;
}

const ClassFigures& of(const Figures& figures, Class cls) {
  return figures.classes[static_cast<std::size_t>(cls)];
}
double on_time_share(const ClassFigures& of) {
  return static_cast<double>(of.on_time) / static_cast<double>(of.offered);
}

class EachClass : public ::testing::TestWithParam<std::string> {};

TEST_P(EachClass, HasWhatItIsPromised) {
  const workload::Scenario scenario = the_scenario();
  const auto policy = *schedule::make_scheduler(GetParam(), environment(scenario));
  Options options;
  testing::Checker checker(scenario, options);
  options.observer = &checker;
  const Figures figures = run(scenario, *policy, options);
  checker.finish(figures);
  EXPECT_EQ(checker.text(), "");
  const ClassFigures& urgent = of(figures, Class::real_time);
  EXPECT_EQ(urgent.on_time, urgent.offered);
  for (const Duration latency : urgent.latencies)
    ASSERT_EQ(latency, 5ms + 4 * scenario.network_delay) << "as if it were alone";
  EXPECT_GT(on_time_share(of(figures, Class::normal)), 0.95);
  EXPECT_GT(of(figures, Class::best_effort).on_time, 100U) << "whatever is left";
}

INSTANTIATE_TEST_SUITE_P(All, EachClass, ::testing::ValuesIn(schedule::scheduler_names()),
                         [](const auto& tested) { return schedule::testing::test_name(tested.param); });

// What it is worth to tell the policy of the real-time load. docs/reef.md has the figures.
TEST(Classes, ThePolicyKnowsHowMuchOfTheDeviceItHas) {
  const struct {
    double real_time, normal;  // requests a second; a real-time one takes 5 ms
    Duration slo;              // of the normal ones
  } rows[] = {{60, 240, 20ms}, {100, 180, 40ms}, {100, 240, 80ms}, {140, 120, 80ms}};
  for (const auto& row : rows) {
    workload::Scenario scenario = the_scenario();
    scenario.duration = 40s;
    scenario.models[0].rate = {{0ms, row.real_time}};
    scenario.models[1].rate = {{0ms, row.normal}};
    scenario.models[1].slo = row.slo;
    double share[2] = {};
    std::uint64_t late[2] = {};
    for (const bool tells : {false, true}) {
      schedule::Ledgered policy(std::make_unique<schedule::Classed>(
          std::make_unique<schedule::Clockwork>(environment(scenario)), environment(scenario),
          schedule::ClassedOptions{.tells_share = tells}));
      const Figures figures = run(scenario, policy);
      share[tells] = on_time_share(of(figures, Class::normal));
      late[tells] = of(figures, Class::normal).late;
    }
    EXPECT_GT(share[1], share[0]) << row.real_time << ", " << row.normal;
    EXPECT_LT(2 * late[1], late[0]) << row.real_time << ", " << row.normal;
  }
}

TEST(Classes, WithoutThemNothingIsOtherwise) {
  workload::Scenario scenario = the_scenario();
  EXPECT_TRUE(environment(scenario).classes);
  for (auto& model : scenario.models) model.cls = Class::normal;
  EXPECT_FALSE(environment(scenario).classes);
  EXPECT_FALSE(has_classes(scenario));
  scenario.models[0].arrivals.push_back({.at = TimePoint{}, .slo = 1s, .cls = Class::best_effort, .app = {}});
  EXPECT_TRUE(has_classes(scenario));
}

}  // namespace
}  // namespace carillon::simulate
