#include "carillon/provision/best.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/provision/parts.h"
#include "carillon/provision/queue_demands.h"
#include "carillon/provision/strategies.h"
#include "carillon/provision/window.h"

namespace carillon::provision {
namespace {

// Sums of prices differ by rounding.
constexpr double cent = 1e-7;
// Parts in a window of the search: an exact packing of so many takes about a millisecond.
constexpr std::size_t window_parts = 12;

struct Packing {
  std::vector<Packed> devices;
  double cost = 0;   // US dollars per hour
  double value = 0;  // cost and moves: what is made small
  double room = 0;   // squares of what devices have left: a device with much room may soon be empty
};

class Planner {
 public:
  Planner(std::span<const Workload> workloads, std::span<const DeviceType> types, const BestOptions& options,
          Demands& demands)
      : types_(types), options_(options), demands_(demands), random_(options.seed) {
    CARILLON_ASSERT(!types.empty() && types.size() <= 16);
    planned_.assign(workloads.begin(), workloads.end());
    for (Workload& w : planned_) w.rate_rps *= 1 + options.headroom;
    double cheapest = std::numeric_limits<double>::infinity();
    for (const DeviceType& type : types) cheapest = std::min(cheapest, type.hardware.price_usd_per_hour);
    window_.count_moves = options.existing != nullptr;
    window_.move_cost = options.move_cost >= 0 ? options.move_cost : cheapest / 10;
    // Cheapest first, then the fewest moves.
    if (window_.move_cost == 0) window_.move_cost = 1e-5 * std::max(cheapest, 1e-3);
  }

  BestPlan plan() {
    BestPlan result;
    bool has_split = false;
    std::vector<Infeasible> infeasible;
    parts_ =
        make_parts(planned_, types_, demands_, Split::unequal, options_.may_split, infeasible, has_split);
    find_homes();
    Packing best = greedy();
    double bound = lower_bound_usd(parts_, types_);
    if (has_split) {
      std::vector<Part> unequal = std::move(parts_);
      std::vector<Infeasible> again;
      parts_ = make_parts(planned_, types_, demands_, Split::equal, options_.may_split, again, has_split);
      find_homes();
      Packing other = greedy();
      const double other_bound = lower_bound_usd(parts_, types_);
      if (better(other, best))
        best = std::move(other);
      else
        parts_ = std::move(unequal);
      bound = std::min(bound, other_bound);
    }
    result.greedy_usd_per_hour = best.cost;
    bool exact = false;
    if (options_.effort.value_or(1) > 0) exact = search(best, bound, result);
    result.lower_bound_usd_per_hour = exact && !has_split ? best.cost : bound;
    result.plan = to_plan(best, result);
    result.plan.infeasible = std::move(infeasible);
    result.plan.proven_cheapest = best.cost <= result.lower_bound_usd_per_hour + cent && monotone();
    if (options_.headroom > 0) give_back_headroom(result.plan);
    return result;
  }

 private:
  bool stop() const { return options_.stop && options_.stop(); }

  // A part runs where a part of the same workload runs now, each device taken once.
  void find_homes() {
    if (options_.existing == nullptr) return;
    const auto& devices = options_.existing->devices;
    std::vector<std::vector<int>> homes(planned_.size());
    for (std::size_t d = 0; d < devices.size(); ++d)
      for (const Placement& p : devices[d].placements) homes[p.workload].push_back(static_cast<int>(d));
    std::vector<std::size_t> next(planned_.size(), 0);
    for (Part& part : parts_) {
      auto& mine = homes[part.workload];
      if (next[part.workload] < mine.size()) part.home = mine[next[part.workload]++];
    }
    for (const PlannedDevice& d : devices) home_types_.push_back(d.type);
    home_types_.resize(devices.size());
  }

  void evaluate(Packing& packing) const {
    packing.cost = packing.value = packing.room = 0;
    std::size_t moves = 0;
    for (const Packed& d : packing.devices) {
      const double price = types_[d.type].hardware.price_usd_per_hour;
      const double room = 1 - static_cast<double>(d.used) / types_[d.type].units();
      packing.cost += price;
      packing.room += price * room * room;
      for (const std::size_t p : d.parts) moves += parts_[p].home >= 0 && parts_[p].home != d.home ? 1 : 0;
    }
    packing.value = packing.cost;
    if (window_.count_moves) packing.value += window_.move_cost * static_cast<double>(moves);
  }

