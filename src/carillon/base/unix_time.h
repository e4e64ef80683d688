#pragma once

#include <chrono>

#include "carillon/base/clock.h"
#include "carillon/base/time.h"

namespace carillon {

// What to add to a time of SteadyClock to get Unix time, as both clocks show now. A thread may lose its
// processor between two looks at clocks, so the quickest of a few counts.
inline Duration unix_minus_steady() {
  const SteadyClock steady;
  Duration offset{0}, took = Duration::max();
  for (int look = 0; look < 4 && took > std::chrono::microseconds{2}; ++look) {
    const TimePoint before = steady.now();
    const auto unix_now =
        std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch());
    const TimePoint after = steady.now();
    if (after - before >= took) continue;
    took = after - before;
    offset = unix_now - (before + took / 2).time_since_epoch();
  }
  return offset;
}

}  // namespace carillon
