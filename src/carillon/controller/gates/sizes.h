#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/clock.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/engine/engine.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

struct SizeOptions {
  std::size_t most = 64;          // that a model keeps plans for, beside its reference
  Bytes memory{256ULL << 20};     // that these may take, of all models, as their plans tell it
  std::size_t most_tried = 64;    // that a model is known not to run at
  std::size_t most_queued = 256;  // that wait to be made, of all models; calls beyond them are refused
};

// The sizes of open models: which extents there are plans for.
//
// A call at extents that nobody has asked for before waits here while plans are made for it on a thread of
// its own, one size at a time, in the order of their first calls: the smallest batch first, with which its
// calls go on, the others once nobody waits and the size has been asked for again. A call that would be late
// by what the model's last sizes took to make is refused at once; its size is made nevertheless, for those
// that come after it. So many sizes of a model are kept, and plans of all take so much memory; of those that
// no call uses, the one that was asked for the longest ago makes room for another. None makes room for larger
// batches, which run row after row without plans.
//
// A model that comes with one plan at its reference (engine::CompiledModel::has_one_plan()) gets that size
// once more with plans for all batches, as any other, once it was asked for twice.
//
// Calls hold their size (InferCall::size), and none goes before they do.
class Sizes {
 public:
  struct Waiting {
    std::uint64_t ticket = 0;
    std::unique_ptr<InferCall> call;
    AnswerHandler handler;
    TimePoint deadline;
  };
  // What becomes of a call that waited: it has its size, or an error is to be its answer. Called from the
  // thread or inside submit(), without a lock.
  using Goes = std::function<void(Waiting, Result<>, std::optional<Duration> would_take)>;

  Sizes(const SizeOptions& options, const Clock& clock, Goes goes);
  ~Sizes();  // stops
  Sizes(const Sizes&) = delete;
  Sizes& operator=(const Sizes&) = delete;

  // Ids ascend, below worker::most_models; also after start(), before the first call of the model. Nothing
  // happens for a model that is not open.
  void add_model(ModelId id, const engine::CompiledModel& compiled, bool batched);
  // Calls of it that wait, or come yet, get `not_found`. Waits for plans of it that are just being made.
  void remove_model(ModelId id);
  // Workers must outlive stop(), and make no plans afterwards.
  void start(std::vector<worker::Worker*> workers);
  // Calls that wait get `unavailable`. Again: nothing.
  void stop();

  bool is_open(ModelId id) const {
    const std::lock_guard lock(mutex_);
    return id.index() < models_.size() && models_[id.index()] != nullptr;
  }
  // Gives the call of an open model its size where there are plans, and returns true; else false, and it
  // waits, or has been answered. From any thread.
  bool submit(Waiting& waiting);
  // Its client has gone, if it waits: it is answered when its turn comes.
  void cancel(std::uint64_t ticket);

  struct Counts {
    std::size_t ready = 0;    // sizes with plans, beside references
    std::size_t waiting = 0;  // calls
    std::uint64_t made = 0;   // sizes, ever
    Bytes memory;             // that plans take, beside references
  };
  Counts counts() const;

 private:
  struct Entry {
    enum class State : std::uint8_t { queued, ready, failed } state = State::queued;
    std::shared_ptr<const Size> size;  // where ready
    Error error;                       // where failed
    std::uint64_t used = 0;            // when, on a clock that ticks with each call
    std::uint64_t calls = 0;
    bool whole = false;  // with plans for all batch sizes
    Bytes memory;        // where ready
    std::vector<Waiting> waiting;
  };
  using Entries = std::map<graph::Extents, Entry>;
  struct Model {
    graph::Extents reference;
    std::shared_ptr<const Size> at_reference;
    std::vector<int> batch_sizes;
    bool batched = false;
    bool gone = false;
    bool one_plan = false;  // at the reference, of several batch sizes
    // Calls at the reference that ran by that plan, and how many there must be for plans of all batches.
    // Twice as many each time: these may have to make room for other sizes.
    std::uint64_t reference_calls = 0, reference_worth = 2;
    Entries entries;
    std::deque<Duration> took;  // to make the last sizes
  };
  struct Job {
    ModelId model;
    graph::Extents extents;
  };

  void run();
  void make(const Job& job, std::unique_lock<std::mutex>& lock);
  void make_whole(const Job& job, std::unique_lock<std::mutex>& lock);
  std::optional<Job> next_whole() const;
  void ask_reference(Model& model, InferCall& call);
  bool make_room(Model& model, ModelId id, Entry::State state, std::size_t most);
  bool make_memory(Bytes needed);
  void forget(Model& model, ModelId id, Entries::iterator entry);
  void settle(std::vector<Waiting> waiting, const Result<>& result);
  Result<worker::Worker::AddedSize> add_to_workers(ModelId id, std::int64_t number,
                                                   const graph::Extents& extents,
                                                   const std::vector<int>& batches);

  const SizeOptions options_;
  const Clock& clock_;
  const Goes goes_;
  std::vector<worker::Worker*> workers_;
  std::vector<std::unique_ptr<Model>> models_;  // by id; null where it is not open. Never moves

  mutable std::mutex mutex_;  // of what follows, and of what models hold
  std::condition_variable wake_;
  std::deque<Job> queue_;
  std::vector<std::uint64_t> cancelled_;
  std::uint64_t ticks_ = 0;
  std::int64_t numbers_ = 0;
  std::uint64_t made_ = 0;
  Bytes memory_;
  bool running_ = false;
  std::optional<ModelId> making_;  // plans of it are being made, without the lock
  std::condition_variable made_one_;
  std::thread thread_;
};

}  // namespace carillon::controller
