#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "carillon/base/time.h"

namespace carillon {

// The value below which a fraction `q` in [0, 1] of `values` lies: the nearest-rank definition, so always one
// of them. Zero for none. Reorders `values`. O(n).
Duration percentile(std::span<Duration> values, double q);

// Durations counted in bins whose width is under 1/32 of their value: percentiles of millions of samples in
// fixed memory (about 16 KiB) with a relative error of at most 1/32. Negative durations count as zero. That
// memory is taken with the first value: a server has four of these for each model, most of which count
// nothing, and copies all of them whenever somebody looks. Not thread-safe.
class LatencyHistogram {
 public:
  void add(Duration d);
  void merge(const LatencyHistogram& other);

  std::uint64_t count() const { return count_; }
  Duration sum() const { return sum_; }  // held at Duration::max() instead of overflowing
  Duration mean() const { return count_ == 0 ? Duration{0} : sum_ / static_cast<std::int64_t>(count_); }
  Duration max() const { return max_; }
  // Upper end of the bin that holds the nearest-rank value, never above max(). q in [0, 1].
  Duration percentile(double q) const;
  // How many samples were at most `d`, to the bin's precision.
  std::uint64_t count_at_most(Duration d) const;
  // Tells take(upper end, count) of every bin that holds something, in ascending order. Two looks at one
  // histogram so tell what came between them.
  template <typename Take>
  void each_bin(Take&& take) const {
    for (std::size_t i = 0; i < bin_.size(); ++i)
      if (bin_[i] > 0) take(Duration{static_cast<std::int64_t>(upper_end(static_cast<int>(i)))}, bin_[i]);
  }

 private:
  static constexpr int sub_bits_ = 5;
  static constexpr int bins_ = (64 - sub_bits_) << sub_bits_;
  static int bin_of(std::uint64_t ns);
  static std::uint64_t upper_end(int bin);

  std::vector<std::uint64_t> bin_;  // bins_ of them; none before the first value
  std::uint64_t count_ = 0;
  Duration sum_{0};
  Duration max_{0};
};

}  // namespace carillon
