#pragma once

#include <span>
#include <utility>
#include <vector>

#include "carillon/base/time.h"

namespace carillon::profile {

// Measured execution times as a histogram whose density is even within each bin (Orloj, section 4.3.2). Bins
// are disjoint and ascend; probabilities are above 0 and add up to 1. A time that is always the same is one
// bin of a nanosecond. Immutable, so safe to read from any thread.
class Distribution {
 public:
  struct Bin {
    double low = 0, high = 0;  // nanoseconds, 0 <= low < high
    double probability = 0;
    friend bool operator==(const Bin&, const Bin&) = default;
  };

  // Of at least one sample, each >= 0: at most `bins` >= 1 bins, narrow where samples are many, with fewer
  // samples towards the tails, and cut at the gaps between modes. Reorders them.
  static Distribution from_samples(std::span<Duration> samples, int bins);

  const std::vector<Bin>& bins() const { return bins_; }

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
