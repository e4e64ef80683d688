#include "carillon/controller/controller.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "carillon/base/assert.h"
#include "carillon/engine/processor_wait.h"
#include "carillon/graph/bounded.h"

namespace carillon::controller {
namespace {

std::vector<RowSize> row_bytes(const engine::CompiledModel& compiled,
                               const std::vector<graph::TensorSpec>& specs) {
  std::vector<RowSize> out(compiled.open() ? specs.size() : 0);
  if (compiled.open()) return out;  // nobody knows
  for (const graph::TensorSpec& spec : specs)
    out.push_back({graph::memory_of(spec.type, spec.shape_at(1, 1)).count, spec.varies()});
  return out;
}

Class class_of(const std::string& name) {
  if (name == "real_time") return Class::real_time;
  if (name == "best_effort") return Class::best_effort;
  CARILLON_ASSERT(name == "normal");  // the repository reader has checked it
  return Class::normal;
}

// What ties a model to the host that it is on.
std::string apart(const repository::ModelConfig& config) {
  if (config.sequence != nullptr) return "its requests belong to sequences";
  if (config.whole_rows > 0) return "its rows run together or not at all";
  return {};
}

// What was measured of an open model at its reference is a size as any other.
void add_reference_times(const engine::CompiledModel& compiled, schedule::ModelInfo& info) {
  const engine::Plan* const one = compiled.plan(compiled.batch_sizes().front());
  CARILLON_ASSERT(one != nullptr);
  if (!one->effort().known()) return;
  // Batches that run row after row tell nothing of plans of larger ones.
  const std::span batches = std::span(info.batches).first(compiled.has_one_plan() ? 1 : info.batches.size());
  for (const schedule::BatchProfile& b : batches)
    info.sizes.push_back({.row = one->effort(), .batch = b.batch, .exec = b.exec});
}

Duration unix_minus(const Clock& clock) {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch()) -
         clock.now().time_since_epoch();
}

// Calls that the thread takes at a time: a result waits for so many decisions at most.
constexpr std::size_t calls_at_a_time = 64;

}  // namespace

std::shared_ptr<Journal> make_journal(std::size_t capacity, const Clock& clock) {
  return capacity == 0 ? nullptr : std::make_shared<Journal>(capacity, unix_minus(clock));
}

void Controller::Work::clear() {
  jobs.clear();
  calls.clear();
  turned_away.clear();
  cancels.clear();
  results.clear();
  probes.clear();
}

Controller::Controller(std::unique_ptr<schedule::Scheduler> scheduler, const Options& options,
                       const Clock& clock)
    : Controller(options, clock, [&scheduler](const CoreOptions& core) {
        return std::make_unique<Core>(std::move(scheduler), core);
      }) {
  wanted_ = provision::WantedByGroup::make({}).value();
}

Controller::Controller(const MakeDecider& decider, RowLookup* rows, const Options& options,
                       const Clock& clock)
    : Controller(options, clock,
                 [&](const CoreOptions& core) { return std::make_unique<Core>(decider, rows, core); }) {}

