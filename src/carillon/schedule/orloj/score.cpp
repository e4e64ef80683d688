#include "carillon/schedule/orloj/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace carillon::schedule::orloj {

Score score_of(std::span<const profile::Distribution::Bin> bins, double mean, std::span<const CostStep> costs,
               double b, double now) {
  Score score{.point = {}, .until = std::numeric_limits<double>::infinity()};
  for (const CostStep& step : costs)
    for (const auto& bin : bins) {
      const double left = step.deadline - now;
      if (left <= bin.low) continue;
      const double width = bin.high - bin.low;
      const double factor = step.cost * bin.probability / (width * b * mean);
      // The exponents are at most -b * now: what is far away becomes 0, nothing overflows.
      const double at_low = std::exp(b * (bin.low - step.deadline));
      if (left >= bin.high) {
        score.point.alpha += factor * at_low * std::expm1(b * width);
        score.until = std::min(score.until, step.deadline - bin.high);
      } else {
        score.point.alpha -= factor * at_low;
        score.point.beta += factor;
        score.until = std::min(score.until, step.deadline - bin.low);
      }
    }
  score.until =
      std::max(score.until, now + 1e-6);  // rounding must not make a milestone that is there already
  return score;
}

}  // namespace carillon::schedule::orloj
