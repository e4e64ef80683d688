#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace carillon {

// All time is whole nanoseconds: ties are exact and a simulation repeats byte for byte.
using Duration = std::chrono::nanoseconds;

// The one timeline of a process (live: CLOCK_MONOTONIC; simulated: from zero). It has no now(): whoever
// decides is told the time; whoever runs live asks a Clock (base/clock.h).
struct Timeline {
  using duration = Duration;
  using rep = Duration::rep;
  using period = Duration::period;
  using time_point = std::chrono::time_point<Timeline, Duration>;
};
using TimePoint = Timeline::time_point;

using namespace std::chrono_literals;  // 5ms, 20us: as in the papers

// For the edges only (JSON, CSV, tables): milliseconds as a double, and back, rounded to the nearest
// nanosecond.
constexpr double to_ms(Duration d) {
  return static_cast<double>(d.count()) * 1e-6;
}
constexpr double to_us(Duration d) {
  return static_cast<double>(d.count()) * 1e-3;
}
constexpr double to_seconds(Duration d) {
  return static_cast<double>(d.count()) * 1e-9;
}
constexpr Duration from_ns(double ns) {
  return Duration{static_cast<std::int64_t>(ns < 0 ? ns - 0.5 : ns + 0.5)};
}
constexpr Duration from_ms(double ms) {
  return from_ns(ms * 1e6);
}
constexpr Duration from_seconds(double s) {
  return from_ns(s * 1e9);
}

// `t + d`, held at the ends of the timeline instead of overflowing.
constexpr TimePoint saturating_add(TimePoint t, Duration d) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(t.time_since_epoch().count(), d.count(), &sum))
    return d.count() > 0 ? TimePoint::max() : TimePoint::min();
  return TimePoint{Duration{sum}};
}

// When something may start: within [earliest, latest], else it is refused.
struct Window {
  TimePoint earliest;
  TimePoint latest;

  constexpr bool contains(TimePoint t) const { return earliest <= t && t <= latest; }
  friend bool operator==(const Window&, const Window&) = default;
};

}  // namespace carillon
