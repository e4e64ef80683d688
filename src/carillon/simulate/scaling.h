#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/provision/autoscale.h"
#include "carillon/provision/wanted.h"
#include "carillon/simulate/usual_signals.h"

namespace carillon::simulate {

// Devices come and go in a run as many are wanted. Limits are within what Wanted::make() takes.
struct ScalingOptions {
  provision::WantedOptions wanted;  // `most` is held at the scenario's devices
  int devices = 1;                  // at the start; at least 1, at most the scenario's
  Duration period = 15s;            // between looks; above 0
  Duration start_up = 30s;          // from when a device is asked for until it is there; not below 0
  // How long a device that should go is waited for while it has something to do. Then it goes, and the
  // scheduler has to run that elsewhere.
  Duration patience = 5s;
  // If set, this signal gives the number of devices instead of `wanted`. `most` and `quiet` are those of
  // `wanted`.
  std::optional<UsualOptions> usual{};
};

// What a look found, and what came of it.
struct ScalingLook {
  TimePoint at;
  int wanted = 0, present = 0, coming = 0;
  friend bool operator==(const ScalingLook&, const ScalingLook&) = default;
};

struct ScalingFigures {
  std::vector<ScalingLook> looks;
  double device_seconds = 0;  // of devices that were there, over the scenario's duration
  std::uint64_t cut_off = 0;  // devices that went while they had something to do
};

// Which devices are there: the first ones, as a StatefulSet has them. More are asked for in the order of
// their numbers, and the last one goes first. Pure: times go in, and orders come out.
class Scaling {
 public:
  Scaling(const ScalingOptions& options, int devices);

  // Orders for one device.
  struct Order {
    enum class Kind : std::uint8_t { start, leave } kind{};
    std::uint32_t device = 0;
    std::uint32_t booking = 0;  // of a start: void where another came after it
  };
  std::vector<Order> look(TimePoint now, const provision::AutoscaleWindow::Counters& counters,
                          const UsualScaler::Counters& usual = {});

  // A start that was ordered is due. False: it was taken back, and nothing starts.
  bool starts(std::uint32_t device, std::uint32_t booking, TimePoint now);
  // Whether a device is still to go, and how long it has been.
  bool leaves(std::uint32_t device) const { return devices_[device].state == State::leaving; }
  Duration leaving_for(std::uint32_t device, TimePoint now) const { return now - devices_[device].since; }
  void left(std::uint32_t device, bool cut_off, TimePoint now);

  // Once, at the end.
  ScalingFigures take(TimePoint end);

 private:
  enum class State : std::uint8_t { off, starting, on, leaving };
  struct Device {
    State state = State::off;
    std::uint32_t booking = 0;
    TimePoint since{};
  };
  void pass(TimePoint now);
  ScalingOptions options_;
  std::vector<Device> devices_;
  provision::Wanted wanted_;
  provision::AutoscaleWindow window_;
  std::optional<UsualScaler> usual_;
  int present_ = 0;  // on, or leaving
  int asked_ = 0;    // by usual_
  TimePoint last_{};
  ScalingFigures figures_;
};

}  // namespace carillon::simulate
