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
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/base/slab.h"
#include "carillon/base/turns.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/controller/calls/outcomes.h"
#include "carillon/controller/calls/service.h"
#include "carillon/controller/core.h"
#include "carillon/controller/gates/batch_plans.h"
#include "carillon/controller/gates/directory.h"
#include "carillon/controller/gates/queue_rules.h"
#include "carillon/controller/gates/sequences.h"
#include "carillon/controller/gates/sizes.h"
#include "carillon/engine/engine.h"
#include "carillon/provision/weighed.h"
#include "carillon/schedule/door.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/subclusters.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

struct Options {
  CoreOptions core;
  // How long the end waits for what devices still run, before it leaves their workers behind.
  Duration patience = std::chrono::seconds{10};
  // Where calls wait for the controller's thread. Those that are turned away there get `resource_exhausted`.
  schedule::DoorOptions door;
  SizeOptions sizes;
  BatchPlanOptions plans;
  SequenceOptions sequences;
  // Counts the calls that are turned away, where given: for whoever tells people.
  std::shared_ptr<std::atomic<std::uint64_t>> turned_away = nullptr;
  // If groups of devices divide the models, the scheduler that the controller is given. Null: there are no
  // groups.
  schedule::Subclusters* subclusters = nullptr;
};

// A journal of so many requests for controllers that live by `clock`; null for 0.
std::shared_ptr<Journal> make_journal(std::size_t capacity, const Clock& clock);

