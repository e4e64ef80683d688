#include "carillon/simulate/plan_simulation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "carillon/base/random.h"
#include "carillon/base/statistics.h"

namespace carillon::simulate {
namespace {

using nlohmann::ordered_json;
using provision::DeviceType;
using provision::Placement;
using provision::PlannedDevice;
using provision::Workload;

constexpr double most_requests = 20e6;
constexpr double standby_pct = 10;
// A batch of more than 30 years has no end: far from the ends of the timeline.
constexpr double endless_ms = 1e12;

// A plan's part with what its batches take, by size.
class Part {
 public:
  Part(const PlannedDevice& device, std::size_t place, std::span<const Workload> workloads,
       std::span<const DeviceType> types)
      : type_(types[device.type]), place_(place) {
    for (const Placement& p : device.placements)
      residents_.push_back({.model = type_.find(workloads[p.workload].model),
                            .batch = p.batch,
                            .share_pct = type_.share_pct(p.units)});
    batch_ = residents_[place].batch;
    by_size_.resize(static_cast<std::size_t>(batch_) + 1);
  }

  int batch() const { return batch_; }
  const profile::Prediction& of(int size) {
    auto& prediction = by_size_[static_cast<std::size_t>(size)];
    if (!prediction) {
      residents_[place_].batch = size;
      prediction = profile::predict(type_.hardware.coefficients, residents_)[place_];
    }
    return *prediction;
  }

