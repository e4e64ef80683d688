#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/index_table.h"
#include "carillon/base/result.h"
#include "carillon/base/slab.h"
#include "carillon/base/time.h"
#include "carillon/controller/book.h"
#include "carillon/controller/device_timeline.h"
#include "carillon/controller/journal.h"
#include "carillon/controller/kept_rows.h"
#include "carillon/controller/revivals.h"
#include "carillon/controller/service.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/action.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

namespace testing {
struct Audit;  // reads what a core keeps
}

// The size of one row of a tensor: `bytes`, for each unit of its length where it varies.
struct RowSize {
  std::size_t bytes = 0;
  bool varies = false;
  std::size_t at(std::int64_t length) const {
    return varies ? bytes * static_cast<std::size_t>(length) : bytes;
  }
};

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
  bool gone = false;
};

// A device was taken out, or is back.
struct DeviceNews {
  DeviceId device;
  bool alive = false;
  std::string why;  // it was taken out
};

struct CoreOptions {
  std::optional<Duration> default_deadline;  // for a call without one, of a model without an SLO
  Duration longest_deadline =
      std::chrono::hours{24};           // of a call, from its arrival; a longer one is an error
  std::size_t max_open = 1 << 16;       // rows; a call beyond it is answered `unavailable`
  std::size_t max_applications = 1024;  // names (and lengths) told apart; further names count as none
  // Requests that run at different lengths count as of different applications, so that a policy that plans by
  // distributions knows what is known of each. False: by their names alone, as Orloj's paper has it.
  bool by_length = true;
  // A device has its threads looked at as often as this while it has had something to do for as long.
  Duration slow_after = std::chrono::milliseconds{50};
  Duration full_queue_pause =
      std::chrono::microseconds{100};      // before a full worker is told of to the scheduler
  std::size_t largest_kept_row = 4 << 20;  // bytes; see KeptRows
  std::size_t timeline = 0;                // actions that timeline() keeps
  RevivalOptions revivals;
  std::function<void(const DeviceNews&)> on_device;  // is told; may be empty
  // Is told until when a device cannot be wanted. None: the scheduler wants it, and its order is sent after
  // this. A scheduler acts when it hears of something, and of its own accord at its wake alone: an idle
  // device is free until that wake, or until something comes. Each time that it changes; may be empty. Must
  // not block.
  std::function<void(DeviceId, std::optional<TimePoint> free_until)> on_leisure;
  // Hears of each INFER of several requests that a worker takes, so that whoever makes plans knows which
  // sizes the policy wants to run. May be empty. Must not block.
  std::function<void(ModelId, int batch)> on_batch;
  std::shared_ptr<Journal> journal;  // where calls and actions are noted; null: nowhere
  // For tests: called when all that was heard of is decided.
  std::function<void(const class Core&, const ledger::Ledger&)> audit;
};

// By when the answer of a call is worth having: its own deadline, or, where it has none, that of its model's
// SLO, else the server's, but not for best effort nor where a queue policy delays; max() where there is none.
// `model`: its class.
Class class_of(const InferCall& call, Class model);
TimePoint deadline_of(const InferCall& call, const std::optional<Duration>& slo, Class model,
                      const CoreOptions& options);

// The controller without its thread: what happens goes in with the time at which it happens, commands go to
// the workers and answers to the handlers, inside the call. Deterministic, and without a clock.
//
// One call of k rows is k requests to the scheduler, with one deadline. It is answered when all rows are
// done; as soon as one is refused, or has data that the model cannot use, the others are cancelled and the
// whole is refused. A row of a call that is to be delayed (InferCall::due) is not refused for its time: it
// arrives at the scheduler once more, with the call's own deadline. Each call gets exactly one answer. A
// worker writes into a call's buffers while an INFER of one of its rows is under way: a call that is refused
// or cancelled then is answered at once, but without its buffers (InferAnswer::call is null), which live on
// here until that INFER has ended.
//
// A device that says that it is broken, or that the scheduler gives up, is taken out: its worker's life ends,
// and what the device had under way is the scheduler's to try elsewhere or to refuse. What was on its way
// from that life is not heeded. When a probe finds the device well, it is back, as a new one (DeviceChanged).
//
// Not thread-safe; `now` never goes back. Handlers and workers must not call back.
class Core {
 public:
  Core(std::unique_ptr<schedule::Scheduler> scheduler, const CoreOptions& options);
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
  // more. Book::add_model() is the caller's here.
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