Controller::Controller(const Options& options, const Clock& clock, const MakeCore& make_core)
    : clock_(clock),
      patience_(options.patience),
      core_options_([&] {
        CoreOptions core = options.core;
        core.on_batch = [this, also = core.on_batch](ModelId model, int batch) {
          plans_.sent(model, batch);
          if (also) also(model, batch);
        };
        core.on_left = [this](ModelId model) { left(model); };
        core.on_gone = [this](ModelId model) {
          {
            const std::lock_guard lock(leaving_mutex_);
            gone_.push_back(model);
          }
          used_no_more();
        };
        return core;
      }()),
      turned_away_(options.turned_away),
      inside_(std::make_unique<std::atomic<std::uint32_t>[]>(worker::most_models)),
      made_core_(make_core(core_options_)),
      outcomes_{core_.book(), core_options_.journal.get(), core_options_.default_deadline},
      groups_(options.subclusters != nullptr ? options.subclusters->division().groups : 1),
      division_(options.subclusters != nullptr ? options.subclusters->division()
                                               : schedule::GroupsOfModels{}),
      subclusters_(options.subclusters),
      turns_(clock),
      door_(options.door),
      sizes_(options.sizes, clock,
             [this](Sizes::Waiting waiting, Result<> result, std::optional<Duration> would_take) {
               goes(std::move(waiting), std::move(result), explain::Cause::size, would_take);
             }),
      plans_(
          [&] {
            BatchPlanOptions plans = options.plans;
            plans.busy = [this] { return core_.book().exec_busy(); };
            return plans;
          }(),
          clock,
          [this](ModelId id, std::vector<schedule::BatchProfile> times) {
            change_times(id, std::move(times));
          }),
      sequences_(options.sequences, [this](Sequences::Waiting waiting, Result<> result) {
        const TimePoint at = clock_.now();
        if (result) return go_on(waiting.ticket, std::move(waiting.call), std::move(waiting.handler), at);
        goes({.ticket = waiting.ticket,
              .call = std::move(waiting.call),
              .handler = std::move(waiting.handler),
              .deadline = TimePoint::max()},
             std::move(result), explain::Cause::sequence);
      }) {
  core_.book().set_unix_offset(unix_minus(clock));
  directory_.close(still_loading().message);
  models_.reserve(worker::most_models);
}

Controller::~Controller() {
  stop();
  end_workers();  // the last actions end here, into buffers that core_ still holds
}

worker::ResultSink& Controller::results(DeviceId device) {
  CARILLON_ASSERT(state_ == State::preparing);
  while (ports_.size() <= device.index())
    ports_.emplace_back(*this, DeviceId{static_cast<std::uint32_t>(ports_.size())});
  return ports_[device.index()];
}

void Controller::add_worker(std::unique_ptr<worker::Worker> worker, std::string name) {
  CARILLON_ASSERT(state_ == State::preparing && worker != nullptr);
  core_.add_device(*worker, std::move(name));
  workers_.push_back(std::move(worker));
  devices_alive_ = workers_.size();
}

std::vector<DeviceId> Controller::end_workers() {
  // Nothing is read or written for them from here on, and they say nothing more.
  for (const auto& worker : workers_) worker->retire();
  const auto give_up = std::chrono::steady_clock::now() + patience_;
  std::vector<DeviceId> left;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    while (workers_[i]->busy() && core_.device_alive(device) && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    if (!workers_[i]->busy()) continue;
    left.push_back(device);
    // On purpose: its threads are inside it. Reachable, so that leak checkers know of it.
    static auto& left_behind = *new std::vector<worker::Worker*>;
    left_behind.push_back(workers_[i].release());
  }
  workers_.clear();
  return left;
}

void Controller::add_model(ModelView view, const engine::CompiledModel& compiled,
                           const schedule::ModelInfo& info, bool shown) {
  CARILLON_ASSERT(models_.size() < worker::most_models);
  ServedModel served{.info = info,
                     .version = view.version,
                     .input_row_bytes = row_bytes(compiled, compiled.inputs()),
                     .output_row_bytes = row_bytes(compiled, compiled.outputs()),
                     .lengths = {compiled.lengths().begin(), compiled.lengths().end()},
                     .slo = view.config.slo,
                     .cls = class_of(view.config.model_class),
                     .open = compiled.open(),
                     .hash = view.hash,
                     .config = view.config.serialized,
                     .inputs = compiled.inputs(),
                     .outputs = compiled.outputs(),
                     .apart = apart(view.config)};
  served.info.time_varies = compiled.time_varies();
  served.info.cls = served.cls;
  served.info.miss_rate = view.config.miss_rate;
  if (compiled.open() && core_options_.by_length)
    add_reference_times(compiled, served.info);
  else
    served.info.sizes.clear();
  // Where the time depends on the input, nobody knows how little it may be.
  const bool known_least = !served.info.time_varies && served.lengths.empty();
  Model model{.output_row_bytes = served.output_row_bytes,
              .told = {.name = {}, .version = view.version, .slo = served.slo, .cls = served.cls},
              .open = served.open,
              .known_least = known_least};
  if (core_options_.journal != nullptr) model.told.name = core_options_.journal->name(info.name);
  for (const graph::TensorSpec& output : compiled.outputs()) model.output_types.push_back(output.type);
  model.in_sequences = view.config.sequence != nullptr;
  if (view.config.queue != nullptr) model.rules = std::make_shared<QueueRules>(view.config.queue);
  sequences_.add_model(info.id, view.config);
  models_.push_back(std::move(model));
  models_there_.store(models_.size(), std::memory_order_release);
  sizes_.add_model(info.id, compiled, view.config.max_batch_size > 0);
  const Duration least = known_least ? info.batches.front().exec : Duration{0};
  {
    const std::lock_guard lock(mutex_);
    door_.add_model(least);
    if (state_ == State::preparing) {
      core_.add_model(std::move(served));
    } else {
      core_.book().add_model(served.info.name, served.version, served.slo);
      // Calls of it come after its view, so the thread sees this first.
      jobs_.push_back(
          [this, served = std::move(served)](TimePoint now) mutable { core_.come(std::move(served), now); });
      turns_.nudge();
    }
    core_.book().seed(info.id, info.batches);
  }
  plans_.add_model(info.id, info.name, compiled, info.batches);
  if (!shown) return;
  view.ready = true;
  view.id = info.id;
  directory_.put(std::move(view));
}