  static bool better(const Packing& a, const Packing& b) {
    if (std::abs(a.value - b.value) > cent) return a.value < b.value;
    return a.room > b.room + cent;
  }

  // Which device of the existing plan each device is: the one that most of its parts come from.
  void name_homes(std::span<Packed> devices, std::vector<bool> taken) const {
    if (options_.existing == nullptr) return;
    struct Match {
      int parts;
      std::size_t device;
      int home;
    };
    std::vector<Match> matches;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      devices[d].home = -1;
      std::vector<int> homes;
      for (const std::size_t p : devices[d].parts) homes.push_back(parts_[p].home);
      std::sort(homes.begin(), homes.end());
      for (auto it = homes.begin(); it != homes.end();) {
        const auto end = std::upper_bound(it, homes.end(), *it);
        if (*it >= 0 && home_types_[static_cast<std::size_t>(*it)] == devices[d].type)
          matches.push_back({static_cast<int>(end - it), d, *it});
        it = end;
      }
    }
    std::stable_sort(matches.begin(), matches.end(),
                     [](const Match& a, const Match& b) { return a.parts > b.parts; });
    for (const Match& m : matches) {
      if (devices[m.device].home >= 0 || taken[static_cast<std::size_t>(m.home)]) continue;
      devices[m.device].home = m.home;
      taken[static_cast<std::size_t>(m.home)] = true;
    }
  }

  // The cheapest of several greedy plans.
  Packing greedy() {
    std::vector<std::size_t> all(parts_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::vector<std::optional<std::size_t>> kinds{std::nullopt};
    if (types_.size() > 1)
      for (std::size_t t = 0; t < types_.size(); ++t) kinds.push_back(t);
    Packing best;
    bool first = true;
    const auto consider = [&](std::vector<Packed> devices) {
      Packing packing{.devices = std::move(devices)};
      name_homes(packing.devices, std::vector<bool>(home_types_.size(), false));
      evaluate(packing);
      if (first || better(packing, best)) best = std::move(packing);
      first = false;
    };
    if (options_.existing != nullptr) consider(from_existing());
    for (const auto& only : kinds)
      for (const Rule rule : {Rule::best_fit, Rule::least_growth, Rule::first_fit}) {
        if (!first && stop()) return best;
        std::vector<Packed> devices;
        pack_greedily(parts_, types_, all, rule, only, devices);
        consider(std::move(devices));
      }
    return best;
  }

  // All stays where it is, as far as it fits; the rest is put where there is room.
  std::vector<Packed> from_existing() {
    const auto& existing = options_.existing->devices;
    std::vector<Packed> devices;
    for (std::size_t d = 0; d < existing.size(); ++d)
      devices.push_back({.type = existing[d].type, .parts = {}, .units = {}, .home = static_cast<int>(d)});
    std::vector<std::size_t> waiting;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const int home = parts_[p].home;
      if (home >= 0 && parts_[p].demands[devices[static_cast<std::size_t>(home)].type])
        devices[static_cast<std::size_t>(home)].parts.push_back(p);
      else
        waiting.push_back(p);
    }
    for (Packed& device : devices) {
      // The fewest leave: the smallest one that is enough, else the largest and again.
      while (!device.parts.empty() && !fit(parts_, device.parts, types_, device.type, device.units)) {
        std::stable_sort(device.parts.begin(), device.parts.end(), [&](std::size_t a, std::size_t b) {
          return parts_[a].demands[device.type]->least_units < parts_[b].demands[device.type]->least_units;
        });
        std::size_t leaves = device.parts.size() - 1;
        for (std::size_t i = 0; i + 1 < device.parts.size(); ++i) {
          std::vector<std::size_t> rest = device.parts;
          rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
          if (!fit(parts_, rest, types_, device.type, device.units)) continue;
          leaves = i;
          break;
        }
        waiting.push_back(device.parts[leaves]);
        device.parts.erase(device.parts.begin() + static_cast<std::ptrdiff_t>(leaves));
      }
      if (device.parts.empty()) device.units.clear();
      device.used = std::accumulate(device.units.begin(), device.units.end(), 0);
    }
    // New parts may not reopen what would otherwise be closed unless nothing else has room: empty ones go
    // last.
    std::stable_partition(devices.begin(), devices.end(), [](const Packed& d) { return !d.parts.empty(); });
    std::erase_if(devices, [](const Packed& d) { return d.parts.empty(); });
    pack_greedily(parts_, types_, waiting, Rule::best_fit, std::nullopt, devices);
    return devices;
  }

