#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "carillon/base/time.h"

namespace carillon::schedule {

// Which duration is exceeded only in a given share of cases, where cases count for less as they age: by a
// factor of e after each `horizon`. A bucket is 2^(1/16) wide, so that the answer is at most 4.5% too long
// (but no more than 4,000 s). Where few cases were seen, it is the longest of them. add() and cases() are
// O(1) but for aging, tail() is O(buckets); 2 KiB. Not thread-safe.
class DecayingTail {
 public:
  // `exceeded` in [0, 1]: the share of cases that may take longer; `horizon` > 0.
  DecayingTail(double exceeded, Duration horizon) : exceeded_(exceeded), horizon_(horizon) {}

  // `weight` cases took `value`, known at `now`, which never goes back.
  void add(Duration value, double weight, TimePoint now) {
    age(now);
    const std::size_t at = bucket(value);
    used_ = std::max(used_, at + 1);
    counts_[at] += static_cast<float>(weight);
    total_ += weight;
  }

  // How many cases it rests on; what has aged counts for less.
  double cases(TimePoint now) {
    age(now);
    return total_;
  }

  // Zero where nothing was seen, and where cases took less than a microsecond.
  Duration tail(TimePoint now) {
    if (exceeded_ >= 1) return Duration{0};
    age(now);
    double above = 0;
    for (std::size_t i = used_; i-- > 0;) {
      above += static_cast<double>(counts_[i]);
      if (above > exceeded_ * total_ && above > forgotten) return upper_bound(i);
    }
    return Duration{0};
  }

 private:
  static constexpr int steps = 16;  // buckets to a doubling
  static constexpr int doublings = 32;
  static constexpr double shortest = 1e3;    // ns; what takes less took nothing
  static constexpr double forgotten = 0.01;  // so little of a case is none
  static constexpr double age_every =
      0.05;  // of the horizon: many small steps would cost more and tell no more

  static std::size_t bucket(Duration value) {
    const auto ns = static_cast<double>(value.count());
    if (ns < shortest) return 0;
    return static_cast<std::size_t>(
        std::min(1 + std::log2(ns / shortest) * steps, static_cast<double>(steps * doublings)));
  }
  static Duration upper_bound(std::size_t bucket) {
    return bucket == 0 ? Duration{0} : from_ns(shortest * std::exp2(static_cast<double>(bucket) / steps));
  }
  void age(TimePoint now) {
    const double horizons = to_seconds(now - aged_) / to_seconds(horizon_);
    if (horizons < age_every) return;
    aged_ = now;
    const double keep = std::exp(-horizons);
    for (std::size_t i = 0; i < used_; ++i) counts_[i] *= static_cast<float>(keep);
    total_ *= keep;
  }

  double exceeded_;
  Duration horizon_;
  TimePoint aged_{};
  double total_ = 0;
  std::array<float, steps * doublings + 1> counts_{};
  std::size_t used_ = 0;  // from there on all are zero
};

}  // namespace carillon::schedule
