#include "carillon/schedule/parts/experiments.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace carillon::schedule::parts {
namespace {

// A value has to answer a share larger by that. Less would be taken for what is chance.
constexpr double least_gain = 0.03;
// And by so many standard deviations, if requests were answered independently.
constexpr double deviations = 3;
// A trial that answers a share smaller by that ends at once.
constexpr double too_bad = 0.1;
// The default comes back if it answers no less than that below the present value.
constexpr double as_good = 0.01;
// So few requests tell nothing; fewer yet not even that a trial is bad.
constexpr double least_requests = 100, least_bad = 30;
// A measurement takes as many plans at least, and at most.
constexpr std::size_t least_plans = 2, most_plans = 16;
// Between trials of a setting; twice as long after each that fails, up to so many doublings.
constexpr Duration pause = 8s;
constexpr int most_doublings = 3;
// If the share that is answered differs by so much from when a trial failed, the load is another.
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
  settling_ = least_plans;
  now_ = {};
}

void Experiments::change(int value) {
  all_[tried_].value = value;
  seen_.clear();
  settling_ = ~std::size_t{0};
}

bool Experiments::better(const Count& a, const Count& b) {
  const double mean = (a.answered + b.answered) / std::max(1.0, a.all() + b.all());
  const double deviation =
      std::sqrt(mean * (1 - mean) * (1 / std::max(1.0, a.all()) + 1 / std::max(1.0, b.all())));
  return a.share() - b.share() >= std::max(least_gain, deviations * deviation);
}

bool Experiments::step(TimePoint now, Duration every, Duration slo, const Matters<settings>& matters) {
  const auto slos = std::min(most_plans, static_cast<std::size_t>(slo / every) + 1);
  const Count last = std::exchange(now_, {});
  // Until the plan with the new value was made, and what waited then is gone.
  if (settling_ > 0) {
    settling_ = std::min(settling_, slos + 1) - 1;
    return false;
  }
  seen_.push_back(last);
  const std::size_t plans = std::min(most_plans, std::max(least_plans, 2 * slos));
  if (seen_.size() > plans) seen_.pop_front();
  Count sum;
  for (const Count& c : seen_) sum = {sum.answered + c.answered, sum.lost + c.lost};
  if (phase_ == Phase::trial && sum.all() >= least_bad && sum.share() < before_.share() - too_bad)
    return reject(now);
  if (seen_.size() < plans) return false;
  if (sum.all() < least_requests) return phase_ != Phase::idle && reject(now);
  switch (phase_) {
    case Phase::idle:
      before_ = sum;
      return begin(now, matters);
    case Phase::trial:
      during_ = sum;
      return end_trial(now);
    case Phase::after: {
      if (!better(during_, sum)) return reject(now);
      phase_ = Phase::idle;
      One& one = all_[tried_];
      one.kept = one.last;
      one.pauses = 0;
      one.tried = now;
      change(one.kept);
      return true;
    }
  }
  return false;
}

// Tries the next value of the next setting that matters and was not tried of late.
bool Experiments::begin(TimePoint now, const Matters<settings>& matters) {
  if (1 - before_.share() < least_gain) return false;  // nothing to gain
  for (std::size_t i = 1; i <= settings; ++i) {
    const std::size_t at = (tried_ + i) % settings;
    One& one = all_[at];
    if (one.count < 2 || !matters[at]) continue;
    if (std::abs(before_.share() - one.share) > other_load) one.pauses = 0;
    if (one.tried != TimePoint::min() && now - one.tried < pause * (1 << one.pauses)) continue;
    tried_ = at;
    do one.last = (one.last + 1) % one.count;
    while (one.last == one.kept);
    phase_ = Phase::trial;
    change(one.last);
    return true;
  }
  return false;
}

bool Experiments::end_trial(TimePoint now) {
  One& one = all_[tried_];
  if (one.last == one.first) {
    if (during_.share() < before_.share() - as_good) return reject(now);
    phase_ = Phase::idle;
    one.kept = one.first;
    one.pauses = 0;
    one.tried = now;
    return false;  // it is the value now
  }
  if (!better(during_, before_)) return reject(now);
  phase_ = Phase::after;
  change(one.kept);
  return true;
}

bool Experiments::reject(TimePoint now) {
  One& one = all_[tried_];
  const bool changes = one.value != one.kept;
  phase_ = Phase::idle;
  one.pauses = std::min(most_doublings, one.pauses + 1);
  one.tried = now;
  one.share = before_.share();
  if (changes) change(one.kept);
  return changes;
}

}  // namespace carillon::schedule::parts
