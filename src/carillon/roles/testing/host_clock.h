#pragma once

#include <algorithm>
#include <cstdint>

#include "carillon/base/time.h"

namespace carillon::roles::testing {

// The clock of a host beside true time: begun at another time, faster or slower, and set by steps.
class HostClock {
 public:
  HostClock() = default;
  // Shows `zero` at true time 0, and runs by `ppb` billionths faster; |ppb| <= 1,000,000.
  HostClock(Duration zero, std::int64_t ppb) : zero_(zero.count()), ppb_(ppb) {}

  // What it shows at a true time. Never falls between steps back. Times of up to 1000 s.
  TimePoint shows(TimePoint when) const {
    const std::int64_t t = when.time_since_epoch().count();
    return TimePoint{Duration{zero_ + t + floor_of(t)}};
  }
  // The first true time, 0 or later, at which it shows `shown` or more. max() for what is 1000 s away.
  TimePoint when(TimePoint shown) const {
    constexpr std::int64_t farthest = 1'000'000'000'000;
    const std::int64_t s = shown.time_since_epoch().count();
    if (s <= zero_) return TimePoint{};
    if (s - zero_ > farthest) return TimePoint::max();
    std::int64_t t = s - zero_;
    t -= floor_of(t);
    while (zero_ + t + floor_of(t) < s) ++t;
    while (t > 0 && zero_ + t - 1 + floor_of(t - 1) >= s) --t;
    return TimePoint{Duration{std::max<std::int64_t>(t, 0)}};
  }
  void step(Duration by) { zero_ += by.count(); }

 private:
  std::int64_t floor_of(std::int64_t t) const {
    const std::int64_t product = t * ppb_;
    return product / 1'000'000'000 - (product % 1'000'000'000 < 0 ? 1 : 0);
  }
  std::int64_t zero_ = 0;
  std::int64_t ppb_ = 0;
};

}  // namespace carillon::roles::testing
