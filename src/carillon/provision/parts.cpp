#include "carillon/provision/parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "carillon/base/assert.h"
#include "carillon/provision/allocation.h"

namespace carillon::provision {
namespace {

// More devices for one workload than this are a mistake in the input.
constexpr double most_parts = 10'000;

// Demands of a rate on every type; nothing where no type can serve it.
std::optional<Part> part_for(std::size_t index, const Workload& workload, double rate,
                             std::span<const DeviceType> types, Demands& demands) {
  Part part{.workload = index, .rate_rps = rate, .demands = {}};
  bool any = false;
  for (const DeviceType& type : types) {
    part.demands.push_back(demands.cheapest(type, workload, rate));
    any = any || part.demands.back();
  }
  return any ? std::optional(std::move(part)) : std::nullopt;
}

double share_cost(const Part& part, std::span<const DeviceType> types, std::size_t type) {
  return types[type].hardware.price_usd_per_hour * part.demands[type]->least_units / types[type].units();
}

// The parts of a workload that no single device serves; none where no number of devices would.
std::vector<Part> split_up(std::size_t index, const Workload& workload, std::span<const DeviceType> types,
                           Demands& demands, Split split) {
  double most = 0, cheapest = std::numeric_limits<double>::infinity();
  for (const DeviceType& type : types) {
    // A little below the largest rate, so that rounding leaves it within reach.
    const double rate = demands.largest_rate(type, workload) * (1 - 1e-9);
    if (rate <= 0 || type.hardware.price_usd_per_hour / rate >= cheapest) continue;
    cheapest = type.hardware.price_usd_per_hour / rate;
    most = rate;
  }
  if (most <= 0 || workload.rate_rps / most > most_parts) return {};
  const double count = std::ceil(workload.rate_rps / most);
  std::vector<Part> parts;
  double left = workload.rate_rps;
  const double each = split == Split::equal ? workload.rate_rps / count : most;
  for (double i = count; i > 1; --i, left -= each) {
    auto part =
        parts.empty() ? part_for(index, workload, each, types, demands) : std::optional(parts.front());
    if (!part) return {};
    parts.push_back(*std::move(part));
  }
  auto rest = part_for(index, workload, left, types, demands);
  if (!rest) return {};
  parts.push_back(*std::move(rest));
  return parts;
}

}  // namespace

double Part::least_cost(std::span<const DeviceType> types) const {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t t = 0; t < types.size(); ++t)
    if (demands[t]) least = std::min(least, share_cost(*this, types, t));
  return least;
}

std::vector<Part> make_parts(std::span<const Workload> workloads, std::span<const DeviceType> types,
                             Demands& demands, Split split, bool may_split,
                             std::vector<Infeasible>& infeasible, bool& has_split) {
  std::vector<Part> parts;
  has_split = false;
  for (std::size_t w = 0; w < workloads.size(); ++w) {
    const Workload& workload = workloads[w];
    if (auto whole = part_for(w, workload, workload.rate_rps, types, demands)) {
      parts.push_back(*std::move(whole));
      continue;
    }
    std::vector<Part> pieces;
    if (may_split) pieces = split_up(w, workload, types, demands, split);
    if (pieces.empty()) {
      infeasible.push_back(demands.explain(w, workload, types, may_split));
      if (may_split && infeasible.back().largest_rate_rps.value_or(0) > 0) {
        infeasible.back().reason = "its rate would take more than 10,000 devices";
        *infeasible.back().largest_rate_rps *= most_parts;
      }
      continue;
    }
    has_split = true;
    for (Part& piece : pieces) parts.push_back(std::move(piece));
  }
  return parts;
}

bool fit(std::span<const Part> parts, std::span<const std::size_t> chosen, std::span<const DeviceType> types,
         std::size_t type, std::vector<int>& units) {
  std::vector<const Demand*> demands;
  for (const std::size_t p : chosen) {
    if (!parts[p].demands[type]) return false;
    demands.push_back(&*parts[p].demands[type]);
  }
  return least_allocation(types[type], demands, units);
}

