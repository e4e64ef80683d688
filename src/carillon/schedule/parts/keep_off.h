#pragma once

#include <cstddef>
#include <vector>

#include "carillon/schedule/parts/plan.h"

namespace carillon::schedule::parts {

// Long beside quick. A model of whose runs a single one takes longer than quicker models' requests can wait
// keeps off some devices: as many as lose the fewest answers, as far as the plan tells. Which devices these
// are does not matter. The long ones lose those that wait too long, in batches of the best size. Not
// thread-safe.
class KeepOff {
 public:
  // O(models^2), and O(devices^2) for each model that keeps off.
  void plan(const Plan& plan, std::size_t devices);
  // A run of the model may begin on that device. O(1), or O(devices) for a model that keeps off.
  bool may_run(const ledger::Ledger& ledger, DeviceId device, ModelId model) const;

 private:
  struct Model {
    std::size_t devices = 0;  // that it keeps off
    Duration longer{0};       // than which runs count as long
  };
  std::vector<Model> models_;
};

}  // namespace carillon::schedule::parts
