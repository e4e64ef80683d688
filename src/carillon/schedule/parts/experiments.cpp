#include "carillon/schedule/parts/experiments.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace carillon::schedule::parts {
namespace {

// A value is kept only if it answers a share larger by this: a smaller gain may be chance.
constexpr double least_gain = 0.03;
// While less than that is lost, but this, the default alone is tried.
constexpr double least_back = 0.015;
// The gain is also at least so many standard deviations.
constexpr double deviations = 2;
// These are as far apart as plans were that had the same values. Of so many plans; neighbours may be alike.
constexpr std::size_t remembered = 32, neighbours = 3;
// Beyond this spread measurements take as many plans as they may, and shares differ by so many times as much
// before the load counts as another.
constexpr double uneven = 3, uneven_load = 3;
// A trial that answers a share smaller by this, and by those deviations, ends at once.
constexpr double much_worse = 0.1;
// With fewer requests nothing is known; with fewer than `least_bad` not even that a trial is bad.
constexpr double least_requests = 100, least_bad = 30;
// How many plans a measurement takes. It goes on until there are enough requests, of which chance hardly
// makes a gain of twice the least.
constexpr std::size_t least_plans = 2, most_plans = 16;
constexpr double enough_requests = 500;
// Between trials of a setting: at least so long, and so many times as long as the last trial took. It doubles
// with each trial that fails.
constexpr Duration pause = 4s;
constexpr int pause_of_trial = 4;
constexpr int most_doublings = 4;
// Another load: the share that is answered differs by this from when the last trial failed. The pause is then
// short again.
constexpr double other_load = 0.15;

}  // namespace

Experiments::Experiments(std::array<int, settings> first, std::array<int, settings> counts) {
  for (std::size_t i = 0; i < settings; ++i)
    all_[i] = {.first = first[i], .count = counts[i], .value = first[i], .kept = first[i], .last = first[i]};
}

void Experiments::disturb() {
  if (phase_ != Phase::idle) change(all_[tried_].kept);
  phase_ = Phase::idle;
  seen_.clear();
  settling_ = ~std::size_t{0};
  now_ = {};
  usual_.clear();
  spread_ = 1;
}

void Experiments::change(int value) {
  all_[tried_].value = value;
  seen_.clear();
  settling_ = ~std::size_t{0};
}

// `a` answers a share larger by `by`, and the gain is no chance.
bool Experiments::better(const Count& a, const Count& b, double by) const {
  const double mean = (a.answered + b.answered) / std::max(1.0, a.all() + b.all());
  const double deviation =
      std::sqrt(spread_ * mean * (1 - mean) * (1 / std::max(1.0, a.all()) + 1 / std::max(1.0, b.all())));
  return a.share() - b.share() >= std::max(by, deviations * deviation);
}

// Requests are lost together, in bursts that last for some plans. The variance of a number of plans is that
// of each, and what neighbours have in common (Newey and West).
void Experiments::remember(const Count& last) {
  usual_.push_back(last);
  if (usual_.size() > remembered) usual_.pop_front();
  Count sum;
  for (const Count& c : usual_) sum = {sum.answered + c.answered, sum.lost + c.lost};
  const double share = sum.share(), independent = sum.all() * share * (1 - share);
  if (independent <= 0) return;
  const auto off = [&](std::size_t i) { return usual_[i].answered - share * usual_[i].all(); };
  double variance = 0;
  for (std::size_t i = 0; i < usual_.size(); ++i) {
    variance += off(i) * off(i);
    for (std::size_t k = 1; k <= std::min(neighbours, i); ++k)
      variance += 2 * (1 - static_cast<double>(k) / (neighbours + 1)) * off(i) * off(i - k);
  }
  spread_ = std::max(1.0, variance / independent);
}

bool Experiments::step(TimePoint now, Duration every, Duration slo, const Matters& matters) {
  const auto slos = std::min(most_plans, static_cast<std::size_t>(slo / every) + 1);
  const Count last = std::exchange(now_, {});
  for (std::size_t i = 0; i < settings; ++i) all_[i].mattered = matters[i] ? all_[i].mattered + 1 : 0;
  // Until a plan is made with the new value, and what waited before is gone.
  if (settling_ > 0) {
    settling_ = std::min(settling_, slos + 1) - 1;
    return false;
  }
  seen_.push_back(last);
  if (phase_ != Phase::trial) remember(last);
  if (phase_ == Phase::idle) uneven_ = spread_ > uneven;
  const std::size_t plans = uneven_ ? most_plans : std::min(most_plans, std::max(least_plans, 2 * slos));
  if (seen_.size() > most_plans) seen_.pop_front();
  // As many of the last plans as are enough.
  Count sum;
  std::size_t counted = 0;
  for (auto c = seen_.rbegin(); c != seen_.rend() && (counted < plans || sum.all() < enough_requests);
       ++c, ++counted)
    sum = {sum.answered + c->answered, sum.lost + c->lost};
  if (phase_ == Phase::trial && sum.all() >= least_bad && better(before_, sum, much_worse))
    return reject(now);
  if (counted < plans || (sum.all() < enough_requests && counted < most_plans)) return false;
  if (sum.all() < least_requests) return phase_ != Phase::idle && reject(now);
  One& one = all_[tried_];
  const double least = one.last == one.first ? 0 : least_gain;  // the default comes back more easily
  switch (phase_) {
    case Phase::idle:
      before_ = sum;
      return begin(now, counted + slos);
    case Phase::trial:
      if (!better(sum, before_, least)) return reject(now);
      during_ = sum;
      one.took = now - one.tried;
      phase_ = Phase::after;
      change(one.kept);
      return true;
    case Phase::after:
      if (!better(during_, sum, least)) return reject(now);
      phase_ = Phase::idle;
      one.kept = one.last;
      one.pauses = 0;
      one.tried = now;
      usual_.clear();
      change(one.kept);
      return true;
  }
  return false;
}

// Tries the next value of the next setting that mattered for so many plans and was not tried of late.
bool Experiments::begin(TimePoint now, std::size_t plans) {
  // Where nothing is to gain, the default alone may come back.
  const double lost = 1 - before_.share();
  const bool gains = lost >= least_gain;
  if (lost < least_back) return false;
  for (std::size_t i = 1; i <= settings; ++i) {
    const std::size_t at = (tried_ + i) % settings;
    One& one = all_[at];
    if (one.count < 2 || one.mattered < plans || (!gains && one.kept == one.first)) continue;
    if (std::abs(before_.share() - one.share) > other_load * (uneven_ ? uneven_load : 1)) one.pauses = 0;
    const Duration rest = std::max(pause, pause_of_trial * one.took) * (1 << one.pauses);
    if (one.tried != TimePoint::min() && now - one.tried < rest) continue;
    tried_ = at;
    one.tried = now;  // it rests though a disturbance ends the trial
    do one.last = gains ? (one.last + 1) % one.count : one.first;
    while (one.last == one.kept);
    phase_ = Phase::trial;
    change(one.last);
    return true;
  }
  return false;
}

bool Experiments::reject(TimePoint now) {
  One& one = all_[tried_];
  const bool changes = one.value != one.kept;
  if (phase_ == Phase::trial) one.took = now - one.tried;
  phase_ = Phase::idle;
  one.pauses = std::min(most_doublings, one.pauses + 1);
  one.tried = now;
  one.share = before_.share();
  if (changes) change(one.kept);
  return changes;
}

}  // namespace carillon::schedule::parts