void pack_greedily(std::span<const Part> parts, std::span<const DeviceType> types,
                   std::vector<std::size_t> waiting, Rule rule, std::optional<std::size_t> only,
                   std::vector<Packed>& devices) {
  std::vector<double> costs;
  for (const Part& part : parts) costs.push_back(part.least_cost(types));
  std::stable_sort(waiting.begin(), waiting.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  Sharing sharing;
  std::vector<int> best_units;
  // Devices that may have room for the least share that is still to come, by index in the order of opening.
  std::vector<std::size_t> open(devices.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  std::vector<int> smallest(types.size(), std::numeric_limits<int>::max());
  for (const std::size_t p : waiting)
    for (std::size_t t = 0; t < types.size(); ++t)
      if (parts[p].demands[t]) smallest[t] = std::min(smallest[t], parts[p].demands[t]->least_units);
  for (const std::size_t p : waiting) {
    std::optional<std::size_t> best;
    double best_score = std::numeric_limits<double>::infinity();
    for (const std::size_t candidate : open) {
      const Packed& device = devices[candidate];
      const DeviceType& type = types[device.type];
      const auto& demand = parts[p].demands[device.type];
      if (!demand || device.used + demand->least_units > type.units()) continue;
      sharing.demands.clear();
      sharing.units = device.units;
      sharing.alone.clear();
      for (std::size_t i = 0; i < device.parts.size(); ++i) {
        const Demand& there = *parts[device.parts[i]].demands[device.type];
        sharing.demands.push_back(&there);
        sharing.alone.push_back(
            device.units[i] == there.least_units
                ? there.least_use
                : profile::solo_use(*there.model, there.batch, type.share_pct(device.units[i])));
      }
      sharing.add(*demand);
      // What is there already has its least shares, so only the newcomer's effect is to be made good.
      if (!raise_allocation(type, sharing)) continue;
      const int used = sharing.used();
      const double room = type.units();
      const double score = rule == Rule::least_growth
                               ? (used - device.used) * type.hardware.price_usd_per_hour / room
                           : rule == Rule::best_fit ? (room - used) * type.hardware.price_usd_per_hour / room
                                                    : 0;
      if (score >= best_score) continue;
      best = candidate;
      best_score = score;
      best_units = sharing.units;
      if (rule == Rule::first_fit) break;
    }
    if (!best) {
      std::optional<std::size_t> cheapest;
      for (std::size_t t = 0; t < types.size(); ++t) {
        if (!parts[p].demands[t]) continue;
        if (only && *only == t) {
          cheapest = t;
          break;
        }
        if (!cheapest || share_cost(parts[p], types, t) < share_cost(parts[p], types, *cheapest))
          cheapest = t;
      }
      CARILLON_ASSERT(cheapest.has_value());
      best = devices.size();
      open.push_back(*best);
      devices.push_back({.type = *cheapest, .parts = {}, .units = {}});
      best_units = {parts[p].demands[*cheapest]->least_units};
    }
    Packed& chosen = devices[*best];
    chosen.parts.push_back(p);
    chosen.units = best_units;
    chosen.used = std::accumulate(best_units.begin(), best_units.end(), 0);
    if (smallest[chosen.type] > types[chosen.type].units() - chosen.used) std::erase(open, *best);
  }
}

double lower_bound_usd(std::span<const Part> parts, std::span<const DeviceType> types) {
  // A part is alone on its device, or grows by at least what its gentlest companion costs it: shares that
  // Algorithm 2 finds for two are never more than those for more of them.
  constexpr std::size_t most_pairs = 300;
  double sum = 0;
  std::vector<int> units;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < types.size(); ++t) {
      if (!parts[p].demands[t]) continue;
      int share = parts.size() > most_pairs ? parts[p].demands[t]->least_units : types[t].units();
      for (std::size_t q = 0; q < parts.size() && parts.size() <= most_pairs; ++q) {
        if (q == p || !parts[q].demands[t]) continue;
        const std::size_t pair[] = {p, q};
        if (fit(parts, pair, types, t, units)) share = std::min(share, units.front());
        if (share == parts[p].demands[t]->least_units) break;
      }
      least = std::min(least, types[t].hardware.price_usd_per_hour * share / types[t].units());
    }
    sum += least;
  }
  if (types.size() > 1) return sum;
  const double price = types.front().hardware.price_usd_per_hour;
  return price > 0 ? std::ceil(sum / price - 1e-9) * price : 0;
}

}  // namespace carillon::provision
