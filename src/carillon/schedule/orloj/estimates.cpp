#include "carillon/schedule/orloj/estimates.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::schedule::orloj {
namespace {

constexpr Duration share_memory = std::chrono::seconds{10};
constexpr double outlier = 4;  // a batch counts for at most so many times its expected time, or its inverse
constexpr double seed_halving = 32;      // batches after which the seeds weigh half as much
constexpr double old_samples = 4;        // what is old counts as at least so many samples of today
constexpr double most_of_an_app = 16;    // samples of one application in the prior of the others
constexpr double wild = 8;               // a sample that lies so many times above the median is wild
constexpr std::size_t most_wild = 2;     // which so few count for nothing
constexpr std::size_t pool_size = 256;   // samples of which the grid is made
constexpr std::size_t most_members = 8;  // applications of a batch that are looked at for its longest
constexpr std::size_t most_seeds = 64;
constexpr double most_growth = 4;
constexpr int patience = 10;  // refreshes that are left out where little was learned

double power(double base, int exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base)
    if ((exponent & 1) != 0) result *= base;
  return result;
}

// The mean of a time by its CDF on a grid, its density even between two points.
double mean_of(const std::vector<double>& grid, const std::vector<double>& cdf) {
  double sum = 0;
  for (std::size_t i = 1; i < grid.size(); ++i) sum += (cdf[i] - cdf[i - 1]) * (grid[i] + grid[i - 1]) / 2;
  return sum;
}

double median_of(const std::vector<double>& grid, const std::vector<double>& cdf) {
  const auto above = std::lower_bound(cdf.begin(), cdf.end(), 0.5) - cdf.begin();
  const auto i = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(above, 1, std::ssize(cdf) - 1));
  const double share = cdf[i] - cdf[i - 1];
  const double part = share > 0 ? std::clamp((0.5 - cdf[i - 1]) / share, 0.0, 1.0) : 1;
  return grid[i - 1] + part * (grid[i] - grid[i - 1]);
}

}  // namespace

Estimates::Estimates(const ModelInfo& model, const OrlojOptions& options, std::vector<int> sizes)
    : options_(options), sizes_(std::move(sizes)), given_(model.cost) {
  CARILLON_ASSERT(options_.window >= 1 && options_.most_apps >= 1 && options_.prior > 0);
  const std::size_t seeds = std::min(model.solos.size(), most_seeds);
  for (std::size_t i = 0; i < seeds; ++i)
    seeds_.push_back(std::max(1.0, static_cast<double>(model.solos[i * model.solos.size() / seeds].count())));
  if (seeds_.empty()) {
    const BatchProfile& least = model.batches.front();
    seeds_.push_back(std::max(1.0, static_cast<double>(least.exec.count()) / least.batch));
  }
  std::sort(seeds_.begin(), seeds_.end());
  for (const double seed : seeds_) seed_mean_ += seed / static_cast<double>(seeds_.size());
  find_seed_line(model.batches);
  apps_.emplace_back().pause = options_.trial_after;
  apps_.front().median = seeds_[seeds_.size() / 2];
  renew(TimePoint::min());
}

// The line through the batch times, from the batch of one on.
void Estimates::find_seed_line(const std::vector<BatchProfile>& batches) {
  seed_each_ = 0;
  double weight = 0;
  for (const BatchProfile& batch : batches) {
    if (batch.batch < 2) continue;
    const double others = batch.batch - 1, exec = std::max(1.0, static_cast<double>(batch.exec.count()));
    const double w = others * others / (exec * exec);
    weight += w;
    seed_each_ += ((exec - seed_mean_) / others - seed_each_) * w / weight;
    seed_size_ = batch.batch;
  }
}

void Estimates::change_times(const ModelInfo& model, double solo_factor, TimePoint now) {
  if (solo_factor != 1) {
    for (double& seed : seeds_) seed = std::max(1.0, seed * solo_factor);
    seed_mean_ *= solo_factor;
    for (App& app : apps_) {
      app.by_age.clear();
      app.by_time.clear();
      app.oldest = 0;
    }
    sampled_ = false;
  }
  given_.reset();
  find_seed_line(model.batches);
  fit_ = {};
  fitted_ = 0;
  renew(now);
}