void Controller::change_times(ModelId id, std::vector<schedule::BatchProfile> batches) {
  CARILLON_ASSERT(id.index() < models_there_.load(std::memory_order_acquire) && !batches.empty());
  const std::lock_guard lock(mutex_);
  if (state_ == State::stopping) return;
  if (models_[id.index()].known_least) door_.set_shortest(id, batches.front().exec);
  jobs_.push_back([this, id, batches = std::move(batches)](TimePoint now) mutable {
    core_.change_times(id, std::move(batches), now);
  });
  turns_.nudge();
}

bool Controller::divide(const schedule::GroupsOfModels& division) {
  CARILLON_ASSERT(subclusters_ != nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::running) return false;
    jobs_.push_back([this, division](TimePoint now) {
      subclusters_->change(division, now);
      core_.nudge(now);
    });
    turns_.nudge();
  }
  // What was counted of a model is another group's from now on: their windows begin anew.
  const std::lock_guard lock(advice_mutex_);
  division_.merge(division);
  groups_ = std::vector<GroupLook>(division_.groups);
  return true;
}

void Controller::react(std::function<void(TimePoint now)> what) {
  std::unique_lock lock(mutex_);
  if (state_ != State::running) return;
  jobs_.push_back([this, what = std::move(what)](TimePoint now) { core_.react(what, now); });
  if (turns_.take()) take_turn(lock);
}

// Does it on the thread, and waits for that. False where the controller does not run.
bool Controller::ask(Job job) {
  std::promise<void> done;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::running) return false;
    jobs_.push_back([&](TimePoint now) {
      job(now);
      done.set_value();
    });
    turns_.nudge();
  }
  done.get_future().wait();
  return true;
}

bool Controller::responds(Duration longest) {
  engine::ProcessorWait processor;
  const pid_t thread = thread_number_;
  (void)processor.longest({&thread, 1}, clock_.now());
  // Whoever waits may have gone before the thread comes to it.
  const auto done = std::make_shared<std::promise<void>>();
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::running) return true;
    jobs_.push_back([done](TimePoint) { done->set_value(); });
    turns_.nudge();
  }
  if (done->get_future().wait_for(longest) == std::future_status::ready || !serving()) return true;
  // A thread that had no processor is late, and has not come to a stop.
  return processor.longest({&thread, 1}, clock_.now()) > longest / 2;
}

// A call has its answer, and its buffers are free.
void Controller::left(ModelId id) {
  if (inside_[id.index()].fetch_sub(1) == 1) used_no_more();
}

void Controller::used_no_more() {
  if (!removing_) return;
  { const std::lock_guard lock(leaving_mutex_); }  // whoever looks has begun to wait, or looks after this
  leaving_.notify_all();
}

bool Controller::used(ModelId id) const {
  return inside_[id.index()] > 0 || (used_elsewhere_ && used_elsewhere_(id));
}

// With leaving_mutex_.
bool Controller::gone(ModelId id) const {
  return std::ranges::find(gone_, id) != gone_.end() && inside_[id.index()] == 0;
}

