#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/made_up.h"
#include "carillon/graph/faults.h"
#include "carillon/worker/host_model.h"
#include "carillon/worker/worker.h"

namespace carillon::worker {

// Measures a worker's models for profiles: LOADs and UNLOADs of its own, whose results it waits for itself,
// and runs between the stream's.
class Measuring {
 public:
  // LOADs and UNLOADs of its own that are open, beside what credit() grants to others.
  static constexpr std::size_t loads_at_a_time = 1;

  // What it takes of a worker beside what all may have of it.
  class Subject {
   public:
    virtual ~Subject() = default;
    virtual HostModel* find(ModelId id) = 0;  // null: not registered
    virtual std::uint32_t life() const = 0;
    virtual bool absent(ModelId id) const = 0;  // its weights are neither there nor on their way
    // Makes up the inputs that `act` has (engine/made_up.h).
    using Fill = std::function<void(int way)>;
    // Calls `act` on the EXEC thread, with memory of its own and weights that stay there meanwhile: operands
    // are zeros, and their faults go to `faults`. Errors: no room, no weights, or the worker stops.
    virtual Result<> between_runs(ModelId id, PlanLayout& layout, graph::Faults& faults,
                                  const std::function<void(const engine::Binding&, const Fill&)>& act) = 0;
  };

  // `share`: of the cores' time, see Options. `worker` and `subject` are the same one.
  Measuring(Worker& worker, Subject& subject, const Clock& clock, double share)
      : worker_(worker), subject_(subject), clock_(clock), share_(share) {}

  // As Worker's.
  Result<std::vector<Duration>> exec(ModelId id, int batch, int repeats, std::int64_t length,
                                     std::string* refused);
  Result<std::vector<Duration>> load(ModelId id, int repeats);

  // Of the worker's threads: an own action's result is told here, and to nobody else.
  static bool owns(ActionId id) { return id.value >= first_own; }
  void told(const ActionResult& result);
  void life_ended();  // who waits for a result waits in vain

 private:
  // Far from those that the worker is told of.
  static constexpr std::uint64_t first_own = std::uint64_t{1} << 63;

  // Submits it and waits for its result; none where the worker stops or its life ends.
  template <typename Command>
  std::optional<ActionResult> perform(Command command);

  Worker& worker_;
  Subject& subject_;
  const Clock& clock_;
  const double share_;
  std::mutex one_load_;  // taken before the other: see loads_at_a_time
  std::mutex mutex_;     // of what follows
  std::condition_variable told_;
  std::uint64_t count_ = 0;
  std::map<ActionId, std::optional<ActionResult>>
      awaited_;  // own actions, each for as long as perform() waits
  std::map<ModelId, engine::MadeUpChoice> choices_;
};

}  // namespace carillon::worker
