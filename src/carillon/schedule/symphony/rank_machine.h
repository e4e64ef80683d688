#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/schedule/symphony/model_machine.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule::symphony {

struct Grant {
  ModelId model;
  DeviceId device;
  TimePoint free_at;
};

// The RankThread of Symphony (figure 18): when devices will be free, which candidates may run, and which of
// them gets which device. A candidate may run from its exec_at on; a free device takes the one whose
// `order` is first, and a candidate the free device with the smallest id, so that devices with high ids stay
// idle under low load. Both are taken until they are informed of again. Costs O(log models + log devices) a
// call. Not thread-safe.
class RankMachine {
 public:
  // Messages take `dispatch` to a device: devices and candidates are matched that long ahead.
  explicit RankMachine(Duration dispatch) : dispatch_(dispatch) {}

  void set_dispatch(Duration dispatch) { dispatch_ = dispatch; }

  void inform_candidate(ModelId model, const std::optional<Candidate>& candidate);
  // When the device will be free; max() takes it out.
  void inform_device(DeviceId device, TimePoint free_at);

  // When a device can next be matched, as far as is known; max() for never.
  TimePoint device_at(TimePoint now) const { return free_.empty() ? busy_.top_at() : now; }

  // When the next of those that are busy comes to be free.
  TimePoint next_free_at() const { return busy_.top_at(); }

  // When match() could find something next, as far as is known; max() for never.
  TimePoint wake_at() const;

  // Devices that are free, as far as is known.
  std::size_t free_count(TimePoint now) const {
    std::size_t found = free_.size();
    busy_.visit_first(busy_.size(), saturating_add(now, Duration{1}), [&](std::uint32_t) { ++found; });
    return found;
  }
  // Those of them that match() found free and nobody took.
  std::size_t unmatched() const { return free_.size(); }
  // Candidates that have no device yet and may run before that; so many at most.
  std::size_t candidates_before(TimePoint until, std::size_t most) const {
    std::size_t found = std::min(ready_.size(), most);
    waiting_.visit_first(most - found, until, [&](std::uint32_t) { ++found; });
    return found;
  }
  // Calls visit(device) for the devices of the smallest ids that match() found free and nobody took: so many
  // at most, and until it returns false.
  template <typename Visit>
  void visit_free(std::size_t most, Visit&& visit) const {
    bool on = true;
    free_.visit_first(most, TimePoint::max(),
                      [&](std::uint32_t device) { on = on && visit(DeviceId{device}); });
  }

  // One match that is due at `now`, if there is any: call it until there is none. `can_run(device, model)`
  // tells whether the weights are there.
  template <typename CanRun>
  std::optional<Grant> match(TimePoint now, CanRun&& can_run) {
    while (busy_.top_at() <= now) {
      const std::uint32_t device = busy_.top();
      busy_.remove(device);
      free_.set(device, TimePoint{});
    }
    while (waiting_.top_at() <= now) {
      const std::uint32_t model = waiting_.top();
      waiting_.remove(model);
      ready_.set(model, order_[model]);
    }
    std::optional<Grant> grant;
    aside_.clear();
    while (!grant && !ready_.empty() && !free_.empty()) {
      const std::uint32_t model = ready_.top();
      const std::optional<std::uint32_t> device = device_for(ModelId{model}, can_run);
      if (device) {
        ready_.remove(model);
        free_.remove(*device);
        grant = Grant{ModelId{model}, DeviceId{*device}, free_at_[*device]};
      } else {
        aside_.emplace_back(model, ready_.at(model));
        ready_.remove(model);
      }
    }
    for (const auto& [model, order] : aside_) ready_.set(model, order);
    return grant;
  }

 private:
  template <typename CanRun>
  std::optional<std::uint32_t> device_for(ModelId model, CanRun&& can_run) {
    devices_aside_.clear();
    std::optional<std::uint32_t> found;
    while (!free_.empty()) {
      const std::uint32_t device = free_.top();
      if (can_run(DeviceId{device}, model)) {
        found = device;
        break;
      }
      devices_aside_.push_back(device);
      free_.remove(device);
    }
    for (const std::uint32_t device : devices_aside_) free_.set(device, TimePoint{});
    return found;
  }

  Duration dispatch_;
  TimerHeap waiting_;               // models by the time from which their candidate may be matched
  TimerHeap ready_;                 // models by `order`
  TimerHeap busy_;                  // devices by the time from which they may be matched
  TimerHeap free_;                  // devices, the smallest id on top
  std::vector<TimePoint> order_;    // by model
  std::vector<TimePoint> free_at_;  // by device
  std::vector<std::pair<std::uint32_t, TimePoint>> aside_;
  std::vector<std::uint32_t> devices_aside_;
};

}  // namespace carillon::schedule::symphony
