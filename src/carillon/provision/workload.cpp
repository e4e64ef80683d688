#include "carillon/provision/workload.h"

#include <algorithm>
#include <cmath>

#include "carillon/provision/allocation.h"

namespace carillon::provision {
namespace {

constexpr int most_units = 1'000'000;

// A batch alone on a whole device.
struct Whole {
  double full_speed_ms = 0;  // latency at full frequency: grows with the batch
  double latency_ms = 0;     // with the power cap
  double throughput_rps = 0;
};

Whole whole_device(const DeviceType& type, const profile::ModelCoefficients& model, int batch) {
  const auto& hardware = type.hardware.coefficients;
  const profile::SoloUse use = profile::solo_use(model, batch, type.share_pct(type.units()));
  const double frequency = profile::frequency_ratio(hardware, hardware.idle_power_w + use.power_w);
  const double load = profile::load_ms(hardware, model, batch);
  const double transfers = load + profile::feedback_ms(hardware, model, batch);
  Whole whole;
  whole.full_speed_ms = profile::latency_ms(model, transfers, use.active_ms, 0, 0, 1);
  whole.latency_ms = profile::latency_ms(model, transfers, use.active_ms, 0, 0, frequency);
  whole.throughput_rps = 1000.0 * batch / (whole.latency_ms - load);
  return whole;
}

}  // namespace

int DeviceType::units() const {
  const auto& c = hardware.coefficients;
  return std::max(1, static_cast<int>(std::floor(c.max_share_pct / c.share_unit_pct + 1e-9)));
}

const profile::ModelCoefficients* DeviceType::find(const std::string& model) const {
  const auto found = models.models.find(model);
  return found == models.models.end() ? nullptr : &found->second;
}

double appropriate_batch(const DeviceType& type, const profile::ModelCoefficients& model, double slo_ms,
                         double rate_rps) {
  const double pcie = type.hardware.coefficients.pcie_bytes_per_ms;
  const double rate = rate_rps / 1000;
  return std::max(1.0, std::ceil(slo_ms * rate * pcie / (2 * (pcie + rate * model.load_bytes))));
}

std::optional<int> lower_bound_units(const DeviceType& type, const profile::ModelCoefficients& model,
                                     int batch, double limit_ms) {
  const auto& hardware = type.hardware.coefficients;
  if (batch > profile::largest_batch(model)) return std::nullopt;
  const double b = batch;
  const double gamma = model.k1 * b * b + model.k2 * b + model.k3;
  const double delta = limit_ms - (model.load_bytes + model.feedback_bytes) * b / hardware.pcie_bytes_per_ms -
                       model.k5 - model.schedule_ms;
  if (delta <= 0) return std::nullopt;
  const double units =
      std::ceil(gamma / (delta * hardware.share_unit_pct) - model.k4 / hardware.share_unit_pct);
  return static_cast<int>(std::clamp(units, 0.0, static_cast<double>(most_units)));
}

std::optional<Demand> theorem1(const DeviceType& type, const Workload& workload) {
  const profile::ModelCoefficients* model = type.find(workload.model);
  if (model == nullptr) return std::nullopt;
  const double batch = appropriate_batch(type, *model, workload.slo_ms, workload.rate_rps);
  if (batch > profile::largest_batch(*model)) return std::nullopt;
  Demand demand{.model = model, .batch = static_cast<int>(batch), .limit_ms = workload.half_slo_ms()};
  const auto units = lower_bound_units(type, *model, demand.batch, demand.limit_ms);
  if (!units || *units > type.units()) return std::nullopt;
  demand.least_units = *units;
  demand.transfers_ms = profile::load_ms(type.hardware.coefficients, *model, demand.batch) +
                        profile::feedback_ms(type.hardware.coefficients, *model, demand.batch);
  demand.least_use = profile::solo_use(*model, demand.batch, type.share_pct(demand.least_units));
  return demand;
}

std::optional<Demand> cheapest_demand(const DeviceType& type, const Workload& workload, double rate_rps) {
  const profile::ModelCoefficients* model = type.find(workload.model);
  if (model == nullptr) return std::nullopt;
  const auto& hardware = type.hardware.coefficients;
  const int largest = static_cast<int>(std::min<double>(
      appropriate_batch(type, *model, workload.slo_ms, rate_rps), profile::largest_known_batch(*model)));
  std::optional<Demand> best;
  std::vector<int> units;
  for (int batch = largest; batch >= 1; --batch) {
    const double load = profile::load_ms(hardware, *model, batch);
    Demand demand{.model = model, .batch = batch};
    demand.limit_ms = std::min(workload.half_slo_ms(), load + 1000.0 * batch / rate_rps);
    demand.transfers_ms = load + profile::feedback_ms(hardware, *model, batch);
    const auto lower = lower_bound_units(type, *model, batch, demand.limit_ms);
    if (!lower || *lower > type.units() || (best && *lower > best->least_units)) continue;
    demand.least_units = std::max(1, *lower);
    demand.least_use = profile::solo_use(*model, batch, type.share_pct(demand.least_units));
    const Demand* alone = &demand;
    if (!least_allocation(type, {&alone, 1}, units)) continue;
    demand.least_units = units.front();
    demand.least_use = profile::solo_use(*model, batch, type.share_pct(demand.least_units));
    if (best &&
        (demand.least_units > best->least_units ||
         (demand.least_units == best->least_units && demand.least_use.power_w >= best->least_use.power_w)))
      continue;
    best = demand;
  }
  return best;
}

double largest_rate(const DeviceType& type, const Workload& workload) {
  const profile::ModelCoefficients* model = type.find(workload.model);
  if (model == nullptr) return 0;
  double rate = 0;
  const int largest = profile::largest_known_batch(*model);
  for (int batch = 1; batch <= largest; ++batch) {
    const Whole whole = whole_device(type, *model, batch);
    if (whole.full_speed_ms > workload.half_slo_ms()) break;
    if (whole.latency_ms <= workload.half_slo_ms()) rate = std::max(rate, whole.throughput_rps);
  }
  return rate;
}

double smallest_slo(const DeviceType& type, const profile::ModelCoefficients& model) {
  return 2 * whole_device(type, model, 1).latency_ms;
}

std::optional<double> smallest_slo_at_rate(const DeviceType& type, const Workload& workload) {
  const profile::ModelCoefficients* model = type.find(workload.model);
  if (model == nullptr) return std::nullopt;
  std::optional<double> smallest;
  const int largest = profile::largest_known_batch(*model);
  for (int batch = 1; batch <= largest; ++batch) {
    const Whole whole = whole_device(type, *model, batch);
    if (smallest && 2 * whole.full_speed_ms >= *smallest) break;
    if (whole.throughput_rps >= workload.rate_rps && std::isfinite(whole.latency_ms) &&
        (!smallest || 2 * whole.latency_ms < *smallest))
      smallest = 2 * whole.latency_ms;
  }
  return smallest;
}

}  // namespace carillon::provision