  // Takes a call whose buffers all have the right sizes and whose outputs are sized. `ticket` is not in use.
  void submit(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer, TimePoint now) {
    gather(ticket, std::move(call), std::move(on_answer), now);
    decide(now);
  }
  // The same in two steps, for calls that came together: the scheduler hears of all their rows in decide(),
  // and decides nothing before it has heard of the last. Nothing else of this core is called in between.
  void gather(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer, TimePoint now);
  void decide(TimePoint now);
  // As the scheduler tells it.
  std::optional<schedule::Environment> environment() const { return scheduler_->environment(); }
  // The client of `ticket` has gone. Any ticket; nothing happens where it is not open.
  void cancel(std::uint64_t ticket, TimePoint now);
  // The result of an action that a worker took, and that of a probe.
  void on_result(const worker::ActionResult& result, TimePoint now);
  void on_probe(const worker::ProbeResult& result, TimePoint now);
  // When wake() wants to be called; max() for never.
  TimePoint wake_at() const;
  // Gives the scheduler its Wake, and the refusals of full workers, and asks devices that went whether they
  // are well again, where that is due.
  void wake(TimePoint now);
  // Answers all that is open, and all that comes, with `unavailable`; the scheduler hears nothing any more.
  // Results must still come in (or the workers end) before the core goes.
  void stop(TimePoint now);

  const ServedModel& model(ModelId id) const { return models_[id.index()]; }
  std::size_t models() const { return models_.size(); }
  std::size_t open_rows() const { return open_rows_; }        // buffers that live on after an answer included
  std::size_t open_calls() const { return tickets_.size(); }  // without an answer yet
  std::size_t devices() const { return devices_.size(); }
  std::size_t devices_alive() const { return alive_; }
  bool device_alive(DeviceId id) const { return devices_[id.index()].alive; }
  std::size_t actions_in_flight() const { return ledger_.actions_under_way() - deferred_.size(); }
  Book& book() { return book_; }
  const Book& book() const { return book_; }
  const DeviceTimeline& timeline() const { return timeline_; }  // readable by any thread

