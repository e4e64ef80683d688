#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "carillon/schedule/parts/plan.h"

namespace carillon::schedule::parts {

// Long beside quick. A model of whose runs a single one takes longer than quicker models' requests can wait
// keeps off some devices: as many as lose the fewest answers, as far as the plan tells. Which devices these
// are does not matter. Not thread-safe.
class KeepOff {
 public:
  // There is a new plan; go_on() says what follows from it.
  void begin(const Plan& plan);
  // Until it returns true, what was planned last holds. It looks at a bounded number of models and devices.
  bool go_on(const Plan& plan, const ledger::Ledger& ledger);
  bool planning() const { return planning_; }
  // What normal streams of the device run has changed. True: fewer devices are busy with long runs.
  // O(devices) moved times while a model keeps off, else O(1).
  bool hear(const ledger::Ledger& ledger, DeviceId device);
  // On so many devices its long runs do not begin while they run on others.
  std::size_t devices(ModelId model) const {
    return model.index() < models_.size() ? models_[model.index()].devices : 0;
  }
  // A run of the model may begin on that device. O(log devices).
  bool may_run(const ledger::Ledger& ledger, DeviceId device, ModelId model) const;

 private:
  struct Model {
    std::size_t devices = 0;  // that it keeps off
    Duration longer{0};       // than which runs count as long
  };
  // Requests of one kind together.
  struct Kind {
    double rate = 0;                                        // a second
    double demand = 0;                                      // devices
    double exec = 0;                                        // of one alone on average, seconds
    Duration least_slack = Duration::max(), most_slack{0};  // of those that can wait
  };
  // Its requests cannot wait for one run of what takes longer than `waits`, and such a run is of another kind
  // by its length.
  struct Other {
    Duration waits, slack, one;
    double rate = 0, demand = 0;
  };
  static std::vector<double> late_on(std::size_t devices, const Kind& kind);
  static double lost(std::size_t may, std::size_t devices, const std::vector<double>& late, const Kind& quick,
                     const Kind& rest);
  Model keeps_off(std::size_t devices) const;
  void collect(const Plan& plan, ModelId model);
  void count_busy(const ledger::Ledger& ledger);

  std::vector<Model> models_;
  bool any_ = false;               // of them keeps off
  std::vector<Duration> longest_;  // by device: what it runs; 0: nothing
  std::vector<Duration> busy_;     // the same, ascending, of those that run something

  // Of what is being planned.
  bool planning_ = false;
  std::vector<Model> coming_;
  std::size_t next_ = 0;  // model
  Duration tightest_{};   // of all, what the one in the greatest hurry can wait
  bool coming_any_ = false;
  std::vector<Other> others_;                       // a heap: the least `waits` first
  std::vector<std::pair<Duration, ModelId>> long_;  // a heap, by the length of a run: the shortest first
  Kind all_, quick_;
  double quick_time_ = 0;  // of their requests alone, seconds a second
  Model planned_;          // for the last of long_
  bool same_ = false;      // quick_ is as it was for that
};

}  // namespace carillon::schedule::parts
