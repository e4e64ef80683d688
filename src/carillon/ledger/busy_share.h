#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "carillon/base/time.h"

namespace carillon::ledger {

// The share of a device's time that some of its runs took of late: of the last four seconds, in slots of half
// a second, so that it grows and goes within that time and is the same on every machine. At first nothing
// ran. O(1). Not thread-safe.
class BusyShare {
 public:
  static constexpr Duration slot = 500ms;
  static constexpr std::size_t slots = 8;
  // No larger one is told: what is left of the device is never nothing.
  static constexpr double most = 0.9;

  // What a run that needs so long of the device takes from its start to its end, on average, where other runs
  // take that share: they pause it.
  static Duration stretched(Duration needs, double share) {
    return from_ns(static_cast<double>(needs.count()) / (1 - share));
  }

  // A run of that length has ended. `now` never goes back.
  void add(Duration busy, TimePoint now) {
    pass(now);
    busy_[place(present_)] += busy;
    total_ += busy;
  }
  // In [0, most].
  double at(TimePoint now) {
    if (total_ <= Duration{0}) return 0;
    pass(now);
    const Duration span = static_cast<std::int64_t>(slots) * slot + (now - TimePoint{} - present_ * slot);
    return std::min(most, static_cast<double>(total_.count()) / static_cast<double>(span.count()));
  }

 private:
  static std::size_t place(std::int64_t number) { return static_cast<std::size_t>(number) % (slots + 1); }
  void pass(TimePoint now) {
    const std::int64_t number = (now - TimePoint{}) / slot;
    if (number - present_ > static_cast<std::int64_t>(slots)) {
      busy_ = {};
      total_ = Duration{0};
    } else {
      for (std::int64_t n = present_ + 1; n <= number; ++n) {
        total_ -= busy_[place(n)];
        busy_[place(n)] = Duration{0};
      }
    }
    present_ = number;
  }

  std::array<Duration, slots + 1> busy_{};  // of the present slot and those before it
  Duration total_{0};
  std::int64_t present_ = 0;
};

}  // namespace carillon::ledger
