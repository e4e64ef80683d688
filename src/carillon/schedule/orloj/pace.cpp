#include "carillon/schedule/orloj/pace.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace carillon::schedule::orloj {
namespace {

constexpr double jumps = 0.02;        // of observations before which the pace became any other
constexpr double returns = 0.1;       // before which it came back to 1
constexpr double outliers = 0.05;     // that tell nothing: a lone hiccup is no change of pace
constexpr double widest = 8.3;        // over which an outlier's logarithm is spread evenly: 1/64 to 64
constexpr double least_spread = 0.1;  // measurements are not better than that
constexpr double memory = 64;         // observations that the centre and the spread remember

double log_of(int place) {
  return 0.5 * std::numbers::ln2 * place;
}

}  // namespace

Pace::Pace() {
  share_[reach] = 1;
}

void Pace::saw(double expected, double took) {
  const double seen = std::log(took / expected) - centre_;
  const double scale = std::max(least_spread, spread_);
  double total = 0;
  for (int i = -reach; i <= reach; ++i) {
    double& share = share_[static_cast<std::size_t>(i + reach)];
    double prior = (1 - jumps - returns) * share + jumps / static_cast<double>(share_.size());
    if (i == 0) prior += returns;
    // Student's t of three degrees, beside outliers.
    const double z = (seen - log_of(i)) / scale;
    const double near = 1 + z * z / 3;
    const double likelihood = (1 - outliers) * 0.3675 / (scale * near * near) + outliers / widest;
    share = prior * likelihood;
    total += share;
  }
  std::size_t best = reach;
  for (std::size_t i = 0; i < share_.size(); ++i) {
    share_[i] /= total;
    if (share_[i] > share_[best]) best = i;
  }
  const double at = log_of(static_cast<int>(best) - reach);
  value_ = std::exp(at);
  // A wild one moves them no further than a usual one of the far end.
  const double left = std::clamp(seen - at, -3 * scale, 3 * scale);
  seen_ = std::min(seen_ + 1, memory);
  centre_ += left / (seen_ + 4);
  spread_ += (std::abs(left) - spread_) / (seen_ + 4);
}

}  // namespace carillon::schedule::orloj
