#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/controller/service.h"
#include "carillon/schedule/probe_queue.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

using schedule::ProbeOptions;

// Rows of finished calls, kept to be run again alone (schedule::ProbeQueue says which and when). Not
// thread-safe.
class Probes {
 public:
  explicit Probes(const ProbeOptions& options) : largest_row_(options.largest_row), queue_(options) {}

  // Perhaps keeps the first row of a finished call.
  void offer(const InferCall& call, AppId app);

  bool due(const schedule::OtherWork& others) const { return queue_.due(others); }
  bool running() const { return queue_.running(); }
  bool is_probe(ActionId id) const { return Queue::is_probe(id); }
  DeviceId device() const { return queue_.device(); }  // requires running()
  ActionId action() const { return queue_.action(); }  // likewise

  ModelId model() const { return queue_.next().model; }  // of the next; requires due()
  // Begins the next row on `device`: fills `command`. Requires due().
  void begin(DeviceId device, Window window, worker::InferCommand& command);
  // begin() came to nothing: the worker took no more.
  void undo() { queue_.undo(); }
  // True the first time that the row that runs is to be stopped.
  bool stop() { return queue_.stop(); }

  // The result of action(). A sample where it ran to its end; else the row waits again, or is given up.
  struct Sample {
    ModelId model;
    AppId app;
    Duration solo;
  };
  std::optional<Sample> end(const worker::ActionResult& result);

 private:
  struct Row {
    ModelId model;
    AppId app;
    std::int64_t length = 0;
    std::vector<std::vector<std::byte>> inputs, outputs;
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
  };
  using Queue = schedule::ProbeQueue<Row>;

  std::size_t largest_row_;
  Queue queue_;
};

}  // namespace carillon::controller