  // Improves the packing; true where it is the best of all packings of the parts.
  bool search(Packing& best, double bound, BestPlan& result) {
    const auto done = [&] { return !window_.count_moves && best.cost <= bound + cent; };
    if (parts_.size() <= largest_window && !done() && !stop()) {
      std::vector<std::size_t> all(parts_.size());
      std::iota(all.begin(), all.end(), std::size_t{0});
      WindowOptions options = window_;
      options.most_steps = 20'000'000;
      options.any_cheapest = !window_.count_moves;
      ++result.windows;
      if (auto devices = pack_exactly(parts_, all, types_, home_types_, options)) {
        Packing packing{.devices = *std::move(devices)};
        name_homes(packing.devices, std::vector<bool>(home_types_.size(), false));
        evaluate(packing);
        if (better(packing, best)) best = std::move(packing);
        if (!window_.count_moves) return true;
      }
    }
    const auto devices = static_cast<double>(best.devices.size());
    const auto budget = static_cast<std::size_t>(options_.effort ? *options_.effort * devices
                                                                 : std::min(200.0, 10 * devices));
    for (std::size_t i = 0; i < budget && best.devices.size() > 1 && !done(); ++i) {
      if (stop()) {
        result.stopped = true;
        break;
      }
      ++result.windows;
      try_window(best);
      if (options_.progress)
        options_.progress({.cost_usd_per_hour = best.cost,
                           .lower_bound_usd_per_hour = bound,
                           .devices = best.devices.size(),
                           .done = static_cast<double>(i + 1) / static_cast<double>(budget)});
    }
    return false;
  }

  // Packs a few devices anew: one with much room, and others at random.
  void try_window(Packing& best) {
    const std::size_t count = best.devices.size();
    const auto room = [&](std::size_t d) {
      return 1 - static_cast<double>(best.devices[d].used) / types_[best.devices[d].type].units();
    };
    // The roomiest of three is the first; of the others each the roomier of two.
    std::vector<std::size_t> window;
    std::vector<std::size_t> chosen;
    for (int tries = 0; tries < 24 && window.size() < count; ++tries) {
      std::size_t pick = random_.below(count);
      for (int i = 0; i < (window.empty() ? 2 : 1); ++i)
        if (const std::size_t other = random_.below(count); room(other) > room(pick)) pick = other;
      if (std::find(window.begin(), window.end(), pick) != window.end()) continue;
      const auto& parts = best.devices[pick].parts;
      if (chosen.size() + parts.size() > window_parts) continue;
      window.push_back(pick);
      chosen.insert(chosen.end(), parts.begin(), parts.end());
    }
    if (window.size() < 2) return;
    std::sort(chosen.begin(), chosen.end());
    auto packed = pack_exactly(parts_, chosen, types_, home_types_, window_);
    if (!packed) return;
    std::vector<bool> taken(home_types_.size(), false);
    Packing before, after{.devices = *std::move(packed)};
    for (std::size_t d = 0; d < count; ++d) {
      if (std::find(window.begin(), window.end(), d) != window.end())
        before.devices.push_back(best.devices[d]);
      else if (best.devices[d].home >= 0)
        taken[static_cast<std::size_t>(best.devices[d].home)] = true;
    }
    name_homes(after.devices, std::move(taken));
    evaluate(before);
    evaluate(after);
    if (!better(after, before)) return;
    std::sort(window.begin(), window.end());
    for (auto it = window.rbegin(); it != window.rend(); ++it)
      best.devices.erase(best.devices.begin() + static_cast<std::ptrdiff_t>(*it));
    for (Packed& d : after.devices) best.devices.push_back(std::move(d));
    evaluate(best);
  }

