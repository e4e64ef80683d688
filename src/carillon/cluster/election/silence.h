#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "carillon/base/time.h"

namespace carillon::cluster::election {

// For how long nothing was heard, without the listener's own stalls. The listener ticks every few
// milliseconds. If a tick comes late, the listener itself stood still, and beats may wait in its socket. Such
// time counts as one usual tick.
//
// Time is counted at ticks. The time between two ticks counts as nothing where something was heard between
// them, so silence is understated by up to a tick. O(1). Not thread-safe.
class Silence {
 public:
  // Requires 0 < usual <= stall: how often ticks come, and from which time between two of them on the
  // listener has stalled.
  Silence(Duration usual, Duration stall) : usual_(usual), stall_(stall) {}

  // False after a stall: then nothing may be judged before all that waits was heard, and another tick.
  // `now` is not before an earlier tick's.
  bool tick(TimePoint now) {
    const Duration gap = last_ ? std::max(now - *last_, Duration{0}) : Duration{0};
    const bool late = gap > stall_;
    lasted_ = heard_ ? Duration{0} : lasted_ + (late ? usual_ : gap);
    heard_ = false;
    last_ = now;
    stalls_ += late ? 1 : 0;
    return !late;
  }
  void heard() { heard_ = true; }

  Duration lasted() const { return heard_ ? Duration{0} : lasted_; }
  std::uint64_t stalls() const { return stalls_; }

 private:
  Duration usual_, stall_;
  std::optional<TimePoint> last_;  // tick
  bool heard_ = false;             // since then
  Duration lasted_{0};             // until then
  std::uint64_t stalls_ = 0;
};

}  // namespace carillon::cluster::election
