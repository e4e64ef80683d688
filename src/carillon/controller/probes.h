#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/random.h"
#include "carillon/base/time.h"
#include "carillon/controller/service.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

struct ProbeOptions {
  // The share of finished calls, of models whose time depends on the input, of which a row is run again by
  // itself while nothing else is to be done; 0: none.
  double share = 0.05;
  std::size_t backlog = 32;           // rows that wait for idle time; while there are so many, none is added
  std::size_t largest_row = 4 << 20;  // bytes of its inputs and outputs; a larger one is not kept
  int attempts = 1000;                // that other work cut short, before a row is given up
  std::uint64_t seed = 1;
};

// Rows of finished calls, kept to be run again alone: what they take then is what a policy that plans by
// distributions learns from (Orloj, section 4.3.2: profiling off the critical path).
//
// They run in the order in which they came, and one that is cut short runs again next: if it made way for
// shorter ones, these would be seen more often than they are. Decides nothing about when: that is the
// caller's. Not thread-safe.
class Probes {
 public:
  explicit Probes(const ProbeOptions& options) : options_(options), random_(options.seed) {}

  // Perhaps keeps the first row of a finished call.
  void offer(const InferCall& call, AppId app);

  bool waiting() const { return !running_ && !rows_.empty(); }
  bool running() const { return running_.has_value(); }
  bool is_probe(ActionId id) const { return (id.value & mark) != 0; }
  DeviceId device() const { return running_->device; }  // requires running()
  ActionId action() const { return running_->id; }      // likewise

  // Begins the next row on `device`: fills `command`. Requires waiting().
  void begin(DeviceId device, Window window, worker::InferCommand& command);
  // begin() came to nothing: the worker took no more.
  void undo() { running_.reset(); }
  // True the first time that the row that runs is to be stopped.
  bool stop() {
    const bool first = running_ && !running_->stopped;
    if (running_) running_->stopped = true;
    return first;
  }

  // The result of action(). A sample where it ran to its end; else the row waits again, or is given up.
  struct Sample {
    ModelId model;
    AppId app;
    Duration solo;
  };
  std::optional<Sample> end(const worker::ActionResult& result);

 private:
  // Far from the schedulers' own ids, which ascend from 0.
  static constexpr std::uint64_t mark = std::uint64_t{1} << 62;

  struct Row {
    ModelId model;
    AppId app;
    std::int64_t length = 0;
    int attempts = 0;
    std::vector<std::vector<std::byte>> inputs, outputs;
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
  };
  struct Running {
    ActionId id;
    DeviceId device;
    bool stopped = false;
  };

  ProbeOptions options_;
  Random random_;
  std::deque<Row> rows_;  // the first is the one that runs
  std::optional<Running> running_;
  std::uint64_t next_ = 0;
};

}  // namespace carillon::controller
