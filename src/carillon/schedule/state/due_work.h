#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "carillon/base/time.h"

namespace carillon::schedule {

// How much work is due by when, up to two seconds ahead, in steps of a millisecond. Work counts as due at the
// end of its step, and is forgotten once its step has passed. Not thread-safe.
class DueWork {
 public:
  static constexpr Duration step = 1ms;
  static constexpr std::int64_t steps = 2048;

  // Whether work that is due then has a place.
  static bool reaches(TimePoint due, TimePoint now) { return due > now && due - now <= step * (steps - 2); }

  // `due` is within reach. `now` never goes back.
  void add(TimePoint due, Duration work, TimePoint now) {
    move_to(now);
    at(place_of(due)) += work;
    last_ = std::max(last_, place_of(due));
  }
  // What was added for the same time.
  void remove(TimePoint due, Duration work, TimePoint now) {
    move_to(now);
    if (place_of(due) >= first_) at(place_of(due)) -= work;
  }

  // The factor by which the work here may grow before something is late: the work of one more, or what is due
  // behind it. Work begins at `start`, in the order of deadlines, and `executors` share it. The one more
  // takes `more`, which does not grow, and is due at `due`. Infinity where nothing is in its way. O(steps).
  double room(TimePoint due, Duration more, TimePoint start, double executors, TimePoint now) {
    move_to(now);
    Duration until{0};
    const std::int64_t own = place_of(due);
    for (std::int64_t place = first_; place < std::min(own, last_ + 1); ++place) until += at(place);
    double least = times(due - start - more, until, executors);
    const Duration each = from_ns(static_cast<double>(more.count()) / executors);
    for (std::int64_t place = std::max(own, first_); place <= last_; ++place) {
      const Duration here = at(place);
      until += here;
      if (here > Duration{0}) least = std::min(least, times(end_of(place) - start - each, until, executors));
    }
    return least;
  }

 private:
  static std::int64_t place_of(TimePoint at) {
    return at.time_since_epoch() / step - (at.time_since_epoch() % step < Duration{0} ? 1 : 0);
  }
  static TimePoint end_of(std::int64_t place) { return TimePoint{step * (place + 1)}; }
  static double times(Duration left, Duration work, double executors) {
    return work <= Duration{0}
               ? std::numeric_limits<double>::infinity()
               : executors * static_cast<double>(left.count()) / static_cast<double>(work.count());
  }
  Duration& at(std::int64_t place) { return work_[static_cast<std::size_t>(place & (steps - 1))]; }
  void move_to(TimePoint now) {
    const std::int64_t to = place_of(now);
    for (; first_ < to && first_ <= last_; ++first_) at(first_) = Duration{0};
    first_ = std::max(first_, to);
    last_ = std::max(last_, first_ - 1);
  }

  std::array<Duration, static_cast<std::size_t>(steps)> work_{};
  std::int64_t first_ =
      std::numeric_limits<std::int64_t>::min() / 2;  // the step of the time that was told last
  std::int64_t last_ = std::numeric_limits<std::int64_t>::min() / 2 - 1;  // no step behind it has work
};

}  // namespace carillon::schedule