// Until then, or the controller stops, or there is no more time.
template <typename Until>
void Controller::wait_leaving(TimePoint end, const std::stop_token& ended, const Until& until) {
  removing_ = true;
  std::unique_lock lock(leaving_mutex_);
  const auto over = [&] { return until() || !serving(); };
  for (TimePoint now = clock_.now(); now < end && !ended.stop_requested() && !over(); now = clock_.now())
    // At most a minute, so that no sum of times overflows.
    leaving_.wait_for(lock, ended, std::min<Duration>(end - now, std::chrono::minutes{1}), over);
  removing_ = false;
}

bool Controller::remove_model(ModelId id, Duration patience, const std::stop_token& ended) {
  // A call that found the model's old view may be on its way here.
  constexpr auto on_its_way = std::chrono::milliseconds{20};
  const TimePoint end = saturating_add(clock_.now(), patience);
  do {
    wait_leaving(end, ended, [&] { return !used(id); });
    wait_leaving(std::min(end, clock_.now() + on_its_way), ended, [] { return false; });
    if (ended.stop_requested() || !serving()) return false;
  } while (used(id) && clock_.now() < end);
  if (!ask([&](TimePoint now) { core_.go(id, now); })) return false;
  // A device that is lost may still read the model's memory, for any time. So this waits for no lost device.
  wait_leaving(saturating_add(clock_.now(), patience), ended,
               [&] { return gone(id) || devices_alive_ < workers_.size(); });
  if (let_go(id)) return true;
  if (serving()) left_.push_back(id);
  return false;
}

std::size_t Controller::remove_left() {
  std::erase_if(left_, [this](ModelId id) { return let_go(id); });
  return left_.size();
}

// Gives its memory back, where nobody has anything of it any more.
bool Controller::let_go(ModelId id) {
  if (!serving()) return false;
  {
    const std::lock_guard lock(leaving_mutex_);
    if (!gone(id)) return false;
    std::erase(gone_, id);
  }
  sizes_.remove_model(id);
  plans_.remove_model(id);
  sequences_.remove_model(id);
  for (const auto& worker : workers_) worker->remove_model(id);
  return true;
}

void Controller::add_unready(ModelView view) {
  view.ready = false;
  directory_.put(std::move(view));
}

void Controller::tell_anew(ModelView view) {
  CARILLON_ASSERT(view.ready);
  directory_.put(std::move(view));
}

void Controller::start() {
  {
    const std::lock_guard lock(mutex_);
    CARILLON_ASSERT(state_ == State::preparing);
    state_ = State::running;
    std::vector<worker::Worker*> workers;
    for (const auto& worker : workers_) workers.push_back(worker.get());
    sizes_.start(std::move(workers));
    CARILLON_ASSERT(turns_.take());  // the thread's, until the core has started
    thread_ = std::thread([this] { run(); });
    directory_.open();
  }
  if (workers_.size() == 1) plans_.start(*workers_.front());
}

void Controller::stop() {
  sequences_.stop();
  plans_.stop();
  sizes_.stop();
  {
    const std::lock_guard lock(mutex_);
    state_ = State::stopping;
    turns_.nudge();
  }
  used_no_more();
  if (thread_.joinable()) thread_.join();
}

bool Controller::ready() const {
  return serving() && devices_alive_ > 0 && !loading_;
}

bool Controller::loading() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::preparing || (state_ == State::running && loading_);
}

bool Controller::serving() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::running;
}