  // Whether more of one part never helps another, so that what does not fit has no superset that does.
  bool monotone() const {
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const auto& c = types_[t].hardware.coefficients;
      if (c.alpha_sch < 0 || 2 * c.alpha_sch + c.beta_sch < 0) return false;
      for (const Part& part : parts_) {
        if (!part.demands[t]) continue;
        const Demand& d = *part.demands[t];
        const auto use = profile::solo_use(*d.model, d.batch, types_[t].share_pct(d.least_units));
        if (d.model->alpha_power < 0 || d.model->alpha_cacheutil < 0 || use.power_w < 0 || use.cache_pct < 0)
          return false;
      }
    }
    return true;
  }

  Plan to_plan(const Packing& packing, BestPlan& result) const {
    Plan plan;
    const Plan* existing = options_.existing;
    int next = 1;
    if (existing != nullptr)
      for (const PlannedDevice& d : existing->devices) next = std::max(next, d.number + 1);
    std::vector<const Packed*> order;
    for (const Packed& d : packing.devices) order.push_back(&d);
    // Kept devices by their numbers, then new ones, the fullest first.
    std::stable_sort(order.begin(), order.end(), [&](const Packed* a, const Packed* b) {
      const auto key = [&](const Packed* d) {
        return std::tuple(d->home < 0,
                          d->home < 0 ? 0 : existing->devices[static_cast<std::size_t>(d->home)].number,
                          d->type, -d->used);
      };
      return key(a) < key(b);
    });
    for (const Packed* packed : order) {
      PlannedDevice device{.number = 0, .type = packed->type, .placements = {}};
      device.number =
          packed->home >= 0 ? existing->devices[static_cast<std::size_t>(packed->home)].number : next++;
      for (std::size_t i = 0; i < packed->parts.size(); ++i) {
        const Part& part = parts_[packed->parts[i]];
        device.placements.push_back({.workload = part.workload,
                                     .units = packed->units[i],
                                     .batch = part.demands[packed->type]->batch,
                                     .rate_rps = part.rate_rps});
        if (existing == nullptr) continue;
        result.added += part.home < 0 ? 1 : 0;
        result.moved += part.home >= 0 && part.home != packed->home ? 1 : 0;
      }
      std::stable_sort(device.placements.begin(), device.placements.end(),
                       [](const Placement& a, const Placement& b) { return a.units > b.units; });
      if (existing != nullptr) result.opened += packed->home < 0 ? 1 : 0;
      plan.devices.push_back(std::move(device));
    }
    if (existing != nullptr) result.closed = existing->devices.size() - (plan.devices.size() - result.opened);
    return plan;
  }

  // The parts' rates are those of the workloads; their shares and batches have the headroom.
  void give_back_headroom(Plan& plan) const {
    for (PlannedDevice& device : plan.devices)
      for (Placement& p : device.placements) p.rate_rps /= 1 + options_.headroom;
    for (Infeasible& left_out : plan.infeasible)
      if (left_out.largest_rate_rps) *left_out.largest_rate_rps /= 1 + options_.headroom;
  }

  std::span<const DeviceType> types_;
  const BestOptions& options_;
  Demands& demands_;
  Random random_;
  std::vector<Workload> planned_;  // with the headroom
  std::vector<Part> parts_;
  std::vector<std::size_t> home_types_;  // of the existing plan's devices
  WindowOptions window_;
};

// Looks at plans' promises with what each device really takes, at each device once.
class Promises {
 public:
  Promises(std::span<const Workload> workloads, std::span<const DeviceType> types, const BestOptions& options)
      : workloads_(workloads), types_(types), options_(options) {}

