#include "carillon/provision/window.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "carillon/base/assert.h"
#include "carillon/provision/allocation.h"

namespace carillon::provision {
namespace {

using Set = std::uint32_t;
constexpr double impossible = std::numeric_limits<double>::infinity();
// Of a device's price, for an empty one: breaks ties between equally cheap partitions, and never outweighs a
// cent.
constexpr double roominess = 1e-6;

class Packer {
 public:
  Packer(std::span<const Part> parts, std::span<const std::size_t> chosen, std::span<const DeviceType> types,
         std::span<const std::size_t> homes, const WindowOptions& options)
      : parts_(parts),
        chosen_(chosen.begin(), chosen.end()),
        types_(types),
        homes_(homes),
        options_(options) {
    // The part with the lowest bit is placed first: the largest has the fewest places.
    std::vector<std::pair<double, std::size_t>> order;
    for (const std::size_t p : chosen) order.emplace_back(parts[p].least_cost(types), p);
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t i = 0; i < order.size(); ++i) chosen_[i] = order[i].second;
    for (const DeviceType& type : types) room_.push_back(type.units());
    const std::size_t sets = std::size_t{1} << chosen_.size();
    cost_.assign(sets, impossible);
    price_.assign(sets, impossible);
    type_.assign(sets, 0);
    best_.assign(sets, -1);
    choice_.assign(sets, 0);
    bound_.assign(sets, 0);
    for (Set set = 1; set < sets; ++set)
      bound_[set] = bound_[set & (set - 1)] + order[static_cast<std::size_t>(std::countr_zero(set))].first;
    // Whole devices, where there is but one type.
    const double price = types.front().hardware.price_usd_per_hour;
    for (double& bound : bound_) {
      if (types.size() == 1) bound = price > 0 ? std::ceil(bound / price - 1e-9) * price : 0;
      bound *= 1 - roominess;
    }
    by_lowest_.resize(chosen_.size());
  }

  std::optional<std::vector<Packed>> pack() {
    for (std::size_t t = 0; t < types_.size(); ++t)
      for (std::size_t i = 0; i < chosen_.size(); ++i)
        if (!extend(t, 0, i)) return std::nullopt;
    for (Set set = 1; set < cost_.size(); ++set)
      if (cost_[set] < impossible) by_lowest_[static_cast<std::size_t>(std::countr_zero(set))].push_back(set);
    // Large sets first, where the first good partition is enough.
    if (options_.any_cheapest)
      for (auto& list : by_lowest_)
        std::stable_sort(list.begin(), list.end(),
                         [](Set a, Set b) { return std::popcount(a) > std::popcount(b); });
    const Set all = static_cast<Set>(cost_.size() - 1);
    const double cost = solve(all);
    if (steps_ > options_.most_steps || cost == impossible) return std::nullopt;
    std::vector<Packed> devices;
    for (Set left = all; left != 0; left &= ~choice_[left]) devices.push_back(device_of(choice_[left]));
    return devices;
  }

 private:
  // Notes the set with part `i` more, and all that follow from it. False when there are too many.
  bool extend(std::size_t type, Set set, std::size_t i) {
    if (!parts_[chosen_[i]].demands[type]) return true;
    const Demand& demand = *parts_[chosen_[i]].demands[type];
    const std::size_t count = sharing_.demands.size();
    if (sharing_.used() + demand.least_units > room_[type]) return true;
    if (++steps_ > options_.most_steps) return false;
    std::array<int, largest_window> units;
    std::array<profile::SoloUse, largest_window> alone;
    std::copy(sharing_.units.begin(), sharing_.units.end(), units.begin());
    std::copy(sharing_.alone.begin(), sharing_.alone.end(), alone.begin());
    sharing_.add(demand);
    bool go_on = true;
    if (raise_allocation(types_[type], sharing_)) {
      const Set larger = set | Set{1} << i;
      note(type, larger);
      for (std::size_t next = i + 1; next < chosen_.size() && go_on; ++next)
        go_on = extend(type, larger, next);
    }
    sharing_.demands.pop_back();
    sharing_.units.assign(units.begin(), units.begin() + static_cast<std::ptrdiff_t>(count));
    sharing_.alone.assign(alone.begin(), alone.begin() + static_cast<std::ptrdiff_t>(count));
    return go_on;
  }

