#include "carillon/provision/queueing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"

namespace carillon::provision {
namespace {

// Normals for the noise of batches: as many as hold no pattern against the batches' sizes.
const std::array<double, 4099>& normals() {
  static const auto drawn = [] {
    std::array<double, 4099> values{};
    Random random(0x6e6f6973);
    double sum = 0;
    for (double& v : values) sum += v = random.normal();
    for (double& v : values) v -= sum / static_cast<double>(values.size());
    return values;
  }();
  return drawn;
}

// Log-normal factors of mean 1.
std::vector<double> noise_factors(double deviation) {
  std::vector<double> factors;
  if (deviation <= 0) return factors;
  const double variance = std::log1p(deviation * deviation);
  for (const double v : normals()) factors.push_back(std::exp(std::sqrt(variance) * v - variance / 2));
  return factors;
}

// Late requests by busy periods, which do not depend on each other.
struct BusyPeriods {
  double late = 0, late_squared = 0, late_times_requests = 0, requests = 0, requests_squared = 0;

  void add(double of_requests, double of_late) {
    late += of_late;
    late_squared += of_late * of_late;
    late_times_requests += of_late * of_requests;
    requests += of_requests;
    requests_squared += of_requests * of_requests;
  }
  // Of a renewal-reward process: the variance of (late - share * requests) in a busy period over its mean.
  double clustering() const {
    if (late <= 0) return 1;
    const double share = late / requests;
    const double variance = late_squared - 2 * share * late_times_requests + share * share * requests_squared;
    return std::max(1.0, variance / late);
  }
};

// Requests of a quick look.
constexpr std::size_t quick_look = 25'000;

// Whether more than the percentile allows are late in a span with at most this chance.
bool holds(double late_share, double clustering, const QueueRule& rule, double rate_rps, double chance) {
  const double requests = rate_rps * promise_span_s;
  const double allowed = std::floor((1 - rule.percentile) * requests * (1 + 1e-9));
  return chance_of_more(late_share * requests, clustering, allowed) <= chance;
}

// One condition of the promise: that of times with this factor.
bool holds_with(const QueueRule& rule, const QueueLoad& load, const BatchTimes& times, double factor,
                double chance, Look look) {
  std::size_t most = rule.arrivals.times.size();
  if (look == Look::quick && !rule.arrivals.recorded) most = std::min(most, quick_look);
  const double allowed = (1 - rule.percentile) * static_cast<double>(most) * (1 + 1e-9);
  const auto most_late = static_cast<std::uint64_t>(allowed);
  const Replayed seen = replay(rule.arrivals, load.rate_rps, times, load.slo_ms,
                               {.factor = factor, .most = most, .most_late = most_late});
  if (seen.late > most_late) return false;
  return rule.arrivals.recorded ||
         holds(1 - seen.on_time(), seen.clustering, rule, load.workload_rps, chance);
}

}  // namespace

Replayed replay(const Arrivals& arrivals, double rate_rps, const BatchTimes& times, double slo_ms,
                const ReplayOptions& options) {
  CARILLON_ASSERT(rate_rps > 0 && slo_ms > 0 && !times.busy_ms.empty());
  // In units of the mean gap, so that the arrivals can be taken as they are.
  const double unit = rate_rps / 1000;
  const double load = times.load_ms * options.factor * unit;
  const double slo = slo_ms * unit;
  std::vector<double> busy;
  for (const double ms : times.busy_ms) busy.push_back(ms * options.factor * unit);
  static const std::vector<double> usual_noise = noise_factors(ReplayOptions{}.noise);
  const std::vector<double> other_noise =
      options.noise == ReplayOptions{}.noise ? std::vector<double>{} : noise_factors(options.noise);
  const std::vector<double>& noise = options.noise == ReplayOptions{}.noise ? usual_noise : other_noise;

  const std::vector<double>& at = arrivals.times;
  const std::size_t count = std::min(at.size(), options.most);
  const std::size_t largest = busy.size();
  Replayed result;
  BusyPeriods periods;
  double next = -std::numeric_limits<double>::infinity();  // when the next batch can be formed
  std::size_t period_began = 0, draw = 0;
  std::uint64_t period_late = 0;
  std::size_t first = 0;
  while (first < count && result.late <= options.most_late) {
    if (at[first] >= next) {
      periods.add(static_cast<double>(first - period_began), static_cast<double>(period_late));
      period_began = first;
      period_late = 0;
    }
    const double formed = std::max(at[first], next);
    std::size_t end = first + 1;
    while (end < count && end - first < largest && at[end] <= formed) ++end;
    double takes = busy[end - first - 1];
    if (!noise.empty()) {
      takes *= noise[draw];
      if (++draw == noise.size()) draw = 0;
    }
    const double due = formed + load + takes - slo;  // what arrived before this is late
    std::size_t late = first;
    while (late < end && at[late] < due) ++late;
    result.late += late - first;
    period_late += late - first;
    next = formed + std::max(load, takes);
    first = end;
  }
  result.requests = first;
  periods.add(static_cast<double>(first - period_began), static_cast<double>(period_late));
  result.clustering = periods.clustering();
  return result;
}

bool keeps_promise(const QueueRule& rule, const QueueLoad& load, const BatchTimes& times, double margin,
                   Look look) {
  if (!std::isfinite(times.load_ms)) return false;
  for (const double ms : times.busy_ms)
    if (!(ms > 0 && std::isfinite(ms))) return false;
  double chance = promise_chance;
  if (rule.model_error > 0) {
    chance /= 2;
    const double variance = std::log1p(rule.model_error * rule.model_error);
    const double factor = std::exp(std::sqrt(variance) * normal_exceeded(chance) - variance / 2);
    // At the largest error that is counted with, the percentile is just kept.
    if (!holds_with(rule, load, times, margin * factor, 0.5, look)) return false;
  }
  return holds_with(rule, load, times, margin, chance, look);
}

double chance_of_more(double mean, double clustering, double most) {
  if (mean <= 0) return 0;
  // Normal where there are many: sums of that many terms would be slow, and their first one too small.
  if (mean > 300) return 0.5 * std::erfc((most + 0.5 - mean) / std::sqrt(2 * clustering * mean));
  const bool poisson = clustering < 1 + 1e-6;
  const double size = poisson ? 0 : mean / (clustering - 1);
  const double again = poisson ? 0 : 1 - 1 / clustering;
  double term = std::exp(poisson ? -mean : -size * std::log(clustering));
  double sum = 0;
  for (double k = 0; k <= most; ++k) {
    sum += term;
    term *= poisson ? mean / (k + 1) : (k + size) / (k + 1) * again;
    if (k > mean && term < 1e-12 * (1 - sum)) break;
  }
  return std::clamp(1 - sum, 0.0, 1.0);
}

double normal_exceeded(double chance) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > chance ? low : high) = middle;
  }
  return low;
}

}  // namespace carillon::provision
