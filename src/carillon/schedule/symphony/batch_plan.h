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
class BatchPlan {
 public:
  BatchPlan(Duration rate_window, Duration every) : window_(rate_window), every_(every) {}

  void add_model() { models_.emplace_back(); }
  // A request came whose answer is worth having for `slo` from now.
  void arrived(ModelId model, Duration slo) {
    Model& m = models_[model.index()];
    ++m.arrived;
    m.slo = slo;
  }
  bool due(TimePoint now) const { return last_ == TimePoint::min() || now - last_ >= every_; }
  // Plans anew; `machines` in the order of the models. Sizes hold until the next call.
  void plan(TimePoint now, std::size_t devices, const std::vector<ModelMachine>& machines);
  // 0 where nothing is known of the model's rate yet.
  int size(ModelId model) const { return models_[model.index()].size; }
  // Device time that the rates need over what there is; above 1 means overload.
  double demand() const { return demand_; }

 private:
  struct Model {
    std::uint64_t arrived = 0;  // since the last plan
    double rate = 0;            // requests a second
    Duration slo{0};
    int size = 0;
  };
  static int largest(const ModelMachine& machine, double rate, Duration slo);
  double needed(double scale, const std::vector<ModelMachine>& machines);

  Duration window_, every_;
  TimePoint last_ = TimePoint::min();
  std::vector<Model> models_;
  double demand_ = 0;
};

}  // namespace carillon::schedule::symphony
