#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "carillon/schedule/parts/paces.h"
#include "carillon/schedule/policy.h"
#include "carillon/schedule/symphony/batch_plan.h"

namespace carillon::schedule::parts {

// What all models ask for, and how large their batches should be: planned four times a second from the rates
// of arrival and from what batches take on average (symphony/batch_plan.h). Best-effort requests are not
// planned for. Not thread-safe.
class Plan {
 public:
  // `by_worth`: batch sizes are limited to those that are worth their time (Worth).
  explicit Plan(const Environment& environment, bool by_worth = false)
      : environment_(environment),
        by_worth_(by_worth),
        batches_(rate_window, every, exceeded, most_load, 0, true) {}

  // From the next plan on. `limits`: batches are limited for the sake of models in a hurry. `curbs`: they are
  // shorter where the rates ask for more than one or two devices have.
  void change(bool limits, bool curbs) { batches_.change(limits, curbs ? dearer : 0); }

  // A request came, which counts for the name `as` (Kinds). O(1).
  void arrived(const Request& request, ModelId as, TimePoint now) {
    if (request.cls == Class::best_effort) return;
    batches_.arrived(as, std::clamp(request.deadline - now - environment_.dispatch, Duration{0}, horizon));
  }
  // What any other event says. O(1), or O(batch sizes) where it is a ModelChanged.
  void hear(const Event& event, const Orders& out);
  // True: there is a new plan. One is made four times a second. Of more models than are looked at in an event
  // the others come in the next: until then the last plan holds.
  bool step(const Orders& out);
  bool due(TimePoint now) const { return busy() || batches_.due(now); }
  // step() has more to do at once.
  bool busy() const { return renewing_ || batches_.planning(); }

  std::size_t models() const { return times_.size(); }
  // What its batches take on average, on a device of the mean speed.
  const symphony::BatchTimes& times(ModelId model) const { return *all_times_[model.index()]; }
  const Paces& paces() const { return paces_; }
  Paces& paces() { return paces_; }
  // See BatchPlan. Nor should a batch be larger than what is worth its time.
  std::size_t limit(ModelId model) const {
    const auto limit = static_cast<std::size_t>(batches_.limit(model));
    return std::min(limit - 1, worth_rows_[model.index()] - 1) + 1;  // 0: none
  }
  double rate(ModelId model) const { return batches_.rate(model); }
  Duration slo(ModelId model) const { return batches_.slo(model); }
  bool known(ModelId model) const { return batches_.size(model) > 0; }
  // The place of the planned batch size. Of a model that is known.
  int planned(ModelId model) const { return std::min(worth_[model.index()], batches_.index(model)); }
  // Device time of a request in batches of the planned size, or alone while that is not known; seconds.
  double work(ModelId model) const { return times(model).each(known(model) ? planned(model) : 0); }
  // Devices that the model's requests need, in planned batches. Of a model that is known.
  double demand(ModelId model) const { return rate(model) * times(model).each(planned(model)); }
  double contention() const { return batches_.contention(); }
  // How many devices the rates keep busy; it may be more than there are.
  double load() const { return batches_.load(); }
  double eager_contention() const { return batches_.eager_contention(); }
  Duration wait() const { return batches_.wait(); }
  double each() const { return batches_.each(); }
  Duration mean_slo() const { return batches_.mean_slo(); }
  bool limited() const { return batches_.limited(); }
  bool may_curb() const { return batches_.may_curb(); }

  // The share of requests whose batch may have to wait for a device for longer than is planned for: half of
  // what a goodput at the 99th percentile allows to be lost.
  static constexpr double exceeded = 0.005;
  // Between plans.
  static constexpr Duration every = 250ms;

 private:
  static constexpr Duration rate_window = 2s;
  // A request whose deadline is further away has none that anybody plans by.
  static constexpr Duration horizon = 60s;
  // Smaller batches for the sake of others take more time in all; beyond this share they cost more answers
  // than they save.
  static constexpr double most_load = 0.85;
  // How much more device time a request may take for that.
  static constexpr double dearer = 1.1;

  // About 20 us of work.
  static constexpr std::size_t models_at_a_time = 1024;
  static constexpr int all_sizes = std::numeric_limits<int>::max();
  struct Seeds {
    const ledger::ModelInfo* info = nullptr;
    double pace = 0;
  };
  void renew(std::size_t model, const Orders& out);

  Environment environment_;
  bool by_worth_;
  symphony::BatchPlan batches_;
  Paces paces_;
  std::deque<symphony::BatchTimes> times_;  // where they stay
  symphony::AllTimes all_times_;
  std::vector<Seeds> seeds_;  // of times_, by model
  std::vector<int> worth_;    // by model: the place of the largest batch size that is worth its time
  std::vector<std::size_t> worth_rows_;  // that size; 0: all are
  std::size_t renewed_ = 0;              // of times_, for the next plan
  bool renewing_ = false;
};

}  // namespace carillon::schedule::parts
