#include "carillon/schedule/watchdog.h"

#include <algorithm>

namespace carillon::schedule {
namespace {

constexpr int longest_silence = 20;      // times what the longest action should take
constexpr int best_effort_silence = 10;  // times that of the other lanes

std::size_t index_of(Lane lane) {
  return static_cast<std::size_t>(lane);
}

}  // namespace

void Watchdog::sent(DeviceId device, const Action& action, TimePoint now) {
  if (device.index() >= devices_.size()) devices_.resize(device.index() + 1);
  if (due_ == TimePoint::max() && least_ > Duration{0}) {
    looked_ = now;
    due_ = saturating_add(now, tick());
  }
  under_way_.insert(action.id, device);
  devices_[device.index()].actions.push_back(action);
  devices_[device.index()].actions.back().place = sent_++;
}

void Watchdog::ended(ActionId action, Duration took) {
  const auto device = under_way_.erase(action);
  if (!device) return;
  Device& d = devices_[device->index()];
  const auto found = std::ranges::find(d.actions, action, &Action::id);
  const Lane lane = found->lane;
  const TimePoint earliest = found->window.earliest;
  const std::uint64_t place = found->place;
  d.lanes[index_of(lane)].fresh = true;
  d.heard = true;
  if (lane == Lane::real_time) d.urgent_ran += took;
  if (lane == Lane::real_time || lane == Lane::exec) d.all_ran += took;
  *found = d.actions.back();
  d.actions.pop_back();
  for (Action& other : d.actions)
    if (other.lane == lane && other.place < place && other.window.earliest <= earliest)
      other.overtaken = std::max(other.overtaken, Overtaken::lately);
}

void Watchdog::preempted(ActionId action) {
  const DeviceId* device = under_way_.find(action);
  if (device == nullptr) return;
  std::ranges::find(devices_[device->index()].actions, action, &Action::id)->may_wait = true;
}

void Watchdog::restarted(DeviceId device) {
  if (device.index() >= devices_.size()) return;
  Device& d = devices_[device.index()];
  for (const Action& action : d.actions) under_way_.erase(action.id);
  d.actions.clear();
  d.lanes = {};
  d.slow = {};
  d.urgent_ran = d.all_ran = Duration{0};
  d.heard = false;
}

void Watchdog::excuse(const Excuse& excuse) {
  if (excuse.device.index() >= devices_.size()) return;
  Device::Slow& slow = devices_[excuse.device.index()].slow[index_of(excuse.lane)];
  slow.starved += excuse.starved;
  slow.moved = slow.moved || excuse.moved;
}

bool Watchdog::hangs(Device& device, TimePoint now) const {
  // Of both lanes: an UNLOAD waits for the EXEC of its model.
  Duration longest{0};
  for (const Action& action : device.actions) longest = std::max(longest, action.expected);
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
  if (std::ranges::any_of(device.actions, &Action::after_runs)) {
    Device::Slow& load = device.slow[index_of(Lane::load)];
    for (const Lane runs : {Lane::exec, Lane::real_time, Lane::best_effort}) {
      load.starved = std::max(load.starved, device.slow[index_of(runs)].starved);
      load.moved = load.moved || moved(runs);
    }
  }
  const auto bound_of = [&](Lane lane) {
    return lane == Lane::best_effort ? best_effort_silence * bound : bound;
  };
  bool silent = false;
  for (Action& action : device.actions) {
    const bool overtaken = action.overtaken == Overtaken::before;
    if (action.overtaken == Overtaken::lately) action.overtaken = Overtaken::before;
    const bool late = action.window.latest <= looked_ || overtaken;
    // One of best effort may be on a core that somebody else has, or make way again and again.
    if (action.lane == Lane::best_effort && device.heard) continue;
    if (late && action.window.earliest <= looked_ && !action.may_wait && (overtaken || !moved(action.lane)))
      action.overdue += passed(action.lane);
    silent = silent || action.overdue >= bound_of(action.lane);
  }
  for (const Lane lane : {Lane::exec, Lane::load, Lane::real_time, Lane::best_effort}) {
    auto& [fresh, quiet] = device.lanes[index_of(lane)];
    const bool waits = std::ranges::any_of(device.actions, [&](const Action& action) {
      return action.lane == lane && action.window.earliest <= looked_;
    });
    const bool reports = fresh || moved(lane) || (lane == Lane::best_effort && device.heard);
    quiet = waits && !reports ? quiet + passed(lane) : Duration{0};
    fresh = !waits;
    silent = silent || quiet >= bound_of(lane);
  }
  // Runs are told of as they end, perhaps in another interval than they ran in.
  for (Duration* ran : {&device.urgent_ran, &device.all_ran}) *ran = std::max(Duration{0}, *ran - most);
  // Nor are threads looked at just when the device is. But what one look makes of a time in which nobody
  // looked is no excuse for more than the next.
  for (Device::Slow& slow : device.slow)
    slow = {.starved = std::clamp(slow.starved - (now - looked_), Duration{0}, most), .moved = false};
  device.heard = false;
  return silent;
}

std::vector<DeviceId> Watchdog::look(TimePoint now) {
  std::vector<DeviceId> silent;
  if (now < due_) return silent;
  for (std::size_t i = 0; i < devices_.size(); ++i)
    if (hangs(devices_[i], now)) silent.push_back({static_cast<std::uint32_t>(i)});
  looked_ = now;
  due_ = under_way_.size() > 0 ? saturating_add(now, tick()) : TimePoint::max();
  return silent;
}

void Watched::watch(const Action& action, TimePoint now) {
  const auto send = [&](const auto& a, Lane lane, Window window, Duration expected, bool after_runs = false) {
    watchdog_.sent(
        a.device,
        {.id = a.id, .lane = lane, .window = window, .expected = expected, .after_runs = after_runs}, now);
  };
  if (const auto* infer = std::get_if<Infer>(&action))
    send(*infer,
         infer->cls == Class::real_time     ? Lane::real_time
         : infer->cls == Class::best_effort ? Lane::best_effort
                                            : Lane::exec,
         infer->window, infer->expected);
  else if (const auto* load = std::get_if<Load>(&action))
    send(*load, Lane::load, load->window, load->expected);
  else if (const auto* unload = std::get_if<Unload>(&action))
    send(*unload, Lane::load, {now, TimePoint::max()}, Duration{0}, true);
  else if (const auto* profile = std::get_if<Profile>(&action))
    send(*profile, Lane::exec, profile->window, profile->expected);
  else if (const auto* preempt = std::get_if<Preempt>(&action);
           preempt && preempt->after == device::After::resume)
    watchdog_.preempted(preempt->id);
}

TimePoint Watched::decide(const Event& event, TimePoint now, Actions& out) {
  std::size_t seen = out.size();
  const auto ask = [&](const Event& what) {
    policy_wake_ = policy_->decide(what, now, out);
    for (; seen < out.size(); ++seen) watch(out[seen], now);
  };
  if (const auto* woken = std::get_if<Wake>(&event)) {
    for (const Excuse& excuse : woken->excuses) watchdog_.excuse(excuse);
    for (const DeviceId device : watchdog_.look(now)) {
      watchdog_.restarted(device);
      out.emplace_back(GiveUp{device});
      ask(DeviceChanged{device, false, 0});
    }
    if (policy_wake_ <= now) ask(event);
  } else {
    if (const auto* done = std::get_if<ActionDone>(&event))
      watchdog_.ended(done->id, done->duration);
    else if (const auto* change = std::get_if<DeviceChanged>(&event))
      watchdog_.restarted(change->device);
    ask(event);
  }
  if (std::holds_alternative<Wake>(event)) asked_ = TimePoint::max();
  // A Wake that was asked for and is late has yet to come: it serves whoever's time has passed since.
  const TimePoint wake = std::min(policy_wake_, watchdog_.wake_at());
  return asked_ = wake <= now ? std::min(wake, asked_) : wake;
}

}  // namespace carillon::schedule
