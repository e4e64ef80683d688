#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "carillon/schedule/parts/plan.h"

namespace carillon::schedule::parts {

// Long beside quick. A model of whose runs a single one takes longer than quicker models' requests can wait
// keeps off some devices: as many as lose the fewest answers, as far as the plan tells. Which devices these
// are does not matter. The long ones lose those that wait too long, in batches of the best size. Not
// thread-safe.
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
  // From now on models keep off that share of the devices that were planned.
  void change(double share) { share_ = share; }
  bool any() const { return any_; }
  // On so many devices its long runs do not begin while they run on others.
  std::size_t devices(ModelId model) const {
    if (model.index() >= models_.size()) return 0;
    return static_cast<std::size_t>(share_ * static_cast<double>(models_[model.index()].devices));
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
    Duration least_slack = Duration::max(), most_slack{0};  // of those that can wait
  };
  // In batches of one size.
  struct Sized {
    double demand = 0;  // devices
    double runs = 0;    // a second
    Duration slack{0};  // how long a request can wait, of one model
  };
  using Sizes = std::array<Sized, 4>;
  // Its requests cannot wait for one run of what takes longer than `waits`, and such a run is of another kind
  // by its length.
  struct Other {
    Duration waits, slack, one;
    ModelId model;
    double rate = 0, demand = 0;
  };
  // Tables by the number of devices. They depend only on which models are quick, so models that are long
  // beside the same quick ones share them.
  struct Beside {
    std::vector<double> late;   // the share of quick requests that is late on so many
    std::vector<double> share;  // the same if the long ones may use so many; below 0: not known yet
    std::array<std::vector<double>, std::tuple_size_v<Sizes>> waits;  // the chance that rest_ finds all busy
  };
  static Sizes in_sizes(const Plan& plan, ModelId model);
  void split(std::size_t devices);
  double lost(std::size_t may, std::size_t devices, const Sizes& own);
  std::size_t keeps_off(ModelId model, std::size_t devices, Model& best);
  void collect(const Plan& plan, ModelId model);
  void count_busy(const ledger::Ledger& ledger);

  std::vector<Model> models_;
  bool any_ = false;  // of them keeps off
  double share_ = 1;
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
  double quick_time_ = 0;        // of their requests alone, seconds a second
  std::vector<Sizes> in_sizes_;  // by model
  Sizes rest_;                   // all that is not quick_
  Beside beside_;
  bool same_ = false;  // beside_ is of quick_
};

}  // namespace carillon::schedule::parts
