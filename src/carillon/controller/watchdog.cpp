#include "carillon/controller/watchdog.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

std::size_t index_of(Watchdog::Lane lane) {
  return static_cast<std::size_t>(lane);
}

}  // namespace

void Watchdog::sent(DeviceId device, const Action& action, TimePoint now) {
  Device& d = devices_[device.index()];
  CARILLON_ASSERT(d.up);
  if (under_way_++ == 0) looked_ = now;
  d.actions.push_back(action);
}

void Watchdog::ended(DeviceId device, ActionId action) {
  Device& d = devices_[device.index()];
  const auto found = std::ranges::find(d.actions, action, &Action::id);
  CARILLON_ASSERT(found != d.actions.end());
  d.lanes[index_of(found->lane)].fresh = true;
  *found = d.actions.back();
  d.actions.pop_back();
  --under_way_;
}

void Watchdog::down(DeviceId device, TimePoint now) {
  constexpr std::chrono::seconds soon{30};
  constexpr int most = 20;
  Device& d = devices_[device.index()];
  CARILLON_ASSERT(d.up);
  under_way_ -= d.actions.size();
  d.actions.clear();
  d.lanes = {};
  d.up = false;
  d.relapses = d.since != TimePoint::min() && now - d.since < soon ? std::min(d.relapses + 1, most) : 0;
  d.since = now;
  d.probe_at =
      now + std::min<Duration>(options_.pause * (std::int64_t{1} << d.relapses), options_.longest_pause);
  find_probe();
}

void Watchdog::find_probe() {
  probe_at_ = TimePoint::max();
  for (const Device& d : devices_) probe_at_ = std::min(probe_at_, d.probe_at);
}

void Watchdog::probed(DeviceId device, bool well, TimePoint now) {
  Device& d = devices_[device.index()];
  CARILLON_ASSERT(!d.up);
  if (well) {
    d.up = true;
    d.since = now;
  } else {
    d.probe_at = now + options_.pause;
    find_probe();
  }
}

TimePoint Watchdog::wake_at() const {
  return under_way_ > 0 && options_.least > Duration{0} ? std::min(probe_at_, looked_ + tick()) : probe_at_;
}

bool Watchdog::hangs(Device& device, TimePoint now) const {
  // Of both lanes: an UNLOAD waits for the EXEC of its model.
  Duration longest{0};
  for (const Action& action : device.actions) longest = std::max(longest, action.expected);
  const Duration bound =
      std::max(options_.least, from_ns(static_cast<double>(longest.count()) * options_.factor));
  bool silent = false;
  for (const Lane lane : {Lane::exec, Lane::load}) {
    auto& [fresh, quiet] = device.lanes[index_of(lane)];
    const bool waits = std::ranges::any_of(
        device.actions, [&](const Action& action) { return action.lane == lane && action.opens <= looked_; });
    quiet = waits && !fresh ? quiet + std::min(now - looked_, 2 * tick()) : Duration{0};
    fresh = !waits;
    silent = silent || quiet >= bound;
  }
  return silent;
}

Watchdog::Verdict Watchdog::look(TimePoint now) {
  Verdict verdict;
  if (under_way_ > 0 && options_.least > Duration{0} && now >= looked_ + tick()) {
    for (std::size_t i = 0; i < devices_.size(); ++i)
      if (devices_[i].up && hangs(devices_[i], now)) verdict.hangs.push_back({static_cast<std::uint32_t>(i)});
    looked_ = now;
  }
  for (std::size_t i = 0; i < devices_.size() && probe_at_ <= now; ++i) {
    Device& d = devices_[i];
    if (d.probe_at > now) continue;
    d.probe_at = TimePoint::max();
    verdict.probes.push_back({static_cast<std::uint32_t>(i)});
  }
  if (!verdict.probes.empty()) find_probe();
  return verdict;
}

}  // namespace carillon::controller
