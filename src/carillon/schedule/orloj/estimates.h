#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "carillon/profile/distribution.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/orloj/company_cost.h"
#include "carillon/schedule/orloj/options.h"
#include "carillon/schedule/orloj/pace.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::orloj {

// What batches of one model take, as random variables: from the solo times of its applications and from what
// company costs (Orloj, section 4.4.2), both learned while it serves.
//
// Solo times come as samples of finished requests, measured alone, and from batches of one, which are the
// same thing. An application's distribution is that of its samples, the older the less, mixed with a prior:
// the model's other samples, and what was measured before it served. The prior counts as a few samples, so
// that one wild sample cannot end an application, and less the more is known; a few that are far above the
// others count for nothing until there are more of them. At most the options' most_apps
// applications are told apart, those that were measured last; all others are one.
//
// What company costs starts from ModelInfo::cost or from the model's batch times, and is fitted to the
// batches that ran: the longest request of a batch is not known, but its expected solo time is, from its
// members' distributions. So that noise does no harm, batches weigh by the square of their expected time (the
// noise grows with it), one that took more than four times what was expected, or less than a quarter, counts
// as if it had taken that, and the seeds keep some weight until many batches have run.
//
// All of it is kept in units of a pace, by which everything is slower or quicker at once. The Pace follows
// what nobody tells of; rescale() is for what is known, such as another number of threads.
//
// A call costs O(applications told apart + points of a grid), whatever clients send, but most cost far less:
// distributions are made anew by refresh() where enough was learned, and batch times of an application when
// they are asked for. Not thread-safe.
class Estimates {
 public:
  // What a batch with a request of one application takes.
  struct BatchTime {
    std::vector<profile::Distribution::Bin> bins;  // milliseconds
    double mean = 1;                               // milliseconds
    Duration estimate{0};                          // at the options' quantile
  };

  // `sizes` are the batch sizes for which batch() is asked.
  Estimates(const ModelInfo& model, const OrlojOptions& options, std::vector<int> sizes);

  // A request of `app` came.
  void arrived(AppId app);
  // A request of `app` takes `solo` >= 0 by itself.
  void sampled(AppId app, Duration solo, TimePoint now);
  // A batch ran, with requests of these applications, and took so long.
  void ran(std::span<const AppId> members, Duration took, TimePoint now);
  // By how much longer such a batch took than is expected of it as a rule: 1 where it took that.
  double slowdown(std::span<const AppId> members, Duration took);
  // From now on everything takes `factor` > 0 times as long as before.
  void rescale(double factor);
  // The batches of `model` take other times than those that this was made with, or changed to last: what
  // company costs is learned anew. Where one alone does, so are solo times, and what was known of them at the
  // start counts `solo_factor` > 0 times; else that is 1. The pace stays.
  void change_times(const ModelInfo& model, double solo_factor, TimePoint now);
  // Whether slowdown() of them goes by what was measured of each, and not by seeds.
  bool knows(std::span<const AppId> members) const;
  // Makes the distributions anew where enough was learned, at most as often as the options say. True where it
  // did.
  bool refresh(TimePoint now);
  // Grows when anything that follows has changed.
  std::uint64_t version() const { return version_; }

  // By the place of the batch size in `sizes`. Good until the next call.
  const BatchTime& batch(AppId app, std::size_t place);
  // Of any batch size, at the options' quantile.
  Duration estimate(AppId app, int size) const;
  // The expected solo time in nanoseconds, and what company costs, both at pace 1.
  double solo(AppId app) const { return apps_[place(app)].mean; }
  const CompanyCost& cost() const { return cost_; }
  double pace() const { return base_pace_ * pace_.value(); }
  // How many are told apart, with those that are not as one.
  std::size_t applications() const { return apps_.size(); }

  // Nothing was learned for long of the application, or of those that are not told apart from it: whatever is
  // believed of it may be wrong.
  bool worth_a_trial(AppId app, TimePoint now) const {
    const App& known = apps_[place(app)];
    return known.heard == TimePoint::min() || now - known.heard >= known.pause;
  }
  // One of its requests was run for that reason alone, and ran() told of it.
  void tried(AppId app, bool as_learned);

 private:
  struct Sample {
    double ns = 0;  // at pace 1
    TimePoint at;
    friend bool operator<(const Sample& a, const Sample& b) {
      return a.ns != b.ns ? a.ns < b.ns : a.at < b.at;
    }
  };
  struct App {
    AppId id;
    std::vector<Sample> by_age;   // a ring of at most the options' window, from `oldest` on
    std::vector<Sample> by_time;  // the same, ascending by `ns`
    std::size_t oldest = 0;
    double arrivals = 0;  // decayed
    std::uint64_t used = 0;
    std::size_t fresh = 0;  // samples since the last refresh
    TimePoint heard = TimePoint::min();
    Duration pause{0};  // before a trial
    // Made by refresh().
    std::vector<double> own;                                 // CDF of the samples on the grid
    double weight = 0;                                       // of the samples, in samples of today
    std::vector<double> cdf;                                 // with the prior
    double mean = 0, median = 0;                             // nanoseconds
    std::vector<std::pair<std::uint64_t, BatchTime>> times;  // with the version that each is of
  };
  // Least squares of what each further request costs over the longest solo time.
  struct Fit {
    double count = 0, weight = 0, mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    void add(double x, double y, double w);
    void add(const Fit& other);
    void fade(double keep);
  };

  std::size_t place(AppId app) const;
  std::size_t place_for_sample(AppId app);
  void add_sample(AppId app, double ns, TimePoint now);
  // By the last refresh.
  bool known(const App& app) const { return app.weight >= options_.enough_samples; }
  void find_seed_line(const std::vector<BatchProfile>& batches);
  void saw_pace(double expected, double took);
  void renew(TimePoint now);
  void make_grid();
  std::span<const Sample> tame(const App& app) const;
  void weigh(App& app, TimePoint now) const;
  void mix();
  Fit seeds_as(double batches) const;
  void fit_cost();
  void multiply(std::span<const AppId> members);
  void make_time(const App& app, int size, const std::vector<double>& others, BatchTime& time) const;

  OrlojOptions options_;
  std::vector<int> sizes_;
  std::vector<double> seeds_;  // solo times, nanoseconds, ascending
  double seed_mean_ = 0;
  std::optional<profile::PaddedCost> given_;
  double seed_each_ = 0;  // what each further request costs, by the batch times, nanoseconds
  int seed_size_ = 1;     // the largest of these

  std::vector<App> apps_;  // the first is all that are not told apart
  IdMap<AppId, std::uint32_t> places_;
  std::uint64_t uses_ = 0;
  std::vector<double> grid_;                 // nanoseconds, ascending
  std::vector<double> prior_, mixture_;      // CDFs on the grid
  std::vector<std::vector<double>> others_;  // by place of the size: the CDF of the largest of the others
  std::vector<Duration> pool_;               // scratch
  std::vector<double> product_;              // scratch

  double base_pace_ = 1;  // what is known of the pace
  Pace pace_;             // by what everything takes longer than at that
  Fit fit_;
  double fitted_ = 0;     // batches, since solo times are known from samples
  bool sampled_ = false;  // those of some application are
  CompanyCost cost_;

  bool learned_much_ = false, learned_ = false;  // since the last refresh
  int ran_ = 0;                                  // batches, likewise
  TimePoint refreshed_ = TimePoint::min();
  std::uint64_t version_ = 1;
};

}  // namespace carillon::schedule::orloj
