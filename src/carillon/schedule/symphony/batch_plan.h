#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/symphony/batch_times.h"

namespace carillon::schedule::symphony {

// Of all models, in their order.
using AllTimes = std::vector<const BatchTimes*>;

// Erlang's C formula: the chance that all devices are busy when they are offered work for `offered` of them.
// By the number of devices, from 0 to `devices`. O(devices).
std::vector<double> chances_to_wait(double offered, std::size_t devices);
// On all of them.
inline double chance_to_wait(double offered, std::size_t devices) {
  return chances_to_wait(offered, devices).back();
}

// How large the batches of each model can be while all share the devices. A batch of b whose requests come at
// rate r is gathered for b/r, then runs l(b): b/r + l(b) <= SLO. Where the rates together need more device
// time than there is, all are scaled down alike to what the devices can serve. For one model on N devices
// this is the staggered optimum of Symphony, equations 1 and 2.
//
// Beyond the paper, for few devices and models that differ: a batch that finds all N devices busy waits for
// the first to end. Where what runs there takes L at most and began at any time, it waits for more than t
// with probability (1 - t/L)^N; that it finds all busy is Erlang's C formula. Batches are limited (`limit`)
// to an L with which the model that can wait least loses no more than `exceeded` of its requests, as long as
// the devices can serve all rates with such batches. Not thread-safe.
class BatchPlan {
 public:
  // `exceeded` in (0, 1]; the times are positive. Batches are limited only where the devices are then asked
  // for at most `most_load` of their time.
  // `dearer` is 0, or above 1. Above 1 batches are also limited where the rates need more than one or two
  // devices have. A batch may take half of what the model that can wait least can wait (two devices: three
  // quarters). A longer one is limited to the smallest size that costs at most `dearer` times as much for a
  // request, or to a larger one of which two fit into that time. With more devices one is free sooner, and
  // can be kept free.
  // `bursts`: on one device, models that are planned shorter batches are limited, too: a burst makes batches
  // longer than planned. Of several devices, one such batch leaves the others free.
  BatchPlan(Duration rate_window, Duration every, double exceeded, double most_load = 1, double dearer = 0,
            bool bursts = false)
      : window_(rate_window),
        every_(every),
        exceeded_(exceeded),
        most_load_(most_load),
        dearer_(dearer),
        bursts_(bursts) {}

  // From the next plan on: whether batches are limited, and `dearer`.
  void change(bool limits, double dearer) {
    limits_ = limits;
    dearer_ = dearer;
  }
  void add_model() { models_.emplace_back(); }
  // It comes in another version: no batch size is planned until the next plan.
  void renew_model(ModelId model) { models_[model.index()].plans = {}; }
  // A request came whose answer is worth having for `slo` from now.
  void arrived(ModelId model, Duration slo) {
    Model& m = models_[model.index()];
    ++m.arrived;
    m.slos += to_seconds(slo);
  }
  bool due(TimePoint now) const { return last_ == TimePoint::min() || now - last_ >= every_; }
  // Plans anew; `times` in the order of the models. Sizes hold until the next call.
  void plan(TimePoint now, std::size_t devices, const AllTimes& times) {
    begin(now, devices);
    std::size_t most = ~std::size_t{0};
    go_on(times, most);
  }
  // The same in parts: looks at models so often, and takes that off `most`. True: the plan is there. Until
  // then sizes, limits and what is said of all models are those of the last plan. What is looked at more
  // than once counts as often: each model once, and up to sixteen times more.
  void begin(TimePoint now, std::size_t devices);
  bool go_on(const AllTimes& times, std::size_t& most);
  bool planning() const { return phase_ != Phase::done; }
  // 0 where nothing is known of the model's rate yet.
  int size(ModelId model) const { return sizes(model).size; }
  // Its place in the model's sizes. Of a model of which something is known.
  int index(ModelId model) const { return sizes(model).index; }
  // No batch should be larger, for the sake of the other models; 0 for no limit.
  int limit(ModelId model) const { return sizes(model).limit; }
  // How long its requests have, on average.
  Duration slo(ModelId model) const { return models_[model.index()].slo; }
  double rate(ModelId model) const { return models_[model.index()].rate; }
  // The chance that a batch finds all devices busy, if the planned batches came at random: Erlang's C
  // formula. 1 where the rates need more device time than there is.
  double contention() const { return contention_; }
  // The same if each request ran by itself. 1 until rates were measured.
  double eager_contention() const { return eager_contention_; }
  // Which wait for a device is exceeded by no more than `exceeded` of batches, if planned batches came at
  // random and took times around that of the longest: the M/M/N queue's. max() where the rates need more than
  // there is.
  Duration wait() const { return wait_; }
  // Device time that a request takes in planned batches, seconds: the mean over all that come.
  double each() const { return each_; }
  // How long requests have, the mean over all that come.
  Duration mean_slo() const { return mean_slo_; }
  // Device time that the rates need over what there is; above 1 means overload.
  double demand() const { return demand_; }
  // How many devices the rates keep busy; it may be more than there are.
  double load() const { return all_; }
  // A model's batches are limited; or would be curbed, with any `dearer` above 1.
  bool limited() const { return limited_; }
  bool may_curb() const { return demand_ > 1 && devices_ <= curbed_devices && several_; }
  // With more devices none has to wait for one run.
  static constexpr std::size_t curbed_devices = 2;