 private:
  friend struct testing::Audit;
  enum class Row : std::uint8_t {
    fresh,    // the scheduler has not heard of it
    waiting,  // the scheduler holds it
    flying,   // in an INFER that a worker has
    done,     // its outputs are there
    gone      // refused or cancelled
  };
  struct Open {
    std::uint64_t ticket = 0;
    std::unique_ptr<InferCall> call;
    AnswerHandler handler;
    ModelId model;
    AppId app;
    Class cls{};
    TimePoint arrival;
    TimePoint deadline;
    TimePoint due;                      // what the scheduler is told at first: at most `deadline`
    std::vector<std::uint8_t> put_off;  // by row, where `due` is nearer: it was told `deadline` since
    RequestId first;                    // its rows are requests [first, first + rows)
    int rows = 0;
    int done = 0;
    int flying = 0;
    bool closing = false;   // its failure is decided, the answer not yet given
    bool answered = false;  // only its buffers live on
    bool waiting = false;   // counted as such: none of its rows runs
    Outcome outcome = Outcome::failed;
    Error error;
    std::optional<Duration> would_take;
    CallSteps steps;           // of its last action
    std::string worker_error;  // of its last action that ran and failed
    std::vector<Row> state;
    std::vector<const std::byte*> inputs;  // row by row
    std::vector<std::byte*> outputs;
    CallRecord record;  // where there is a journal
    std::optional<Duration> retry_after;
  };
  // Of an action that is under way, what the ledger does not know.
  struct Aside {
    bool forget = false;  // what it runs again, once it has ended
    ActionRecord record;  // where there is a journal
  };
  struct Device {
    worker::Worker* worker = nullptr;
    std::uint32_t in_journal = 0;  // its number there
    bool alive = true;
    std::uint32_t life = 0;                           // the worker's
    std::array<TimePoint, schedule::lanes> looked{};  // when its threads were looked at, by schedule::Lane
  };
  // What is known of a model's runs, for those who are refused.
  struct Outlook {
    Duration exec{0};  // of the smallest batch, as the scheduler expects it; at first as it was told
    int batch = 0;
    NameNumber name;
  };
  void feed(schedule::Event event, TimePoint now);
  void drain(TimePoint now);
  void enter(TimePoint now);
  void apply(TimePoint now);
  void tell_leisure(bool wanted_alone);
  std::vector<schedule::Excuse> excuses(TimePoint now);
  void dispatch(const schedule::Load& action, TimePoint now);
  void dispatch(const schedule::Stop& action, TimePoint now);
  void dispatch(const schedule::Preempt& action, TimePoint now);
  void dispatch(const schedule::Unload& action, TimePoint now);
  void dispatch(const schedule::Keep& action, TimePoint now);
  void dispatch(const schedule::Profile& action, TimePoint now);
  void dispatch(const schedule::GiveUp& action, TimePoint now);
  void dispatch(const schedule::Infer& action, TimePoint now);
  void not_taken(ActionId id, TimePoint now,
                 schedule::ActionStatus status = schedule::ActionStatus::too_late);
  void forget(RequestId request, std::uint32_t ended = ledger::Ledger::none);
  // When the scheduler hears of it.
  TimePoint told_at(const schedule::ActionDone& not_taken) const {
    return saturating_add(not_taken.start, options_.full_queue_pause);
  }
  // The places of all actions that workers have.
  template <typename Visit>
  void visit_taken(Visit&& visit) const {
    for (std::uint32_t i = 0; i < ledger_.devices(); ++i)
      for (const auto& lined : ledger_.device({i}).under_way)
        for (const std::uint32_t place : lined)
          if (ledger_.at(place).taken) visit(place);
  }
  Device& live(DeviceId id);
  void take_out(DeviceId id, std::string why, TimePoint now);
  void lose(RequestId request, const std::string& why);
  Request request_of(const Open& open, RequestId id) const;
  bool put_off(Open& open, const schedule::Refuse& refusal);
  void refuse(const schedule::Refuse& refusal, TimePoint now);
  void close(std::uint32_t index, Outcome outcome, explain::Cause cause, Error error);
  void settle(TimePoint now);
  void land(RequestId request, const worker::ActionResult& result, TimePoint now);
  void turn_down(RequestId request, const Error& error);
  void answer_success(std::uint32_t index, TimePoint now);
  void release(std::uint32_t index);
  void count_waiting(Open& open, bool waiting);
  TimelineAction shown(const ledger::Ledger::Action& action) const;
  void show(std::uint32_t place);
  void show_end(std::uint32_t place, const worker::ActionResult& result);
  std::uint32_t begin(ActionId id);
  void note_end(std::uint32_t place, const worker::ActionResult& result, TimePoint now);
  void note_lost(std::uint32_t place, TimePoint now);
  void note_answer(Open& open, Outcome outcome, TimePoint now);
  void note_part(Open& open, ActionRecord& action);
  std::uint64_t number_of(const Open& open) const { return options_.journal != nullptr ? open.ticket : 0; }
  Outlook outlook_of(const schedule::ModelInfo& info);
  void weigh(Open& open, const schedule::Refuse& refusal, TimePoint now);
  AppId application(const InferCall& call, TimePoint now);
  Row& row(Open& open, RequestId request) { return open.state[request.value - open.first.value]; }
  void answer_at_once(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler handler,
                      explain::Cause cause, Error error, TimePoint now,
                      std::optional<Duration> retry_after = {});

  ledger::Ledger ledger_;
  std::unique_ptr<schedule::Scheduler> scheduler_;  // reads the ledger
  CoreOptions options_;
  std::vector<Device> devices_;
  std::size_t alive_ = 0;
  std::vector<ServedModel> models_;
  std::vector<Outlook> outlooks_;  // by model
  Book book_;
  DeviceTimeline timeline_;

  Slab<Open> open_;
  IndexTable tickets_;         // of unanswered calls, to open_
  IndexTable requests_;        // of rows that the scheduler or a worker may still name, to open_
  std::vector<Aside> asides_;  // by place in the ledger
  std::size_t open_rows_ = 0;
  Revivals revivals_;
  KeptRows kept_;
  RequestId next_request_{0};
  // By name, model and place of the length; for calls without length no model and 0.
  using Application = std::tuple<std::string, std::uint32_t, std::size_t>;
  std::map<Application, AppId> applications_;
  std::size_t named_ = 0;  // of these

  std::vector<std::pair<std::uint32_t, Request>> gathered_;  // calls, and the first row of each
  std::vector<schedule::Event> pending_;                     // events of our own making, for the scheduler
  bool deciding_ = false;
  schedule::Actions actions_out_;
  std::vector<std::uint32_t> closing_;
  std::vector<schedule::ActionDone> deferred_;  // of actions that were not taken, by time
  TimePoint scheduler_wake_ = TimePoint::max();
  TimePoint sought_slow_ = TimePoint::min();  // when devices were last looked for that are slow to report
  std::vector<std::optional<TimePoint>> told_leisure_;  // by device
  worker::InferCommand command_{};                      // large: made once
  TimePoint last_ = TimePoint::min();
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace carillon::controller
