#include <algorithm>
#include <array>
#include <cmath>

#include "carillon/provision/single_type.h"
#include "carillon/provision/strategies.h"

namespace carillon::provision {
namespace {

PlannedDevice& open_device(Plan& plan, std::size_t type) {
  return plan.devices.emplace_back(
      PlannedDevice{.number = static_cast<int>(plan.devices.size()) + 1, .type = type, .placements = {}});
}

// gpu-lets+: the shares that it knows, in percent, and the batches that are profiled for it.
constexpr std::array choices_pct = {20.0, 40.0, 50.0, 60.0, 80.0};
constexpr int profiled_batches = 32;

struct GpuLet {
  std::size_t workload = 0;
  int units = 0;
  int batch = 1;
};

// The most requests a second that the share serves within the SLO alone.
double rate_of_share(const DeviceType& type, const Workload& workload, int units) {
  const profile::ModelCoefficients& model = *type.find(workload.model);
  double best = 0;
  for (int batch = 1; batch <= std::min(profiled_batches, profile::largest_batch(model)); ++batch) {
    const profile::Resident alone{.model = &model, .batch = batch, .share_pct = type.share_pct(units)};
    const auto p = profile::predict(type.hardware.coefficients, {&alone, 1}).front();
    if (p.load_ms + p.schedule_ms + p.active_ms + p.feedback_ms > workload.half_slo_ms()) break;
    if (p.latency_ms <= workload.half_slo_ms()) best = std::max(best, p.throughput_rps);
  }
  return best;
}

// Share and batch, from what the workload does alone.
GpuLet gpulet_of(const DeviceType& type, const Workload& workload, std::size_t index) {
  GpuLet chosen{.workload = index};
  int efficient = 0, required = 0;
  double efficiency = 0;
  for (const double percent : choices_pct) {
    const int units = std::clamp(static_cast<int>(percent / type.share_pct(1) + 1e-9), 1, type.units());
    const double rate = rate_of_share(type, workload, units);
    if (rate / units > efficiency) {
      efficiency = rate / units;
      efficient = units;
    }
    if (required == 0 && rate >= workload.rate_rps) required = units;
    chosen.units = units;  // the largest, where no choice will do
  }
  if (required > 0) chosen.units = std::max(efficient, required);
  // The smallest batch that keeps up; where none does, the one with the most requests a second within the
  // SLO.
  const profile::ModelCoefficients& model = *type.find(workload.model);
  double best = 0;
  for (int batch = 1; batch <= std::min(profiled_batches, profile::largest_batch(model)); ++batch) {
    const profile::Resident alone{.model = &model, .batch = batch, .share_pct = type.share_pct(chosen.units)};
    const auto p = profile::predict(type.hardware.coefficients, {&alone, 1}).front();
    if (batch > 1 && p.latency_ms > workload.half_slo_ms()) break;
    if (p.throughput_rps <= best) continue;
    best = p.throughput_rps;
    chosen.batch = batch;
    if (best >= workload.rate_rps) break;
  }
  return chosen;
}

}  // namespace

Plan plan_ffd(std::span<const Workload> workloads, std::span<const DeviceType> types) {
  return cheapest_single_type(workloads, types, [&](std::size_t index) {
    Plan plan;
    std::vector<int> used;
    for (const auto& [w, demand] : theorem1_demands(workloads, types, index, plan)) {
      const int units = demand.least_units;
      const auto first =
          std::find_if(used.begin(), used.end(), [&](int u) { return u + units <= types[index].units(); });
      const auto at = static_cast<std::size_t>(first - used.begin());
      if (first == used.end()) {
        used.push_back(0);
        open_device(plan, index);
      }
      used[at] += units;
      plan.devices[at].placements.push_back(
          {.workload = w, .units = units, .batch = demand.batch, .rate_rps = workloads[w].rate_rps});
    }
    return plan;
  });
}

Plan plan_gpulets(std::span<const Workload> workloads, std::span<const DeviceType> types) {
  return cheapest_single_type(workloads, types, [&](std::size_t index) {
    const DeviceType& type = types[index];
    Plan plan;
    std::vector<GpuLet> lets;
    for (std::size_t w = 0; w < workloads.size(); ++w) {
      if (type.find(workloads[w].model) != nullptr && largest_rate(type, workloads[w]) > 0)
        lets.push_back(gpulet_of(type, workloads[w], w));
      else
        plan.infeasible.push_back({.workload = w});
    }
    std::stable_sort(lets.begin(), lets.end(), [&](const GpuLet& a, const GpuLet& b) {
      return workloads[a.workload].rate_rps > workloads[b.workload].rate_rps;
    });
    for (const GpuLet& let : lets) {
      const Workload& workload = workloads[let.workload];
      const Placement placement{
          .workload = let.workload, .units = let.units, .batch = let.batch, .rate_rps = workload.rate_rps};
      PlannedDevice* best = nullptr;
      for (PlannedDevice& device : plan.devices) {
        if (device.placements.size() >= 2 || device.units() + let.units > type.units()) continue;
        if (best != nullptr && device.units() <= best->units()) continue;
        PlannedDevice pair = device;
        pair.placements.push_back(placement);
        if (forecast(pair, workloads, types).back().latency_ms > workload.half_slo_ms()) continue;
        best = &device;
      }
      if (best == nullptr) best = &open_device(plan, index);
      best->placements.push_back(placement);
    }
    return plan;
  });
}

Plan plan_gslice(std::span<const Workload> workloads, std::span<const DeviceType> types) {
  Plan plan = plan_igniter(workloads, types);
  constexpr int adjustments = 5;
  constexpr double threshold = 0.1;
  for (PlannedDevice& device : plan.devices) {
    const DeviceType& type = types[device.type];
    for (Placement& p : device.placements)
      p.units = std::max(1, type.units() / static_cast<int>(device.placements.size()));
    for (int round = 0; round < adjustments; ++round) {
      const auto seen = forecast(device, workloads, types);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        Placement& p = device.placements[i];
        const double ratio = seen[i].latency_ms / workloads[p.workload].half_slo_ms();
        const double speed = seen[i].throughput_rps / p.rate_rps;
        // What it sees of the others is their effect on itself: it takes the ratio for a matter of its own
        // share.
        double scale = 1;
        if (ratio > 1 || speed < 1)
          scale = std::max(ratio, 1 / speed);
        else if (ratio < 1 - threshold)
          scale = ratio;
        if (!std::isfinite(scale)) scale = 2;
        p.units = static_cast<int>(
            std::clamp(std::ceil(p.units * scale - 1e-9), 1.0, static_cast<double>(type.units())));
      }
    }
  }
  return plan;
}

}  // namespace carillon::provision