 private:
  struct Sizes {
    int size = 0;
    int index = 0;  // of that size
    int limit = 0;
  };
  struct Model {
    std::uint64_t arrived = 0;  // since the last plan
    double rate = 0;            // requests a second
    double slos = 0;            // of these, seconds together
    Duration slo{0};            // their mean when the last plan was made
    std::array<Sizes, 2> plans;
  };
  // A phase looks at all models. What it finds decides which phase comes next.
  enum class Phase : std::uint8_t { rates, halve, scale, spare, limit, curb, sums, done };
  const Sizes& sizes(ModelId model) const { return models_[model.index()].plans[in_force_]; }
  Sizes& coming(Model& model) { return model.plans[1 - in_force_]; }
  static int largest(const BatchTimes& times, double rate, Duration slo, int guess);
  static int largest_within(const BatchTimes& times, Duration own, int end);
  void look(Model& model, ModelId id, const BatchTimes& times);
  double needed(Model& model, double scale, const BatchTimes& times);
  double needed_within(Model& model, Duration own, const BatchTimes& times, bool keep);
  void find_rate(Model& model);
  void pass(Phase phase);
  void all_seen();
  void begin_round();
  void finish();
  Duration cap(Duration spare) const;
  void curb(Model& model, Duration spare, const BatchTimes& times);

  Duration window_, every_;
  double exceeded_, most_load_, dearer_;
  bool bursts_;
  bool limits_ = true;
  TimePoint last_ = TimePoint::min();
  std::vector<Model> models_;
  std::size_t in_force_ = 0;  // of Model::plans
  double demand_ = 0;
  bool limited_ = false, several_ = false;  // models are asked for
  double each_ = 0;
  double contention_ = 0, eager_contention_ = 1;
  Duration wait_{0}, mean_slo_{0};

  // Of the plan that is being made.
  Phase phase_ = Phase::done;
  std::size_t next_ = 0, end_ = 0;  // of the models
  std::size_t devices_ = 0;
  bool known_ = false;             // rates
  double seconds_ = 0, keep_ = 0;  // since the last plan; that much of its rates counts
  double total_ = 0, eager_ = 0;   // devices that are needed
  double all_ = 0;                 // by the last look at all
  double low_ = 0, high_ = 1;      // by how much rates are scaled
  int halved_ = 0, round_ = 0;
  Duration first_{}, second_{};  // what the two models in the greatest hurry can wait
  ModelId tightest_{};
  double share_ = 0, before_ = 0;
  double rates_ = 0, time_ = 0, slos_ = 0;
  std::size_t asked_ = 0;  // models
  bool any_limit_ = false;
  Duration longest_{0};
};

}  // namespace carillon::schedule::symphony
