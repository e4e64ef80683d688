#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "carillon/profile/distribution.h"
#include "carillon/schedule/orloj/options.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::orloj {

// What batches of one model take, as random variables: from the solo times of its applications and from c0
// and c1 (Orloj, section 4.4.2), both learned while it serves.
//
// Solo times come as samples of finished requests, measured alone. c0 and c1 start from ModelInfo::cost, or
// from the line through the model's batch times, which were measured on requests of the mean. They are then
// fitted to the batches that ran: a batch's longest request is not known, but its expected solo time is, from
// its members' distributions. So that noise does no harm, batches weigh by the square of their expected time
// (the noise grows with it), one that took more than four times what was expected, or less than a quarter,
// counts as if it had taken that, and the seeds keep some weight until many batches have run.
//
// Everything is made anew by refresh(), seldom, off the path of any request. Not thread-safe.
class Estimates {
 public:
  // What a batch with a request of one application takes.
  struct BatchTime {
    std::vector<profile::Distribution::Bin> bins;  // milliseconds
    double mean = 1;                               // milliseconds
    Duration estimate{0};                          // at the options' quantile
  };

  Estimates(const ModelInfo& model, const OrlojOptions& options);

  // A request came. True where its application is new: then nothing is known of its batches before refresh().
  bool arrived(AppId app);
  // A request of `app` takes `solo` >= 0 by itself.
  void sampled(AppId app, Duration solo, TimePoint now);
  // A batch ran, with requests of these applications, and took so long.
  void ran(std::span<const AppId> members, Duration took);

  // Makes the distributions anew where something was learned, at most as often as the options say. True where
  // they are new.
  bool refresh(TimePoint now);

  // By the place of the batch size in the model's list; the application has arrived, and refresh() was
  // called.
  const BatchTime& batch(AppId app, std::size_t index) const { return apps_[place(app)].times[index]; }
  // The expected solo time, in nanoseconds; the application has arrived.
  double solo(AppId app) const { return apps_[place(app)].solo_mean; }
  profile::BatchCost cost() const { return cost_; }

 private:
  struct App {
    std::deque<std::pair<TimePoint, Duration>> samples;
    double arrivals = 0;  // decayed
    profile::Distribution solo;
    double solo_mean = 0;  // nanoseconds
    std::vector<BatchTime> times;
  };
  struct Ran {
    std::vector<std::size_t> apps;
    Duration took;
  };

  static std::size_t place(AppId app);
  App& at(AppId app);
  bool known(const App& app) const {
    return seeded_ || app.samples.size() >= static_cast<std::size_t>(options_.enough_samples);
  }
  void fit(double mean);
  void make_times(const profile::Distribution& mixture);

  OrlojOptions options_;
  std::vector<BatchProfile> batches_;
  std::optional<profile::BatchCost> given_;
  profile::Distribution first_;  // of an application without samples
  bool seeded_;                  // `first_` was measured
  std::vector<App> apps_;
  std::vector<Ran> ran_;  // since the last refresh
  bool sampled_ = false;  // some application's times are known from samples
  profile::BatchCostFit fit_;
  double fitted_ = 0;  // batches, ever
  profile::BatchCost cost_;
  bool stale_ = true;
  TimePoint refreshed_ = TimePoint::min();
};

}  // namespace carillon::schedule::orloj