std::uint64_t Controller::submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) {
  CARILLON_ASSERT(call != nullptr && call->rows >= 1);
  Journal* const journal = core_options_.journal.get();
  const std::uint64_t ticket =
      journal != nullptr ? journal->next_number() : next_ticket_.fetch_add(1, std::memory_order_relaxed);
  const TimePoint at = clock_.now();
  call->handed = at;
  CARILLON_ASSERT(call->model.index() < models_there_.load(std::memory_order_acquire));
  inside_[call->model.index()].fetch_add(1);
  if (!serving()) {
    end({ticket, 0, std::move(call), std::move(on_answer)}, not_serving(), at);
    return ticket;
  }
  const Model& model = models_[call->model.index()];
  if (const auto& rules = model.rules; rules != nullptr) {
    if (auto entered = rules->enter(*call, model.told.slo); !entered) {
      goes({.ticket = ticket,
            .call = std::move(call),
            .handler = std::move(on_answer),
            .deadline = TimePoint::max()},
           std::move(entered), explain::Cause::queue_policy);
      return ticket;
    }
    // Whoever is answered waits no more, wherever that happens.
    AnswerHandler counted = [place = call->place, then = std::move(on_answer)](InferAnswer answer) mutable {
      place->leaves();
      then(std::move(answer));
    };
    on_answer = std::move(counted);
  }
  if (model.in_sequences)
    sequences_.submit({ticket, std::move(call), std::move(on_answer)}, at);
  else
    go_on(ticket, std::move(call), std::move(on_answer), at);
  return ticket;
}

// A call that waits for no other.
void Controller::go_on(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer,
                       TimePoint at) {
  const Model& model = models_[call->model.index()];
  if (model.open) {
    Sizes::Waiting waiting{.ticket = ticket,
                           .call = std::move(call),
                           .handler = std::move(on_answer),
                           .deadline = TimePoint::max()};
    waiting.deadline =
        deadline_of(*waiting.call, model.told.slo, model.told.cls, core_options_.default_deadline);
    if (!sizes_.submit(waiting)) return;
    call = std::move(waiting.call);
    on_answer = std::move(waiting.handler);
  }
  enter({ticket, 0, std::move(call), std::move(on_answer)}, at);
}

// A call that waited for plans of its size, or for those before it; or that may not wait: `refused` says by
// what.
void Controller::goes(Sizes::Waiting waiting, Result<> result, explain::Cause refused,
                      std::optional<Duration> would_take) {
  const TimePoint at = clock_.now();
  if (result) return enter({waiting.ticket, 0, std::move(waiting.call), std::move(waiting.handler)}, at);
  const ErrorCode code = result.error().code;
  const bool full = code == ErrorCode::resource_exhausted || refused == explain::Cause::queue_policy;
  const Outcome outcome = code == ErrorCode::deadline_exceeded  ? Outcome::refused
                          : full                                ? Outcome::shed
                          : code == ErrorCode::cancelled        ? Outcome::cancelled
                          : code == ErrorCode::invalid_argument ? Outcome::invalid
                                                                : Outcome::failed;
  using explain::Cause;
  const Cause cause = outcome == Outcome::cancelled             ? Cause::client_gone
                      : outcome == Outcome::invalid             ? Cause::bad_data
                      : code == ErrorCode::not_found            ? Cause::no_model
                      : code == ErrorCode::unavailable && !full ? Cause::not_serving
                                                                : refused;
  const InferCall& call = *waiting.call;
  // Its size is being made: then the same call waits for nothing.
  std::optional<Duration> retry_after;
  if (would_take && waiting.deadline != TimePoint::max())
    retry_after = std::max<Duration>(1ms, saturating_add(call.arrival, *would_take) - waiting.deadline);
  else if (refused == Cause::queue_policy)  // a batch of the model makes room
    retry_after = std::clamp<Duration>(expected(call.model, 1), 1ms, retry_when_full);
  else if (full)
    retry_after = retry_when_full;
  end({waiting.ticket, 0, std::move(waiting.call), std::move(waiting.handler)},
      {outcome, cause, std::move(result.error()), would_take, retry_after}, at);
}

Ending Controller::not_serving() {
  return {Outcome::failed,
          explain::Cause::not_serving,
          {ErrorCode::unavailable, "the server is not serving now"}};
}

// A call that the thread does not have.
void Controller::end(Submission submission, Ending ending, TimePoint at) {
  const ModelId id = submission.call->model;
  outcomes_.end(submission.ticket, std::move(submission.call), std::move(submission.handler),
                models_[id.index()].told, std::move(ending), at);
  left(id);
}

