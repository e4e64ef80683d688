#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/book.h"
#include "carillon/controller/calls/device_timeline.h"
#include "carillon/controller/calls/holder.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/controller/calls/service.h"
#include "carillon/controller/local_link.h"
#include "carillon/controller/recorder.h"
#include "carillon/dispatch/decider.h"
#include "carillon/dispatch/dispatch.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// What the core must know of a model to serve it. Sizes are those of one row, in the model's order.
struct ServedModel {
  schedule::ModelInfo info;
  std::int64_t version = 1;
  std::vector<RowSize> input_row_bytes;
  std::vector<RowSize> output_row_bytes;
  // Of its plans, ascending, and what one row takes at each (info.solos); empty where nothing varies.
  std::vector<std::int64_t> lengths;
  std::optional<Duration> slo;
  Class cls = Class::normal;
  bool open = false;  // rows are as large as the call's buffers say
  // For other hosts: wire::Model.
  std::uint64_t hash = 0;
  std::string config;
  std::vector<graph::TensorSpec> inputs, outputs;
  std::string apart;
};

struct CoreOptions {
  // As HolderOptions or dispatch::Options has them.
  std::optional<Duration> default_deadline;
  Duration longest_deadline = HolderOptions{}.longest_deadline;
  std::size_t max_open = HolderOptions{}.max_open;
  std::size_t max_applications = dispatch::Options{}.max_applications;
  bool by_length = HolderOptions{}.by_length;
  Duration slow_after = dispatch::Options{}.slow_after;
  Duration full_queue_pause = dispatch::Options{}.full_queue_pause;
  std::size_t largest_kept_row = HolderOptions{}.largest_kept_row;
  std::size_t timeline = 0;  // actions that timeline() keeps
  dispatch::RevivalOptions revivals;
  Recorder::OnDevice on_device;  // is told of devices that go and come back; may be empty
  std::function<void(DeviceId, std::optional<TimePoint> free_until)>
      on_leisure;  // as dispatch::Options has it
  // Hears of each INFER of several requests that a worker takes, so that whoever makes plans knows which
  // sizes the policy wants to run. May be empty. Must not block.
  Recorder::OnBatch on_batch;
  std::shared_ptr<Journal> journal;  // where calls and actions are noted; null: nowhere
  // As HolderOptions has it.
  std::function<void(ModelId)> on_left;
  // Hears, once, of each model that go() was told: it has no call without an answer, no call's buffers live
  // on, no action of it is under way, and no device holds it. All devices are there then. May be empty. Must
  // not call back.
  std::function<void(ModelId)> on_gone;
  // For tests: called when all that was heard of is decided.
  std::function<void(const class Core&, const ledger::Ledger&)> audit;
};

// Makes whoever decides on calls; both arguments outlive it.
using MakeDecider = std::function<std::unique_ptr<dispatch::Decider>(Holder&, dispatch::Notes&)>;

// The controller without its thread: a Holder of calls, a Decider (in one process a Dispatch), a LocalLink to
// each worker, and a Recorder of what they do. What happens goes in with the time at which it happens;
// commands go to the workers and answers to the handlers, inside the call. Deterministic, and without a
// clock.
//
// Not thread-safe; `now` never goes back. Handlers and workers must not call back.
class Core {
 public:
  Core(std::unique_ptr<schedule::Scheduler> scheduler, const CoreOptions& options);
  // Another host decides. Rows of orders are found by `rows`, which outlives this; null: by the holder.
  Core(const MakeDecider& decider, RowLookup* rows, const CoreOptions& options);
  ~Core();  // answers what is open with `unavailable`; by then no worker may have an action any more
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Before start(). Devices are numbered in order; a worker must outlive every call of this core but the
  // destructor. Models come in the order of their ids, which are dense.
  void add_device(worker::Worker& worker, std::string name = {});
  void add_model(ServedModel model);
  void start(TimePoint now);
  // After start(): a model comes, with the next id, and one goes. What waits of one that goes is refused,
  // what comes of it is answered `not_found`, and where it is loaded it is unloaded when nothing uses it any
  // more; CoreOptions::on_gone hears of that. Book::add_model() is the caller's here.
  void come(ServedModel model, TimePoint now);
  void go(ModelId id, TimePoint now);
  // What a model's batches take has changed on the devices (schedule::TimesChanged). One that has gone is let
  // be. After start().
  void change_times(ModelId id, std::vector<schedule::BatchProfile> batches, TimePoint now);
  // What holds a model here: calls without an answer, or whose buffers live on; and whether a device has it,
  // or an action of it is under way.
  struct Uses {
    std::size_t calls = 0;
    bool on_devices = false;
  };
  Uses uses(ModelId id) const;

