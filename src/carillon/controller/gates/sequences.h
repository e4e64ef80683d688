#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/repository/sequence_batching.h"

namespace carillon::controller {

struct SequenceOptions {
  std::size_t most = 4096;                           // that are open, of all models
  std::size_t most_waiting = sequence_waiting_most;  // requests of one that wait for those before them
  Bytes state = mib(256);                            // that all of them may have
};

// Requests that belong to sequences: their order, and the state that goes from one to the next.
//
// A call has what its client sees; here it gets its signals and the sequence's state, and its answer loses
// the state again. Of a sequence one call is under way at a time, in the order in which they came; requests
// of different sequences share batches as any others. The state changes with a success alone: a call that is
// refused, fails or is cancelled leaves it as it was, and its client may send it again. A sequence begins
// with `start` (again: anew, from the initial state), ends with `end`, or when it was idle for too long; what
// it held is given back at the latest when the next request of any sequence comes.
//
// Reads no clock, and has no thread. Safe from any thread.
class Sequences {
 public:
  struct Waiting {
    std::uint64_t ticket = 0;
    std::unique_ptr<InferCall> call;
    AnswerHandler handler;
  };
  // The call goes on now, or an error is to be its answer. Called inside submit(), stop(), or the handler of
  // the call before it, without a lock.
  using Goes = std::function<void(Waiting, Result<>)>;

  Sequences(const SequenceOptions& options, Goes goes) : options_(options), goes_(std::move(goes)) {}

  // Nothing happens for a model without sequences. Before its first call.
  void add_model(ModelId id, const repository::ModelConfig& config);
  // Its sequences end. After its last call was answered.
  void remove_model(ModelId id);
  // Calls that wait get `unavailable`.
  void stop();

  bool has(ModelId id) const;
  // Calls of it that wait here.
  std::size_t waiting(ModelId id) const;
  // Errors (invalid_argument, in Triton's words): no sequence, or one that did not start; more than a row; an
  // id that is not of the model's type; resource_exhausted: too many sequences, too much state, or too many
  // requests of one.
  void submit(Waiting waiting, TimePoint now);
  // If it waits here, it is answered `cancelled`.
  void cancel(std::uint64_t ticket);

  struct Counts {
    std::size_t open = 0;
    Bytes state;
  };
  Counts counts() const;

 private:
  struct Model {
    std::string name;
    std::shared_ptr<const repository::SequenceBatching> batching;
    // Of the model's inputs and outputs: which of the client's they are, or which signal's or state's.
    struct Place {
      enum class Kind : std::uint8_t { client, control, state } kind = Kind::client;
      std::size_t index = 0;
      std::optional<std::size_t> shown;  // of a state's output: of the client's, too
    };
    std::vector<Place> inputs, outputs;
    std::size_t state_bytes = 0;
    bool gone = false;
  };
  struct Key {
    ModelId model;
    std::uint64_t number = 0;
    std::string text;
    std::string owner;  // the name of the key that it came with: others' sequences are others
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Sequence {
    std::vector<std::vector<std::byte>> state;  // of those of the model, in order; where it has begun
    bool begun = false;
    bool running = false;  // a call of it is under way, and alone reads `state`
    std::deque<Waiting> waiting;
    TimePoint idle_at;  // in idle_ under this, where nothing is under way
  };
  using Table = std::map<Key, Sequence>;

  Result<Key> key_of(const InferCall& call, const Model& model) const;
  Result<bool> take(Waiting& waiting, const Model& model, Table::iterator& at);
  Result<> admit(const Key& key, const Model& model) const;
  // Of a request that finds no sequence: why that may be.
  std::string why_none(const Key& key, const Model& model) const;
  void lose(const Key& key, const std::string& model);
  static void complete(InferCall& call, const Model& model, const Sequence& sequence);
  static std::vector<std::vector<std::byte>> strip(InferCall& call, const Model& model);
  void go(Waiting waiting, std::shared_ptr<const Model> model, Table::iterator at);
  void answered(Table::iterator at, const std::shared_ptr<const Model>& model, bool ends, InferAnswer& answer,
                AnswerHandler& handler);
  void end_idle(TimePoint now);
  void end(Table::iterator at);

  const SequenceOptions options_;
  const Goes goes_;
  mutable std::mutex mutex_;  // of what follows
  std::map<ModelId, std::shared_ptr<Model>> models_;
  Table table_;
  std::set<std::pair<TimePoint, Key>> idle_;  // by when they end
  std::size_t state_bytes_ = 0;
  // Those that ended with their model, by its name; `Key::model` is none. As many as may be open.
  std::set<std::pair<std::string, Key>> lost_;
};

}  // namespace carillon::controller
