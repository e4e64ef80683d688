// Everything that can go wrong, dealt out by a seed, under every policy. A case that fails prints its seed
// and is shrunk: faults, models, devices and time are taken away as long as it still fails.
//
//   CARILLON_FAULT_SEEDS=FIRST..LAST   other seeds than those of the suite
#include <charconv>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <tuple>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/testing/policies.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/checker.h"

namespace carillon::simulate {
namespace {

using testing::Checker;

struct Case {
  workload::Scenario scenario;
  Faults faults;
  Duration decision_time{0};
};

Case make_case(std::uint64_t seed) {
  Random random(seed * 0x9e3779b97f4a7c15ULL + 1);
  const auto some = [&](double most) { return random.below(3) == 0 ? most * random.uniform() : 0; };
  Case c;
  auto& s = c.scenario;
  s.name = "faults";
  s.seed = seed;
  s.duration = 2s;
  s.devices = static_cast<int>(1 + random.below(4));
  s.network_delay = Duration{static_cast<std::int64_t>(random.below(3) * 200'000)};
  const auto models = static_cast<int>(1 + random.below(8));
  if (random.below(2) == 0) s.memory = mib(16 * (4 + random.below(12)));
  double capacity = 0;
  for (int i = 0; i < models; ++i) {
    workload::ScenarioModel m{.name = std::string("m").append(std::to_string(i))};
    m.latency.linear = true;
    m.latency.alpha = from_ms(0.1 + 3 * random.uniform());
    m.latency.beta = from_ms(0.1 + 10 * random.uniform());
    m.slo = from_ms(to_ms(m.latency.batch_time(1)) * (1 + 20 * random.uniform()) + 2);
    m.max_batch = static_cast<int>(1 + random.below(16));
    if (s.memory) m.weights = mib(16 * (1 + random.below(3)));
    m.load = from_ms(10 * random.uniform());
    capacity += s.devices * 4 / to_seconds(m.latency.batch_time(4)) / models;
    s.models.push_back(std::move(m));
  }
  s.rate = capacity * (0.1 + 2 * random.uniform());
  if (random.below(4) == 0) s.process = {.kind = workload::ArrivalKind::gamma, .shape = 0.1};  // bursts
  if (random.below(6) == 0)
    s.process = {.kind = workload::ArrivalKind::closed, .clients = 1 + static_cast<int>(random.below(8))};
  auto& f = c.faults;
  f.speed = random.below(4) == 0 ? 0.5 + 2 * random.uniform() : 1;
  f.noise = some(0.3);
  f.hiccups = some(0.05);
  f.infer_failures = some(0.3);
  f.load_failures = some(0.5);
  f.lost_inputs = some(0.1);
  f.late_reports = some(0.3);
  f.doubled_reports = some(0.3);
  f.lost_reports = some(0.02);
  f.cancels = some(0.3);
  f.deaths_per_s = some(2);
  f.stalls_per_s = some(3);
  f.slowdowns_per_s = some(3);
  if (random.below(4) == 0) f.clock_offset = from_ms(3 * random.uniform());
  if (random.below(4) == 0) c.decision_time = from_ms(0.1 * random.uniform());
  if (random.below(4) == 0) s.warmup = from_ms(1000 * random.uniform());
  auto& one = s.models[random.below(s.models.size())];
  switch (random.below(8)) {
    case 0:  // its time depends on the input
      one.latency.c0 = one.latency.beta;
      one.latency.c1 = 0.5;
      one.latency.modes = {{.mean = one.latency.alpha, .deviation = one.latency.alpha / 4, .weight = 3},
                           {.mean = 4 * one.latency.alpha, .deviation = one.latency.alpha}};
      break;
    case 1:
      one.batch_sizes = {1};
      for (int b = 2; b < one.max_batch; b *= 2) one.batch_sizes.push_back(b);
      break;
    case 2:
      one.rate = {{100ms, s.rate}, {700ms, 0}, {1200ms, s.rate / 2}};
      break;
    case 3:
      for (TimePoint at{}; at < TimePoint{s.duration}; at += from_ms(50 * random.uniform()))
        one.arrivals.push_back(
            {.at = at,
             .slo = random.below(8) == 0 ? Duration::max() : from_ms(2 * to_ms(one.slo) * random.uniform()),
             .cls = static_cast<Class>(random.below(3)),
             .priority = static_cast<std::uint32_t>(random.below(3))});
      break;
    case 4:
      one.process = workload::ArrivalSpec{.kind = workload::ArrivalKind::closed, .clients = 3};
      break;
    case 5:
      one.slo = Duration::max();
      break;
    default:
      break;
  }
  return c;
}

struct Verdict {
  std::string problems;
  std::uint64_t checks = 0;
};

Verdict verdict(const Case& c, const std::string& scheduler) {
  const auto policy = *schedule::make_scheduler(scheduler, environment(c.scenario));
  Options options;
  options.faults = c.faults;
  options.decision_time = c.decision_time;
  options.interval = 300ms;
  options.timeline = 100;
  Checker checker(c.scenario, options);
  options.observer = &checker;
  // A run that never comes to rest leaves requests unanswered, which is a problem.
  options.progress = [&](double) { return checker.checks() < 10'000'000; };
  checker.finish(run(c.scenario, *policy, options));
  return {checker.text(), checker.checks()};
}

// Takes away what the failure does not need.
Case shrink(Case c, const std::string& scheduler) {
  const std::vector<std::function<void(Case&)>> cuts = {
      [](Case& x) { x.faults.speed = 1; },
      [](Case& x) { x.faults.noise = 0; },
      [](Case& x) { x.faults.hiccups = 0; },
      [](Case& x) { x.faults.infer_failures = 0; },
      [](Case& x) { x.faults.load_failures = 0; },
      [](Case& x) { x.faults.lost_inputs = 0; },
      [](Case& x) { x.faults.late_reports = 0; },
      [](Case& x) { x.faults.doubled_reports = 0; },
      [](Case& x) { x.faults.lost_reports = 0; },
      [](Case& x) { x.faults.cancels = 0; },
      [](Case& x) { x.faults.deaths_per_s = 0; },
      [](Case& x) { x.faults.stalls_per_s = 0; },
      [](Case& x) { x.faults.slowdowns_per_s = 0; },
      [](Case& x) { x.faults.clock_offset = Duration{0}; },
      [](Case& x) { x.decision_time = Duration{0}; },
      [](Case& x) { x.scenario.network_delay = Duration{0}; },
      [](Case& x) { x.scenario.memory.reset(); },
      [](Case& x) { x.scenario.process = {}; },
      [](Case& x) { x.scenario.devices = std::max(1, x.scenario.devices - 1); },
      [](Case& x) {
        if (x.scenario.models.size() > 1) x.scenario.models.pop_back();
      },
      [](Case& x) { x.scenario.duration /= 2; },
      [](Case& x) { x.scenario.rate /= 2; },
  };
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const auto& cut : cuts) {
      Case less = c;
      cut(less);
      const bool same =
          less.faults == c.faults && less.decision_time == c.decision_time &&
          less.scenario.network_delay == c.scenario.network_delay &&
          less.scenario.memory == c.scenario.memory && less.scenario.process == c.scenario.process &&
          less.scenario.devices == c.scenario.devices &&
          less.scenario.models.size() == c.scenario.models.size() &&
          less.scenario.duration == c.scenario.duration && less.scenario.rate == c.scenario.rate;
      if (same || less.scenario.duration < 1ms || less.scenario.rate < 1) continue;
      if (verdict(less, scheduler).problems.empty()) continue;
      c = std::move(less);
      smaller = true;
    }
  }
  return c;
}

std::string describe(const Case& c) {
  std::ostringstream out;
  const Faults& f = c.faults;
  out << c.scenario.devices << " devices, " << c.scenario.models.size() << " models, " << c.scenario.rate
      << " requests/s for " << to_seconds(c.scenario.duration) << " s, delay "
      << to_us(c.scenario.network_delay) << " us, memory "
      << (c.scenario.memory ? to_text(*c.scenario.memory) : "unlimited") << ", "
      << workload::to_text(c.scenario.process) << "; speed " << f.speed << " noise " << f.noise << " hiccups "
      << f.hiccups << " infer_failures " << f.infer_failures << " load_failures " << f.load_failures
      << " lost_inputs " << f.lost_inputs << " late " << f.late_reports << " doubled " << f.doubled_reports
      << " lost " << f.lost_reports << " cancels " << f.cancels << " deaths " << f.deaths_per_s << " stalls "
      << f.stalls_per_s << " slowdowns " << f.slowdowns_per_s << " offset " << to_us(f.clock_offset)
      << " us; decisions take " << to_us(c.decision_time) << " us, warm-up " << to_ms(c.scenario.warmup)
      << " ms";
  return out.str();
}

// Of all seeds, each test takes one in ten.
constexpr std::uint64_t blocks = 10;
class Faulty : public ::testing::TestWithParam<std::tuple<std::string, std::uint64_t>> {};

TEST_P(Faulty, PromisesHoldWhateverHappens) {
  const auto& [scheduler, block] = GetParam();
  std::uint64_t first = 0, last = 999, checks = 0;
  if (const char* seeds = std::getenv("CARILLON_FAULT_SEEDS")) {
    const std::string_view text(seeds);
    const auto dots = text.find("..");
    ASSERT_NE(dots, std::string_view::npos) << "CARILLON_FAULT_SEEDS is FIRST..LAST";
    std::from_chars(text.data(), text.data() + dots, first);
    std::from_chars(text.data() + dots + 2, text.data() + text.size(), last);
  }
  std::uint64_t runs = 0;
  for (std::uint64_t seed = first + block; seed <= last; seed += blocks, ++runs) {
    const Case c = make_case(seed);
    const Verdict v = verdict(c, scheduler);
    checks += v.checks;
    if (v.problems.empty()) continue;
    std::printf("%s, seed %llu: %s%s\n", scheduler.c_str(), static_cast<unsigned long long>(seed),
                v.problems.c_str(), describe(c).c_str());
    const Case least = shrink(c, scheduler);
    FAIL() << scheduler << ", seed " << seed << ": " << v.problems << "shrunk to " << describe(least) << "\n"
           << verdict(least, scheduler).problems;
  }
  EXPECT_GE(checks, 100 * runs);
}

INSTANTIATE_TEST_SUITE_P(All, Faulty,
                         ::testing::Combine(::testing::ValuesIn(schedule::testing::every_policy()),
                                            ::testing::Range<std::uint64_t>(0, blocks)),
                         [](const auto& tested) {
                           return schedule::testing::test_name(std::get<0>(tested.param)) + "_" +
                                  std::to_string(std::get<1>(tested.param));
                         });

}  // namespace
}  // namespace carillon::simulate