std::size_t Estimates::place(AppId app) const {
  const std::uint32_t* found = places_.find(app);
  return found == nullptr ? 0 : *found;
}

// An application is told apart from its first sample on; the one that was least recently heard of gives way.
std::size_t Estimates::place_for_sample(AppId id) {
  if (const std::uint32_t* found = places_.find(id)) return *found;
  std::size_t at = apps_.size();
  if (at <= static_cast<std::size_t>(options_.most_apps)) {
    apps_.emplace_back();
  } else {
    at = 1;
    for (std::size_t i = 2; i < apps_.size(); ++i)
      if (apps_[i].used < apps_[at].used) at = i;
    places_.erase(apps_[at].id);
    apps_[at] = App{};
  }
  App& app = apps_[at];
  app.id = id;
  app.pause = options_.trial_after;
  app.cdf = apps_.front().cdf;  // until the next refresh
  app.mean = apps_.front().mean;
  app.median = apps_.front().median;
  places_.insert(id, static_cast<std::uint32_t>(at));
  return at;
}

void Estimates::arrived(AppId id) {
  App& app = apps_[place(id)];
  app.arrivals += 1;
  app.used = ++uses_;
}

void Estimates::add_sample(AppId id, double ns, TimePoint now) {
  App& app = apps_[place_for_sample(id)];
  app.used = ++uses_;
  app.heard = now;
  const Sample sample{ns, now};
  if (app.by_age.size() < static_cast<std::size_t>(options_.window)) {
    app.by_age.push_back(sample);
  } else {
    Sample& oldest = app.by_age[app.oldest];
    app.by_time.erase(std::lower_bound(app.by_time.begin(), app.by_time.end(), oldest));
    oldest = sample;
    app.oldest = (app.oldest + 1) % app.by_age.size();
  }
  app.by_time.insert(std::upper_bound(app.by_time.begin(), app.by_time.end(), sample), sample);
  learned_ = true;
  if (8 * static_cast<double>(++app.fresh) > app.weight) learned_much_ = true;
}

void Estimates::saw_pace(double expected, double took) {
  const double before = pace_.value();
  pace_.saw(std::max(1.0, base_pace_ * expected), std::max(1.0, took));
  if (pace_.value() != before) ++version_;
}

void Estimates::sampled(AppId id, Duration solo, TimePoint now) {
  const auto took = static_cast<double>(std::max(solo, Duration{0}).count());
  const App& app = apps_[place(id)];
  if (known(app)) saw_pace(app.median, took);
  add_sample(id, took / pace(), now);
}

// Into product_: the CDF of the longest request of a batch.
void Estimates::multiply(std::span<const AppId> members) {
  std::vector<std::pair<std::size_t, int>> counts;  // by place
  for (const AppId member : members) {
    const std::size_t at = place(member);
    const auto same =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == at; });
    if (same == counts.end())
      counts.emplace_back(at, 1);
    else
      ++same->second;
  }
  if (counts.size() > most_members) {
    std::sort(counts.begin(), counts.end(), [&](const auto& a, const auto& b) {
      return apps_[a.first].mean != apps_[b.first].mean ? apps_[a.first].mean > apps_[b.first].mean
                                                        : a.first < b.first;
    });
    counts.resize(most_members);
  }
  product_.assign(grid_.size(), 1);
  for (const auto& [at, count] : counts)
    for (std::size_t i = 0; i < grid_.size(); ++i) product_[i] *= power(apps_[at].cdf[i], count);
}

