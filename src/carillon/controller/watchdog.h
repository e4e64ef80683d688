#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::controller {

struct WatchdogOptions {
  // A device hangs that has reported nothing for `least`, or `factor` times what the longest action that it
  // has should take, whichever is longer. `least` 0: nobody looks.
  Duration least = std::chrono::seconds{1};
  double factor = 20;
  // A device that went is asked again and again whether it answers; first after `pause`, which doubles, up to
  // `longest_pause`, with every time that it went soon after it had come back.
  Duration pause = std::chrono::milliseconds{100};
  Duration longest_pause = std::chrono::seconds{10};
};

// Says which devices hang, and when one that went is to be probed: what was sent and what has ended go in,
// with the time, and verdicts come out. A pure core.
//
// EXEC and LOAD are watched apart, each by how long it has reported nothing though it has an action whose
// window is open. Between two looks no more time counts than was meant to pass: where the process was
// stopped, or the controller had no core to run on, the devices had none either.
//
// A device is up from the start. All that was sent ends, or its device goes down. Costs are linear in the
// actions that are under way on the device. Not thread-safe; `now` never goes back.
class Watchdog {
 public:
  enum class Lane : std::uint8_t { exec, load };
  struct Action {
    ActionId id;
    Lane lane{};
    TimePoint opens;  // its window
    Duration expected{0};
  };

  explicit Watchdog(const WatchdogOptions& options) : options_(options) {}

  void add_device() { devices_.emplace_back(); }
  void sent(DeviceId device, const Action& action, TimePoint now);
  void ended(DeviceId device, ActionId action);
  const std::vector<Action>& under_way(DeviceId device) const { return devices_[device.index()].actions; }

  // The device was taken out: it has nothing under way any more, and is to be probed.
  void down(DeviceId device, TimePoint now);
  // Its probe has found it well, and it is up again; or not.
  void probed(DeviceId device, bool well, TimePoint now);

  // When look() wants to be called; max() for never.
  TimePoint wake_at() const;
  struct Verdict {
    std::vector<DeviceId> hangs;   // to be taken out
    std::vector<DeviceId> probes;  // to be probed: each has one probed() before it is named again
  };
  // Not before wake_at() there is nothing to say.
  Verdict look(TimePoint now);

 private:
  struct Device {
    bool up = true;
    std::vector<Action> actions;
    struct Quiet {
      bool fresh = true;  // something was reported, or nothing was to be done, since the last look
      Duration time{0};
    };
    std::array<Quiet, 2> lanes;          // by Lane
    TimePoint since = TimePoint::min();  // up or down
    TimePoint probe_at = TimePoint::max();
    int relapses = 0;
  };
  Duration tick() const { return options_.least / 8; }
  bool hangs(Device& device, TimePoint now) const;
  void find_probe();

  WatchdogOptions options_;
  std::vector<Device> devices_;
  std::size_t under_way_ = 0;              // on all devices
  TimePoint probe_at_ = TimePoint::max();  // the first of theirs
  TimePoint looked_ = TimePoint::min();
};

}  // namespace carillon::controller
