#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "carillon/schedule/parts/bits.h"
#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule::parts {

// Devices that are alive, and of these, by class of streams, those that can take a run now; and when the
// others can. The fastest come first, and of equals those with the smaller id. A device is stirred when what
// runs there has changed: what did not go there before may go now. O(log devices + speeds) but where said.
// Not thread-safe.
class Free {
 public:
  struct Stirred {
    int speed = 0;
    DeviceId device;
    Class streams{};
    friend auto operator<=>(const Stirred&, const Stirred&) = default;
  };

  // The device is alive, and so slow (Paces::step); or is not.
  void know(DeviceId device, std::optional<int> speed) {
    if (device.index() >= devices_.size()) devices_.resize(device.index() + 1);
    if (devices_[device.index()].speed == speed) return;
    change(device, speed);
    fastest_ = find_fastest();
    alike_ = std::ranges::count_if(groups_, [](const Group& g) { return g.alive.size() > 0; }) <= 1;
  }
  // Of all that are alive.
  const std::optional<DeviceId>& fastest() const { return fastest_; }
  // All that are alive are equally fast.
  bool alike() const { return alike_; }

  // What runs on those streams of the device has changed; or it is time to look.
  void look(DeviceId device, Class streams, const ledger::Ledger& ledger, Duration dispatch, TimePoint now) {
    if (device.index() >= devices_.size() || !devices_[device.index()].speed) return;
    const Next next = next_run(ledger, device, streams, dispatch, now);
    if (next.at <= now) {
      timer(streams).remove(device.value);
      put_in(device, streams);
      stir(device, streams);
      return;
    }
    take_out(device, streams);
    if (next.at == TimePoint::max())
      timer(streams).remove(device.value);
    else
      timer(streams).set(device.value, next.at);
  }
  void stir(DeviceId device, Class streams) {
    stirred_.push_back({*devices_[device.index()].speed, device, streams});
    std::push_heap(stirred_.begin(), stirred_.end(), std::greater{});
  }
  // The first of those that are stirred, once. They are in order.
  std::optional<Stirred> take_stirred() {
    if (stirred_.empty()) return std::nullopt;
    const Stirred first = stirred_.front();
    while (!stirred_.empty() && stirred_.front() == first) {
      std::pop_heap(stirred_.begin(), stirred_.end(), std::greater{});
      stirred_.pop_back();
    }
    return first;
  }
  bool any_stirred() const { return !stirred_.empty(); }
  void calm() { stirred_.clear(); }
  // A device that can take a run from some time on that is not after `now`.
  std::optional<DeviceId> due(Class streams, TimePoint now) const {
    const TimerHeap& heap = timers_[at(streams)];
    return heap.top_at() <= now ? std::optional(DeviceId{heap.top()}) : std::nullopt;
  }
  // When the first such device can, whatever the streams.
  TimePoint next_at() const {
    TimePoint at = TimePoint::max();
    for (const TimerHeap& timer : timers_) at = std::min(at, timer.top_at());
    return at;
  }
  // It can take no run, whatever was known before.
  void take_out(DeviceId device, Class streams) {
    Device& d = devices_[device.index()];
    if (!d.free[at(streams)]) return;
    d.free[at(streams)] = false;
    group(*d.speed).free[at(streams)].clear(device.index());
  }
  // Calls see(device) for each that can take a run and is among `among`, where that is given, until it
  // returns true. True: it did.
  template <typename See>
  bool visit(Class streams, const Bits* among, See&& see) const {
    for (const Group& g : groups_)
      if (g.free[at(streams)].visit(
              among, [&](std::size_t i) { return see(DeviceId{static_cast<std::uint32_t>(i)}); }))
        return true;
    return false;
  }
  // The same of all that are alive.
  template <typename See>
  bool visit_alive(See&& see) const {
    for (const Group& g : groups_)
      if (g.alive.visit(nullptr, [&](std::size_t i) { return see(DeviceId{static_cast<std::uint32_t>(i)}); }))
        return true;
    return false;
  }

 private:
  struct Group {  // of devices that are about as fast
    int speed = 0;
    Bits alive;
    std::array<Bits, all_classes.size()> free;
  };
  struct Device {
    std::optional<int> speed;  // none: not alive
    std::array<bool, all_classes.size()> free{};
  };
  static std::size_t at(Class cls) { return static_cast<std::size_t>(cls); }
  void change(DeviceId device, std::optional<int> speed) {
    Device& d = devices_[device.index()];
    const auto was_free = d.free;
    if (d.speed) {
      for (const Class cls : all_classes) take_out(device, cls);
      group(*d.speed).alive.clear(device.index());
    }
    d.speed = speed;
    if (!speed) {
      for (const Class cls : all_classes) timer(cls).remove(device.value);
      return;
    }
    group(*speed).alive.set(device.index());
    for (const Class cls : all_classes)
      if (was_free[at(cls)]) put_in(device, cls);
  }
  std::optional<DeviceId> find_fastest() const {
    std::optional<DeviceId> found;
    visit_alive([&](DeviceId device) {
      found = device;
      return true;
    });
    return found;
  }
  TimerHeap& timer(Class cls) { return timers_[at(cls)]; }
  Group& group(int speed) {
    const auto found = std::ranges::lower_bound(groups_, speed, {}, &Group::speed);
    if (found != groups_.end() && found->speed == speed) return *found;
    return *groups_.insert(found, Group{.speed = speed, .alive = {}, .free = {}});
  }
  void put_in(DeviceId device, Class streams) {
    Device& d = devices_[device.index()];
    d.free[at(streams)] = true;
    group(*d.speed).free[at(streams)].set(device.index());
  }

  std::vector<Group> groups_;  // by speed; an empty one stays
  std::vector<Device> devices_;
  std::optional<DeviceId> fastest_;
  bool alike_ = true;
  std::array<TimerHeap, all_classes.size()> timers_;
  std::vector<Stirred> stirred_;  // a heap
};

}  // namespace carillon::schedule::parts