void Estimates::ran(std::span<const AppId> members, Duration duration, TimePoint now) {
  const auto took = std::max(1.0, static_cast<double>(duration.count()));
  bool all_known = true, some_known = sampled_;
  for (const AppId member : members) {
    App& app = apps_[place(member)];
    app.heard = now;
    all_known = all_known && known(app);
    some_known = some_known || known(app);
  }
  const auto size = static_cast<int>(members.size());
  multiply(members);
  const double longest = std::max(1.0, mean_of(grid_, product_));
  const double expected = cost_.of(size, longest);
  if (some_known && !sampled_) {  // what was fitted before was fitted to guesses of the solo times
    sampled_ = true;
    fit_ = {};
    fitted_ = 0;
  }
  // What is not known yet is learned; only what is known can be slower than that.
  if (all_known || (!sampled_ && fitted_ >= options_.enough_batches))
    saw_pace(cost_.of(size, median_of(grid_, product_)), took);
  if (size == 1) return add_sample(members.front(), took / pace(), now);
  if (options_.cost_memory == 0 || (sampled_ && !all_known)) return;
  const double most = std::min(outlier, std::exp(4 * std::max(0.1, pace_.spread())));
  const double counts = std::clamp(took / pace(), expected / most, expected * most);
  const double others = size - 1;
  fit_.fade(1 - 1.0 / options_.cost_memory);
  fit_.add(longest, (counts - longest) / others, others * others / (expected * expected));
  fitted_ += 1;
  ++ran_;
}

double Estimates::slowdown(std::span<const AppId> members, Duration took) {
  multiply(members);
  const double usual = cost_.of(static_cast<int>(members.size()), median_of(grid_, product_));
  return std::max(1.0, static_cast<double>(took.count())) / (pace() * std::max(1.0, usual));
}

bool Estimates::knows(std::span<const AppId> members) const {
  return std::ranges::all_of(members, [&](AppId id) { return known(apps_[place(id)]); });
}

void Estimates::rescale(double factor) {
  base_pace_ *= factor;
  ++version_;
}

void Estimates::tried(AppId id, bool as_learned) {
  App& app = apps_[place(id)];
  app.pause = as_learned ? std::min(2 * app.pause, options_.trial_at_most) : options_.trial_after;
}

bool Estimates::refresh(TimePoint now) {
  const Duration since = refreshed_ == TimePoint::min() ? Duration::max() : now - refreshed_;
  if (since < options_.refresh_every) return false;
  const bool some = learned_ || ran_ > 0 || apps_.size() > 1;  // applications' shares change too
  const bool much = learned_much_ || ran_ >= options_.enough_batches;
  if (!much && !(some && since >= patience * options_.refresh_every)) return false;
  renew(now);
  return true;
}

void Estimates::renew(TimePoint now) {
  const double keep =
      refreshed_ == TimePoint::min() ? 1 : std::exp(-to_seconds(now - refreshed_) / to_seconds(share_memory));
  refreshed_ = now;
  learned_ = learned_much_ = false;
  ran_ = 0;
  make_grid();
  for (App& app : apps_) {
    app.arrivals *= keep;
    app.fresh = 0;
    weigh(app, now);
  }
  mix();
  fit_cost();
  ++version_;
}

// Points that lie where the samples of all applications lie, from the least to the largest.
void Estimates::make_grid() {
  pool_.clear();
  const std::size_t each = std::max<std::size_t>(2, pool_size / apps_.size());
  const auto add = [&](double ns) { pool_.push_back(Duration{static_cast<std::int64_t>(ns)}); };
  for (const double seed : seeds_) add(seed);
  for (const App& app : apps_) {
    const auto samples = tame(app);
    // Evenly by time, with both ends.
    const std::size_t taken = std::min(samples.size(), each);
    for (std::size_t i = 0; i < taken; ++i)
      add(samples[taken == 1 ? 0 : i * (samples.size() - 1) / (taken - 1)].ns);
  }
  const auto pool = profile::Distribution::from_samples(pool_, 2 * options_.solo_bins);
  grid_.clear();
  const auto point = [&](double at) {
    if (grid_.empty() || at > grid_.back()) grid_.push_back(at);
  };
  for (const auto& bin : pool.bins()) {
    point(bin.low);
    point(bin.high);
  }
}

// The samples that count, of those ascending by time.
std::span<const Estimates::Sample> Estimates::tame(const App& app) const {
  const std::size_t count = app.by_time.size();
  const double middle = count > most_wild + 1 ? app.by_time[count / 2].ns : apps_.front().median;
  const Sample limit{wild * middle, TimePoint::min()};
  const auto first = std::lower_bound(app.by_time.begin(), app.by_time.end(), limit);
  const auto many = static_cast<std::size_t>(app.by_time.end() - first);
  return {app.by_time.data(), many > most_wild ? count : count - many};
}

