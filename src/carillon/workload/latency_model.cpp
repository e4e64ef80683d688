#include "carillon/workload/latency_model.h"

#include <algorithm>
#include <cmath>

#include "carillon/profile/batch_line.h"

namespace carillon::workload {

Duration LatencyModel::batch_time(int k, Duration longest) const {
  if (!modes.empty()) return c0 + from_ns(c1 * k * static_cast<double>(longest.count()));
  if (linear) return alpha * k + beta;
  using Entry = std::pair<int, Duration>;
  return profile::on_batch_line(table, k, &Entry::first, &Entry::second);
}

Duration LatencyModel::expected(int k) const {
  if (modes.empty()) return batch_time(k);
  double sum = 0, weights = 0;
  for (const LatencyMode& mode : modes) {
    sum += mode.weight * static_cast<double>(mode.mean.count());
    weights += mode.weight;
  }
  return batch_time(k, from_ns(sum / weights));
}

Duration LatencyModel::p99_of_one() const {
  if (modes.empty()) return batch_time(1);
  double weights = 0, high = 0;
  for (const LatencyMode& mode : modes) {
    weights += mode.weight;
    high = std::max(high, static_cast<double>((mode.mean + 5 * mode.deviation).count()));
  }
  const auto share_below = [&](double ns) {
    double sum = 0;
    for (const LatencyMode& mode : modes) {
      const double from_mean = ns - static_cast<double>(mode.mean.count());
      const auto deviation = static_cast<double>(mode.deviation.count());
      const double share = deviation > 0 ? 0.5 * std::erfc(-from_mean / (deviation * std::sqrt(2.0)))
                                         : static_cast<double>(from_mean >= 0);
      sum += mode.weight / weights * share;
    }
    return sum;
  };
  double low = 0;
  for (int halvings = 0; halvings < 80; ++halvings) {
    const double middle = (low + high) / 2;
    (share_below(middle) < 0.99 ? low : high) = middle;
  }
  return from_ns(high);
}

}  // namespace carillon::workload