// To the door.
void Controller::enter(Submission submission, TimePoint at) {
  InferCall& call = *submission.call;
  call.at_door = at;
  const Model& model = models_[call.model.index()];
  const auto rows = static_cast<std::size_t>(call.rows);
  const auto size_of = [&](std::size_t output) {
    return rows * (model.open ? graph::memory_of(model.output_types[output], call.size->outputs[output]).count
                              : model.output_row_bytes[output].at(call.length));
  };
  schedule::Door::Arrival arrival{
      .key = 0,
      .model = call.model,
      .cls = class_of(call, model.told.cls),
      .rows = rows,
      .deadline = deadline_of(call, model.told.slo, model.told.cls, core_options_.default_deadline)};
  // Memory for outputs is only for a call that the door lets in.
  {
    std::unique_lock lock(mutex_);
    if (state_ == State::running)
      if (const auto refused = door_.knock(arrival, clock_.now())) {
        lock.unlock();
        submission.hurried = refused->hurried;
        return turn_away(std::move(submission), at);
      }
  }
  if (call.room_for_outputs) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < model.output_row_bytes.size(); ++i)
      if (call.wants(i)) bytes += size_of(i);
    if (auto room = call.room_for_outputs(bytes); !room)
      return shed(std::move(submission), std::move(room.error()), at);
  }
  call.outputs.resize(model.output_row_bytes.size());
  for (std::size_t i = 0; i < call.outputs.size(); ++i)
    if (call.wants(i)) call.outputs[i].resize(size_of(i));
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    running = state_ == State::running;
    if (running) {
      const std::uint32_t slot = submissions_.take();
      arrival.key = slot;
      const schedule::Door::Answer answer = door_.enter(arrival, clock_.now());
      submission.hurried = answer.hurried;
      if (answer.displaced) {
        // Its frontend may hold locks of its own: the thread answers it.
        const auto other = static_cast<std::uint32_t>(*answer.displaced);
        displaced_.push_back(std::move(submissions_[other]));
        submissions_.give_back(other);
      }
      if (answer.in) {
        submission.place = next_place_++;
        submissions_[slot] = std::move(submission);
        turns_.nudge();
        return;
      }
      submissions_.give_back(slot);
    }
  }
  if (running) return turn_away(std::move(submission), at);
  end(std::move(submission), not_serving(), at);
}

void Controller::turn_away(Submission submission, TimePoint at) {
  const InferCall& call = *submission.call;
  if (submission.hurried) {
    // Its place in the queue was not the trouble: nobody could have decided on it in time. The same call,
    // decided on at once, would still be sent and run.
    const schedule::Environment live = schedule::live_environment();
    const Duration would_take =
        at - call.arrival + live.dispatch + live.span(expected(call.model, call.rows));
    return end(std::move(submission),
               {Outcome::refused,
                explain::Cause::too_near,
                {ErrorCode::deadline_exceeded,
                 "cannot finish by its deadline, which is here or too near for a decision"},
                would_take},
               at);
  }
  if (turned_away_ != nullptr) turned_away_->fetch_add(1, std::memory_order_relaxed);
  shed(std::move(submission),
       {ErrorCode::resource_exhausted,
        "the server is overloaded: requests come faster than they can be decided on; try again later, or "
        "elsewhere"},
       at);
}

// A call that there is no room for now.
void Controller::shed(Submission submission, Error why, TimePoint at) {
  end(std::move(submission), {Outcome::shed, explain::Cause::shed, std::move(why), {}, retry_when_full}, at);
}

void Controller::cancel(std::uint64_t ticket) {
  sequences_.cancel(ticket);
  sizes_.cancel(ticket);
  const std::lock_guard lock(mutex_);
  if (state_ != State::running) return;
  cancels_.push_back({ticket, next_place_});
  turns_.nudge();
}

void Controller::Port::on_result(const worker::ActionResult& result) {
  const std::lock_guard lock(owner.mutex_);
  if (owner.state_ != State::running)
    return;  // all calls are answered then, and their buffers stay to the end
  owner.results_.push_back(result);
  owner.results_.back().device = device;
  owner.turns_.nudge();
}

void Controller::Port::on_probe(const worker::ProbeResult& result) {
  const std::lock_guard lock(owner.mutex_);
  if (owner.state_ != State::running) return;
  owner.probe_results_.push_back(result);
  owner.probe_results_.back().device = device;
  owner.turns_.nudge();
}

