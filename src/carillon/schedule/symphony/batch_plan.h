#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/schedule/symphony/model_machine.h"

namespace carillon::schedule::symphony {

// How large the batches of each model can be while all share the devices. A batch of b whose requests come at
// rate r is gathered for b/r, then runs l(b): b/r + l(b) <= SLO. Where the rates together need more device
// time than there is, all are scaled down alike to what the devices can serve. For one model on N devices
// this is the staggered optimum of Symphony, equations 1 and 2.
//
// Beyond the paper, for few devices and models that differ: while a batch runs, a request of another model
// waits for about its time over the number of devices. Batches are limited so that this wait is less than
// what the others' deadlines leave (`limit`), as long as the devices can serve all rates with such batches,
// and `wait` tells how much earlier than its frontrun moment a model had better look for a device.
class BatchPlan {
 public:
  BatchPlan(Duration rate_window, Duration every) : window_(rate_window), every_(every) {}

  void add_model() { models_.emplace_back(); }
  // A request came whose answer is worth having for `slo` from now.
  void arrived(ModelId model, Duration slo) {
    Model& m = models_[model.index()];
    ++m.arrived;
    m.slos += to_seconds(slo);
  }
  bool due(TimePoint now) const { return last_ == TimePoint::min() || now - last_ >= every_; }
  // Plans anew; `machines` in the order of the models. Sizes hold until the next call.
  void plan(TimePoint now, std::size_t devices, const std::vector<ModelMachine>& machines);
  // 0 where nothing is known of the model's rate yet.
  int size(ModelId model) const { return models_[model.index()].size; }
  // No batch should be larger, for the sake of the other models; 0 for no limit.
  int limit(ModelId model) const { return models_[model.index()].limit; }
  // How long the longest planned batch of another model keeps it waiting.
  Duration wait(ModelId model) const { return model == longest_ ? second_wait_ : longest_wait_; }
  // Device time that the rates need over what there is; above 1 means overload.
  double demand() const { return demand_; }

 private:
  struct Model {
    std::uint64_t arrived = 0;  // since the last plan
    double rate = 0;            // requests a second
    double slos = 0;            // of these, seconds together
    Duration slo{0};            // their mean when the last plan was made
    int size = 0;
    int index = 0;  // of that size
    int limit = 0;
  };
  static int largest(const ModelMachine& machine, double rate, Duration slo, int guess);
  double needed(double scale, const std::vector<ModelMachine>& machines);
  void limit_for_others(std::size_t devices, const std::vector<ModelMachine>& machines);
  double needed_within(Duration cap, Duration spared_cap, ModelId spared,
                       const std::vector<ModelMachine>& machines, bool keep);

  Duration window_, every_;
  TimePoint last_ = TimePoint::min();
  std::vector<Model> models_;
  double demand_ = 0;
  ModelId longest_{};  // the model whose planned batch takes longest
  Duration longest_wait_{0}, second_wait_{0};
};

}  // namespace carillon::schedule::symphony
