#include "carillon/simulate/testing/fault_case.h"

#include <algorithm>
#include <string>
#include <utility>

#include "carillon/base/random.h"

namespace carillon::simulate::testing {

FaultCase fault_case(std::uint64_t seed) {
  Random random(seed * 0x9e3779b97f4a7c15ULL + 1);
  const auto some = [&](double most) { return random.below(3) == 0 ? most * random.uniform() : 0; };
  FaultCase c;
  auto& s = c.scenario;
  s.name = "faults";
  s.seed = seed;
  s.duration = 2s;
  s.devices = static_cast<int>(1 + random.below(4));
  s.network_delay = Duration{static_cast<std::int64_t>(random.below(3) * 200'000)};
  if (seed % 4 == 0) s.fetch = 2 * s.network_delay;
  if (seed % 5 == 0) {  // what scenarios plan
    using Kind = workload::DeviceFault::Kind;
    for (int i = 0; i < s.devices; ++i) s.speeds.push_back(0.5 + 2 * random.uniform());
    for (const Kind kind : {Kind::dies, Kind::hangs, Kind::slow})
      if (random.below(2) == 0)
        s.faults.push_back({.kind = kind,
                            .device = static_cast<int>(random.below(static_cast<std::uint64_t>(s.devices))),
                            .at = from_ms(1500 * random.uniform()),
                            .length = from_ms(500 * random.uniform()),
                            .factor = kind == Kind::slow ? 1 + 3 * random.uniform() : 1});
    std::ranges::stable_sort(s.faults, {}, &workload::DeviceFault::at);
  }
  const auto models = static_cast<int>(1 + random.below(8));
  if (random.below(2) == 0) s.memory = mib(16 * (4 + random.below(12)));
  double capacity = 0;
  for (int i = 0; i < models; ++i) {
    workload::ScenarioModel m{.name = std::string("m").append(std::to_string(i))};
    m.latency.linear = true;
    m.latency.alpha = from_ms(0.1 + 3 * random.uniform());
    m.latency.beta = from_ms(0.1 + 10 * random.uniform());
    if (seed % 5 == 0 && random.below(2) == 0) m.outliers = {.share = 0.02, .factor = 10};
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

FaultCase class_case(std::uint64_t seed) {
  FaultCase c = fault_case(seed);
  Random random(seed * 0xd1342543de82ef95ULL + 1);
  for (workload::ScenarioModel& m : c.scenario.models) {
    m.cls = static_cast<Class>(random.below(3));
    if (m.cls == Class::normal) continue;
    if (random.below(3) == 0) m.slo = Duration::max();
    if (m.cls == Class::best_effort && random.below(2) == 0)
      m.process = workload::ArrivalSpec{.kind = workload::ArrivalKind::closed,
                                        .clients = 1 + static_cast<int>(random.below(6))};
    if (m.cls == Class::real_time && random.below(2) == 0) m.rate = {{0ms, 5 + 100 * random.uniform()}};
  }
  // There is some class beside normal in any case.
  c.scenario.models.front().cls = random.below(2) == 0 ? Class::real_time : Class::best_effort;
  return c;
}

}  // namespace carillon::simulate::testing
