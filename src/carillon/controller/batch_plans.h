#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/clock.h"
#include "carillon/base/ids.h"
#include "carillon/base/memory_account.h"
#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/schedule/model_info.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

struct BatchPlanOptions {
  // What plans may take, beside what models have; null: nobody counts.
  std::shared_ptr<MemoryAccount> memory{};
  // How long a run of the plan takes, beside what serves; nothing where the model refuses what is made up for
  // that. Empty: nobody measures, and runs show it.
  std::function<Result<std::optional<Duration>>(const engine::CompiledModel&, const engine::Plan&)> measure{};
  // Plans that a batch ran by so lately make no room for those of another model. To make a model's plans
  // takes some 0.1 s of a processor: that is 1% of this.
  Duration kept = std::chrono::seconds{10};
  // Hears why a model never gets plans for larger batches.
  std::function<void(const std::string&)> note{};
};

// Plans of larger batches, for models that come with that of the smallest alone
// (engine::CompiledModel::makes_later()).
//
// A thread of its own makes them beside serving, all of a model at once: first for models of which larger
// batches are sent, in that order, then for all others. The first may take the memory of plans that no batch
// ran by for a while, the others only what is left. Models that are loaded take it from all of them. Until a
// model has its plans, and once it has lost them, its larger batches run by the smallest plan, row after row:
// the scheduler hears what they take each time.
class BatchPlans {
 public:
  // What the model's batches take from now on. Called from any thread, under a lock: it must not call back.
  using Tell = std::function<void(ModelId, std::vector<schedule::BatchProfile>)>;

  BatchPlans(BatchPlanOptions options, const Clock& clock, Tell tell);
  ~BatchPlans();  // stops
  BatchPlans(const BatchPlans&) = delete;
  BatchPlans& operator=(const BatchPlans&) = delete;

  // Ids ascend, below worker::most_models; before the first sent() of the model. `compiled` outlives
  // remove_model() and stop(). Nothing happens for a model that has all of its plans.
  void add_model(ModelId id, std::string name, const engine::CompiledModel& compiled,
                 std::vector<schedule::BatchProfile> seeds);
  // Waits for plans of it that are just being made. Its plans go with the model.
  void remove_model(ModelId id);
  // The worker of all these models outlives stop().
  void start(worker::Worker& worker);
  void stop();  // again: nothing
  // Whether models of which no batches are sent wait for theirs, as others are still to be loaded.
  void set_loading(bool loading);
  // So many rows of it are sent as one batch. One thread's; takes a lock only where the model has no plan for
  // them.
  void sent(ModelId id, int batch);

  struct Counts {
    std::size_t models = 0;     // that came with one plan
    std::size_t whole = 0;      // of these, that have all of them now
    std::uint64_t made = 0;     // models, ever: each time that plans were made
    std::uint64_t dropped = 0;  // likewise
    Bytes memory;               // that these plans take
  };
  Counts counts() const;

 private:
  enum class State : std::uint8_t { few, making, whole, never };
  struct Model {
    std::string name;
    const engine::CompiledModel* compiled = nullptr;
    std::vector<schedule::BatchProfile> seeds;  // with the smallest plan alone
    std::atomic<std::int64_t> used{0};          // when a larger batch was sent last, in ns; 0: never
    std::atomic<bool> asked{false};             // there is nothing more to ask for
    std::atomic<std::int64_t> not_before{0};    // to ask again, in ns: there was no memory
    State state = State::few;                   // under the mutex, as is what follows
    std::optional<MemoryAccount::Charge> charge;
    Bytes memory;
  };
  struct Made {
    std::optional<MemoryAccount::Charge> charge{};
    Bytes memory{};
    std::vector<schedule::BatchProfile> times{};  // empty: not measured
  };

  void run();
  std::optional<ModelId> next_asked();
  std::optional<ModelId> next_to_fill();
  void make(ModelId id, bool urgent, std::unique_lock<std::mutex>& lock);
  Result<Made> make_room_and_plans(const Model& model, ModelId id, bool urgent);
  Result<MemoryAccount::Charge> take(const Model& model, const ModelNeed& need, bool urgent);
  std::optional<ModelId> oldest_whole() const;
  bool drop_unused();
  bool reclaim(Bytes needed);
  void drop(ModelId id);

  const BatchPlanOptions options_;
  const Clock& clock_;
  const Tell tell_;
  std::vector<std::unique_ptr<Model>> models_;  // by id; null where it has all plans. Never moves

  mutable std::mutex mutex_;
  std::condition_variable wake_, made_one_;
  worker::Worker* worker_ = nullptr;
  std::deque<ModelId> asked_;
  std::size_t next_to_fill_ = 0;
  bool loading_ = false;
  TimePoint rests_until_;
  bool running_ = false;
  std::atomic<bool> ended_{false};
  std::optional<ModelId> making_;
  std::vector<ModelId> leaving_;  // that dropped plans of which something runs
  Counts counts_;
  std::thread thread_;
};

}  // namespace carillon::controller
