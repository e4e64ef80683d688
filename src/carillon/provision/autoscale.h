#pragma once

#include <cstdint>
#include <deque>

#include "carillon/base/time.h"

namespace carillon::provision {

struct AutoscaleAdvice {
  int add_devices = 0;
  int release_devices = 0;
  double bad_rate = 0;       // requests that were not answered on time, as a share of all
  double idle_fraction = 0;  // device time that nothing ran, as a share of all
  // What the advice rests on. AutoscaleWindow alone tells it.
  Duration period{0};          // 0: nothing is known
  std::uint64_t requests = 0;  // that had their outcome within the period
  double devices = 0;          // how many there were, on average over the period
};

// How many devices a cluster of `devices` should gain or could lose (Symphony, section 3.5): where the bad
// rate r is above `threshold`, N*r/(1-r) more (with 1-r held at a half, so at most 2N); else N*f fewer for an
// idle fraction f, but never all of them. Shares are in [0, 1]. A pure function.
AutoscaleAdvice autoscale_advice(int devices, double bad_rate, double idle_fraction, double threshold = 0.01);

// The same for a server that runs: advice over about the last `span`, from counters that only grow. Looked at
// seldom, the period reaches back to the last look. Where the number of devices changes, the idle fraction is
// of the devices that there were, and the advice starts from those that there are. Not thread-safe.
class AutoscaleWindow {
 public:
  struct Counters {
    std::uint64_t requests = 0;  // that had their outcome (without those whose client went)
    std::uint64_t bad = 0;       // of these, not answered on time
    Duration busy{0};            // device time, of all devices
  };
  explicit AutoscaleWindow(Duration span = std::chrono::seconds{60}) : span_(span) {}

  // `now` does not go back. The first call only begins; it advises nothing.
  AutoscaleAdvice observe(TimePoint now, int devices, const Counters& counters);

 private:
  struct Sample {
    TimePoint at;
    Counters counters;
    double device_seconds = 0;  // of all devices, since the first call
  };
  Duration span_;
  TimePoint last_{};  // the call before, and what it was told
  int last_devices_ = 0;
  double device_seconds_ = 0;
  std::deque<Sample> samples_;  // one older than the span at most; at least a 64th of it apart
};

}  // namespace carillon::provision
