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

std::vector<double> chances_to_wait(double offered, std::size_t devices) {
  std::vector<double> chances(devices + 1, 1);
  double blocked = 1;  // Erlang's B formula, by its recursion
  for (std::size_t i = 1; i <= devices; ++i) {
    const auto n = static_cast<double>(i);
    blocked = offered * blocked / (n + offered * blocked);
    if (offered < n) chances[i] = blocked / (1 - offered / n * (1 - blocked));
  }
  return chances;
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

double BatchPlan::needed(Model& m, double scale, const BatchTimes& times) {
  Sizes& sizes = coming(m);
  const double rate = m.rate * scale;
  if (rate <= 0) {
    sizes.size = 0;
    return 0;
  }
  sizes.index = largest(times, rate, m.slo, sizes.index);
  sizes.size = times.batch_size(sizes.index);
  return rate * to_seconds(times.exec(sizes.index)) / sizes.size;
}

// The place of the largest batch size before `end` that takes no longer than `own`, or else of the smallest.
int BatchPlan::largest_within(const BatchTimes& times, Duration own, int end) {
  int index = 0;  // exec grows with the batch
  while (end - index > 1) {
    const int middle = (index + end) / 2;
    (times.exec(middle) <= own ? index : end) = middle;
  }
  return index;
}

// How many devices its rate needs if none of its batches takes longer than `own`. With `keep`, the limit
// stays.
double BatchPlan::needed_within(Model& m, Duration own, const BatchTimes& times, bool keep) {
  Sizes& sizes = coming(m);
  if (sizes.size == 0) return 0;
  const int index = largest_within(times, own, sizes.index + 1);
  if (keep && index < sizes.index) {
    sizes.index = index;
    sizes.size = sizes.limit = times.batch_size(index);
  } else if (keep && bursts_ && devices_ == 1) {
    const int most = largest_within(times, own, times.batch_count());
    // Where no batch is short enough, a limit would help nobody.
    if (most + 1 < times.batch_count() && times.exec(most) <= own) sizes.limit = times.batch_size(most);
  }
  return m.rate * to_seconds(times.exec(index)) / times.batch_size(index);
}

// `spare`: what the other model that can wait least can wait.
void BatchPlan::curb(Model& m, Duration spare, const BatchTimes& times) {
  Sizes& sizes = coming(m);
  const Duration room = spare * (static_cast<std::int64_t>(devices_) + 1) / 4;
  if (sizes.size == 0 || times.exec(sizes.index) <= room) return;
  const double most = dearer_ * times.each(sizes.index);
  int index = 0;
  while (index < sizes.index && (times.each(index) > most || 2 * times.exec(index + 1) <= room)) ++index;
  if (index == sizes.index) return;
  sizes.index = index;
  sizes.size = sizes.limit = times.batch_size(index);
}

void BatchPlan::find_rate(Model& m) {
  if (m.arrived > 0) m.slo = from_seconds(m.slos / static_cast<double>(m.arrived));
  m.slos = 0;
  if (known_) {
    const double seen = static_cast<double>(m.arrived) / seconds_;
    m.rate = m.rate == 0 ? seen : keep_ * m.rate + (1 - keep_) * seen;
    if (m.rate * to_seconds(window_) < 0.01) m.rate = 0;
  }
  m.arrived = 0;
}

void BatchPlan::begin(TimePoint now, std::size_t devices) {
  known_ = last_ != TimePoint::min();
  seconds_ = known_ ? to_seconds(now - last_) : 0;
  keep_ = std::exp(-seconds_ / to_seconds(window_));
  last_ = now;
  devices_ = devices;
  eager_ = rates_ = time_ = slos_ = 0;
  asked_ = 0;
  any_limit_ = false;
  longest_ = Duration{0};
  pass(Phase::rates);
}

void BatchPlan::pass(Phase phase) {
  phase_ = phase;
  next_ = 0;
  end_ = models_.size();
  total_ = 0;
}

bool BatchPlan::go_on(const AllTimes& times, std::size_t& most) {
  while (phase_ != Phase::done) {
    for (; next_ < end_ && most > 0; ++next_, --most)
      look(models_[next_], ModelId{static_cast<std::uint32_t>(next_)}, *times[next_]);
    if (next_ < end_) return false;
    all_seen();
  }
  return true;
}

void BatchPlan::look(Model& m, ModelId id, const BatchTimes& times) {
  switch (phase_) {
    case Phase::rates:
      find_rate(m);
      coming(m) = {.size = 0, .index = m.plans[in_force_].index, .limit = 0};
      total_ += needed(m, 1, times);
      eager_ += m.rate * to_seconds(times.exec(0));
      return;
    case Phase::halve:
    case Phase::scale:
      total_ += needed(m, phase_ == Phase::halve ? (low_ + high_) / 2 : high_, times);
      return;
    case Phase::spare: {
      const Duration spare = m.slo - times.span(0);
      if (coming(m).size == 0 || spare <= Duration{0}) return;  // nothing helps it
      if (spare < first_) {
        second_ = first_;
        first_ = spare;
        tightest_ = id;
      } else {
        second_ = std::min(second_, spare);
      }
      return;
    }
    case Phase::limit:
      total_ += needed_within(m, cap(id == tightest_ ? second_ : first_), times, round_ < 0);
      return;
    case Phase::curb:
      return curb(m, id == tightest_ ? second_ : first_, times);
    case Phase::sums: {
      const Sizes& sizes = coming(m);
      if (sizes.size == 0) return;
      ++asked_;
      any_limit_ = any_limit_ || sizes.limit > 0;
      rates_ += m.rate;
      slos_ += m.rate * to_seconds(m.slo);
      time_ += m.rate * to_seconds(times.exec(sizes.index)) / sizes.size;
      longest_ = std::max(longest_, times.exec(sizes.index));
      return;
    }
    case Phase::done:
      return;
  }
}

// How long other batches may take, so that what can wait for so long finds a device in time.
Duration BatchPlan::cap(Duration spare) const {
  return from_ns(std::min(1e18, static_cast<double>(spare.count()) / share_));
}

void BatchPlan::all_seen() {
  const auto room = static_cast<double>(devices_);
  switch (phase_) {
    case Phase::rates:
      all_ = total_;
      if (devices_ == 0) return finish();
      low_ = 0;
      high_ = 1;
      halved_ = 0;
      first_ = second_ = Duration::max();
      tightest_ = {};
      if (all_ <= room && !limits_) return pass(Phase::sums);
      return pass(all_ > room ? Phase::halve : Phase::spare);
    case Phase::halve:
      (total_ <= room ? low_ : high_) = (low_ + high_) / 2;
      return pass(++halved_ < halvings ? Phase::halve : Phase::scale);
    case Phase::scale:
      return pass(dearer_ > 0 && devices_ <= curbed_devices ? Phase::spare : Phase::sums);
    case Phase::curb:
      return pass(Phase::sums);
    case Phase::spare:
      if (all_ > room) return pass(second_ == Duration::max() ? Phase::sums : Phase::curb);
      round_ = 0;
      before_ = all_ / room * room;
      if (second_ == Duration::max()) return pass(Phase::sums);  // one model alone
      return begin_round();
    case Phase::limit:
      if (round_ < 0) return pass(Phase::sums);
      // Shorter batches need more devices.
      if (total_ >= room * most_load_ || (total_ > before_ * worth_a_round && round_ + 1 < rounds)) {
        ++round_;
        before_ = total_;
        return begin_round();
      }
      round_ = -1;  // the limits stay
      return pass(Phase::limit);
    case Phase::sums:
      return finish();
    case Phase::done:
      return;
  }
}

void BatchPlan::begin_round() {
  const auto room = static_cast<double>(devices_);
  if (round_ >= rounds || before_ >= room * most_load_) return pass(Phase::sums);
  const double busy = chance_to_wait(before_, devices_);
  if (busy <= exceeded_) return pass(Phase::sums);  // some device is always free
  share_ = 1 - std::pow(exceeded_ / busy, 1 / room);
  pass(Phase::limit);
}

void BatchPlan::finish() {
  const auto room = static_cast<double>(devices_);
  in_force_ = 1 - in_force_;
  phase_ = Phase::done;
  demand_ = devices_ == 0 ? 0 : all_ / room;
  limited_ = any_limit_;
  several_ = asked_ > 1;
  contention_ = chance_to_wait(all_, devices_);
  eager_contention_ = known_ ? chance_to_wait(eager_, devices_) : 1;
  wait_ = Duration{0};
  if (devices_ == 0) return;
  each_ = rates_ > 0 ? time_ / rates_ : 0;
  mean_slo_ = from_seconds(rates_ > 0 ? slos_ / rates_ : 0);
  if (contention_ <= exceeded_) return;
  if (demand_ >= 1) {
    wait_ = Duration::max();
    return;
  }
  wait_ = from_ns(std::min(1e18, static_cast<double>(longest_.count()) * std::log(contention_ / exceeded_) /
                                     (room * (1 - demand_))));
}

}  // namespace carillon::schedule::symphony
