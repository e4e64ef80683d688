#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "carillon/schedule/baselines/central.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/orloj/dynamic_hull.h"
#include "carillon/schedule/orloj/estimates.h"
#include "carillon/schedule/orloj/options.h"
#include "carillon/schedule/orloj/score.h"

namespace carillon::schedule {

// Orloj (Algorithm 4.1): for models whose time depends on the input. A request's time is a random variable,
// known from samples of its application; a batch's follows from the largest of its requests' times
// (Estimates). When a device is free, a batch size is chosen and filled with the requests of the highest
// score: the expected cost saved per expected time.
//
// Each model has a queue for each batch size with the requests that could still be on time in it: a
// DynamicHull by score and a set by the last start. Scores are made anew only when a bin of the distribution
// is crossed (the paper's milestones), when distributions are made anew, and when the base of their times is
// moved, long before e^(bt) could overflow.
//
// Differs from the paper: scores are for choosing what to lose. Where all that waits can be on time, the most
// urgent go first, with those in whose company they take the least time (split.h). Distributions of different
// applications are weighted by their shares of the arrivals (the paper weighs them equally), and a request's
// batch is itself and others drawn from that mixture, so that applications with short requests score higher.
// Several models share devices by the earliest deadline of what they would run. A request costs O(batch sizes
// * log^2 waiting), a batch O(its size * batch sizes * log^2).
class Orloj final : public baselines::Central {
 public:
  explicit Orloj(const Environment& environment, const OrlojOptions& options = {})
      : Central(environment), options_(options) {}
  std::string_view name() const override { return "orloj"; }
  void add_model(const ModelInfo& model) override;
  bool learns_from_profiles() const override { return true; }

  // What a batch of `size` would take with a request of `app` in it, as is known so far; a request of that
  // application has come before.
  Duration expected_batch(ModelId model, AppId app, int size) const;
  // c0 and c1 as fitted so far.
  profile::BatchCost cost(ModelId model) const { return models_[model.index()].estimates.cost(); }

 protected:
  void enqueue(const Request& request, TimePoint now) override;
  bool remove(RequestId id, ModelId model) override;
  void take_all(ModelId model, std::vector<Request>& taken) override;
  TimePoint waiting_since(ModelId model) const override;
  void step(TimePoint now, Actions& out) override;
  TimePoint wake_at(TimePoint now) const override;
  void profiled(const RequestProfiled& sample, TimePoint now) override;
  void reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint now) override;

 private:
  struct InQueue {
    bool there = false;
    TimePoint last_start;
    double until = 0;  // of its score
  };
  struct Waiting {
    Request request;
    std::vector<InQueue> queues;  // by batch size
    bool used = false;
  };
  struct Queue {
    orloj::DynamicHull hull;
    std::set<std::pair<TimePoint, std::uint32_t>> by_last_start;
    std::set<std::pair<TimePoint, std::uint32_t>> by_deadline;
    std::set<std::pair<double, std::uint32_t>> milestones;
  };
  struct Model {
    orloj::Estimates estimates;
    std::vector<Queue> queues;
    std::vector<Waiting> waiting;  // by slot
    std::vector<std::uint32_t> free;
    IdMap<RequestId, std::uint32_t> slots;
    std::set<std::pair<TimePoint, std::uint32_t>> by_arrival;
  };
  struct Candidate {
    ModelId model;
    int index = -1;
    TimePoint deadline;
  };

  void refresh(ModelId id, TimePoint now);
  double ms(TimePoint at) const { return to_ms(at - base_); }
  void insert(ModelId id, std::uint32_t slot, TimePoint start);
  void put(ModelId id, std::uint32_t slot, int index, TimePoint start);
  void take_out(Model& model, std::uint32_t slot, int index);
  void forget(Model& model, std::uint32_t slot);
  void rebuild(ModelId id, TimePoint start);
  void bring_up_to_date(ModelId id, TimePoint start, TimePoint now, Actions& out);
  Candidate candidate(ModelId id) const;
  bool can_go_in_order(const Candidate& chosen, TimePoint start) const;
  std::vector<std::uint32_t> most_urgent(const Candidate& chosen) const;
  std::vector<std::uint32_t> highest_scores(const Candidate& chosen, TimePoint start);
  int of_a_kind(ModelId id, std::vector<std::uint32_t>& best) const;
  int without_stragglers(ModelId id, int index, std::vector<std::uint32_t>& best) const;
  void run(DeviceId device, const Candidate& chosen, TimePoint now, Actions& out);

  OrlojOptions options_;
  TimePoint base_{};  // of the scores' times
  std::vector<Model> models_;
  std::vector<AppId> members_;  // scratch
};

}  // namespace carillon::schedule
