#pragma once

#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::dispatch {

struct RevivalOptions {
  // A device that went is asked again and again whether it answers; first after `pause`, which doubles, up to
  // `longest_pause`, with every time that it went less than 30 s after it had come back.
  Duration pause = std::chrono::milliseconds{100};
  Duration longest_pause = std::chrono::seconds{10};
};

// Says when devices that went are to be probed. A pure core. Not thread-safe;
// `now` never goes back.
class Revivals {
 public:
  explicit Revivals(const RevivalOptions& options) : options_(options) {}

  void add_device(bool up = true) { devices_.push_back({.up = up, .pause = options_.pause}); }
  // The device, which was up, went.
  void down(DeviceId device, TimePoint now);
  // Its probe has found it well, and it is up again; or not. It may say so before it is probed.
  void probed(DeviceId device, bool well, TimePoint now);

  // When due() wants to be called; max() for never.
  TimePoint wake_at() const { return first_; }
  // Those that are to be probed: each has one probed() before it is named again.
  std::vector<DeviceId> due(TimePoint now);

 private:
  struct Device {
    bool up = true;
    Duration pause;                           // before its first probe, when it last went
    TimePoint soon_until = TimePoint::min();  // a device that goes before this went soon after it came back
    TimePoint probe_at = TimePoint::max();
  };
  void find_first();

  RevivalOptions options_;
  std::vector<Device> devices_;
  TimePoint first_ = TimePoint::max();  // of their probe_at
};

}  // namespace carillon::dispatch