 private:
  const DeviceType& type_;
  std::size_t place_;
  std::vector<profile::Resident> residents_;
  int batch_ = 1;
  std::vector<std::optional<profile::Prediction>> by_size_;
};

// What came of a workload's parts.
struct Tally {
  std::vector<Duration> latencies;
  std::uint64_t answered = 0;  // within the span
  std::uint64_t batches = 0;
  bool slow = false;
};

// Log-normal of mean 1.
double factor(Random& random, double deviation) {
  if (deviation <= 0) return 1;
  const double variance = std::log1p(deviation * deviation);
  return std::exp(std::sqrt(variance) * random.normal() - variance / 2);
}

void run_part(Part part, double rate_rps, Duration slo, const PlanSimulationOptions& options, Random random,
              Tally& tally) {
  const TimePoint end = TimePoint{} + options.span;
  const bool constant = options.arrivals == workload::ArrivalKind::uniform;
  workload::ArrivalProcess gaps({.kind = options.arrivals, .shape = options.shape}, rate_rps * options.load,
                                random.bits());
  const double phase = constant ? random.uniform() : 0;
  // Between 0 and one gap.
  TimePoint next = saturating_add(TimePoint{}, gaps.next_gap());
  if (constant) next = TimePoint{from_ns(phase * static_cast<double>(next.time_since_epoch().count()))};

  const double error = factor(random, options.error);
  const auto size_limit = static_cast<std::size_t>(part.batch());
  const Duration whole_load = from_ms(std::min(endless_ms, part.of(part.batch()).load_ms));
  // Of bursts that come just before the end the rest may be answered after it, in time.
  const TimePoint judged_until = constant ? end : end - std::min(slo, options.span);
  std::uint64_t judged = 0, judged_answered = 0;
  std::deque<TimePoint> waiting;
  TimePoint started{}, free{};
  std::uint64_t answered = 0;
  const auto arrive = [&] {
    waiting.push_back(next);
    next = saturating_add(next, gaps.next_gap());
  };
  while (true) {
    if (waiting.empty()) arrive();
    if (waiting.front() >= end) break;
    if (options.batching == PlanBatching::full)
      while (waiting.size() < size_limit) arrive();
    const TimePoint ready = options.batching == PlanBatching::full ? waiting.back() : waiting.front();
    const TimePoint formed = std::max({ready, started, saturating_add(free, -whole_load)});
    while (waiting.size() < size_limit && next <= formed) arrive();

    const auto size = static_cast<int>(waiting.size());
    const profile::Prediction& takes = part.of(size);
    const double noise = error * factor(random, options.noise);
    const double busy_ms = (takes.gpu_ms + takes.feedback_ms) * noise;
    if (busy_ms < endless_ms && free < TimePoint::max()) {
      started = std::max(free, saturating_add(formed, from_ms(std::min(endless_ms, takes.load_ms * noise))));
      free = saturating_add(started, from_ms(busy_ms));
    } else {
      free = TimePoint::max();
    }
    ++tally.batches;
    for (const TimePoint arrived : waiting) {
      if (arrived >= end) continue;
      tally.latencies.push_back(free == TimePoint::max() ? Duration::max() : free - arrived);
      if (free <= end) ++answered;
      if (arrived >= judged_until) continue;
      ++judged;
      if (free <= end) ++judged_answered;
    }
    waiting.clear();
  }
  tally.answered += answered;
  // At either end of the span a batch may be filling and another running.
  tally.slow = tally.slow || judged_answered + 2 * size_limit < judged;
}

struct WorkloadPlace {
  const PlannedDevice* device = nullptr;
  std::size_t at = 0;
};

Random random_of(std::uint64_t seed, std::size_t part) {
  // A part's stream depends on nothing but the seed and its place in the plan.
  return Random(seed + 0x9e3779b97f4a7c15U * (part + 1));
}

SimulatedWorkload measure(std::size_t workload,
                          const std::vector<std::pair<WorkloadPlace, std::size_t>>& parts,
                          std::span<const Workload> workloads, std::span<const DeviceType> types,
                          const PlanSimulationOptions& options) {
  Tally tally;
  const Duration slo = from_ms(workloads[workload].slo_ms);
  for (const auto& [place, number] : parts)
    run_part(Part(*place.device, place.at, workloads, types), place.device->placements[place.at].rate_rps,
             slo, options, random_of(options.seed, number), tally);
  SimulatedWorkload w{.workload = workload, .requests = tally.latencies.size(), .slow = tally.slow};
  w.on_time = static_cast<std::uint64_t>(
      std::count_if(tally.latencies.begin(), tally.latencies.end(), [&](Duration l) { return l <= slo; }));
  w.p50 = percentile(tally.latencies, 0.50);
  w.p99 = percentile(tally.latencies, 0.99);
  w.late = percentile(tally.latencies, options.percentile) > slo;
  w.offered_rps = static_cast<double>(w.requests) / to_seconds(options.span);
  w.achieved_rps = static_cast<double>(tally.answered) / to_seconds(options.span);
  if (tally.batches > 0) w.mean_batch = static_cast<double>(w.requests) / static_cast<double>(tally.batches);
  return w;
}

Result<void> check(const provision::Plan& plan, const PlanSimulationOptions& options) {
  if (options.span <= Duration{0}) return invalid("the simulated time should be above 0 s");
  for (const auto& [name, value] :
       {std::pair{"noise", options.noise}, {"error", options.error}, std::pair{"error", options.error}})
    if (!(value >= 0 && value <= 1))
      return invalid(fmt::format("the {} is {:g}, but should be in 0..1", name, value));
  if (options.arrivals == workload::ArrivalKind::closed)
    return invalid("arrivals should be constant, Poisson or Gamma");
  if (!(options.shape >= 1e-3 && options.shape <= 1e6))
    return invalid(fmt::format("the shape is {:g}, but should be in 0.001..1000000", options.shape));
  if (!(options.load >= 0.01 && options.load <= 1))
    return invalid(fmt::format("the load is {:g}, but should be in 0.01..1", options.load));
  if (!(options.percentile >= 0.5 && options.percentile < 1))
    return invalid(fmt::format("the percentile is {:g}, but should be in 0.5..1", options.percentile));
  double requests = 0;
  for (const PlannedDevice& device : plan.devices)
    for (const Placement& p : device.placements)
      requests += p.rate_rps * options.load * to_seconds(options.span);
  if (requests > most_requests)
    return invalid(
        fmt::format("{:g} s of the plan are {:.3g} requests, but can be at most {:.3g}: simulate "
                    "{:.3g} s or less",
                    to_seconds(options.span), requests, most_requests,
                    to_seconds(options.span) * most_requests / requests));
  return {};
}

}  // namespace

Result<PlanSimulation> simulate_plan(const provision::Plan& plan, std::span<const Workload> workloads,
                                     std::span<const DeviceType> types,
                                     const PlanSimulationOptions& options) {
  if (const auto checked = check(plan, options); !checked) return std::unexpected(checked.error());
  std::vector<PlannedDevice> devices = plan.devices;
  std::vector<std::vector<std::pair<WorkloadPlace, std::size_t>>> parts(workloads.size());
  std::size_t number = 0;
  for (const PlannedDevice& device : devices)
    for (std::size_t i = 0; i < device.placements.size(); ++i)
      parts[device.placements[i].workload].push_back({{&device, i}, number++});

  PlanSimulation simulation;
  for (std::size_t w = 0; w < workloads.size(); ++w)
    if (!parts[w].empty()) simulation.workloads.push_back(measure(w, parts[w], workloads, types, options));
  if (options.standby) {
    for (SimulatedWorkload& w : simulation.workloads) {
      if (!w.violated()) continue;
      w.standby = true;
      for (const auto& [place, part] : parts[w.workload]) {
        auto& device = devices[static_cast<std::size_t>(place.device - devices.data())];
        const DeviceType& type = types[device.type];
        const int more = static_cast<int>(standby_pct / type.share_pct(1) + 1e-9);
        device.placements[place.at].units += std::clamp(type.units() - device.units(), 0, more);
      }
    }
    // Those beside a standby feel it too.
    for (SimulatedWorkload& w : simulation.workloads) {
      const bool standby = w.standby;
      w = measure(w.workload, parts[w.workload], workloads, types, options);
      w.standby = standby;
    }
  }
  for (const SimulatedWorkload& w : simulation.workloads) {
    simulation.requests += w.requests;
    simulation.on_time += w.on_time;
    if (w.violated()) ++simulation.violations;
  }
  return simulation;
}

namespace {

std::string_view name_of(PlanBatching batching) {
  return batching == PlanBatching::full ? "full" : "available";
}
std::string name_of(const PlanSimulationOptions& options) {
  if (options.arrivals == workload::ArrivalKind::uniform) return "constant";
  return workload::to_text({.kind = options.arrivals, .shape = options.shape});
}

ordered_json number(Duration d) {
  return d == Duration::max() ? ordered_json() : ordered_json(to_ms(d));
}

double fraction(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string to_json(const PlanSimulation& simulation, std::span<const Workload> workloads,
                    const PlanSimulationOptions& options) {
  ordered_json document = {{"seconds", to_seconds(options.span)},
                           {"noise", options.noise},
                           {"error", options.error},
                           {"arrivals", name_of(options)},
                           {"batching", name_of(options.batching)},
                           {"standby", options.standby},
                           {"seed", options.seed}};
  ordered_json& list = document["workloads"] = ordered_json::array();
  for (const SimulatedWorkload& w : simulation.workloads) {
    const Workload& wanted = workloads[w.workload];
    list.push_back({{"id", wanted.id},
                    {"model", wanted.model},
                    {"slo_ms", wanted.slo_ms},
                    {"rate_rps", wanted.rate_rps},
                    {"p50_ms", number(w.p50)},
                    {"p99_ms", number(w.p99)},
                    {"achieved_rps", w.achieved_rps},
                    {"mean_batch", w.mean_batch},
                    {"on_time_fraction", fraction(w.on_time, w.requests)},
                    {"late", w.late},
                    {"slow", w.slow},
                    {"standby", w.standby},
                    {"violated", w.violated()}});
  }
  document["requests"] = simulation.requests;
  document["on_time"] = simulation.on_time;
  document["violations"] = simulation.violations;
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

std::string to_table(const PlanSimulation& simulation, std::span<const Workload> workloads,
                     const PlanSimulationOptions& options) {
  std::size_t id_width = 8;
  for (const Workload& w : workloads) id_width = std::min<std::size_t>(32, std::max(id_width, w.id.size()));
  std::string out =
      fmt::format("Simulated for {:g} s, {} arrivals, noise {:g}, error {:g}, batches {}, seed {}:\n",
                  to_seconds(options.span), name_of(options), options.noise, options.error,
                  options.batching == PlanBatching::full ? "when full" : "with what is there", options.seed);
  out += fmt::format("{:<{}}  {:>9}  {:>9}  {:>9}  {:>10}  {:>10}  {:>10}\n", "workload", id_width, "p50 ms",
                     "p99 ms", "SLO ms", "requests/s", "of rate", "mean batch");
  const auto ms = [](Duration d) {
    return d == Duration::max() ? std::string("never") : fmt::format("{:.2f}", to_ms(d));
  };
  for (const SimulatedWorkload& w : simulation.workloads) {
    const Workload& wanted = workloads[w.workload];
    out += fmt::format("{:<{}}  {:>9}  {:>9}  {:>9g}  {:>10.1f}  {:>10.1f}  {:>10.2f}{}{}{}\n", wanted.id,
                       id_width, ms(w.p50), ms(w.p99), wanted.slo_ms, w.achieved_rps, w.offered_rps,
                       w.mean_batch, w.late ? "  late" : "", w.slow ? "  slow" : "",
                       w.standby ? "  (standby)" : "");
  }
  out += fmt::format("{} of {} workloads violated; {:.3f}% of {} requests on time\n", simulation.violations,
                     simulation.workloads.size(), 100 * fraction(simulation.on_time, simulation.requests),
                     simulation.requests);
  return out;
}

}  // namespace carillon::simulate
