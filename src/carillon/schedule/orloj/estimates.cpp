#include "carillon/schedule/orloj/estimates.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::schedule::orloj {
namespace {

constexpr std::size_t most_apps = 4096;  // names of applications come from outside: the rest are one
constexpr Duration share_memory = std::chrono::seconds{10};
constexpr double outlier = 4;  // a batch counts for at most so many times its expected time, or its inverse
constexpr double seed_halving = 32;  // batches after which the seeds weigh half as much

// The solo time of the mean where nothing but batch times is known: their line's slope, so that c1 is 1.
Duration slope_of(const std::vector<BatchProfile>& batches) {
  std::vector<profile::MeasuredBatch> measured;
  for (const BatchProfile& b : batches) measured.push_back({b.batch, Duration{1'000'000}, b.exec});
  return std::max(Duration{1}, from_ns(1e6 * profile::fit_batch_cost(measured).c1));
}

profile::Distribution first_of(const ModelInfo& model, int bins) {
  if (model.solos.empty()) {
    // The mean that agrees with both the batch times and the cost.
    const Duration slope = slope_of(model.batches);
    const double c1 = model.cost ? model.cost->c1 : 1;
    return profile::Distribution::constant(from_ns(static_cast<double>(slope.count()) / std::max(1e-9, c1)));
  }
  std::vector<Duration> solos = model.solos;
  return profile::Distribution::from_samples(solos, bins);
}

}  // namespace

Estimates::Estimates(const ModelInfo& model, const OrlojOptions& options)
    : options_(options),
      batches_(model.batches),
      given_(model.cost),
      first_(first_of(model, options.solo_bins)),
      seeded_(!model.solos.empty()) {
  fit(static_cast<double>(first_.mean().count()));
}

std::size_t Estimates::place(AppId app) {
  return std::min<std::size_t>(app.index(), most_apps);
}

Estimates::App& Estimates::at(AppId app) {
  while (apps_.size() <= place(app)) {
    apps_.push_back({.samples = {},
                     .solo = first_,
                     .solo_mean = static_cast<double>(first_.mean().count()),
                     .times = {}});
    stale_ = true;
  }
  return apps_[place(app)];
}

bool Estimates::arrived(AppId id) {
  App& app = at(id);
  app.arrivals += 1;
  if (!app.times.empty()) return false;
  refreshed_ = TimePoint::min();
  return true;
}

void Estimates::sampled(AppId id, Duration solo, TimePoint now) {
  App& app = at(id);
  app.samples.emplace_back(now, std::max(solo, Duration{0}));
  if (app.samples.size() > static_cast<std::size_t>(options_.window)) app.samples.pop_front();
  stale_ = true;
}

void Estimates::ran(std::span<const AppId> members, Duration took) {
  if (ran_.size() >= static_cast<std::size_t>(options_.fit_at_once) || options_.cost_memory == 0) return;
  Ran& batch = ran_.emplace_back();
  for (const AppId member : members) batch.apps.push_back(place(member));
  batch.took = took;
  stale_ = true;
}

bool Estimates::refresh(TimePoint now) {
  const bool first = refreshed_ == TimePoint::min();
  if (!stale_ || (!first && now - refreshed_ < options_.refresh_every)) return false;
  const double keep = first ? 1 : std::exp(-to_seconds(now - refreshed_) / to_seconds(share_memory));
  refreshed_ = now;
  stale_ = false;
  std::vector<Duration> samples;
  std::vector<std::pair<const profile::Distribution*, double>> parts;
  double mean = 0, weights = 0;
  for (App& app : apps_) {
    app.arrivals *= keep;
    while (app.samples.size() > 1 && now - app.samples.front().first > options_.window_span)
      app.samples.pop_front();
    if (!app.samples.empty()) {
      samples.clear();
      for (const auto& [_, solo] : app.samples) samples.push_back(solo);
      app.solo = profile::Distribution::from_samples(samples, options_.solo_bins);
      app.solo_mean = static_cast<double>(app.solo.mean().count());
    }
    // Ids of applications are dense over all models: of many of them this model never hears.
    if (app.arrivals <= 0 && app.samples.empty() && apps_.size() > 1) continue;
    const double weight = app.arrivals + 1e-3;
    parts.emplace_back(&app.solo, weight);
    mean += weight * app.solo_mean;
    weights += weight;
  }
  if (parts.empty()) {
    parts.emplace_back(&first_, 1.0);
    mean = static_cast<double>(first_.mean().count());
    weights = 1;
  }
  fit(mean / weights);
  make_times(profile::Distribution::mixture(parts).coarser(2 * options_.solo_bins));
  return true;
}

// c0 and c1 from the seeds, on requests of the mean, and from the batches that ran.
void Estimates::fit(double mean) {
  const bool some_known = std::any_of(apps_.begin(), apps_.end(), [&](const App& app) { return known(app); });
  if (some_known && !sampled_) {  // what was fitted before was fitted to guesses of the solo times
    sampled_ = true;
    fit_ = {};
    fitted_ = 0;
  }
  for (const Ran& batch : ran_) {
    std::vector<std::pair<const profile::Distribution*, int>> members;
    bool counts = true;
    for (const std::size_t index : batch.apps) {
      const App& app = apps_[index];
      counts = counts && (!sampled_ || known(app));
      const auto same = std::find_if(members.begin(), members.end(),
                                     [&](const auto& member) { return member.first == &app.solo; });
      if (same == members.end())
        members.emplace_back(&app.solo, 1);
      else
        ++same->second;
    }
    if (!counts) continue;
    const auto size = static_cast<int>(batch.apps.size());
    const Duration longest = profile::Distribution::largest_of(members, 2).mean();
    const double expected = std::max(1.0, static_cast<double>(cost_.of(size, longest).count()));
    const double took =
        std::clamp(static_cast<double>(batch.took.count()), expected / outlier, expected * outlier);
    if (fit_.weight() > 0) fit_.fade(1 - 1.0 / options_.cost_memory);
    fit_.add({size, longest, from_ns(took)}, 1 / (expected * expected));
    fitted_ += 1;
  }
  ran_.clear();
  profile::BatchCostFit both = fit_;
  const double seeds = options_.seed_batches / (1 + fitted_ / seed_halving);
  const Duration longest = from_ns(std::max(1.0, mean));
  for (const BatchProfile& b : batches_) {
    const Duration took = std::max(Duration{1}, given_ ? given_->of(b.batch, longest) : b.exec);
    const auto ns = static_cast<double>(took.count());
    both.add({b.batch, longest, took}, seeds / static_cast<double>(batches_.size()) / (ns * ns));
  }
  cost_ = both.cost();
}

// What batches take, from the applications' solo times: off the critical path, as it depends on no request.
void Estimates::make_times(const profile::Distribution& mixture) {
  for (App& app : apps_) {
    app.times.clear();
    for (const BatchProfile& b : batches_) {
      std::vector<std::pair<const profile::Distribution*, int>> members{{&app.solo, 1}};
      if (b.batch > 1) members.emplace_back(&mixture, b.batch - 1);
      const profile::Distribution batch = profile::Distribution::largest_of(members, 2)
                                              .scaled(cost_.c0, cost_.c1 * static_cast<double>(b.batch));
      BatchTime time;
      time.mean = std::max(1e-6, to_ms(batch.mean()));
      time.estimate = batch.quantile(options_.quantile);
      time.bins = batch.coarser(options_.score_bins).bins();
      for (auto& bin : time.bins) {
        bin.low /= 1e6;
        bin.high /= 1e6;
      }
      app.times.push_back(std::move(time));
    }
  }
}

}  // namespace carillon::schedule::orloj