// The CDF of an application's samples: each counts half as much as one that is a window_span younger, but
// what is old together for old_samples, as long as there is nothing newer.
void Estimates::weigh(App& app, TimePoint now) const {
  app.weight = 0;
  const auto samples = tame(app);
  if (samples.empty()) return;
  const auto weight_of = [&](const Sample& sample) {
    const auto spans = std::min<std::int64_t>(60, (now - sample.at) / options_.window_span);
    return 1.0 / static_cast<double>(std::int64_t{1} << std::max<std::int64_t>(0, spans));
  };
  double old = 0, count = 0;
  for (const Sample& sample : samples) {
    const double w = weight_of(sample);
    (w < 1 ? old : app.weight) += w;
    count += w < 1 ? 1 : 0;
  }
  const double lift = old > 0 ? std::max(1.0, std::min(count, old_samples) / old) : 1;
  app.weight += lift * old;
  app.own.resize(grid_.size());
  auto next = samples.begin();
  double below = 0;
  for (std::size_t i = 0; i < grid_.size(); ++i) {
    for (; next != samples.end() && next->ns < grid_[i]; ++next) {
      const double w = weight_of(*next);
      below += w < 1 ? lift * w : w;
    }
    app.own[i] = std::min(1.0, below / app.weight);
  }
  app.own.back() = 1;
}

// Priors, applications, and who comes along in a batch.
void Estimates::mix() {
  const std::size_t points = grid_.size();
  prior_.assign(points, 0);
  double total = options_.prior;
  auto next = seeds_.begin();
  for (std::size_t i = 0; i < points; ++i) {
    while (next != seeds_.end() && *next < grid_[i]) ++next;
    prior_[i] =
        options_.prior * static_cast<double>(next - seeds_.begin()) / static_cast<double>(seeds_.size());
  }
  for (const App& app : apps_) {
    const double weight = std::min(app.weight, most_of_an_app);
    if (weight <= 0) continue;
    total += weight;
    for (std::size_t i = 0; i < points; ++i) prior_[i] += weight * app.own[i];
  }
  for (double& p : prior_) p = std::min(1.0, p / total);
  prior_.back() = 1;
  mixture_.assign(points, 0);
  double weights = 0;
  for (App& app : apps_) {
    app.cdf = prior_;
    if (app.weight > 0) {
      // Soon it counts for nothing, or what is known of one application would blur what is known of another.
      const double samples = app.weight / options_.prior;
      const double prior = options_.prior / ((1 + samples) * (1 + samples));
      for (std::size_t i = 0; i < points; ++i)
        app.cdf[i] = (app.weight * app.own[i] + prior * prior_[i]) / (app.weight + prior);
    }
    app.mean = mean_of(grid_, app.cdf);
    app.median = median_of(grid_, app.cdf);
    const double share = app.arrivals + (app.weight > 0 ? 1e-3 : 0);
    if (share <= 0) continue;
    weights += share;
    for (std::size_t i = 0; i < points; ++i) mixture_[i] += share * app.cdf[i];
  }
  if (weights > 0)
    for (double& m : mixture_) m = std::min(1.0, m / weights);
  else
    mixture_ = prior_;
  others_.resize(sizes_.size());
  for (std::size_t k = 0; k < sizes_.size(); ++k) {
    others_[k].resize(points);
    for (std::size_t i = 0; i < points; ++i) others_[k][i] = power(mixture_[i], sizes_[k] - 1);
  }
}

const Estimates::BatchTime& Estimates::batch(AppId id, std::size_t k) {
  App& app = apps_[place(id)];
  app.times.resize(sizes_.size());
  auto& [of, time] = app.times[k];
  if (of != version_) {
    of = version_;
    make_time(app, sizes_[k], others_[k], time);
  }
  return time;
}

