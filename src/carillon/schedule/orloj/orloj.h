#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/schedule/central.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/orloj/dynamic_hull.h"
#include "carillon/schedule/orloj/estimates.h"
#include "carillon/schedule/orloj/options.h"
#include "carillon/schedule/orloj/profiler.h"
#include "carillon/schedule/orloj/score.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {

// Orloj (Algorithm 4.1): for models whose time depends on the input. A request's time is a random variable,
// known from samples of its application; a batch's follows from the largest of its requests' times
// (Estimates). When a device is free, a batch size is chosen and filled with the requests of the highest
// score: the expected cost saved per expected time.
//
// Each model has a queue for each of its batch sizes (where these are many, for some, each about twice the
// last) with the requests that could still be on time in it: a DynamicHull by score and a heap by the last
// start. Scores are made anew when a bin of the distribution is crossed (the paper's milestones), and when
// distributions are; the latter a few requests a decision, so that no decision has all that wait to do. The
// base of the scores' times moves, long before e^(bt) could overflow, by multiplying the hulls' points.
//
// Differs from the paper: scores are for choosing what to lose. Where all that waits can be on time, the most
// urgent go first, with those in whose company they take the least time (split.h). Distributions of different
// applications are weighted by their shares of the arrivals (the paper weighs them equally), and a request's
// batch is itself and others drawn from that mixture, so that applications with short requests score higher.
// Several models share devices by the earliest deadline of what they would run. What is refused for ever
// would never be measured again: now and then such a request runs all the same (a trial).
//
// A request costs O(batch sizes * log^2 waiting), a batch O(its size * batch sizes * log^2), and a decision
// besides O(log models) and the bounds of the options; O(devices) where something waits.
class Orloj final : public Central {
 public:
  explicit Orloj(const Environment& environment, const OrlojOptions& options = {})
      : Central(environment), options_(options), profiler_(environment.profile_share) {}

  std::string_view name() const override { return "orloj"; }

  // What a batch of `size` is expected to take, at the options' quantile, with a request of `app` in it.
  Duration expected_batch(ModelId model, AppId app, int size) const {
    return models_[model.index()].estimates.estimate(app, size);
  }

 protected:
  void add_model(const ModelInfo& model) override;
  void enqueue(const Request& request, TimePoint now) override;
  bool remove(RequestId id, ModelId model) override;
  void take_all(ModelId model, std::vector<Request>& taken) override;
  TimePoint waiting_since(ModelId model) const override;
  std::size_t waiting_count(ModelId model) const override { return models_[model.index()].arrivals.size(); }
  void step(TimePoint now, Actions& out) override;
  TimePoint wake_at(TimePoint now) const override;
  void arrived(ModelId model) override { touched_.push_back(model); }
  void profiled(const RequestProfiled& sample, TimePoint now) override;
  bool reported_otherwise(const ActionDone& done, TimePoint now) override;
  void device_changed(DeviceId device, TimePoint now) override;
  void times_changed(ModelId model, TimePoint now) override;
  void reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint now) override;

 private:
  struct InQueue {
    bool there = false;
    TimePoint last_start;
    TimePoint until;  // of its score
  };
  struct Waiting {
    Request request;
    std::vector<InQueue> queues;  // by level
    std::uint64_t scored = 0;     // the version of the estimates that they are of
    bool used = false;
  };
  struct Queue {
    orloj::DynamicHull hull;
    TimerHeap last_starts, deadlines, milestones;  // slots
  };
  struct Model {
    orloj::Estimates estimates;
    std::vector<BatchProfile> seeds;  // that the estimates go by
    std::vector<int> levels;          // places in the list of batch sizes: those that have a queue
    std::vector<int> level_at;        // by place: its level, or -1
    std::vector<Queue> queues;
    std::vector<Waiting> waiting;  // by slot
    std::vector<std::uint32_t> free;
    IdMap<RequestId, std::uint32_t> slots;
    TimerHeap arrivals;                                         // slots
    std::set<std::pair<TimePoint, std::uint32_t>> by_deadline;  // slots
    // Scores are being made anew, from slot `sweep_at` on.
    std::uint64_t sweep_of = 0;  // the version of the estimates
    std::size_t sweep_at = 0, sweep_left = 0;
    bool sweeping = false;                   // in sweeping_
    TimePoint candidate = TimePoint::max();  // its time in candidates_; max(): not there
  };
  struct Candidate {
    int level = -1;
    TimePoint deadline = TimePoint::max();
  };
  struct Trial {
    ActionId action;
    Duration expected;
  };

  Model& at(ModelId id) { return models_[id.index()]; }
  double ms(TimePoint t) const { return to_ms(t - base_); }
  int size_of(ModelId id, int level) const {
    return fleet_.batch_size(id, models_[id.index()].levels[static_cast<std::size_t>(level)]);
  }

  void heed_threads(const Fleet::Flight& flight, const ActionDone& done);

  // Queues.
  void put(Model& model, std::uint32_t slot, int level, TimePoint start);
  void take_out(Model& model, std::uint32_t slot, int level);
  void score(Model& model, std::uint32_t slot, TimePoint start);
  void forget(Model& model, std::uint32_t slot);
  void settle(ModelId id);
  Candidate candidate(ModelId id) const;

  // What is done a little at a time.
  void move_base(TimePoint now);
  bool refresh(ModelId id, TimePoint now);
  void sweep(TimePoint now);
  void expire(TimePoint now, Actions& out);
  void bring_up_to_date(ModelId id, TimePoint start, TimePoint now, Actions& out);
  void drop(ModelId id, std::uint32_t slot, TimePoint now, Actions& out);
  bool worth_a_trial(const Request& request, TimePoint now) const;
  void try_out(TimePoint now, Actions& out);

  // What runs.
  void decide_what_runs(TimePoint now, Actions& out);
  bool serve(DeviceId device, TimePoint now, Actions& out);
  bool run(DeviceId device, ModelId id, TimePoint now, Actions& out);
  Duration estimate(ModelId id, AppId app, int index);
  bool in_time(ModelId id, std::uint32_t slot, int index, TimePoint start);
  bool can_go_in_order(ModelId id, int index, TimePoint start);
  void most_urgent(ModelId id, int level, std::size_t count, TimePoint start);
  void highest_scores(ModelId id, int level, std::size_t count, TimePoint start);
  int of_a_kind(ModelId id);
  int without_stragglers(ModelId id, int index);

  // Idle time, which is when nobody waits for anything.
  void profile(TimePoint now, Actions& out);
  bool anything_else_to_do() const;

  OrlojOptions options_;
  orloj::Profiler profiler_;
  std::vector<int> threads_;    // by device: that ran its last INFER that told; 0: none has
  std::size_t profile_on_ = 0;  // a device, by turns
  std::size_t waiting_ = 0;     // requests, in all queues
  TimePoint base_{};            // of the scores' times
  std::vector<Model> models_;
  TimerHeap due_;                                       // models, by the next refusal
  std::set<std::pair<TimePoint, ModelId>> candidates_;  // those that have one, by its deadline
  std::deque<ModelId> sweeping_;
  std::vector<ModelId> touched_;  // of which something was learned
  // A trial that waits for a device; the one that runs; when there may be another.
  std::optional<Request> trial_;
  std::optional<Trial> trying_;
  TimePoint trial_not_before_ = TimePoint::min();
  // Scratch.
  std::vector<AppId> members_;
  std::vector<std::uint32_t> best_;
  std::vector<double> solos_;
};

}  // namespace carillon::schedule
