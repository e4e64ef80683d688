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
  // that, or once `ended` is true. Empty: nobody measures, and runs show it.
  std::function<Result<std::optional<Duration>>(const engine::CompiledModel&, const engine::Plan&,
                                                const std::atomic<bool>& ended)>
      measure{};
  // For how long the device has run batches in all; called from any thread. While plans are made, a batch
  // takes up to half as long again. So the thread rests after each model: its share of the time is the square
  // of the share in which the device idles, and a hundredth at least. Empty: it never rests.
  std::function<Duration()> busy{};
  // Plans that a batch ran by so lately make no room for those of another model. To make a model's plans
  // takes some 0.1 s of a processor: that is 1% of this.
  Duration kept = std::chrono::seconds{10};
  // Nothing is made for so long after a model that is loaded wanted the memory: more of them may come.
  Duration rest = std::chrono::seconds{1};
  // Hears why a model never gets plans of larger batches.
  std::function<void(const std::string&)> note{};
};

// Plans of larger batches, for models that come with that of batch size 1 alone
// (engine::CompiledModel::makes_later()).
//
// A thread of its own makes them beside serving, all of a model at once: first for models of which larger
// batches are sent, in that order, then for all others. The first may take the memory of plans that no batch
// ran by for a while, the others only what is left. Models that are loaded take it from all of them. Without
// these plans a model's larger batches run row after row: the scheduler hears what they take each time that
// changes.
class BatchPlans {
 public:
  // What the model's batches take from now on. Called from any thread, under a lock: it must not call back.
  using Tell = std::function<void(ModelId, std::vector<schedule::BatchProfile>)>;

  BatchPlans(BatchPlanOptions options, const Clock& clock, Tell tell);
  ~BatchPlans();  // stops
  BatchPlans(const BatchPlans&) = delete;
  BatchPlans& operator=(const BatchPlans&) = delete;

  // Ids ascend, below worker::most_models; before the first sent() of the model. `seeds` are of row after
  // row, the first of batch size 1. `compiled` outlives remove_model() and stop(). Nothing happens for a
  // model that has all of its plans.
  void add_model(ModelId id, std::string name, const engine::CompiledModel& compiled,
                 std::vector<schedule::BatchProfile> seeds);
  // Waits for plans of it that are just being made. Its plans go with the model.
  void remove_model(ModelId id);
  // The worker of all these models outlives stop().
  void start(worker::Worker& worker);
  void stop();  // again: nothing
  // Whether models of which no batches are sent wait for theirs, as others are still to be loaded.
  void set_loading(bool loading);
  // So many rows of it are sent as one batch. One thread's. Takes a lock, for a few instructions, only where
  // the model lacks plans.
  void sent(ModelId id, int batch);

  struct Counts {
    std::size_t models = 0;     // that came with one plan
    std::size_t complete = 0;   // of these, that have the others now, as far as they fit
    std::uint64_t made = 0;     // times that a model got these plans
    std::uint64_t dropped = 0;  // and lost them
    std::uint64_t refused = 0;  // and did not get them, as there was no memory
    Bytes memory;               // that these plans take
  };
  Counts counts() const;

 private:
  // dropped: runs that began before may still hold the plans.
  enum class State : std::uint8_t { one_plan, making, complete, dropped, never };
  struct Model {
    std::string name;
    const engine::CompiledModel* compiled = nullptr;
    std::vector<schedule::BatchProfile> seeds;
    std::atomic<std::int64_t> used{0};        // when a larger batch was sent last, in ns; 0: never
    std::atomic<bool> nothing_to_ask{false};  // it has plans, or stands in the queue, or never gets any
    std::atomic<std::int64_t> not_before{0};  // to ask again, in ns: there was no memory
    State state = State::one_plan;            // under the mutex, as is what follows
    bool busy = false;                        // a thread makes or removes plans of it without the mutex
    std::optional<MemoryAccount::Charge> charge;
    Bytes memory;
  };
  struct Made {
    std::vector<std::unique_ptr<const engine::Plan>> plans{};
    std::optional<Duration> largest_takes{};
    std::optional<MemoryAccount::Charge> charge{};
  };
  using Lock = std::unique_lock<std::mutex>;

  void run();
  std::optional<ModelId> next_asked();
  std::optional<ModelId> next_to_fill();
  void make(ModelId id, bool urgent, Lock& lock);
  Result<Made> plans_of(const Model& model, bool urgent);
  Result<> add(ModelId id, Model& model, Made made);
  Result<MemoryAccount::Charge> take(const Model& model, Bytes needed, bool urgent);
  bool drop_unused(Bytes needed);
  bool reclaim(Bytes needed);
  void rest_after(TimePoint began);
  bool is_unused(const Model& model) const;
  std::optional<ModelId> oldest_complete() const;
  Bytes drop(ModelId id, Lock& lock);
  void sweep(Lock& lock);
  void trim(Lock& lock);

  const BatchPlanOptions options_;
  const Clock& clock_;
  const Tell tell_;
  std::vector<std::unique_ptr<Model>> models_;  // by id; null where it has all plans. Never moves

  mutable std::mutex mutex_;  // never held while plans are made or end
  std::condition_variable wake_, changed_;
  worker::Worker* worker_ = nullptr;
  std::deque<ModelId> asked_;
  std::vector<ModelId> dropped_;  // whose plans are to be swept
  std::size_t next_to_fill_ = 0;
  std::size_t made_since_trim_ = 0;
  bool loading_ = false;
  TimePoint rests_until_;
  TimePoint looked_at_;  // when rest_after() looked last, and what options_.busy() was then
  Duration busy_then_{0};
  bool running_ = false;
  bool making_ = false;
  std::atomic<bool> ended_{false};  // what is just being made is not wanted any more
  Counts counts_;
  std::thread thread_;
};

}  // namespace carillon::controller