// A batch with a request of `app`, and others from the mixture. Neighbouring pieces of the grid are merged
// into bins of about equal probability.
void Estimates::make_time(const App& app, int size, const std::vector<double>& others,
                          BatchTime& time) const {
  const double scale = pace();
  const auto at = [&](std::size_t i) { return scale * cost_.of(size, grid_[i]); };
  time.bins.clear();
  time.mean = 0;
  time.estimate = from_ns(at(grid_.size() - 1));
  double below = 0, from = at(0);
  bool estimated = false;
  for (std::size_t i = 1; i < grid_.size(); ++i) {
    const double here = std::min(1.0, app.cdf[i] * others[i]), to = at(i);
    const double share = here - below;
    if (share > 1e-12) {
      if (!estimated && here >= options_.quantile) {
        time.estimate = from_ns(from + (to - from) * std::max(0.0, (options_.quantile - below) / share));
        estimated = true;
      }
      const auto made = static_cast<double>(time.bins.size());
      if (made < options_.score_bins && below >= made / options_.score_bins - 1e-12)
        time.bins.push_back({from / 1e6, to / 1e6, share});
      else
        time.bins.back().high = to / 1e6, time.bins.back().probability += share;
      time.mean += share * (from + to) / 2e6;
      below = here;
    }
    from = to;
  }
  time.mean = std::max(1e-6, time.mean);
}

Duration Estimates::estimate(AppId id, int size) const {
  const App& app = apps_[place(id)];
  const auto cdf = [&](std::size_t i) { return app.cdf[i] * power(mixture_[i], size - 1); };
  std::size_t low = 0, high = grid_.size() - 1;  // the quantile lies in (low, high]
  while (high - low > 1) {
    const std::size_t middle = (low + high) / 2;
    (cdf(middle) >= options_.quantile ? high : low) = middle;
  }
  const double below = cdf(low), share = cdf(high) - below;
  const double part = share > 0 ? std::clamp((options_.quantile - below) / share, 0.0, 1.0) : 1;
  return from_ns(pace() * cost_.of(size, grid_[low] + part * (grid_[high] - grid_[low])));
}

void Estimates::Fit::add(double x, double y, double w) {
  count += 1;
  weight += w;
  const double from_mean = x - mean_x;
  mean_x += from_mean * w / weight;
  mean_y += (y - mean_y) * w / weight;
  xx += w * from_mean * (x - mean_x);
  // With the new mean of y on one side, as for xx: the products of deviations stay exact.
  xy += w * from_mean * (y - mean_y);
}

void Estimates::Fit::add(const Fit& other) {
  const double w = other.weight;
  if (w <= 0) return;
  const double dx = other.mean_x - mean_x, dy = other.mean_y - mean_y;
  const double both = weight + w;
  xx += other.xx + dx * dx * weight * w / both;
  xy += other.xy + dx * dy * weight * w / both;
  mean_x += dx * w / both;
  mean_y += dy * w / both;
  weight = both;
}

void Estimates::Fit::fade(double keep) {
  count *= keep;
  weight *= keep;
  xx *= keep;
  xy *= keep;
}

// What is known at the start counts as so many batches, with requests as long as in those that ran, so that
// what is wrong in it moves the line and does not tilt it. Where
// nothing but the batch times of one request was measured, each further request is taken to cost as much more
// as the longest is longer: kernels' work grows, what a run costs beside it does not.
Estimates::Fit Estimates::seeds_as(double batches) const {
  Fit fit;
  const double mean = std::max(1.0, fit_.weight > 0 ? fit_.mean_x : mean_of(grid_, mixture_));
  const double others = seed_size_ - 1;
  for (const double longest : {mean / 2, mean, 3 * mean / 2}) {
    const double each =
        given_ ? (static_cast<double>(given_->of(seed_size_, from_ns(longest)).count()) - longest) / others
               : seed_each_ * mean / seed_mean_ + (longest - mean);
    fit.add(longest, each, batches / 3 * (fit_.weight > 0 ? fit_.weight / fit_.count : 1));
  }
  return fit;
}

void Estimates::fit_cost() {
  if (seed_size_ < 2) return;  // batches of one alone
  Fit both = fit_;
  both.add(seeds_as(options_.seed_batches / (1 + fitted_ / seed_halving)));
  cost_.growth = both.xx > 1e-9 * both.weight * both.mean_x * both.mean_x
                     ? std::clamp(both.xy / both.xx, 0.0, most_growth)
                     : 0;
  cost_.extra = both.mean_y - cost_.growth * both.mean_x;
}

}  // namespace carillon::schedule::orloj
