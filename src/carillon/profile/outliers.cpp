#include "carillon/profile/outliers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "carillon/base/random.h"

namespace carillon::profile {
namespace {

using Samples = std::vector<std::size_t>;

constexpr double own_misfit = 0.04;
// A fit with no larger a deviation needs nobody to leave.
constexpr double good_enough = 0.06;
// Of the deviation, what must be left for that many more to leave.
constexpr double worth_leaving = 0.5;
constexpr double deviations = 5;
constexpr std::size_t most_combinations = 400;
constexpr int tries = 60;

double distance(double predicted, double measured) {
  return predicted > 0 ? std::abs(std::log(predicted / measured)) : 10;
}

// How many ways there are to leave `out` of `n` out, held at the limit.
std::size_t combinations(std::size_t n, std::size_t out) {
  double ways = 1;
  for (std::size_t i = 0; i < out; ++i) ways *= static_cast<double>(n - i) / static_cast<double>(i + 1);
  return ways > most_combinations ? most_combinations + 1 : static_cast<std::size_t>(std::lround(ways));
}

// Searches the subsets of `keep` samples for the one that fits itself best.
class Trimming {
 public:
  Trimming(std::span<const double> measured, Samples usable, std::size_t keep, const FitFunction& fit)
      : measured_(measured), usable_(std::move(usable)), keep_(keep), fit_(fit) {}

  Samples best_of_all() {
    std::vector<bool> in(usable_.size());
    std::fill(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(keep_), true);
    do {
      Samples subset;
      for (std::size_t i = 0; i < in.size(); ++i)
        if (in[i]) subset.push_back(usable_[i]);
      consider(subset, fit_(subset, false));
    } while (std::prev_permutation(in.begin(), in.end()));
    return best_;
  }

  // From small random subsets, twice on to the samples that the last fit is nearest to.
  Samples best_of_tries(std::size_t start) {
    Random random(1);
    for (int i = 0; i < tries; ++i) {
      Samples drawn = usable_;
      for (std::size_t j = 0; j < start; ++j) std::swap(drawn[j], drawn[j + random.below(drawn.size() - j)]);
      drawn.resize(start);
      for (int step = 0; step < 3; ++step) {
        std::ranges::sort(drawn);
        const FitToSome fitted = fit_(drawn, false);
        if (step > 0) consider(drawn, fitted);
        drawn = nearest(fitted);
      }
    }
    return best_;
  }

  // Sum of squares of the best.
  double least() const { return least_; }

 private:
  void consider(const Samples& subset, const FitToSome& fitted) {
    double sum = 0;
    for (const std::size_t i : subset) {
      const double d = distance(fitted.predicted[i], measured_[i]);
      sum += d * d;
    }
    if (!(sum < least_)) return;
    least_ = sum;
    best_ = subset;
  }

  Samples nearest(const FitToSome& fitted) const {
    Samples order = usable_;
    std::ranges::stable_sort(order, {},
                             [&](std::size_t i) { return distance(fitted.predicted[i], measured_[i]); });
    order.resize(keep_);
    return order;
  }

  std::span<const double> measured_;
  Samples usable_;
  std::size_t keep_;
  const FitFunction& fit_;
  Samples best_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

Samples belonging(std::span<const double> measured, std::size_t terms, const FitFunction& fit) {
  Samples usable;
  for (std::size_t i = 0; i < measured.size(); ++i)
    if (measured[i] > 0) usable.push_back(i);
  const std::size_t n = usable.size();
  const std::size_t out = n > terms ? std::min((n - terms) / 2, n / 3) : 0;
  if (out == 0) return usable;

  Samples kept = usable;
  if (combinations(n, out) > most_combinations) {
    Trimming trimming(measured, usable, n - out, fit);
    kept = trimming.best_of_tries(terms + 2);
  } else {
    // The fewer leave, the more there is to tell the others by.
    double before = std::numeric_limits<double>::infinity();
    for (std::size_t leave = 0; leave <= out; ++leave) {
      Trimming trimming(measured, usable, n - leave, fit);
      Samples best = trimming.best_of_all();
      const double deviation = std::sqrt(trimming.least() / static_cast<double>(n - leave - terms));
      if (!(deviation < worth_leaving * before) && leave > 0) continue;
      kept = std::move(best);
      before = deviation;
      if (deviation <= good_enough) break;
    }
  }
  if (kept.empty()) return usable;  // no subset gave finite predictions
  // With more samples in, the deviation is known better, and more may belong.
  for (int round = 0; round < 10; ++round) {
    const FitToSome fitted = fit(kept, true);
    double squares = 0;
    for (const std::size_t i : kept) squares += std::pow(distance(fitted.predicted[i], measured[i]), 2);
    const double freedom = kept.size() > terms ? static_cast<double>(kept.size() - terms) : 1;
    const double deviation = std::max(own_misfit, std::sqrt(squares / freedom));
    Samples next;
    for (const std::size_t i : usable)
      if (std::ranges::binary_search(kept, i) ||
          distance(fitted.predicted[i], measured[i]) <=
              deviations * deviation * std::sqrt(1 + fitted.leverage[i]))
        next.push_back(i);
    if (next == kept) break;
    kept = std::move(next);
  }
  return kept;
}

}  // namespace carillon::profile
