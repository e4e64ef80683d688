#include "carillon/tune/testing/tune_checker.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace carillon::tune::testing {
namespace {

using Kind = TuneOrder::Kind;

template <class... Ts>
struct Cases : Ts... {
  using Ts::operator()...;
};

std::string of(std::uint32_t trial) {
  return "trial " + std::to_string(trial) + ": ";
}

bool is_right(double speed, double supply, Bytes memory) {
  return speed > 0 && speed <= 1e6 && supply >= 0 && supply <= 1 && memory <= device::most_job_bytes;
}

}  // namespace

void TuneChecker::leave_all(Trial& trial) {
  trial.devices.clear();
  trial.leaving.clear();
  trial.settling = false;
  trial.width = trial.old_width = 0;
}

std::optional<std::string> TuneChecker::heard(const TuneEvent& event) {
  coming_.clear();
  group_ = device_ = false;
  std::visit(Cases{
                 [&](const GroupCame& e) {
                   group_ = true;
                   for (const TrialSpec& spec : e.trials) {
                     const auto known = trials_.find(spec.trial.value);
                     const bool good = spec.priority > 0 && spec.priority <= 1e6 &&
                                       (!spec.budget || (*spec.budget > 0 && *spec.budget <= 1e15)) &&
                                       (!spec.iteration || spec.iteration->count() > 0);
                     if (!good || (known != trials_.end() && known->second.doing != Doing::paused)) continue;
                     coming_.insert(spec.trial.value);
                     if (known == trials_.end()) {
                       Trial trial;
                       trial.memory = spec.memory;
                       trials_.emplace(spec.trial.value, trial);
                     } else {
                       known->second.doing = known->second.devices.empty() && !known->second.settling
                                                 ? Doing::waiting
                                                 : Doing::held;
                     }
                   }
                 },
                 [&](const TrialReported&) {},
                 [&](const TrialSettled& e) {
                   const auto found = trials_.find(e.trial.value);
                   if (found == trials_.end() || !found->second.settling) return;
                   Trial& t = found->second;
                   t.settling = false;
                   t.leaving.clear();
                   t.old_width = 0;
                   if (t.under == Kind::hold) t.width = 0;
                   // What it was to have has gone meanwhile.
                   if (t.doing != Doing::paused && t.devices.empty()) {
                     t.width = 0;
                     t.doing = Doing::waiting;
                   }
                   if (t.under == Kind::release) {
                     t.devices.clear();
                     t.width = 0;
                     if (t.doing != Doing::paused) t.doing = Doing::waiting;
                   }
                 },
                 [&](const TrialEnded& e) { trials_.erase(e.trial.value); },
                 [&](const TrialPaused& e) {
                   const auto found = trials_.find(e.trial.value);
                   if (found == trials_.end() || found->second.doing == Doing::paused) return;
                   Trial& t = found->second;
                   t.devices.insert(t.leaving.begin(), t.leaving.end());
                   t.leaving.clear();
                   if (t.under != Kind::release) t.settling = false;
                   t.width = t.old_width = 0;
                   t.doing = Doing::paused;
                 },
                 [&](const TrialDied& e) {
                   const auto found = trials_.find(e.trial.value);
                   if (found == trials_.end()) return;
                   if (!e.retry) {
                     trials_.erase(found);
                     return;
                   }
                   leave_all(found->second);
                   if (found->second.doing != Doing::paused) found->second.doing = Doing::waiting;
                 },
                 [&](const DeviceCame& e) {
                   device_ = true;
                   if (!devices_.contains(e.device.value) && is_right(e.speed, e.supply, e.memory))
                     devices_[e.device.value] = {e.speed * e.supply, e.memory, false};
                 },
                 [&](const DeviceChanged& e) {
                   device_ = true;
                   const auto found = devices_.find(e.device.value);
                   if (found == devices_.end() || !is_right(e.speed, e.supply, e.memory)) return;
                   found->second.fell = found->second.fell || e.memory < found->second.memory;
                   found->second.rate = e.speed * e.supply;
                   found->second.memory = e.memory;
                 },
                 [&](const DeviceWent& e) {
                   if (devices_.erase(e.device.value) == 0) return;
                   for (auto& [id, t] : trials_) {
                     const bool lost = t.devices.erase(e.device.value) > 0;
                     t.leaving.erase(e.device.value);
                     if (lost && t.devices.empty() && t.leaving.empty() && t.doing != Doing::paused &&
                         t.doing != Doing::waiting) {
                       leave_all(t);
                       t.doing = Doing::waiting;
                     }
                   }
                 },
                 [&](const TuneWake&) {},
             },
             event);
  return std::nullopt;
}

std::optional<std::string> TuneChecker::said(const TuneOrders& orders) {
  for (const TuneOrder& order : orders)
    if (auto broken = said(order)) return broken;
  if (auto broken = shares()) return broken;
  for (const auto& [id, device] : devices_)
    if (auto broken = memory(id, false)) return broken;
  return std::nullopt;
}

