#include "carillon/schedule/watchdog.h"

#include <algorithm>
#include <variant>

namespace carillon::schedule {
namespace {

constexpr int longest_silence = 20;      // times what the longest action should take
constexpr int best_effort_silence = 10;  // times that of the other lanes
constexpr Lane every_lane[] = {Lane::exec, Lane::load, Lane::real_time, Lane::best_effort};

std::size_t index_of(Lane lane) {
  return static_cast<std::size_t>(lane);
}

}  // namespace

void Watchdog::sent(TimePoint now) {
  if (due_ != TimePoint::max() || least_ <= Duration{0}) return;
  looked_ = now;
  due_ = saturating_add(now, tick());
}

Watchdog::Device& Watchdog::of(DeviceId id) {
  if (id.index() >= devices_.size()) devices_.resize(id.index() + 1);
  Device& device = devices_[id.index()];
  const std::uint32_t incarnation = ledger_->device(id).incarnation;
  if (device.incarnation != incarnation) device = Device{incarnation};
  return device;
}

Duration& Watchdog::overdue(std::uint32_t place) {
  if (place >= overdue_.size()) overdue_.resize(place + 1);
  Overdue& overdue = overdue_[place];
  const ActionId action = ledger_->at(place).id;
  if (overdue.action != action) overdue = {action};
  return overdue.time;
}

void Watchdog::excuse(const Excuse& excuse) {
  if (excuse.device.index() >= ledger_->devices()) return;
  Device::Slow& slow = of(excuse.device).slow[index_of(excuse.lane)];
  slow.starved += excuse.starved;
  slow.moved = slow.moved || excuse.moved;
}

bool Watchdog::hangs(DeviceId id, TimePoint now) {
  Device& device = of(id);
  const ledger::Ledger::Device& there = ledger_->device(id);
  for (const Lane lane : {Lane::exec, Lane::real_time}) {
    const Duration ran = there.ran[index_of(lane)] - device.ran[index_of(lane)];
    if (lane == Lane::real_time) device.urgent_ran += ran;
    device.all_ran += ran;
  }
  device.ran = there.ran;
  const auto reported = [&](Lane lane) { return there.reported[index_of(lane)] > last_tick_; };
  const bool heard = std::ranges::any_of(every_lane, reported);
  // Of both lanes: an UNLOAD waits for the EXEC of its model.
  Duration longest{0};
  bool unloads = false;
  for (const auto& lined : there.under_way)
    for (const std::uint32_t place : lined) {
      longest = std::max(longest, ledger_->at(place).expected);
      unloads = unloads || ledger_->at(place).kind == ActionKind::unload;
    }
  const Duration bound = std::max(least_, longest_silence * std::min<Duration>(longest, 24h));
  const Duration most = std::min(now - looked_, 2 * tick());
  const auto passed = [&](Lane lane) {
    const Duration in_its_way = lane == Lane::exec          ? device.urgent_ran
                                : lane == Lane::best_effort ? device.all_ran
                                                            : Duration{0};
    const Duration could_run = now - looked_ - device.slow[index_of(lane)].starved;
    return std::max(Duration{0}, std::min(most - in_its_way, could_run - in_its_way));
  };
  const auto moved = [&](Lane lane) { return device.slow[index_of(lane)].moved; };
  // An UNLOAD gets no further than the runs that it waits for.
  if (unloads) {
    Device::Slow& load = device.slow[index_of(Lane::load)];
    for (const Lane runs : {Lane::exec, Lane::real_time, Lane::best_effort}) {
      load.starved = std::max(load.starved, device.slow[index_of(runs)].starved);
      load.moved = load.moved || moved(runs);
    }
  }
  bool silent = false;
  for (const Lane lane : every_lane) {
    const Duration its_bound = lane == Lane::best_effort ? best_effort_silence * bound : bound;
    bool waits = false;
    for (const std::uint32_t place : there.under_way[index_of(lane)]) {
      const ledger::Ledger::Action& action = ledger_->at(place);
      const bool open = action.window.earliest <= looked_;
      waits = waits || open;
      // One of best effort may be on a core that somebody else has, or make way again and again.
      if (lane == Lane::best_effort && heard) continue;
      const bool overtaken = action.overtaken > 0 && action.overtaken <= last_tick_;  // before the last look
      Duration& time = overdue(place);
      if ((action.window.latest <= looked_ || overtaken) && open && action.preempted == 0 &&
          (overtaken || !moved(lane)))
        time += passed(lane);
      silent = silent || time >= its_bound;
    }
    auto& [waited, quiet] = device.lanes[index_of(lane)];
    const bool reports = !waited || reported(lane) || moved(lane) || (lane == Lane::best_effort && heard);
    quiet = waits && !reports ? quiet + passed(lane) : Duration{0};
    waited = waits;
    silent = silent || quiet >= its_bound;
  }
  // Runs are told of as they end, perhaps in another interval than they ran in.
  for (Duration* ran : {&device.urgent_ran, &device.all_ran}) *ran = std::max(Duration{0}, *ran - most);
  // Nor are threads looked at just when the device is. But what one look makes of a time in which nobody
  // looked is no excuse for more than the next.
  for (Device::Slow& slow : device.slow)
    slow = {.starved = std::clamp(slow.starved - (now - looked_), Duration{0}, most), .moved = false};
  return silent;
}

std::vector<DeviceId> Watchdog::look(TimePoint now) {
  std::vector<DeviceId> silent;
  if (now < due_) return silent;
  for (std::uint32_t i = 0; i < ledger_->devices(); ++i)
    if (hangs({i}, now)) silent.push_back({i});
  looked_ = now;
  last_tick_ = ledger_->tick();
  due_ = ledger_->actions_under_way() > 0 ? saturating_add(now, tick()) : TimePoint::max();
  return silent;
}

TimePoint Watched::decide(const Event& event, TimePoint now, Actions& out) {
  const std::size_t seen = out.size();
  const auto ask = [&](const Event& what) { policy_wake_ = policy_->decide(what, now, out); };
  if (const auto* woken = std::get_if<Wake>(&event)) {
    for (const Excuse& excuse : woken->excuses) watchdog_.excuse(excuse);
    for (const DeviceId device : watchdog_.look(now)) {
      ledger_->book(GiveUp{device}, now);
      out.emplace_back(GiveUp{device});
      ask(DeviceChanged{device, false, 0});
    }
    if (policy_wake_ <= now) ask(event);
    asked_ = TimePoint::max();
  } else {
    ask(event);
  }
  const auto sends = [](const Action& action) {
    return std::visit(
        [](const auto& what) {
          return requires {
            what.model;
          };
        },
        action);
  };
  if (watchdog_.wake_at() == TimePoint::max() &&
      std::any_of(out.begin() + static_cast<std::ptrdiff_t>(seen), out.end(), sends))
    watchdog_.sent(now);
  // A Wake that was asked for and is late has yet to come: it serves whoever's time has passed since.
  const TimePoint wake = std::min(policy_wake_, watchdog_.wake_at());
  return asked_ = wake <= now ? std::min(wake, asked_) : wake;
}

}  // namespace carillon::schedule
