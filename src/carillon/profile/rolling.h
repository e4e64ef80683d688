#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "carillon/base/time.h"

namespace carillon::profile {

// What one kind of action (a model's EXEC at one batch size, or its LOAD) is believed to take: the 99th
// percentile of its last ten measurements, which among ten is the largest (Clockwork, section 5.3). A seed
// estimate stands in as the first measurement. Allocates nothing; reading costs O(1).
class RollingWindow {
 public:
  static constexpr std::size_t capacity = 10;

  // `seed` >= 0.
  explicit RollingWindow(Duration seed) : newest_at_(TimePoint::min()), largest_(seed) { values_[0] = seed; }

  Duration estimate() const { return largest_; }

  // When the newest measurement was added; TimePoint::min() before the first.
  TimePoint newest_at() const { return newest_at_; }

  // Adds a measurement; the oldest of more than ten leaves.
  void add(Duration measured, TimePoint at) {
    values_[next_] = std::max(measured, Duration{0});
    next_ = (next_ + 1) % capacity;
    count_ = std::min(count_ + 1, capacity);
    newest_at_ = at;
    find_largest();
  }

  // Lowers the largest value to the smallest, if it is more than twice that: how a lone outlier is forgotten
  // where it keeps the action from being run, and so from being measured again. Counts as a measurement in
  // newest_at(), so that a caller can do this at a bounded rate.
  void forget_outlier(TimePoint at) {
    const auto end = values_.begin() + static_cast<std::ptrdiff_t>(count_);
    const Duration smallest = *std::min_element(values_.begin(), end);
    if (largest_ > 2 * smallest) *std::max_element(values_.begin(), end) = smallest;
    newest_at_ = at;
    find_largest();
  }

  // Starts anew from `seed`.
  void reset(Duration seed, TimePoint at) {
    *this = RollingWindow(seed);
    newest_at_ = at;
  }

 private:
  void find_largest() {
    largest_ = *std::max_element(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(count_));
  }

  std::array<Duration, capacity> values_{};
  std::size_t count_ = 1;
  std::size_t next_ = 1;
  TimePoint newest_at_;
  Duration largest_;
};

}  // namespace carillon::profile