std::optional<std::string> TuneChecker::said(const TuneOrder& order) {
  const std::uint32_t id = order.trial.value;
  if (order.kind == Kind::wake_at) return std::nullopt;
  if (order.kind == Kind::refuse) {
    if (order.reason == TuneReason::none) return of(id) + "refused for no reason";
    if (!group_) return device_ ? std::nullopt : std::optional(of(id) + "refused when no group came");
    // A duplicate's first may have been taken.
    if (order.reason != TuneReason::duplicate && coming_.erase(id) > 0) {
      const auto found = trials_.find(id);
      if (found != trials_.end() && found->second.doing != Doing::waiting)
        found->second.doing = Doing::paused;
      else
        trials_.erase(id);
    }
    return std::nullopt;
  }
  const auto found = trials_.find(id);
  if (found == trials_.end()) return of(id) + "an order for one that is not here";
  Trial& t = found->second;
  if (t.settling) return of(id) + "an order while another is under way";
  switch (order.kind) {
    case Kind::refuse:
    case Kind::wake_at:
      break;
    case Kind::hold:
      if (t.doing != Doing::running) return of(id) + "held, but it does not run";
      t.doing = Doing::held;
      break;
    case Kind::release:
      if (t.devices.empty()) return of(id) + "is to let go, but has nothing";
      if (t.doing == Doing::running) t.doing = Doing::held;
      break;
    case Kind::place:
    case Kind::resize:
    case Kind::move: {
      if ((order.kind == Kind::place) == (t.doing == Doing::running))
        return of(id) + (t.doing == Doing::running ? "placed, but it runs" : "resized, but it does not run");
      if (t.doing == Doing::paused) return of(id) + "placed, but it is paused";
      if (order.devices.empty() || !std::ranges::is_sorted(order.devices))
        return of(id) + "devices not in order";
      std::set<std::uint32_t> on;
      for (const DeviceId d : order.devices) on.insert(d.value);
      if (on.size() != order.devices.size()) return of(id) + "a device twice";
      const bool whole = order.width >= 1;
      if (whole ? order.width != static_cast<double>(on.size())
                : on.size() != 1 || std::abs(1 / order.width - std::round(1 / order.width)) > 1e-9)
        return of(id) + "a width that does not go with its devices";
      if (order.kind != Kind::place) {
        if (on == t.devices && order.width == t.width) return of(id) + "changed into what it is";
        ++changes_;
      }
      for (const std::uint32_t d : t.devices)
        if (!on.contains(d)) t.leaving.insert(d);
      t.had = std::exchange(t.devices, on);
      t.old_width = t.doing == Doing::running ? t.width : 0;
      t.width = order.width;
      t.doing = Doing::running;
      for (const std::uint32_t d : on) {
        if (!devices_.contains(d)) return of(id) + "on device " + std::to_string(d) + ", which is not here";
        if (!t.had.contains(d) && devices_[d].rate <= 0)
          return of(id) + "on device " + std::to_string(d) + ", which has nothing for it";
        if (auto broken = memory(d, !t.had.contains(d) || t.old_width == 0)) return of(id) + *broken;
      }
      break;
    }
  }
  t.settling = true;
  t.under = order.kind;
  return shares();
}

// Who has a share of each device, at most by how many.
std::optional<std::string> TuneChecker::shares() const {
  std::map<std::uint32_t, std::vector<double>> widths;
  for (const auto& [id, t] : trials_) {
    const bool has_share = t.doing == Doing::running || (t.doing == Doing::held && t.settling && t.width > 0);
    if (!has_share) continue;
    // Until it settles it may still be as wide as it was where it stays.
    for (const std::uint32_t d : t.devices)
      widths[d].push_back(t.had.contains(d) ? std::max(t.width, t.old_width) : t.width);
    // One that stood still has only memory where it goes from.
    if (t.old_width > 0)
      for (const std::uint32_t d : t.leaving) widths[d].push_back(t.old_width);
  }
  for (const auto& [d, there] : widths) {
    double sum = 0;
    for (const double w : there) sum += std::min(1.0, w);
    const double widest = std::min(1.0, *std::ranges::max_element(there));
    if (static_cast<double>(there.size()) > std::round(1 / widest) + 1e-9 || sum > 1 + 1e-9)
      return "device " + std::to_string(d) + " is given twice: " + std::to_string(there.size()) +
             " trials, shares of " + std::to_string(sum) + " in all";
  }
  return std::nullopt;
}

std::optional<std::string> TuneChecker::memory(std::uint32_t d, bool came_in) {
  Device& device = devices_[d];
  std::uint64_t used = 0;
  for (const auto& [id, t] : trials_) {
    if (!t.devices.contains(d) && !t.leaving.contains(d)) continue;
    used += t.memory.persistent.count;
    if (t.leaving.contains(d)
            ? t.old_width > 0
            : t.doing == Doing::running || (t.settling && t.doing == Doing::held && t.width > 0))
      used += t.memory.ephemeral.count;
  }
  if (used <= device.memory.count) {
    device.fell = false;
    return std::nullopt;
  }
  if (device.fell && !came_in) return std::nullopt;
  return "device " + std::to_string(d) + " would need " + std::to_string(used) + " bytes of " +
         std::to_string(device.memory.count);
}

}  // namespace carillon::tune::testing