void Controller::run() {
  pthread_setname_np(pthread_self(), "carillon-ctl");
  thread_number_ = ::gettid();
  core_.start(clock_.now());
  std::unique_lock lock(mutex_);
  turns_.give_back();
  while (state_ == State::running) {
    if (!turns_.take()) {
      turns_.sleep(lock);
    } else if (const TimePoint at = core_.wake_at(); !work_waits() && at > clock_.now()) {
      turns_.give_back();
      turns_.sleep(lock, at);
    } else {
      take_turn(lock);
    }
  }
  while (!turns_.take()) turns_.sleep(lock);
  gather(submissions_.used(), work_);
  lock.unlock();
  core_.stop(clock_.now());
  handle(work_);  // calls that came before the stop are answered like those that were open
}

// With the turn and the lock.
void Controller::take_turn(std::unique_lock<std::mutex>& lock) {
  static thread_local const pid_t own = ::gettid();
  thread_number_ = own;  // whoever asks whether this responds must know who is at work
  gather(calls_at_a_time, work_);
  lock.unlock();
  handle(work_);
  work_.clear();
  const TimePoint next = core_.wake_at();
  lock.lock();
  turns_.give_back(state_ != State::running || work_waits(), next);
}

// With the lock.
bool Controller::work_waits() const {
  return !jobs_.empty() || !results_.empty() || !probe_results_.empty() || !displaced_.empty() ||
         !door_.empty() || !cancels_.empty();
}

// All results, the oldest calls, and cancellations of calls that no longer wait. With the lock.
void Controller::gather(std::size_t calls, Work& work) {
  std::swap(work.jobs, jobs_);
  std::swap(work.results, results_);
  std::swap(work.probes, probe_results_);
  std::swap(work.turned_away, displaced_);
  taken_.clear();
  door_.take(calls, clock_.now(), taken_);
  for (const auto& [key, turned_away, hurried] : taken_) {
    const auto slot = static_cast<std::uint32_t>(key);
    submissions_[slot].hurried = hurried;
    (turned_away ? work.turned_away : work.calls).push_back(std::move(submissions_[slot]));
    submissions_.give_back(slot);
  }
  const std::uint64_t taken =
      door_.empty() ? next_place_ : submissions_[static_cast<std::uint32_t>(door_.oldest())].place;
  for (; !cancels_.empty() && cancels_.front().place <= taken; cancels_.pop_front())
    work.cancels.push_back(cancels_.front().ticket);
}

void Controller::handle(Work& work) {
  for (Job& job : work.jobs) job(clock_.now());
  // Results first: they free what the calls may need. Cancellations last: they may be of calls beside them.
  for (const worker::ActionResult& result : work.results) core_.on_result(result, clock_.now());
  for (const worker::ProbeResult& result : work.probes) core_.on_probe(result, clock_.now());
  for (Submission& submission : work.turned_away) turn_away(std::move(submission), clock_.now());
  // They come together: of a few rows that wait already, one batch is made.
  const TimePoint together = clock_.now();
  for (Submission& submission : work.calls)
    core_.gather(submission.ticket, std::move(submission.call), std::move(submission.handler), together);
  core_.decide(together);
  for (const std::uint64_t ticket : work.cancels) core_.cancel(ticket, clock_.now());
  if (const TimePoint now = clock_.now(); core_.wake_at() <= now) core_.wake(now);
  if (const std::size_t alive = core_.devices_alive(); alive != devices_alive_) {
    devices_alive_ = alive;
    used_no_more();
  }
  core_.flush();
  if (subclusters_ != nullptr) moving_.store(subclusters_->moving(), std::memory_order_relaxed);
  if (margin_wanted_.load(std::memory_order_relaxed)) tell_margin();
}

void Controller::tell_margin() {
  margin_wanted_.store(false, std::memory_order_relaxed);
  const auto environment = core_.environment();
  const std::lock_guard lock(margin_mutex_);
  margin_.reset();
  if (environment)
    margin_ = {.dispatch = environment->dispatch,
               .answer = environment->answer,
               .overrun = environment->overrun,
               .shortest = environment->shortest};
}

