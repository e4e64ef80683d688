#include "carillon/base/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon {
namespace {

// Nearest rank, counted from one, of fraction `q` among `count` values.
std::uint64_t rank_of(double q, std::uint64_t count) {
  CARILLON_ASSERT(q >= 0 && q <= 1);
  const auto rank = static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count)));
  return std::clamp<std::uint64_t>(rank, 1, count);
}

// A request that waits for ever must not spoil the sum of all others' times by an overflow.
Duration saturating_sum(Duration a, Duration b) {
  return saturating_add(TimePoint{a}, b).time_since_epoch();
}

}  // namespace

Duration percentile(std::span<Duration> values, double q) {
  if (values.empty()) return Duration{0};
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(rank_of(q, values.size()) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

int LatencyHistogram::bin_of(std::uint64_t ns) {
  const int width = static_cast<int>(std::bit_width(ns));
  if (width <= sub_bits_ + 1) return static_cast<int>(ns);
  const int shift = width - sub_bits_ - 1;
  return ((shift + 1) << sub_bits_) + static_cast<int>((ns >> shift) - (1U << sub_bits_));
}

std::uint64_t LatencyHistogram::upper_end(int bin) {
  if (bin < (2 << sub_bits_)) return static_cast<std::uint64_t>(bin);
  const int shift = (bin >> sub_bits_) - 1;
  const std::uint64_t mantissa =
      (1ULL << sub_bits_) + static_cast<std::uint64_t>(bin & ((1 << sub_bits_) - 1));
  return ((mantissa + 1) << shift) - 1;
}

void LatencyHistogram::add(Duration d) {
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(d.count(), 0));
  if (bin_.empty()) bin_.resize(bins_);
  ++bin_[static_cast<std::size_t>(bin_of(ns))];
  ++count_;
  sum_ = saturating_sum(sum_, Duration{static_cast<std::int64_t>(ns)});
  max_ = std::max(max_, Duration{static_cast<std::int64_t>(ns)});
}

void LatencyHistogram::merge(const LatencyHistogram& other) {
  if (other.count_ == 0) return;
  if (bin_.empty()) bin_.resize(bins_);
  for (std::size_t i = 0; i < bin_.size(); ++i) bin_[i] += other.bin_[i];
  count_ += other.count_;
  sum_ = saturating_sum(sum_, other.sum_);
  max_ = std::max(max_, other.max_);
}

Duration LatencyHistogram::percentile(double q) const {
  if (count_ == 0) return Duration{0};
  const std::uint64_t rank = rank_of(q, count_);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < bin_.size(); ++i) {
    seen += bin_[i];
    if (seen >= rank)
      return std::min(max_, Duration{static_cast<std::int64_t>(upper_end(static_cast<int>(i)))});
  }
  return max_;
}

std::uint64_t LatencyHistogram::count_at_most(Duration d) const {
  if (d < Duration{0} || count_ == 0) return 0;
  const int last = bin_of(static_cast<std::uint64_t>(d.count()));
  std::uint64_t seen = 0;
  for (int i = 0; i <= last; ++i) seen += bin_[static_cast<std::size_t>(i)];
  return seen;
}

}  // namespace carillon
