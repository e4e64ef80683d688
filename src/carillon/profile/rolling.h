#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "carillon/base/time.h"

namespace carillon::profile {

// What one kind of action (a model's EXEC at one batch size, or its LOAD) is believed to take: the 99th
// percentile of its last ten measurements, which among ten is the largest (Clockwork, section 5.3). A seed
// estimate stands in as the first measurement. Allocates nothing; reading costs O(1).
//
// Beyond the paper, one wild measurement is not believed. A machine that was away for a moment (stopped,
// swapped, moved to another host) makes whatever ran just then look long, once; taken into the ten it would
// keep out for ten executions what can be done as before, and what is kept out is not measured. A
// measurement more than twice as long as all ten is wild: on a machine shared with others the 99.99th
// percentile of an execution is twice its median (docs/benchmarks.md, Prediction). Another wild one among the
// ten that follow, from after the first, shows that the first was no accident, and counts. So a device that
// really became slow is believed after its second execution.
class RollingWindow {
 public:
  static constexpr std::size_t capacity = 10;

  // `seed` >= 0; at zero nothing is known, and the first measurement counts whatever it is.
  explicit RollingWindow(Duration seed) : newest_at_(TimePoint::min()), largest_(seed) { values_[0] = seed; }

  Duration estimate() const { return largest_; }
  // The median of the same measurements: what it takes where nothing goes wrong. O(1): they are ten.
  Duration usual() const {
    std::array<Duration, capacity> sorted = values_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(count_ / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count_));
    return *middle;
  }

  // Something was measured since it began from its seed.
  bool measured() const { return count_ > 1; }
  // When the newest measurement was added; TimePoint::min() before the first.
  TimePoint newest_at() const { return newest_at_; }

  // Adds a measurement of what ended at about `at`; the oldest of more than ten leaves.
  void add(Duration measured, TimePoint at) {
    newest_at_ = at;
    if (largest_ > Duration{0} && measured / 2 > largest_) {
      // What ran beside the first for half its time (on another device) met the same accident.
      const bool again = suspicion_ > 0 && saturating_add(at, -measured / 2) >= accident_;
      if (!again) {
        if (suspicion_ == 0) accident_ = at;
        suspicion_ = capacity;
        return;
      }
      suspicion_ = 0;
    }
    if (suspicion_ > 0) --suspicion_;
    const Duration comes = std::max(measured, Duration{0});
    const Duration leaves = std::exchange(values_[next_], comes);  // zero where none does
    next_ = next_ + 1 == capacity ? 0 : next_ + 1;
    count_ = std::min(count_ + 1, capacity);
    if (comes >= largest_)
      largest_ = comes;
    else if (leaves == largest_)
      find_largest();
  }

  // Lowers the largest value to the smallest, if it is more than twice that: how an outlier is forgotten
  // where it keeps the action from being run, and so from being measured again. Counts as a measurement in
  // newest_at(), so that a caller can do this at a bounded rate.
  void forget_outlier(TimePoint at) {
    const auto end = values_.begin() + static_cast<std::ptrdiff_t>(count_);
    const Duration smallest = *std::min_element(values_.begin(), end);
    if (largest_ > 2 * smallest) *std::max_element(values_.begin(), end) = smallest;
    newest_at_ = at;
    find_largest();
  }

  // Starts anew from `seed`, which is a guess against what was measured: the first measurement of what begins
  // from now on counts, whatever it is.
  void reset(Duration seed, TimePoint at) {
    *this = RollingWindow(seed);
    newest_at_ = accident_ = at;
    suspicion_ = capacity;
  }

 private:
  void find_largest() {
    largest_ = *std::max_element(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(count_));
  }

  std::array<Duration, capacity> values_{};
  std::size_t count_ = 1;
  std::size_t next_ = 1;
  std::size_t suspicion_ = 0;  // for so many measurements more, a wild one is no accident
  TimePoint accident_;         // when the last one ended
  TimePoint newest_at_;
  Duration largest_;
};

}  // namespace carillon::profile