  void note(std::size_t type, Set set) {
    const double room = 1 - static_cast<double>(sharing_.used()) / room_[type];
    const double price = types_[type].hardware.price_usd_per_hour;
    const double cost = price * (1 - roominess * room * room) + moves(type, set) * options_.move_cost;
    if (cost >= cost_[set]) return;
    cost_[set] = cost;
    price_[set] = price;
    type_[set] = static_cast<std::uint8_t>(type);
  }

  // Parts that leave their homes if the set stays where most of it is.
  int moves(std::size_t type, Set set) const {
    if (!options_.count_moves) return 0;
    std::array<int, largest_window> home{}, count{};
    std::size_t different = 0;
    int at_home = 0, most = 0;
    for (Set left = set; left != 0; left &= left - 1) {
      const int h = parts_[chosen_[static_cast<std::size_t>(std::countr_zero(left))]].home;
      if (h < 0) continue;
      ++at_home;
      if (homes_[static_cast<std::size_t>(h)] != type) continue;
      std::size_t k = 0;
      while (k < different && home[k] != h) ++k;
      if (k == different) home[different++] = h;
      most = std::max(most, ++count[k]);
    }
    return at_home - most;
  }

  double solve(Set set) {
    if (set == 0) return 0;
    if (best_[set] >= 0) return best_[set];
    double best = impossible;
    for (const Set first : by_lowest_[static_cast<std::size_t>(std::countr_zero(set))]) {
      if (++steps_ > options_.most_steps) return impossible;
      if ((first & ~set) != 0) continue;
      const Set rest = set & ~first;
      if (cost_[first] + bound_[rest] >= best || could_take_more(first, rest)) continue;
      const double cost = cost_[first] + solve(rest);
      if (cost >= best) continue;
      best = cost;
      choice_[set] = first;
      if (options_.any_cheapest && best <= bound_[set] * (1 + 2 * roominess)) break;
    }
    return best_[set] = best;
  }

  // Whether the device would take another of the parts that are left at the same price. Then the set need not
  // be looked at: what is left only gets easier. (Not so where moves count.)
  bool could_take_more(Set set, Set left) const {
    if (options_.count_moves) return false;
    for (; left != 0; left &= left - 1)
      if (price_[set | (left & -left)] <= price_[set]) return true;
    return false;
  }

  // Adds the parts in the order in which the set was found to fit: with coefficients that are not monotone
  // another order might end elsewhere.
  Packed device_of(Set set) const {
    Packed device{.type = type_[set], .parts = {}, .units = {}};
    Sharing sharing;
    for (Set left = set; left != 0; left &= left - 1) {
      device.parts.push_back(chosen_[static_cast<std::size_t>(std::countr_zero(left))]);
      sharing.add(*parts_[device.parts.back()].demands[device.type]);
      const bool fits = raise_allocation(types_[device.type], sharing);
      CARILLON_ASSERT(fits);
    }
    device.units = std::move(sharing.units);
    for (const int u : device.units) device.used += u;
    return device;
  }

  std::span<const Part> parts_;
  std::vector<std::size_t> chosen_;
  std::span<const DeviceType> types_;
  std::span<const std::size_t> homes_;
  const WindowOptions& options_;
  std::uint64_t steps_ = 0;
  std::vector<int> room_;  // units, by type
  Sharing sharing_;
  // By set: what it costs on one device and of which type, the best partition and its first set, and what any
  // partition costs at least.
  std::vector<double> cost_, price_, best_, bound_;
  std::vector<std::uint8_t> type_;
  std::vector<Set> choice_;
  std::vector<std::vector<Set>> by_lowest_;
};

}  // namespace

std::optional<std::vector<Packed>> pack_exactly(std::span<const Part> parts,
                                                std::span<const std::size_t> chosen,
                                                std::span<const DeviceType> types,
                                                std::span<const std::size_t> homes,
                                                const WindowOptions& options) {
  CARILLON_ASSERT(chosen.size() <= largest_window);
  return Packer(parts, chosen, types, homes, options).pack();
}

}  // namespace carillon::provision
