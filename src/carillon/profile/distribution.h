#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "carillon/base/time.h"

namespace carillon::profile {

// An execution time as a random variable: a histogram whose density is even within each bin (Orloj, section
// 4.3.2). Bins are disjoint and ascend; probabilities are above 0 and add up to 1. A time that is always the
// same is one bin of a nanosecond. Immutable, so safe to read from any thread.
class Distribution {
 public:
  struct Bin {
    double low = 0, high = 0;  // nanoseconds, 0 <= low < high
    double probability = 0;
    friend bool operator==(const Bin&, const Bin&) = default;
  };

  // Always `time` >= 0.
  static Distribution constant(Duration time);
  // Of at least one sample, each >= 0: at most `bins` >= 1 bins, narrow where samples are many, with fewer
  // samples towards the tails, and cut at the gaps between modes. Reorders them.
  static Distribution from_samples(std::span<Duration> samples, int bins);
  // One of `parts` by its weight >= 0; one weight at least is above 0.
  static Distribution mixture(std::span<const std::pair<const Distribution*, double>> parts);
  // The largest of independent times: `count` >= 1 of each part. The product of their CDFs, which makes the
  // sum over all subsets of equation 4.8 unnecessary. Exact at the edges of the parts' bins and `pieces` >= 1
  // times within each.
  static Distribution largest_of(std::span<const std::pair<const Distribution*, int>> parts, int pieces = 4);

  const std::vector<Bin>& bins() const { return bins_; }
  double cdf(double nanoseconds) const;
  // The least time that is not exceeded with probability q in [0, 1].
  Duration quantile(double q) const;
  Duration mean() const;

  // c0 + factor * this; factor > 0, and no time falls below 0.
  Distribution scaled(Duration c0, double factor) const;
  // The same with at most `bins` >= 1 bins, neighbours merged so that all hold about equal probability.
  Distribution coarser(int bins) const;

  friend bool operator==(const Distribution&, const Distribution&) = default;

 private:
  explicit Distribution(std::vector<Bin> bins) : bins_(std::move(bins)) {}
  std::vector<Bin> bins_;
};

// A batch of k requests that take l_1 .. l_k by themselves takes c0 + c1 * k * max(l) (equation 4.3):
// requests are padded to the longest.
struct PaddedCost {
  Duration c0{0};
  double c1 = 1;

  Duration of(int k, Duration longest) const {
    return c0 + from_ns(c1 * k * static_cast<double>(longest.count()));
  }
};

// A batch that ran: its size, the longest solo time in it, and what it took.
struct MeasuredBatch {
  int size = 1;
  Duration longest{0};
  Duration took{0};
};

// c0 and c1 from at least one measured batch: least squares, c0 >= 0 and c1 > 0. Where the longest solo time
// is not known its expected value does as well: what it misses by then is noise in the time taken, which
// biases nothing. One batch alone, or batches that are all alike, give c0 = 0.
PaddedCost fit_padded_cost(std::span<const MeasuredBatch> batches);

}  // namespace carillon::profile
