#include "carillon/schedule/symphony/batch_plan.h"

#include <algorithm>
#include <cmath>

namespace carillon::schedule::symphony {
namespace {

// 2^-12 of the rates: far closer than they are known.
constexpr int halvings = 12;
// Each round limits batches a little more, until they stay the same.
constexpr int rounds = 8;
constexpr double worth_a_round = 1.001;

}  // namespace

double chance_to_wait(double offered, std::size_t devices) {
  const auto n = static_cast<double>(devices);
  if (offered >= n) return 1;
  double blocked = 1;  // Erlang's B formula, by its recursion
  for (std::size_t i = 1; i <= devices; ++i)
    blocked = offered * blocked / (static_cast<double>(i) + offered * blocked);
  return blocked / (1 - offered / n * (1 - blocked));
}

// The place of the largest batch size that can be gathered at `rate` and still run in time. Rates change
// little between plans, so the search starts at the last answer and widens by doubling.
int BatchPlan::largest(const BatchTimes& times, double rate, Duration slo, int guess) {
  const auto fits = [&](int index) {
    return (times.batch_size(index) - 1) / rate + to_seconds(times.span(index)) <= to_seconds(slo);
  };
  const int count = times.batch_count();
  int low = std::clamp(guess, 0, count - 1), high = low;  // low fits (or is 0), high does not (or is count)
  if (fits(low)) {
    for (int step = 1;; step *= 2) {
      high = std::min(low + step, count);
      if (high == count || !fits(high)) break;
      low = high;
    }
  } else {
    for (int step = 1; low > 0; step *= 2) {
      high = low;
      low = std::max(low - step, 0);
      if (fits(low)) break;
    }
  }
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

double BatchPlan::needed(double scale, const AllTimes& times) {
  double total = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    Model& m = models_[i];
    const double rate = m.rate * scale;
    if (rate <= 0) {
      m.size = 0;
      continue;
    }
    const int index = largest(*times[i], rate, m.slo, m.index);
    m.index = index;
    m.size = times[i]->batch_size(index);
    total += rate * to_seconds(times[i]->exec(index)) / m.size;
  }
  return total;
}

void BatchPlan::plan(TimePoint now, std::size_t devices, const AllTimes& times) {
  for (Model& m : models_) {
    if (m.arrived > 0) m.slo = from_seconds(m.slos / static_cast<double>(m.arrived));
    m.slos = 0;
  }
  if (last_ != TimePoint::min()) {
    const double seconds = to_seconds(now - last_);
    const double keep = std::exp(-seconds / to_seconds(window_));
    for (Model& m : models_) {
      const double seen = static_cast<double>(m.arrived) / seconds;
      m.rate = m.rate == 0 ? seen : keep * m.rate + (1 - keep) * seen;
      if (m.rate * to_seconds(window_) < 0.01) m.rate = 0;
      m.arrived = 0;
    }
  } else {
    for (Model& m : models_) m.arrived = 0;
  }
  const bool known = last_ != TimePoint::min();
  last_ = now;
  const auto room = static_cast<double>(devices);
  for (Model& m : models_) m.limit = 0;
  const double all = needed(1, times);
  demand_ = devices == 0 ? 0 : all / room;
  contention_ = chance_to_wait(all, devices);
  double eager = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) eager += models_[i].rate * to_seconds(times[i]->exec(0));
  eager_contention_ = known ? chance_to_wait(eager, devices) : 1;
  wait_ = Duration{0};
  if (devices == 0) return;
  if (all > room) {
    double low = 0, high = 1;
    for (int i = 0; i < halvings; ++i) {
      const double middle = (low + high) / 2;
      (needed(middle, times) <= room ? low : high) = middle;
    }
    needed(high, times);
  } else {
    limit_for_others(devices, times);
  }
  double rates = 0, time = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const Model& m = models_[i];
    if (m.size == 0) continue;
    rates += m.rate;
    time += m.rate * to_seconds(times[i]->exec(m.index)) / m.size;
  }
  each_ = rates > 0 ? time / rates : 0;
  if (contention_ <= exceeded_) return;
  if (demand_ >= 1) {
    wait_ = Duration::max();
    return;
  }
  Duration longest{0};
  for (std::size_t i = 0; i < models_.size(); ++i)
    if (models_[i].size > 0) longest = std::max(longest, times[i]->exec(models_[i].index));
  wait_ = from_ns(std::min(1e18, static_cast<double>(longest.count()) * std::log(contention_ / exceeded_) /
                                     (room * (1 - demand_))));
}

// How many devices the rates need if no batch but those of `spared` takes longer than `cap`, and those no
// longer than `spared_cap`. With `keep`, the limits stay.
double BatchPlan::needed_within(Duration cap, Duration spared_cap, ModelId spared, const AllTimes& times,
                                bool keep) {
  double total = 0;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    Model& m = models_[i];
    if (m.size == 0) continue;
    const Duration own = i == spared.index() ? spared_cap : cap;
    int index = 0, above = m.index + 1;  // exec grows with the batch
    while (above - index > 1) {
      const int middle = (index + above) / 2;
      (times[i]->exec(middle) <= own ? index : above) = middle;
    }
    if (keep && index < m.index) {
      m.index = index;
      m.size = m.limit = times[i]->batch_size(index);
    }
    total += m.rate * to_seconds(times[i]->exec(index)) / times[i]->batch_size(index);
  }
  return total;
}

void BatchPlan::limit_for_others(std::size_t devices, const AllTimes& times) {
  // What the two models in the greatest hurry can wait; the first is limited by the second alone.
  Duration first = Duration::max(), second = Duration::max();
  ModelId tightest{};
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].size == 0) continue;
    const Duration spare = models_[i].slo - times[i]->span(0);
    if (spare <= Duration{0}) continue;  // nothing helps it
    if (spare < first) {
      second = first;
      first = spare;
      tightest = ModelId{static_cast<std::uint32_t>(i)};
    } else {
      second = std::min(second, spare);
    }
  }
  if (second == Duration::max()) return;  // one model alone
  const auto room = static_cast<double>(devices);
  double all = demand_ * room, before = 0;
  for (int round = 0; round < rounds && all < room * most_load_; ++round) {
    const double busy = chance_to_wait(all, devices);
    if (busy <= exceeded_) return;  // some device is always free
    const double share = 1 - std::pow(exceeded_ / busy, 1 / room);
    const auto cap = [&](Duration spare) {
      return from_ns(std::min(1e18, static_cast<double>(spare.count()) / share));
    };
    before = all;
    all = needed_within(cap(first), cap(second), tightest, times, false);
    if (all >= room * most_load_ || (all > before * worth_a_round && round + 1 < rounds))
      continue;  // shorter batches need more devices
    needed_within(cap(first), cap(second), tightest, times, true);
    return;
  }
}

}  // namespace carillon::schedule::symphony
