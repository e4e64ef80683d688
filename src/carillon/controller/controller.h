#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/controller/core.h"
#include "carillon/controller/directory.h"
#include "carillon/controller/service.h"
#include "carillon/engine/engine.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

struct Options {
  CoreOptions core;
  std::size_t inbox = 1 << 16;  // calls that wait for the controller's thread; beyond: `unavailable` at once
  // How long the end waits for what devices still run, before it leaves their workers behind.
  Duration patience = std::chrono::seconds{10};
};

// The live controller: Core, one thread that owns it, and an inbox.
//
// Frontends and workers leave what happens in the inbox under a short lock; the thread swaps it out in one
// go, and decides and answers with no lock held. Handlers are called on that thread; only where the inbox is
// full, or the controller does not run, does submit() call the handler itself.
//
//   Controller controller(make_scheduler("clockwork").value(), options, clock);
//   auto worker = worker::make_worker(worker_options, clock, controller.results(DeviceId{0}));
//   ... worker->add_model(id, compiled) and controller.add_model(view, *compiled, info) for each model ...
//   controller.add_worker(std::move(*worker));
//   controller.start();
class Controller final : public Service {
 public:
  // `clock` is also the workers' clock, and outlives the controller, and the workers that it leaves behind.
  Controller(std::unique_ptr<schedule::Scheduler> scheduler, const Options& options, const Clock& clock);
  ~Controller() override;  // stops; then ends the workers (see end_workers()), and only then lets buffers go
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Where the worker of a device sends its results. Before start().
  worker::ResultSink& results(DeviceId device = {});

  // Before start(), by the thread that starts. Workers are devices, in order.
  void add_worker(std::unique_ptr<worker::Worker> worker, std::string name = {});
  // A model that the workers know by `info.id` (dense and ascending). `view.ready` and `view.id` are set
  // here.
  void add_model(ModelView view, const engine::CompiledModel& compiled, const schedule::ModelInfo& info);
  // The id that add_model() expects next.
  ModelId next_model() const { return {static_cast<std::uint32_t>(core_.models())}; }
  // A model that cannot be served: `view.reason` says why.
  void add_unready(ModelView view);

  void start();
  // Answers every open call, exactly once, with `unavailable`; then the thread has ended. Again: nothing.
  void stop();
  // After stop(). A worker whose device hangs cannot be ended: it and its threads are left behind, for the
  // process's end to take, and its device's number is returned. What they need must stay until then. Again:
  // nothing.
  std::vector<DeviceId> end_workers();

  // Between start() and stop(), while any device is alive, whether or not every model could be loaded.
  bool ready() const override;
  std::vector<ModelView> models() const override { return directory_.all(); }
  ModelCounts model_counts() const override { return directory_.counts(); }
  Result<std::shared_ptr<const ModelView>> find(std::string_view model,
                                                std::string_view version) const override {
    return directory_.find(model, version);
  }
  TimePoint now() const override { return clock_.now(); }
  std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) override;
  void cancel(std::uint64_t ticket) override;
  ServerStatistics statistics() const override;

 private:
  struct Submission {
    std::uint64_t ticket = 0;
    std::unique_ptr<InferCall> call;
    AnswerHandler handler;
  };
  struct Inbox {
    std::vector<Submission> calls;
    std::vector<std::uint64_t> cancels;
    std::vector<worker::ActionResult> results;
    std::vector<worker::ProbeResult> probes;
    void clear();
    bool empty() const { return calls.empty() && cancels.empty() && results.empty() && probes.empty(); }
  };
  // A device's way into the inbox.
  struct Port final : worker::ResultSink {
    Port(Controller& of, DeviceId id) : owner(of), device(id) {}
    void on_result(const worker::ActionResult& result) override;
    void on_probe(const worker::ProbeResult& result) override;
    Controller& owner;
    DeviceId device;
  };
  enum class State : std::uint8_t { preparing, running, stopping };

  bool serving() const;
  void run();
  void handle(Inbox& inbox);

  const Clock& clock_;
  const std::size_t inbox_limit_;
  const Duration patience_;
  Directory directory_;
  std::vector<std::vector<RowSize>> output_row_bytes_;  // by model; fixed once started
  std::atomic<std::uint64_t> next_ticket_{1};

  Core core_;  // the thread's; before start() and after stop() the starter's
  std::atomic<std::size_t> devices_alive_{0};
  std::deque<Port> ports_;  // by device
  std::vector<std::unique_ptr<worker::Worker>> workers_;

  mutable std::mutex advice_mutex_;
  mutable provision::AutoscaleWindow advice_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  Inbox inbox_;
  bool asleep_ = false;
  State state_ = State::preparing;
  std::thread thread_;
};

}  // namespace carillon::controller
