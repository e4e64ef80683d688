#include <algorithm>
#include <deque>
#include <numeric>

#include "carillon/provision/single_type.h"
#include "carillon/provision/strategies.h"

namespace carillon::provision {
namespace {

using profile::SoloUse;

// A device as Algorithm 1 sees it.
struct Slot {
  std::vector<const Demand*> demands;
  std::vector<std::size_t> workloads;
  std::vector<int> units;
  int used = 0;
};

// Algorithm 2, a unit at a time. `units` are the shares before, with the newcomer's least share last; false
// where the device is too small.
bool alloc_gpus(const DeviceType& type, std::span<const Demand* const> demands, std::vector<int>& units,
                std::vector<SoloUse>& alone) {
  const profile::HardwareCoefficients& hardware = type.hardware.coefficients;
  const auto use = [&](std::size_t i) {
    return profile::solo_use(*demands[i]->model, demands[i]->batch, type.share_pct(units[i]));
  };
  alone.clear();
  for (std::size_t i = 0; i < demands.size(); ++i) alone.push_back(use(i));
  const double increase = profile::schedule_increase_ms(hardware, demands.size());
  double cache = 0, frequency = 1;
  const auto add_up = [&] {
    double demand_w = hardware.idle_power_w;
    cache = 0;
    for (const SoloUse& a : alone) {
      demand_w += a.power_w;
      cache += a.cache_pct;
    }
    frequency = profile::frequency_ratio(hardware, demand_w);
  };
  add_up();
  int used = std::accumulate(units.begin(), units.end(), 0);
  for (bool flag = true; used <= type.units() && flag;) {
    flag = false;
    for (std::size_t i = 0; i < demands.size(); ++i) {
      const Demand& d = *demands[i];
      if (profile::latency_ms(*d.model, d.transfers_ms, alone[i].active_ms, cache - alone[i].cache_pct,
                              increase, frequency) <= d.limit_ms)
        continue;
      ++units[i];
      ++used;
      alone[i] = use(i);
      add_up();
      flag = true;
    }
  }
  return used <= type.units();
}

}  // namespace

Plan plan_igniter(std::span<const Workload> workloads, std::span<const DeviceType> types) {
  return cheapest_single_type(workloads, types, [&](std::size_t index) {
    const DeviceType& type = types[index];
    Plan plan;
    const auto demands = theorem1_demands(workloads, types, index, plan);
    std::deque<Slot> slots(1);
    // Those that may have room for the least share there is, in the order in which they were opened.
    std::vector<Slot*> open{&slots.front()};
    const int smallest = demands.empty() ? 0 : demands.back().second.least_units;
    std::vector<const Demand*> trial;
    std::vector<int> units, best_units;
    std::vector<SoloUse> alone;
    for (const auto& [w, demand] : demands) {
      // The growth counts the newcomer's own share, which is the same everywhere.
      int least = type.units() + 1;
      Slot* best = nullptr;
      for (Slot* candidate : open) {
        Slot& slot = *candidate;
        if (slot.used + demand.least_units > type.units()) continue;  // Algorithm 2 would end at once
        trial = slot.demands;
        trial.push_back(&demand);
        units = slot.units;
        units.push_back(demand.least_units);
        if (!alloc_gpus(type, trial, units, alone)) continue;
        const int growth = std::accumulate(units.begin(), units.end(), 0) - slot.used;
        if (growth >= least) continue;
        least = growth;
        best = &slot;
        best_units = units;
      }
      if (best == nullptr) {
        best = &slots.emplace_back();
        open.push_back(best);
        best_units = {demand.least_units};
      }
      best->demands.push_back(&demand);
      best->workloads.push_back(w);
      best->units = best_units;
      best->used = std::accumulate(best_units.begin(), best_units.end(), 0);
      if (best->used + smallest > type.units()) std::erase(open, best);
    }
    for (const Slot& slot : slots) {
      if (slot.demands.empty()) continue;
      PlannedDevice device{
          .number = static_cast<int>(plan.devices.size()) + 1, .type = index, .placements = {}};
      for (std::size_t i = 0; i < slot.demands.size(); ++i)
        device.placements.push_back({.workload = slot.workloads[i],
                                     .units = slot.units[i],
                                     .batch = slot.demands[i]->batch,
                                     .rate_rps = workloads[slot.workloads[i]].rate_rps});
      plan.devices.push_back(std::move(device));
    }
    return plan;
  });
}

}  // namespace carillon::provision