Duration Controller::expected(ModelId model, int rows) const {
  if (model.index() >= models_there_.load(std::memory_order_acquire)) return Duration{0};
  return core_.book().expected(model, rows, clock_.now());
}

ServerStatistics Controller::statistics() const {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::preparing) return {};  // models and workers are still being added
  }
  const std::lock_guard advising(advice_mutex_);  // counters that are older than the last look's would not do
  ServerStatistics out = core_.book().snapshot();
  const Sizes::Counts sizes = sizes_.counts();
  out.sizes = sizes.ready;
  out.waiting_for_size = sizes.waiting;
  out.sizes_made = sizes.made;
  out.sizes_bytes = sizes.memory.count;
  const BatchPlans::Counts plans = plans_.counts();
  out.later_models = plans.models;
  out.later_complete = plans.complete;
  out.later_made = plans.made;
  out.later_dropped = plans.dropped;
  out.later_bytes = plans.memory.count;
  out.open_requests += sizes.waiting;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    out.devices[i].pages_total = workers_[i]->total_pages();
    out.devices[i].pages_free = workers_[i]->free_pages();
    out.devices[i].page = workers_[i]->page();
    out.pages_total += out.devices[i].pages_total;
    out.pages_free += out.devices[i].pages_free;
  }
  provision::AutoscaleWindow::Counters counters{.requests = 0, .bad = 0, .busy = out.exec_busy};
  for (ModelStatistics& m : out.models)
    if (const auto view = directory_.find(m.name, std::to_string(m.version)))
      m.load_time = (*view)->load_time;
  std::vector<provision::ModelWork> work;
  for (const ModelStatistics& m : out.models) {
    const std::uint64_t bad = m.late + m.refused + m.failed - m.invalid;  // more devices would not help these
    counters.requests += m.on_time + bad;
    counters.bad += bad;
    if (m.ensemble) continue;  // its steps' models count its work
    auto& of = work.emplace_back(
        provision::ModelWork{.name = m.name, .version = m.version, .requests = m.on_time + bad, .bad = bad});
    for (const ModelStatistics::Batch& batch : m.batches) {
      of.ran += batch.infer.count * static_cast<std::uint64_t>(batch.size);
      of.busy += batch.infer.total;
    }
  }
  margin_wanted_.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard margin(margin_mutex_);
    out.margin = margin_;
  }
  const TimePoint now = clock_.now();
  const int alive = static_cast<int>(devices_alive_);
  if (wanted_) {
    out.advice = advice_.observe(now, alive, counters);
    look_at_wanted(work, out);
  }
  return out;
}

// Of each group of devices, numbered as a division's. With the lock of what is advised.
void Controller::look_at_wanted(const std::vector<provision::ModelWork>& work, ServerStatistics& out) const {
  const TimePoint now = clock_.now();
  const auto look = [&](std::size_t g, int alive, const std::vector<provision::ModelWork>& of,
                        Duration busy) {
    GroupLook& group = groups_[g];
    const auto advice = group.recent.observe(now, alive, group.weighed.observe(of, busy));
    const auto looked = wanted_->look(now, std::to_string(g), alive, advice);
    CARILLON_ASSERT(looked);  // a window makes shares of any counters
  };
  if (groups_.size() == 1) {
    look(0, static_cast<int>(devices_alive_), work, out.exec_busy);
  } else {
    struct Group {
      int alive = 0;
      Duration busy{0};
      std::vector<provision::ModelWork> work;
    };
    std::vector<Group> groups(groups_.size());
    for (std::uint32_t i = 0; i < out.devices.size(); ++i) {
      Group& group = groups[division_.group(DeviceId{i})];
      group.alive += out.devices[i].alive ? 1 : 0;
      group.busy += out.devices[i].exec_busy;
    }
    for (const provision::ModelWork& model : work) groups[division_.group(model.name)].work.push_back(model);
    for (std::size_t g = 0; g < groups.size(); ++g) look(g, groups[g].alive, groups[g].work, groups[g].busy);
  }
  out.wanted = provision::wanted_figures(*wanted_);
  if (subclusters_ != nullptr) out.moving = moving_.load(std::memory_order_relaxed);
}

}  // namespace carillon::controller
