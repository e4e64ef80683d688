#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/device/core.h"
#include "carillon/workload/request.h"

namespace carillon::device {

// Who makes way for whom on a device that runs requests of several classes.
enum class Yielding : std::uint8_t {
  inside,      // real-time first: what else runs ends inside its kernel (REEF)
  boundaries,  // real-time first: what else runs ends before its next kernel
  none,        // all run beside each other
  turns        // one run at a time; real-time is the next
};

// The streams of such a device: one for all normal work, one for real-time, and then those for best effort.
// Each of these has one compute unit of its own where there are several, in the order of the units, else all.
struct ClassStreams {
  static constexpr std::uint8_t normal = 0;
  static constexpr std::uint8_t real_time = 1;
  static constexpr std::uint8_t first_best_effort = 2;

  Yielding yielding = Yielding::inside;
  int units = 1;            // of the device, 1 to 64
  int real_time_units = 0;  // that real-time runs use, the first ones; 0: all
  int best_effort = 1;      // streams, at most as many as units

  std::uint8_t count() const {
    return yielding == Yielding::turns ? 1 : static_cast<std::uint8_t>(first_best_effort + best_effort);
  }
  // Of a run of that class; `nth` of the best-effort streams.
  std::uint8_t stream_of(Class cls, int nth = 0) const {
    CARILLON_ASSERT(nth >= 0 && nth < best_effort);
    if (yielding == Yielding::turns || cls == Class::normal) return normal;
    return cls == Class::real_time ? real_time : static_cast<std::uint8_t>(first_best_effort + nth);
  }
  std::vector<StreamPlace> places() const {
    if (yielding == Yielding::turns) return {StreamPlace{}};
    const auto first = [](int n) { return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1; };
    const bool yields = yielding != Yielding::none;
    const std::uint64_t all = yields ? first(units) : 0;
    const std::uint64_t urgent = yields ? first(real_time_units > 0 ? real_time_units : units) : 0;
    std::vector<StreamPlace> places{{1, all}, {0, urgent}};
    for (int i = 0; i < best_effort; ++i)
      places.push_back({2, best_effort > 1 && yields ? std::uint64_t{1} << i : all});
    return places;
  }
};

}  // namespace carillon::device
