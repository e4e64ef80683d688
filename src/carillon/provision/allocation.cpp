#include "carillon/provision/allocation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace carillon::provision {
namespace {

using profile::SoloUse;

// The least share, in units and above `units`, with which the demand meets its limit if nothing else changes.
// Where its own growth makes the device slower it is too small; the next sweep sees that.
int wanted_units(const DeviceType& type, const Demand& demand, int units, double others_cache,
                 double increase, double frequency) {
  const profile::ModelCoefficients& model = *demand.model;
  const double gpu = (demand.limit_ms - demand.transfers_ms) * frequency;
  const double active =
      (gpu - model.schedule_ms - increase * model.kernels) / (1 + model.alpha_cache * others_cache);
  const double room = active - model.k5;
  if (!(room > 0)) return type.units() + 1;
  const double b = demand.batch;
  const double gamma = model.k1 * b * b + model.k2 * b + model.k3;
  const double share = gamma / room - model.k4;
  // One less than it says: rounding must not take more than is needed, and the sweep checks in any case.
  const double wanted = std::floor(share / type.hardware.coefficients.share_unit_pct);
  return std::max(units + 1, static_cast<int>(std::min(wanted, static_cast<double>(type.units()) + 1)));
}

}  // namespace

void Sharing::add(const Demand& demand) {
  demands.push_back(&demand);
  units.push_back(demand.least_units);
  alone.push_back(demand.least_use);
}

int Sharing::used() const {
  return std::accumulate(units.begin(), units.end(), 0);
}

bool raise_allocation(const DeviceType& type, Sharing& sharing) {
  const profile::HardwareCoefficients& hardware = type.hardware.coefficients;
  const std::size_t count = sharing.demands.size();
  const int room = type.units();
  int used = sharing.used();
  if (used > room) return false;
  const double increase = profile::schedule_increase_ms(hardware, count);
  for (bool raised = true; raised;) {
    raised = false;
    double demand_w = hardware.idle_power_w, cache = 0;
    for (const SoloUse& alone : sharing.alone) {
      demand_w += alone.power_w;
      cache += alone.cache_pct;
    }
    const double frequency = profile::frequency_ratio(hardware, demand_w);
    for (std::size_t i = 0; i < count; ++i) {
      const Demand& demand = *sharing.demands[i];
      SoloUse& alone = sharing.alone[i];
      int& units = sharing.units[i];
      const double others = cache - alone.cache_pct;
      if (profile::latency_ms(*demand.model, demand.transfers_ms, alone.active_ms, others, increase,
                              frequency) <= demand.limit_ms)
        continue;
      const int wanted = wanted_units(type, demand, units, others, increase, frequency);
      used += wanted - units;
      units = wanted;
      if (used > room) return false;
      // The sums are brought up to date with the next sweep: they only grow, so nothing is raised too far.
      alone = profile::solo_use(*demand.model, demand.batch, type.share_pct(units));
      raised = true;
    }
  }
  return true;
}

bool least_allocation(const DeviceType& type, std::span<const Demand* const> demands,
                      std::vector<int>& units) {
  Sharing sharing;
  for (const Demand* demand : demands) sharing.add(*demand);
  if (!raise_allocation(type, sharing)) return false;
  units = std::move(sharing.units);
  return true;
}

}  // namespace carillon::provision
