#include "carillon/profile/distribution.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::profile {
namespace {

// Bins from the CDF's values at ascending edges; bins without probability are left out.
template <typename Cdf>
std::vector<Distribution::Bin> bins_between(const std::vector<double>& edges, Cdf&& cdf) {
  std::vector<Distribution::Bin> bins;
  double total = 0;
  double below = cdf(edges.front());
  for (std::size_t i = 1; i < edges.size(); ++i) {
    const double here = cdf(edges[i]);
    if (here - below > 1e-15) {
      bins.push_back({edges[i - 1], edges[i], here - below});
      total += here - below;
    }
    below = std::max(below, here);
  }
  CARILLON_ASSERT(!bins.empty());
  for (Distribution::Bin& bin : bins) bin.probability /= total;
  return bins;
}

}  // namespace

Distribution Distribution::constant(Duration time) {
  CARILLON_ASSERT(time >= Duration{0});
  const auto at = static_cast<double>(time.count());
  return Distribution({{at, at + 1, 1}});
}

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

Distribution Distribution::mixture(std::span<const std::pair<const Distribution*, double>> parts) {
  double weights = 0;
  std::vector<double> edges;
  for (const auto& [part, weight] : parts) {
    CARILLON_ASSERT(weight >= 0);
    weights += weight;
    if (weight > 0)
      for (const Bin& bin : part->bins_) {
        edges.push_back(bin.low);
        edges.push_back(bin.high);
      }
  }
  CARILLON_ASSERT(weights > 0);
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return Distribution(bins_between(edges, [&](double at) {
    double sum = 0;
    for (const auto& [part, weight] : parts)
      if (weight > 0) sum += weight / weights * part->cdf(at);
    return sum;
  }));
}

Distribution Distribution::largest_of(std::span<const std::pair<const Distribution*, int>> parts,
                                      int pieces) {
  CARILLON_ASSERT(!parts.empty() && pieces >= 1);
  std::vector<double> edges;
  for (const auto& [part, count] : parts) {
    CARILLON_ASSERT(count >= 1);
    for (const Bin& bin : part->bins_)
      for (int p = 0; p <= pieces; ++p) edges.push_back(bin.low + (bin.high - bin.low) * p / pieces);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return Distribution(bins_between(edges, [&](double at) {
    double product = 1;
    for (const auto& [part, count] : parts) product *= std::pow(part->cdf(at), count);
    return product;
  }));
}

double Distribution::cdf(double at) const {
  double below = 0;
  for (const Bin& bin : bins_) {
    if (at >= bin.high) {
      below += bin.probability;
      continue;
    }
    if (at > bin.low) below += bin.probability * (at - bin.low) / (bin.high - bin.low);
    break;
  }
  return std::min(1.0, below);
}

Duration Distribution::quantile(double q) const {
  CARILLON_ASSERT(q >= 0 && q <= 1);
  double below = 0;
  for (const Bin& bin : bins_) {
    if (below + bin.probability >= q)
      return from_ns(bin.low + (bin.high - bin.low) * std::clamp((q - below) / bin.probability, 0.0, 1.0));
    below += bin.probability;
  }
  return from_ns(bins_.back().high);
}

Duration Distribution::mean() const {
  double sum = 0;
  for (const Bin& bin : bins_) sum += bin.probability * (bin.low + bin.high) / 2;
  return from_ns(sum);
}

Distribution Distribution::scaled(Duration c0, double factor) const {
  CARILLON_ASSERT(factor > 0);
  const auto offset = static_cast<double>(c0.count());
  std::vector<Bin> bins = bins_;
  for (Bin& bin : bins) {
    bin.low = std::max(0.0, offset + factor * bin.low);
    bin.high = std::max(bin.low + 1, offset + factor * bin.high);
  }
  for (std::size_t i = 1; i < bins.size(); ++i) bins[i].low = std::max(bins[i].low, bins[i - 1].high);
  for (Bin& bin : bins) bin.high = std::max(bin.high, bin.low + 1e-3);
  return Distribution(std::move(bins));
}

Distribution Distribution::coarser(int bins) const {
  CARILLON_ASSERT(bins >= 1);
  if (bins_.size() <= static_cast<std::size_t>(bins)) return *this;
  std::vector<Bin> made;
  double done = 0;  // probability of the bins that are made
  for (const Bin& bin : bins_) {
    const bool full = made.empty() || done >= static_cast<double>(made.size()) / bins - 1e-12;
    if (full && made.size() < static_cast<std::size_t>(bins)) {
      made.push_back(bin);
    } else {
      made.back().high = bin.high;
      made.back().probability += bin.probability;
    }
    done += bin.probability;
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
