#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule {

// The largest of the last 512 values but for those that a promise may break: at a promise of 0.25% that is
// one of them. Small and cheap: 4 KiB; adding costs a store, and every sixteenth a search. Not thread-safe.
class TailWindow {
 public:
  static constexpr std::size_t capacity = 512;
  static constexpr std::size_t enough = 64;  // values before which it says nothing

  // `exceeded` in [0, 1): the share of values that may be larger.
  explicit TailWindow(double exceeded) : exceeded_(exceeded) {}
  // True where tail() may have changed: it is found anew at every sixteenth value, and at once for one above
  // it.
  bool add(double value);
  bool known() const { return count_ >= enough; }
  double tail() const { return tail_; }

 private:
  double exceeded_;
  std::array<double, capacity> values_{};
  std::size_t count_ = 0, next_ = 0, since_ = 0;
  double tail_ = 0;
};

// What a policy allows for besides execution times, measured while serving, by device: how long after a
// decision EXEC starts where nothing is in its way, by how much a batch outlasts its estimate, and how long
// after its end that is heard. Each at the quantile that is promised, over the last 512 executions; until 64
// were seen, what was told at the start counts where it is larger. What comes after a report is heard
// (Environment::client) cannot be seen from here and is taken as told. Where the environment is not to be
// measured, what was told stays.
//
// A pure object: all of it comes from actions and their reports, so that a simulated run, a live one and its
// replay measure alike. Not thread-safe.
class Margins {
 public:
  // Answers that may be late. Half of them for lasting longer, half for being heard of later.
  static constexpr double promised = 0.005;

  explicit Margins(const Environment& told) : told_(told), worst_(told), least_(told) {}

  // A device appears, or starts anew: what was told counts until it has been measured.
  void start(DeviceId device, bool alive);

  struct Execution {
    TimePoint decided;     // when the INFER was sent
    bool at_once = false;  // the device was idle and the window open: nothing else kept it from starting
    Duration estimate;     // of EXEC, when it was sent
    TimePoint start, end;  // as reported
    Duration took;         // of EXEC, as reported: less than between them where more was done
    TimePoint heard;       // when the report came
  };
  // An INFER succeeded. True where at(), worst() or least() changed by more than a twentieth: then whoever
  // keeps numbers that were made of them has to make them anew.
  bool observe(DeviceId device, const Execution& execution);

  const Environment& at(DeviceId device) const { return devices_[device.index()].now; }
  // The largest of each over the devices that are alive; what was told where none is.
  const Environment& worst() const { return worst_; }
  // The smallest of each over them: what nobody can do better than.
  const Environment& least() const { return least_; }

 private:
  struct Device {
    bool alive = false;
    Environment now;
    TailWindow dispatch{promised / 2}, answer{promised / 2}, overrun{promised / 2};
  };
  void find_bounds();

  Environment told_, worst_, least_;
  std::vector<Device> devices_;
};

}  // namespace carillon::schedule