  // See Holder. submit() is gather() and decide().
  void submit(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer, TimePoint now) {
    gather(ticket, std::move(call), std::move(on_answer), now);
    decide(now);
  }
  // For calls that came together: the scheduler hears of all their rows in decide(), and decides nothing
  // before it has heard of the last. Nothing else of this core is called in between.
  void gather(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer, TimePoint now);
  void decide(TimePoint now);
  // As the scheduler tells it.
  std::optional<schedule::Environment> environment() const {
    return scheduler_ != nullptr ? scheduler_->environment() : std::nullopt;
  }
  void cancel(std::uint64_t ticket, TimePoint now);
  // The result of an action that a worker took, and that of a probe.
  void on_result(const worker::ActionResult& result, TimePoint now);
  void on_probe(const worker::ProbeResult& result, TimePoint now);
  // See Dispatch.
  TimePoint wake_at() const { return decider_->wake_at(); }
  void wake(TimePoint now);
  // See Dispatch. Where a scheduler decides here.
  void nudge(TimePoint now);
  // Lets another host's word in: `what` may speak to the decider. Then what follows is answered.
  void react(const std::function<void(TimePoint)>& what, TimePoint now);
  // See Decider.
  void flush() { decider_->flush(); }
  // Answers all that is open, and all that comes, with `unavailable`; the scheduler hears nothing any more.
  // Results must still come in (or the workers end) before the core goes.
  void stop(TimePoint now);

  const schedule::ModelInfo& model(ModelId id) const { return decider_->model(id); }
  std::size_t models() const { return models_; }
  std::size_t open_rows() const { return holder_.open_rows(); }
  std::size_t open_calls() const { return holder_.open_calls(); }
  std::size_t devices() const { return decider_->devices(); }
  std::size_t devices_alive() const { return decider_->devices_alive(); }
  bool device_alive(DeviceId id) const { return decider_->device_alive(id); }
  std::size_t actions_in_flight() const { return decider_->actions_in_flight(); }
  Book& book() { return book_; }
  const Book& book() const { return book_; }
  const DeviceTimeline& timeline() const { return recorder_.timeline(); }  // readable by any thread

 private:
  friend struct testing::Audit;
  Core(const CoreOptions& options, std::unique_ptr<schedule::Scheduler> scheduler, const MakeDecider& decider,
       RowLookup* rows);
  MakeDecider dispatch();
  void enter(TimePoint now);
  void hold(const ServedModel& model);
  void settle(TimePoint now);
  void tell_gone();

  const CoreOptions options_;
  const std::unique_ptr<schedule::Scheduler> scheduler_;  // null: it decides elsewhere
  Book book_;
  Recorder recorder_;
  dispatch::Dispatch* local_ = nullptr;  // decider_, in one process
  const std::unique_ptr<dispatch::Decider> decider_;
  Holder holder_;
  RowLookup& rows_;
  std::deque<LocalLink> links_;  // by device
  std::size_t models_ = 0;
  std::vector<ModelId> going_;  // and of which on_gone has yet to hear
  TimePoint last_ = TimePoint::min();
};

}  // namespace carillon::controller