  // Workloads whose promise the plan does not keep.
  std::vector<std::size_t> broken(const Plan& plan) {
    std::vector<bool> is_broken(workloads_.size(), false);
    for (const PlannedDevice& device : plan.devices) {
      const std::vector<bool>& kept = look(device);
      for (std::size_t i = 0; i < kept.size(); ++i)
        if (!kept[i]) is_broken[device.placements[i].workload] = true;
    }
    std::vector<std::size_t> found;
    for (std::size_t w = 0; w < is_broken.size(); ++w)
      if (is_broken[w]) found.push_back(w);
    return found;
  }

  // Fills in what the plan expects of each placement.
  void expect(Plan& plan) {
    for (PlannedDevice& device : plan.devices) {
      const std::vector<bool>& kept = look(device);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        Placement& p = device.placements[i];
        const Replayed seen =
            replay(options_.queue->arrivals, p.rate_rps, batch_times(device, i, workloads_, types_),
                   workloads_[p.workload].slo_ms);
        p.expected = {.on_time = seen.on_time(), .kept = kept[i]};
      }
    }
  }

 private:
  const std::vector<bool>& look(const PlannedDevice& device) {
    std::vector<double> key{static_cast<double>(device.type)};
    for (const Placement& p : device.placements)
      for (const double part : {static_cast<double>(p.workload), static_cast<double>(p.units),
                                static_cast<double>(p.batch), p.rate_rps})
        key.push_back(part);
    std::vector<bool>& kept = known_[key];
    for (std::size_t i = kept.size(); i < device.placements.size(); ++i) {
      const Placement& p = device.placements[i];
      const Workload& w = workloads_[p.workload];
      const double more = 1 + options_.headroom;
      kept.push_back(keeps_promise(
          *options_.queue,
          {.rate_rps = p.rate_rps * more, .workload_rps = w.rate_rps * more, .slo_ms = w.slo_ms},
          batch_times(device, i, workloads_, types_)));
    }
    return kept;
  }

  std::span<const Workload> workloads_;
  std::span<const DeviceType> types_;
  const BestOptions& options_;
  std::map<std::vector<double>, std::vector<bool>> known_;  // by type and placements
};

BestPlan plan_for_queues(std::span<const Workload> workloads, std::span<const DeviceType> types,
                         const BestOptions& options) {
  // Limits leave something for what neighbours do to small batches; where that is too little, they are
  // tightened and all is planned again. That goes on when the search is to stop: then greedily.
  constexpr int most_rounds = 30;
  QueueDemands demands(*options.queue);
  Promises promises(workloads, types, options);
  for (int round = 1;; ++round) {
    BestPlan best = Planner(workloads, types, options, demands).plan();
    const std::vector<std::size_t> broken = promises.broken(best.plan);
    if (broken.empty() || round == most_rounds) {
      promises.expect(best.plan);
      return best;
    }
    for (const std::size_t w : broken) demands.tighten(workloads[w]);
  }
}

}  // namespace

BestPlan plan_best(std::span<const Workload> workloads, std::span<const DeviceType> types,
                   const BestOptions& options) {
  if (options.queue != nullptr) return plan_for_queues(workloads, types, options);
  EvenDemands demands;
  BestPlan best = Planner(workloads, types, options, demands).plan();
  if (options.existing != nullptr || options.headroom > 0 || (options.stop && options.stop())) return best;
  // Hardly ever is the paper's plan cheaper; but who asks for the best must not get less.
  Plan igniter = plan_igniter(workloads, types);
  const auto measured = [&](const PlannedDevice& device) {
    return std::all_of(device.placements.begin(), device.placements.end(), [&](const Placement& p) {
      return p.batch <= profile::largest_known_batch(*types[device.type].find(workloads[p.workload].model));
    });
  };
  if (igniter.infeasible.size() > best.plan.infeasible.size() ||
      cost_usd_per_hour(igniter, types) >= cost_usd_per_hour(best.plan, types) - cent ||
      predicted_violations(igniter, workloads, types) > 0 ||
      !std::all_of(igniter.devices.begin(), igniter.devices.end(), measured))
    return best;
  best.plan.devices = std::move(igniter.devices);
  best.plan.proven_cheapest = false;
  best.lower_bound_usd_per_hour =
      std::min(best.lower_bound_usd_per_hour, cost_usd_per_hour(best.plan, types));
  return best;
}

}  // namespace carillon::provision
