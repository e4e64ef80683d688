#include "carillon/profile/distribution.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::profile {

Distribution Distribution::from_samples(std::span<Duration> samples, int bins) {
  CARILLON_ASSERT(!samples.empty() && bins >= 1);
  std::sort(samples.begin(), samples.end());
  CARILLON_ASSERT(samples.front() >= Duration{0});
  const std::size_t n = samples.size();
  // Chunks of samples, smaller towards both tails, which deadlines ask for (shares of a smoothstep); one that
  // lies across the gap between two modes is cut there. Equal samples stay together.
  const int chunks = (bins + 1) / 2;
  const auto end_of = [&](int chunk) {
    const double u = static_cast<double>(chunk) / chunks;
    return static_cast<std::size_t>(std::lround(static_cast<double>(n) * u * u * (3 - 2 * u)));
  };
  const Duration range = samples.back() - samples.front();
  std::vector<Bin> made;
  const auto add = [&](std::size_t from, std::size_t to) {
    double low = static_cast<double>(samples[from].count());
    if (!made.empty()) low = std::max(low, made.back().high);
    const double high = std::max(static_cast<double>(samples[to - 1].count()), low) + 1;
    made.push_back({low, high, static_cast<double>(to - from) / static_cast<double>(n)});
  };
  std::size_t from = 0;
  for (int chunk = 1; chunk <= chunks; ++chunk) {
    std::size_t to = chunk == chunks ? n : end_of(chunk);
    if (to <= from) continue;
    while (to < n && samples[to] == samples[to - 1]) ++to;
    std::size_t widest = from + 1;
    for (std::size_t i = from + 1; i < to; ++i)
      if (samples[i] - samples[i - 1] > samples[widest] - samples[widest - 1]) widest = i;
    const Duration own = samples[to - 1] - samples[from];
    if (bins > 1 && widest < to && 2 * (samples[widest] - samples[widest - 1]) > own && 50 * own > range) {
      add(from, widest);
      from = widest;
    }
    add(from, to);
    from = to;
  }
  return Distribution(std::move(made));
}

PaddedCost fit_padded_cost(std::span<const MeasuredBatch> batches) {
  CARILLON_ASSERT(!batches.empty());
  double n = 0;
  double mean_x = 0, mean_y = 0;  // of size * longest and of what it took, nanoseconds
  double xx = 0, xy = 0;          // sums of products of deviations
  for (const MeasuredBatch& batch : batches) {
    const double x = batch.size * static_cast<double>(batch.longest.count());
    const auto y = static_cast<double>(batch.took.count());
    n += 1;
    const double from_mean = x - mean_x;
    mean_x += from_mean / n;
    mean_y += (y - mean_y) / n;
    xx += from_mean * (x - mean_x);
    xy += from_mean * (y - mean_y);
  }
  if (mean_x <= 0) return {from_ns(mean_y), 1};
  double c1 = xx > 1e-9 * n * mean_x * mean_x ? xy / xx : mean_y / mean_x;
  double c0 = mean_y - c1 * mean_x;
  if (c1 <= 0) {  // time does not grow with the batch, as far as is seen
    c1 = 1e-6;
    c0 = mean_y;
  } else if (c0 < 0) {
    c0 = 0;
    c1 = mean_y / mean_x;
  }
  return {from_ns(c0), c1};
}

}  // namespace carillon::profile
