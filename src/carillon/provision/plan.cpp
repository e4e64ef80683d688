#include "carillon/provision/plan.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace carillon::provision {
namespace {

constexpr double rounding = 1e-9;

// Rounded so that what is said still holds.
double up(double value) {
  return std::ceil(value * 1000) / 1000;
}
double down(double value) {
  return std::floor(value * 1000) / 1000;
}

}  // namespace

int PlannedDevice::units() const {
  int sum = 0;
  for (const Placement& p : placements) sum += p.units;
  return sum;
}

double cost_usd_per_hour(const Plan& plan, std::span<const DeviceType> types) {
  double cost = 0;
  for (std::size_t t = 0; t < types.size(); ++t) {
    const auto devices =
        std::count_if(plan.devices.begin(), plan.devices.end(), [&](const auto& d) { return d.type == t; });
    cost += static_cast<double>(devices) * types[t].hardware.price_usd_per_hour;
  }
  return cost;
}

std::vector<Forecast> forecast(const PlannedDevice& device, std::span<const Workload> workloads,
                               std::span<const DeviceType> types) {
  const DeviceType& type = types[device.type];
  std::vector<profile::Resident> residents;
  for (const Placement& p : device.placements)
    residents.push_back({.model = type.find(workloads[p.workload].model),
                         .batch = p.batch,
                         .share_pct = type.share_pct(p.units)});
  const bool full = device.units() > type.units();
  const auto predictions = profile::predict(type.hardware.coefficients, residents);
  std::vector<Forecast> forecasts;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    Forecast f{.latency_ms = predictions[i].latency_ms, .throughput_rps = predictions[i].throughput_rps};
    const Placement& p = device.placements[i];
    const bool late = p.expected ? !p.expected->kept
                                 : !(f.latency_ms <= workloads[p.workload].half_slo_ms() * (1 + rounding));
    f.violated = full || late || !(f.throughput_rps >= p.rate_rps * (1 - rounding));
    forecasts.push_back(f);
  }
  return forecasts;
}

std::size_t predicted_violations(const Plan& plan, std::span<const Workload> workloads,
                                 std::span<const DeviceType> types) {
  std::set<std::size_t> violated;
  for (const PlannedDevice& device : plan.devices) {
    const auto forecasts = forecast(device, workloads, types);
    for (std::size_t i = 0; i < forecasts.size(); ++i)
      if (forecasts[i].violated) violated.insert(device.placements[i].workload);
  }
  return violated.size();
}

std::map<std::size_t, double> expected_on_time(const Plan& plan) {
  std::map<std::size_t, double> late, rate;
  for (const PlannedDevice& device : plan.devices)
    for (const Placement& p : device.placements) {
      if (!p.expected) continue;
      late[p.workload] += p.rate_rps * (1 - p.expected->on_time);
      rate[p.workload] += p.rate_rps;
    }
  std::map<std::size_t, double> on_time;
  for (const auto& [w, sum] : rate) on_time[w] = 1 - late.at(w) / sum;
  return on_time;
}

Infeasible explain(std::size_t index, const Workload& workload, std::span<const DeviceType> types,
                   bool may_split) {
  Infeasible found{.workload = index};
  bool known = false;
  double rate = 0;
  for (const DeviceType& type : types) {
    const profile::ModelCoefficients* model = type.find(workload.model);
    if (model == nullptr) continue;
    known = true;
    rate = std::max(rate, largest_rate(type, workload));
    const auto slo =
        may_split ? std::optional(smallest_slo(type, *model)) : smallest_slo_at_rate(type, workload);
    if (slo && std::isfinite(*slo) && (!found.smallest_slo_ms || *slo < *found.smallest_slo_ms))
      found.smallest_slo_ms = slo;
  }
  if (found.smallest_slo_ms) found.smallest_slo_ms = up(*found.smallest_slo_ms);
  if (!known)
    found.reason = "no type of device has coefficients of this model";
  else if (rate <= 0)
    found.reason = "not even a single request on a whole device takes at most half the SLO";
  else if (rate < workload.rate_rps)
    found.reason = "one device does not keep up with the rate within the SLO";
  else
    return {.workload = index,
            .reason = "the batch of Theorem 1 needs more than a whole device; --strategy best takes another",
            .smallest_slo_ms = {},
            .largest_rate_rps = {}};
  if (known) found.largest_rate_rps = down(rate);
  return found;
}

}  // namespace carillon::provision
