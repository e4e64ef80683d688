// Everything was slow for a while, or the first thing that ran was: afterwards all is as it was before, under
// every policy, since what is learned decides what runs, and only what runs is learned of.
#include <cstdio>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/simulate/goodput.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {
namespace {

constexpr Duration interval = 5s;
constexpr Duration calm = 20s;   // before a spell
constexpr Duration soon = 30s;   // after it, by when all is well again
constexpr Duration after = 10s;  // and is looked at

workload::Scenario one_static_model() {
  workload::Scenario s;
  s.name = "static";
  workload::ScenarioModel m{.name = "m", .slo = 60ms, .max_batch = 16};
  m.latency.linear = true;
  m.latency.alpha = 2ms;
  m.latency.beta = 8ms;
  s.models.push_back(std::move(m));
  return s;
}

workload::Scenario several_models() {
  workload::Scenario s = one_static_model();
  s.name = "several";
  s.devices = 2;
  for (const int slo : {100, 200, 400}) {
    s.models.push_back(s.models.front());
    s.models.back().name = "m" + std::to_string(slo);
    s.models.back().slo = Duration{slo * 1'000'000};
    s.models.back().latency.alpha = Duration{slo * 60'000};
  }
  return s;
}

// Requests of two applications, of 48 and 72 ms alone.
workload::Scenario two_applications() {
  workload::Scenario s;
  s.name = "dynamic";
  workload::ScenarioModel m{.name = "m", .slo = 300ms, .max_batch = 16, .batch_sizes = {1, 2, 4, 8, 16}};
  m.latency.modes = {{.mean = 30ms, .deviation = 5ms, .weight = 1, .app = "a"},
                     {.mean = 90ms, .deviation = 5ms, .weight = 1, .app = "b"}};
  m.latency.c0 = 36ms;
  m.latency.c1 = 0.4;
  s.models.push_back(std::move(m));
  return s;
}

double on_time(const Figures& figures, Duration from, Duration to) {
  double offered = 0, good = 0;
  for (auto i = static_cast<std::size_t>(from / interval); i < static_cast<std::size_t>(to / interval); ++i) {
    offered += static_cast<double>(figures.intervals[i].offered);
    good += static_cast<double>(figures.intervals[i].on_time);
  }
  return good / std::max(1.0, offered);
}

class Recovery : public ::testing::TestWithParam<std::string> {};

TEST_P(Recovery, AllIsWellAgainSoonAfterASlowSpell) {
  for (auto scenario : {one_static_model(), several_models(), two_applications()}) {
    const auto make = [&] { return *schedule::make_scheduler(GetParam(), environment(scenario)); };
    scenario.duration = 20s;
    scenario.rate = 50;
    const double rate = find_goodput(scenario, make, GetParam(), {.precision = 0.1}).rate / 2;
    ASSERT_GT(rate, 0) << scenario.name;
    workload::set_rate(scenario, rate);
    // The first to run takes thirty times as long: whatever begins before a second one could.
    const SlowSpell first{Duration{0}, from_seconds(1.5 / rate), 30};
    for (const SlowSpell& spell : {SlowSpell{calm, 45s, 8}, {calm, 120s, 16}, first}) {
      const Duration end = spell.factor == 30 ? Duration{0} : spell.from + spell.length;
      scenario.duration = end + soon + after;
      const Figures usual = run(scenario, *make(), {.interval = interval});
      const Figures slowed = run(scenario, *make(), {.faults = {.spells = {spell}}, .interval = interval});
      const double before = on_time(usual, end + soon, scenario.duration);
      const double now = on_time(slowed, end + soon, scenario.duration);
      std::printf("%s, %s: %.0f/s, %gx: %.4f, without %.4f\n", GetParam().c_str(), scenario.name.c_str(),
                  rate, spell.factor, now, before);
      EXPECT_GE(now, 0.95 * before) << scenario.name << " " << spell.factor;
    }
  }
}

// As live, the policy measures what it has to allow for; and early on, with few executions seen, one takes
// far longer than any request can wait. Then nothing is left that could be measured, unless it is tried.
TEST_P(Recovery, AStallIsNotBelievedForEver) {
  auto scenario = one_static_model();
  scenario.models.front().slo = 30ms;
  scenario.models.front().latency.alpha = 500us;
  scenario.models.front().latency.beta = 1ms;
  scenario.network_delay = 200us;
  scenario.duration = 20s;
  scenario.rate = 20;
  auto environment = schedule::live_environment();
  environment.client = scenario.network_delay;
  for (const double noise : {0.0, 0.1}) {
    const auto policy = *schedule::make_scheduler(GetParam(), environment);
    const Figures figures =
        run(scenario, *policy,
            {.faults = {.noise = noise, .spells = {{500ms, 100ms, 60}}}, .interval = interval});
    EXPECT_GE(on_time(figures, 5s, 20s), 0.98) << noise;
    EXPECT_LE(figures.models.front().late, 8U) << noise;
  }
}

std::vector<std::string> all_but_fcfs() {
  std::vector<std::string> names = schedule::scheduler_names();
  std::erase(names, "fcfs");
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, Recovery, ::testing::ValuesIn(all_but_fcfs()), [](const auto& tested) {
  std::string name = tested.param;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

}  // namespace
}  // namespace carillon::simulate