// The live controller: Core, one thread that owns it, and an inbox.
//
// Frontends and workers leave what happens in the inbox under a short lock; the thread swaps it out in one
// go (of calls so many, so that results do not wait for long behind them), and decides and answers with no
// lock held. Handlers are called on that thread, and on threads that call react(). Where a call is turned
// away at the door, or the controller does not run, submit() calls the handler itself: that costs the thread
// nothing.
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
  // Another host decides: see Core.
  Controller(const MakeDecider& decider, RowLookup* rows, const Options& options, const Clock& clock);
  ~Controller() override;  // stops; then ends the workers (see end_workers()), and only then lets buffers go
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Where the worker of a device sends its results. Before start().
  worker::ResultSink& results(DeviceId device = {});

  // Before start(), by the thread that starts. Workers are devices, in order.
  void add_worker(std::unique_ptr<worker::Worker> worker, std::string name = {});
  // A model that the workers know by `info.id` (dense and ascending). `view.ready` and `view.id` are set
  // here. Also while it runs, from one thread at a time: then it takes the place of what was served under its
  // name and version, for calls that come from now on.
  // Not `shown`: its id is used up, and no client sees it.
  void add_model(ModelView view, const engine::CompiledModel& compiled, const schedule::ModelInfo& info,
                 bool shown = true);
  // The id that add_model() expects next.
  ModelId next_model() const { return {static_cast<std::uint32_t>(models_.size())}; }
  // A model that cannot be served, or is not served any more: `view.reason` says why. Or an ensemble, which
  // is ready where its steps' models are (Directory). Likewise.
  void add_unready(ModelView view);
  // What is told of a model that is served is this from now on; its name, version and id are as they were.
  // Likewise.
  void tell_anew(ModelView view);
  // Whether it is ready (once this runs), or why not.
  Result<> state(std::string_view model, std::int64_t version) const {
    return directory_.state(model, version);
  }
  // While it runs: ends a model that no view names any more. Waits until the calls that came before have
  // their answers, up to `patience`; those that then still wait are refused. Then until no device has
  // anything of it, as long again, and gives its memory back. False where the controller stops meanwhile,
  // `ended` is asked for, or a device does not let go of it: its memory stays, until remove_left(). From the
  // thread that adds models.
  bool remove_model(ModelId id, Duration patience, const std::stop_token& ended);
  // What a model's batches take has changed: `batches` are of the sizes that add_model() was told, and count
  // instead (schedule::TimesChanged). From any thread, once add_model() has returned; done on the
  // controller's thread, after what that was told before. Nothing happens of a model that has gone by then.
  void change_times(ModelId id, std::vector<schedule::BatchProfile> batches);
  // Divides the models over the groups of devices from now on: Subclusters::change(). Requires
  // Options::subclusters. From any thread; done on the controller's thread. False: the controller does not
  // run, and nothing changes.
  bool divide(const schedule::GroupsOfModels& division);
  // Gives back the memory of models that remove_model() had to leave, once CoreOptions::on_gone was told of
  // them. How many are left still. From that thread, at any time; it waits for nothing.
  std::size_t remove_left();
  // Whoever else may still send calls to a model that no view names any more: remove_model() waits for them,
  // too. They call used_no_more(), from any thread, with no lock held that `used` takes, when that may have
  // changed. Once, before start(); from the thread that adds models.
  void set_used_elsewhere(std::function<bool(ModelId)> used) { used_elsewhere_ = std::move(used); }
  void used_no_more();
  // While models are still brought to a controller that runs: until then it is not ready, and loading().
  // Before start() and from the thread that adds models.
  void set_loading(bool loading) {
    loading_ = loading;
    plans_.set_loading(loading);
  }
  // What why_not_ready() is. From any thread.
  void set_why_not_ready(std::string why) {
    const std::lock_guard lock(why_mutex_);
    why_ = std::move(why);
  }
  std::string why_not_ready() const override {
    const std::lock_guard lock(why_mutex_);
    return why_;
  }
  // All models of the repository have a view, ready or not: who asks for another does not wait for it. From
  // any thread.
  void set_all_named() { all_named_ = true; }
  // Hears of each model that somebody asks for while loading(), and that is not ready. From any thread. Once,
  // before anybody asks.
  void set_asked_for(std::function<void(std::string_view)> asked) { asked_for_ = std::move(asked); }
  // What the frontends get for control(). Once, before start(); it outlives the controller's last answer.
  void set_control(ModelControl* control) { control_ = control; }

  void start();
  // Answers every open call, exactly once, with `unavailable`; then the thread has ended. Again: nothing.
  void stop();
  // After stop(). A worker whose device hangs cannot be ended: it and its threads are left behind, for the
  // process's end to take, and its device's number is returned. What they need must stay until then. Again:
  // nothing.
  std::vector<DeviceId> end_workers();

  // Between start() and stop(), while any device is alive and no models are still to be loaded, whether or
  // not every model could be.
  bool ready() const override;
  bool loading() const override;
  std::vector<ModelView> models() const override { return directory_.all(); }
  ModelCounts model_counts() const override { return directory_.counts(); }
  Result<std::shared_ptr<const ModelView>> find(std::string_view model,
                                                std::string_view version) const override {
    auto found = directory_.find(model, version);
    if (found ? (*found)->ready : found.error().code != ErrorCode::not_found) return found;
    if (!loading()) return found;
    if (asked_for_) asked_for_(model);
    if (!found && !all_named_) return std::unexpected(still_loading(why_not_ready()));
    return found;
  }
  TimePoint now() const override { return clock_.now(); }
  // Another host's word for the decider: see Core::react(). Done in the order of the calls; not before
  // start() nor after stop(). Where the controller's thread sleeps, the caller does it, and whatever else
  // waits: handlers are called on its thread. From any thread that has no lock that handlers, devices or the
  // decider take.
  void react(std::function<void(TimePoint now)> what);

  std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) override;
  void cancel(std::uint64_t ticket) override;
  ServerStatistics statistics() const override;
  Duration expected(ModelId model, int rows) const override;
  std::shared_ptr<const Ensemble> ensemble(ModelId id) const override { return directory_.ensemble(id); }
  bool responds(Duration longest) override;
  std::vector<TimelinePart> timelines() const override {
    if (!core_.timeline().keeps()) return {};
    return {{.timeline = &core_.timeline()}};
  }
  ModelControl* control() const override { return control_.load(); }
  const Journal* journal() const override { return core_options_.journal.get(); }

 private:
  // What is to be done on the controller's thread.
  using Job = std::move_only_function<void(TimePoint now)>;
  using MakeCore = std::function<std::unique_ptr<Core>(const CoreOptions&)>;
  Controller(const Options& options, const Clock& clock, const MakeCore& make_core);
  struct Submission {
    std::uint64_t ticket = 0;
    std::uint64_t place = 0;  // among all calls, in the order in which they came
    std::unique_ptr<InferCall> call;
    AnswerHandler handler;
    bool hurried = false;  // turned away: see schedule::Door::Taken
  };
  struct Cancel {
    std::uint64_t ticket = 0;
    std::uint64_t place = 0;  // of the next call then: its own, if it waits, comes before
  };
  // What the thread takes at a time.
  struct Work {
    std::vector<Job> jobs;
    std::vector<Submission> calls, turned_away;
    std::vector<std::uint64_t> cancels;
    std::vector<worker::ActionResult> results;
    std::vector<worker::ProbeResult> probes;
    void clear();
  };
  // A device's way to the controller's thread.
  struct Port final : worker::ResultSink {
    Port(Controller& of, DeviceId id) : owner(of), device(id) {}
    void on_result(const worker::ActionResult& result) override;
    void on_probe(const worker::ProbeResult& result) override;
    Controller& owner;
    DeviceId device;
  };
  enum class State : std::uint8_t { preparing, running, stopping };

  bool serving() const;
  static Ending not_serving();
  void end(Submission submission, Ending ending, TimePoint at);
  void go_on(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer, TimePoint at);
  void enter(Submission submission, TimePoint at);
  void goes(Sizes::Waiting waiting, Result<> result, explain::Cause refused,
            std::optional<Duration> would_take = {});
  void run();
  void take_turn(std::unique_lock<std::mutex>& lock);
  bool work_waits() const;
  void gather(std::size_t calls, Work& work);
  void handle(Work& work);
  void tell_margin();
  void look_at_wanted(const std::vector<provision::ModelWork>& work, ServerStatistics& out) const;
  void turn_away(Submission submission, TimePoint at);
  void shed(Submission submission, Error why, TimePoint at);
  bool ask(Job job);
  void left(ModelId id);
  bool used(ModelId id) const;
  bool gone(ModelId id) const;
  template <typename Until>
  void wait_leaving(TimePoint end, const std::stop_token& ended, const Until& until);
  bool let_go(ModelId id);

  const Clock& clock_;
  const Duration patience_;
  const CoreOptions core_options_;
  const std::shared_ptr<std::atomic<std::uint64_t>> turned_away_;
  Directory directory_;
  struct Model {
    std::vector<RowSize> output_row_bytes;
    ToldModel told;
    bool open = false;
    bool known_least = false;  // what a request takes at the least: a row's time
    std::vector<graph::DataType> output_types;
    bool in_sequences = false;
    std::shared_ptr<QueueRules> rules;  // null: none
  };
  // Never moves: what a view names may be read without a lock.
  std::vector<Model> models_;
  std::atomic<std::size_t> models_there_{0};
  std::vector<ModelId> left_;  // that remove_model() could not give back; the thread's that adds models
  std::function<bool(ModelId)> used_elsewhere_;
  // By model: calls that submit() was given and that have no answer, or whose buffers live on.
  const std::unique_ptr<std::atomic<std::uint32_t>[]> inside_;
  std::atomic<bool> removing_{false};  // remove_model() waits
  std::mutex leaving_mutex_;           // of gone_; taken before mutex_
  std::condition_variable_any
      leaving_;                // notified while removing_, when what remove_model() waits for may have come
  std::vector<ModelId> gone_;  // of which the core has nothing any more, and let_go() has something
  std::function<void(std::string_view)> asked_for_;
  std::atomic<bool> loading_{false};
  std::atomic<bool> all_named_{false};
  mutable std::mutex why_mutex_;
  std::string why_;
  std::atomic<ModelControl*> control_{nullptr};
  std::atomic<std::uint64_t> next_ticket_{1};

  const std::unique_ptr<Core> made_core_;
  Core& core_ = *made_core_;  // the thread's; before start() and after stop() the starter's
  const Outcomes outcomes_;
  std::atomic<std::size_t> devices_alive_{0};
  // The thread tells the margin once after each look at the statistics: between looks that is one load a
  // turn.
  mutable std::atomic<bool> margin_wanted_{false};
  mutable std::mutex margin_mutex_;
  std::optional<ServerStatistics::Margin> margin_;
  std::deque<Port> ports_;  // by device
  std::vector<std::unique_ptr<worker::Worker>> workers_;

  mutable std::mutex advice_mutex_;
  mutable provision::AutoscaleWindow advice_;
  // Of one group of devices. Its window is shorter than the window of advice_: a device that came or went
  // soon shows. Only the advice of this window counts for the wanted number.
  struct GroupLook {
    provision::AutoscaleWindow recent{std::chrono::seconds{15}};
    provision::WeighedRequests weighed;
  };
  mutable std::vector<GroupLook> groups_;
  schedule::GroupsOfModels division_;  // one group: all devices hold the same models
  schedule::Subclusters* const subclusters_;
  std::atomic<std::size_t> moving_{0};
  mutable std::optional<provision::WantedByGroup> wanted_;  // where this sees requests and devices
  mutable std::mutex mutex_;                                // of what follows
  Turns turns_;
  schedule::Door door_;           // its keys are places in submissions_
  Slab<Submission> submissions_;  // that wait at the door
  std::vector<Submission> displaced_;
  std::deque<Cancel> cancels_;
  std::vector<Job> jobs_;
  std::vector<worker::ActionResult> results_;
  std::vector<worker::ProbeResult> probe_results_;
  std::uint64_t next_place_ = 0;
  std::vector<schedule::Door::Taken> taken_;  // scratch
  State state_ = State::preparing;
  Work work_;                            // of whoever has the turn
  std::atomic<pid_t> thread_number_{0};  // the system's
  std::thread thread_;
  Sizes sizes_;
  BatchPlans plans_;
  Sequences sequences_;
};

}  // namespace carillon::controller
