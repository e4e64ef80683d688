#include "carillon/worker/worker.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/processors.h"
#include "carillon/device/core.h"
#include "carillon/engine/host/host_memory.h"
#include "carillon/engine/host/memory.h"
#include "carillon/engine/host_stream.h"
#include "carillon/engine/made_up.h"
#include "carillon/engine/processor_wait.h"
#include "carillon/engine/turn_thread.h"
#include "carillon/worker/alone.h"
#include "carillon/worker/guarded.h"
#include "carillon/worker/host_io.h"
#include "carillon/worker/host_model.h"
#include "carillon/worker/measuring.h"
#include "carillon/worker/placement.h"
#include "carillon/worker/slots.h"

namespace carillon::worker {
namespace {

using device::Command;
using device::Executor;
using device::Slot;
using schedule::ActionStatus;

// Steps that were never reached take the time of the one before.
void fill_forward(ActionTimes& times) {
  TimePoint last = times.received;
  for (TimePoint* step : {&times.input_start, &times.input_end, &times.exec_start, &times.exec_end,
                          &times.output_start, &times.output_end}) {
    if (*step == TimePoint{}) *step = last;
    last = *step;
  }
}

// Pages of one huge page.
constexpr std::uint32_t group_of(Bytes page) {
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, engine::huge_page / page.count));
}

constexpr std::uint64_t bit(Executor executor) {
  return std::uint64_t{1} << executor;
}

// The live shell of device::Core: one lock around the core, and a thread for each of its executors, which
// takes the executor's turns and does what the core tells it. Whoever finishes something drives the core
// himself, and wakes those that have something new to do.
class WorkerImpl final : public Worker, private Measuring::Subject {
 public:
  WorkerImpl(const Options& options, const Clock& clock, ResultSink& sink,
             std::unique_ptr<engine::DeviceMemory> memory, HostIo io, std::vector<std::string> notes)
      : classes_(options.classes.value_or(device::ClassStreams{.yielding = device::Yielding::turns})),
        workspace_(workspace_of(options)),
        populate_(options.populate),
        places_(place_executors(usable_cores(), options.exec_threads, options.real_time, options.classes,
                                options.best_effort_idle)),
        clock_(clock),
        sink_(sink),
        memory_(std::move(memory)),
        io_(std::move(io)),
        notes_(std::move(notes)),
        models_(std::make_unique<HostModel[]>(options.max_models)),
        max_models_(options.max_models),
        share_(options.share),
        probe_(options.probe),
        core_({.pages = memory_->pages(),
               .page_group = group_of(memory_->page()),
               .io = memory_->io_size(),
               .workspace = workspace_,
               .queue = options.queue,
               .reserved = options.queue,
               .streams = classes_.count(),
               .places = places_of(classes_, options.make_stream != nullptr, options.classes.has_value())}),
        infers_(std::make_unique<InferSlot[]>(options.queue)),
        loads_(std::make_unique<LoadSlot[]>(options.queue)),
        measuring_(*this, *this, clock, options.share),
        load_(
            clock, [this] { return load_turn(); }, options.spin),
        input_(
            clock, [this] { return input_turn(); }, options.spin),
        output_(
            clock, [this] { return output_turn(); }, options.spin) {
    if (io_.mirrored()) page_.resize(memory_->page().count);
    out_.reserve(16 + 2 * std::size_t{classes_.count()});
    if (classes_.count() > 1) best_effort_open_.resize(static_cast<std::size_t>(classes_.best_effort));
    results_.reserve(2 * options.queue);
    telling_now_.reserve(2 * options.queue);
    make_streams(options);
  }

  ~WorkerImpl() override;

  Result<> start(const Options& options);
  static Bytes workspace_of(const Options& options);

  Result<> add_model(ModelId id, std::shared_ptr<const engine::CompiledModel> model) override;
  Result<> expect(ModelId id, Class cls) override;
  void take_back(ModelId id) override;
  Result<AddedSize> add_size(ModelId id, std::int64_t size, std::span<const std::int64_t> extents,
                             std::span<const int> batches) override;
  void end_sizes() override { sizes_ended_ = true; }
  void remove_size(ModelId id, std::int64_t size) override { remove_later(id, size); }
  Result<std::size_t> add_batches(ModelId id,
                                  std::vector<std::unique_ptr<const engine::Plan>> plans) override;
  void remove_batches(ModelId id) override { remove_later(id, 0); }
  bool sweep(ModelId id) override { return find(id)->sweep(); }
  void remove_model(ModelId id) override;
  Result<> has_room(const engine::CompiledModel& model) const override {
    if (auto enough = enough_pages(model); !enough) return enough;
    const auto layouts = lay_out(model, workspace_, memory_->io_size());
    return layouts ? Result<>{} : std::unexpected(layouts.error());
  }
  bool submit(const LoadCommand& command) override;
  bool submit(const UnloadCommand& command) override;
  bool submit(const InferCommand& command) override;
  void stop(ActionId id) override { evict(id, device::After::drop, {}); }
  void preempt(ActionId id, TimePoint order) override { evict(id, device::After::resume, order); }
  std::uint32_t retire() override;
  void probe() override {
    first().post([this, life = life_.load()] { probe_device(life); });
  }
  schedule::Excuse slowness(schedule::Lane lane) override;
  bool busy() const override {
    return probing_.load() || load_busy_.load() ||
           std::ranges::any_of(execs_, [](const auto& exec) { return exec->stream->busy(); });
  }
  int best_effort() const override { return classes_.count() == 1 ? 1 : classes_.best_effort; }
  std::uint64_t total_pages() const override { return memory_->pages(); }
  Bytes page() const override { return memory_->page(); }
  std::uint64_t free_pages() const override {
    const std::lock_guard lock(mutex_);
    return core_.free_pages();
  }
  Result<std::vector<Duration>> measure_exec(ModelId id, int batch, int repeats, std::int64_t length,
                                             std::string* refused) override {
    return measuring_.exec(id, batch, repeats, length, refused);
  }
  Result<std::vector<Duration>> measure_load(ModelId id, int repeats) override {
    return measuring_.load(id, repeats);
  }
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  static constexpr int nobody = -1;  // who drives the core: none of its executors

  // One stream of EXEC.
  struct Exec final : engine::Stream::Client {
    Exec(WorkerImpl& of, std::uint8_t number)
        : worker(of), index(number), executor(static_cast<Executor>(device::first_stream + number)) {}
    TimePoint idle() override { return worker.idle(*this); }
    TimePoint committed(std::uint64_t /*run*/, TimePoint end) override {
      return worker.committed(*this, end);
    }
    void completed(const engine::Completion& completion) override { worker.completed(*this, completion); }

    WorkerImpl& worker;
    const std::uint8_t index;
    const Executor executor;
    std::string name;
    int threads = 1;
    pthread_t runner{};      // best effort: the thread that runs it
    bool on_device = false;  // the stream is the device's own
    bool raises = false;     // best effort: the thread that runs it may have normal priority for a while
    std::unique_ptr<engine::Team> team;  // helps the stream's thread; nullptr: nobody does
    std::unique_ptr<engine::Stream> stream;
    Class cls = Class::normal;       // whose runs it is for
    Slot running = device::no_slot;  // the stream's thread's
    Slot ahead = device::no_slot;    // likewise: it is with the device, behind that
  };

  // How long real-time runs took so far. Written by their stream's thread; whoever asks just as one ends may
  // hear too little.
  class RealTime {
   public:
    void began(TimePoint now) { since_.store(now.time_since_epoch().count()); }
    void ended(TimePoint now) {
      const Duration::rep since = since_.exchange(0);
      if (since != 0) sum_.store(sum_.load() + now.time_since_epoch().count() - since);
    }
    Duration so_far(TimePoint now) const {
      const Duration::rep since = since_.load();
      return Duration{sum_.load() +
                      (since == 0 ? 0 : std::max<Duration::rep>(0, now.time_since_epoch().count() - since))};
    }

   private:
    std::atomic<Duration::rep> sum_{0}, since_{0};
  };

  // What the core has for the executor that drives it.
  struct Turn {
    TimePoint next = TimePoint::max();
    std::optional<Command> work;
    std::span<const std::uint32_t> pages;  // of a copy or unmap
  };

  // Calls act(now) under the lock, and sees to all that the core then says.
  template <typename Act>
  Turn drive(int self, Act&& act);
  void handle(const Command& command, int self, Turn& turn, std::uint64_t& wakes);
  void note_result(const Command& command);
  void wake(std::uint64_t executors, int self);
  void tell_results();

  InferSlot& infer(Slot slot) { return infers_[slot / 2]; }
  LoadSlot& load(Slot slot) { return loads_[slot / 2]; }
  HostModel* find(ModelId id) override {
    if (id.index() >= model_count_.load(std::memory_order_acquire)) return nullptr;
    HostModel& host = models_[id.index()];
    return host.gone.load(std::memory_order_acquire) ? nullptr : &host;
  }
  static std::string unknown(ModelId id) {
    return "model " + std::to_string(id.value) + " is not registered";
  }
  Result<> enough_pages(const engine::CompiledModel& model) const;
  std::vector<RunPlace> run_places() const;
  StreamSet streams_of(Class cls) const;
  Result<> prepare_workspace(std::span<const PlanLayout> layouts);
  void remove_later(ModelId id, std::int64_t size);
  Result<> take_over(HostModel& host, std::int64_t size,
                     std::vector<std::unique_ptr<const engine::Plan>> plans);
  template <typename Action>
  bool submit_load(const Action& action);
  void evict(ActionId id, device::After after, TimePoint order);
  bool over(std::uint32_t life) const { return life != life_.load(); }

  TimePoint load_turn();
  TimePoint input_turn();
  TimePoint output_turn();
  void copy_weights(const Turn& turn);
  Turn take_rows(Slot slot, Executor self);

  // Of a stream.
  static std::vector<device::StreamPlace> places_of(const device::ClassStreams& classes, bool on_device,
                                                    bool by_class);
  engine::Stream& first() { return *execs_.front()->stream; }
  Exec& exec(Executor executor) { return *execs_[static_cast<std::size_t>(executor - device::first_stream)]; }
  std::uint8_t stream_of(Class cls);
  void name_threads();
  static schedule::Lane lane_of(Class cls) {
    return cls == Class::real_time     ? schedule::Lane::real_time
           : cls == Class::best_effort ? schedule::Lane::best_effort
                                       : schedule::Lane::exec;
  }
  // Real-time runs may leave room, where what makes way does so inside its kernels.
  bool parts() const { return classes_.yielding == device::Yielding::inside; }
  std::uint64_t units_of(const InferCommand& command, std::uint8_t stream);
  bool others_run() const;
  void make_streams(const Options& options);
  Result<> start_stream(Exec& exec, const Options& options);
  TimePoint idle(Exec& exec);
  TimePoint committed(Exec& exec, TimePoint end);
  void begins(Exec& exec);
  void completed(Exec& exec, const engine::Completion& completion);
  engine::Binding bind(const Exec& exec, const HostModel& host, PlanLayout& layout, std::uint64_t io,
                       std::uint64_t workspace, graph::Faults& faults) const;
  void launch(Exec& exec, InferSlot& action, PlanLayout& layout, std::uint64_t io, int first);
  void launch_part(Exec& exec, InferSlot& action, int first);
  void part_completed(Exec& exec, InferSlot& action, const engine::Completion& completion);
  void next_part(Exec& exec, InferSlot& action);
  void run_alone(Exec& exec, InferSlot& action);
  void launch_alone(Exec& exec, InferSlot& action);
  void alone_completed(Exec& exec, InferSlot& action, const engine::Completion& completion);
  void leave_alone(InferSlot& action);
  void end_run(Exec& exec, InferSlot& action, int next, const Error* error);

  void probe_device(std::uint32_t life);
  void rest_then(std::size_t stream, std::function<void()> act);

  // Of what measures.
  std::uint32_t life() const override { return life_.load(); }
  bool absent(ModelId id) const override {
    const std::lock_guard lock(mutex_);
    return core_.absent(id);
  }
  Result<> between_runs(ModelId id, PlanLayout& layout, graph::Faults& faults,
                        const std::function<void(const engine::Binding&, const Fill&)>& act) override;

  const device::ClassStreams classes_;
  const Bytes workspace_;  // of each stream
  const bool populate_;
  std::mutex preparing_;        // of what follows
  std::uint64_t prepared_ = 0;  // bytes of a workspace that are there
  const Placements places_;
  const Clock& clock_;
  ResultSink& sink_;
  std::unique_ptr<engine::DeviceMemory> memory_;
  HostIo io_;
  std::vector<std::byte> page_;  // LOAD's: a page of weights on its way to memory that the host cannot reach
  std::vector<std::string> notes_;

  std::atomic<bool> sizes_ended_{false};
  std::mutex adding_;  // one add_model() at a time
  std::unique_ptr<HostModel[]> models_;
  std::size_t max_models_;
  std::atomic<std::size_t> model_count_{0};
  double share_;
  std::function<Result<>()> probe_;
  std::atomic<std::uint32_t> life_{0};
  RealTime real_time_;
  std::atomic<bool> load_busy_{false}, probing_{false}, ending_{false};

  std::mutex own_gather_;  // held while a stream reads rows for itself

  // Of the sink, of telling_now_, and of the end of a life. Never taken under mutex_. Whoever held it calls
  // tell_results() afterwards, for results that others left meanwhile.
  std::mutex telling_;
  std::vector<ActionResult> telling_now_;

  mutable std::mutex mutex_;  // of what follows; never held while anything is copied or run
  device::Core core_;
  device::Commands out_;
  // To be told. Nothing here bounds them but submitters: while a sink is slow, actions end and new ones are
  // submitted. A submitter with at most n actions not yet reported has at most n results here.
  std::vector<ActionResult> results_;
  std::uint64_t launches_ = 0;
  std::vector<int> best_effort_open_;  // by stream of theirs

  // By slot; what is in an executor's hands is that executor's.
  std::unique_ptr<InferSlot[]> infers_;
  std::unique_ptr<LoadSlot[]> loads_;
  std::vector<std::unique_ptr<Exec>> execs_;

  Measuring measuring_;

  std::atomic<std::uint64_t> loaded_{0};  // goes up with each page of weights
  // Of slowness(): what it saw last, by schedule::Lane.
  struct Watch {
    engine::ProcessorWait wait;
    std::vector<pid_t> threads;  // that the lane's work needs; fixed once the worker has started
    std::uint64_t steps = 0;
  };
  std::array<Watch, schedule::lanes> watches_;

  engine::TurnThread load_, input_, output_;
};

// --- The core and its threads

template <typename Act>
WorkerImpl::Turn WorkerImpl::drive(int self, Act&& act) {
  Turn turn;
  std::uint64_t wakes = 0;
  bool tell = false;
  {
    // Held for a microsecond or two, and to be woken takes tens.
    std::unique_lock lock(mutex_, std::try_to_lock);
    for (int tries = 0; !lock && tries < 400; ++tries)
      if (engine::relax(); lock.try_lock()) break;
    if (!lock) lock.lock();
    turn.next = act(clock_.now());
    for (std::size_t i = 0; i < out_.size(); ++i) handle(out_[i], self, turn, wakes);
    out_.clear();
    tell = !results_.empty();
  }
  // Results are told by the worker's own threads.
  if (tell && self == nobody) wakes |= bit(device::input_executor);
  wake(wakes, self);
  if (tell && self != nobody) tell_results();
  return turn;
}

void WorkerImpl::handle(const Command& command, int self, Turn& turn, std::uint64_t& wakes) {
  switch (command.kind) {
    case Command::Kind::wake:
      wakes |= bit(command.executor);
      return;
    case Command::Kind::evict:
      exec(command.executor).stream->evict(infer(command.slot).launch);
      return;
    case Command::Kind::report:
      note_result(command);
      return;
    case Command::Kind::copy:
    case Command::Kind::unmap:
      turn.pages = core_.pages(core_.model(command.slot));
      break;
    case Command::Kind::launch:
      infer(command.slot).launch = ++launches_;
      infer(command.slot).workspace = core_.workspace_offset(command.slot);
      break;
    case Command::Kind::gather:
    case Command::Kind::scatter:
      break;
  }
  CARILLON_ASSERT(self != nobody && !turn.work);  // each executor has one thing in hand
  turn.work = command;
}

// Real-time runs before all else.
void WorkerImpl::wake(std::uint64_t executors, int self) {
  if (self != nobody) executors &= ~bit(static_cast<Executor>(self));
  const auto wanted = [executors](Executor executor) { return (executors & bit(executor)) != 0; };
  const std::size_t urgent = classes_.stream_of(Class::real_time);
  if (wanted(execs_[urgent]->executor)) {
    // Whoever submits soon waits; and other cores are busy ending what they run.
    if (self == nobody && classes_.count() > 1)
      execs_[urgent]->stream->wake_here();
    else
      execs_[urgent]->stream->wake();
  }
  if (wanted(device::load_executor)) load_.wake();
  if (wanted(device::input_executor)) input_.wake();
  if (wanted(device::output_executor)) output_.wake();
  for (const auto& exec : execs_)
    if (exec->index != urgent && wanted(exec->executor)) exec->stream->wake();
}

// Under the lock: the slot is taken anew after it.
void WorkerImpl::note_result(const Command& command) {
  const bool infers = core_.kind(command.slot) == device::ActionKind::infer;
  OpenAction& action = infers ? static_cast<OpenAction&>(infer(command.slot)) : load(command.slot);
  ActionResult result{
      .id = action.id, .status = command.status, .times = action.times, .error = {}, .life = action.life};
  if (infers) {
    InferSlot& run = infer(command.slot);
    run.let_go();
    const int nth =
        core_.executor(command.slot) - device::first_stream - device::ClassStreams::first_best_effort;
    if (nth >= 0) --best_effort_open_[static_cast<std::size_t>(nth)];
    result.device_lost = run.device_lost;
    if (result.status == ActionStatus::success && run.device_lost) {
      result.status = ActionStatus::failed;
      result.error = std::move(action.error);
      run.bad_rows.clear();
    } else if (command.status == ActionStatus::success) {
      result.bad_rows = std::exchange(run.bad_rows, {});
      result.odd_time = run.odd_time;
    }
  }
  fill_forward(result.times);
  if (command.status == ActionStatus::failed) switch (command.failure) {
      case device::Failure::unknown_model:
        result.error = unknown(action.model);
        break;
      case device::Failure::loaded_already:
        result.error = "model " + std::to_string(action.model.value) + " is loaded already";
        break;
      case device::Failure::abandoned:
        result.error = "the worker stops";
        break;
      case device::Failure::none:
      case device::Failure::executor:
        result.error = std::move(action.error);
        break;
    }
  results_.push_back(std::move(result));
}

// One thread tells at a time. The others leave it their results and go on, so a sink that takes its time
// holds up one of them. Results wait meanwhile (results_).
void WorkerImpl::tell_results() {
  for (;;) {
    {
      const std::unique_lock telling(telling_, std::try_to_lock);
      if (!telling) return;  // its holder looks again
      {
        const std::lock_guard lock(mutex_);
        telling_now_.swap(results_);
      }
      for (const ActionResult& result : telling_now_) {
        if (Measuring::owns(result.id))
          measuring_.told(result);
        else if (!over(result.life))
          sink_.on_result(result);
      }
      telling_now_.clear();
    }
    const std::lock_guard lock(mutex_);
    if (results_.empty()) return;
  }
}

Result<> WorkerImpl::start(const Options& options) {
  notes_.insert(notes_.end(), places_.notes.begin(), places_.notes.end());
  for (const auto& [thread, name] : {std::pair{&load_, "carillon-load"}, std::pair{&input_, "carillon-input"},
                                     std::pair{&output_, "carillon-output"}})
    if (auto started = thread->start(name); !started) return started;
  for (const auto& exec : execs_)
    if (auto started = start_stream(*exec, options); !started) return started;
  load_.call([&] { apply(places_.load, "carillon-load", notes_); });
  input_.call([&] { apply(places_.input, "carillon-input", notes_); });
  output_.call([&] { apply(places_.output, "carillon-output", notes_); });
  name_threads();
  return {};
}

// Which threads the lanes' work needs. A device with one stream runs all classes there.
void WorkerImpl::name_threads() {
  const auto threads = [this](schedule::Lane lane) -> std::vector<pid_t>& {
    return watches_[static_cast<std::size_t>(lane)].threads;
  };
  threads(schedule::Lane::load) = {load_.number(), input_.number()};
  for (const Class cls : {Class::normal, Class::real_time, Class::best_effort}) {
    std::vector<pid_t>& out = threads(lane_of(cls));
    out = {input_.number(), output_.number()};
    for (const auto& exec : execs_) {
      if (execs_.size() > 1 && exec->cls != cls) continue;
      exec->stream->threads(out);
      if (exec->team) exec->team->threads(out);
    }
  }
}

schedule::Excuse WorkerImpl::slowness(schedule::Lane lane) {
  Watch& watch = watches_[static_cast<std::size_t>(lane)];
  std::uint64_t steps = lane == schedule::Lane::load ? loaded_.load() : 0;
  for (const auto& exec : execs_)
    if (lane != schedule::Lane::load && (execs_.size() == 1 || lane_of(exec->cls) == lane))
      steps += exec->stream->steps();
  const bool moved = std::exchange(watch.steps, steps) != steps;
  return {
      .device = {}, .lane = lane, .starved = watch.wait.longest(watch.threads, clock_.now()), .moved = moved};
}

std::vector<device::StreamPlace> WorkerImpl::places_of(const device::ClassStreams& classes, bool on_device,
                                                       bool by_class) {
  std::vector<device::StreamPlace> places = classes.places();
  // Of those that take turns a real-time run is the next: none is behind another that it would wait for.
  if (by_class && classes.count() == 1) return places;
  for (std::size_t i = 0; on_device && i < places.size(); ++i)
    if (i < device::ClassStreams::first_best_effort)
      places[i].ahead = true;
    else if (classes.units > 1)
      places[i].units = places[device::ClassStreams::normal].units & ~std::uint64_t{1};  // see units_of()
  // One hand-over between threads less.
  if (classes.count() > 1) places[device::ClassStreams::real_time].gathers = true;
  return places;
}

// Whole granules, so that the streams' lie one behind the other.
Bytes WorkerImpl::workspace_of(const Options& options) {
  constexpr std::uint64_t granule = device::RangeLedger::granule;
  return {(options.workspace.count + granule - 1) / granule * granule};
}

void WorkerImpl::make_streams(const Options& options) {
  for (std::uint8_t i = 0; i < classes_.count(); ++i) {  // one alone is for all work
    Exec& exec = *execs_.emplace_back(std::make_unique<Exec>(*this, i));
    exec.name = "carillon-exec";
    exec.threads = options.exec_threads > 0 ? options.exec_threads : usable_processors();
    engine::HostStreamOptions stream{.spin = options.spin,
                                     .inside = classes_.yielding != device::Yielding::boundaries};
    if (i == device::ClassStreams::real_time) {
      exec.name = "carillon-rt";
      if (classes_.real_time_units > 0) exec.threads = classes_.real_time_units;
    } else if (i >= device::ClassStreams::first_best_effort) {
      const int nth = i - device::ClassStreams::first_best_effort;
      exec.name = "carillon-be" + std::to_string(nth);
      exec.threads = 1;
      // Its own thread takes the worker's lock, so only the one that runs kernels is of low priority.
      stream.on_runner = [this, nth, &exec] {
        const Placement& place = places_.best_effort[static_cast<std::size_t>(nth)];
        exec.runner = pthread_self();
        apply(place, exec.name, notes_);
        exec.raises = !place.idle || raise_priority();
        if (exec.raises)
          lower_priority(place);
        else if (nth == 0)
          notes_.push_back(
              "best effort: its threads may not return to normal priority (CAP_SYS_NICE, or RLIMIT_NICE of "
              "at "
              "least 20, is needed), so they start no real-time run in the place of their own: each waits "
              "for "
              "a thread to wake");
      };
      stream.raise = [this, nth, &exec] {
        return exec.raises && (!places_.best_effort[static_cast<std::size_t>(nth)].idle || raise_priority());
      };
      stream.evicted = [this, nth] {
        execs_[device::ClassStreams::real_time]->stream->help();
        lower_priority(places_.best_effort[static_cast<std::size_t>(nth)]);
      };
    } else if (classes_.count() > 1) {
      stream.evicted = [this] { execs_[device::ClassStreams::real_time]->stream->help(); };
    }
    stream.name = exec.name;
    if (i >= device::ClassStreams::first_best_effort)
      exec.cls = Class::best_effort;
    else if (i == device::ClassStreams::real_time && classes_.count() > 1)
      exec.cls = Class::real_time;
    if (options.make_stream)
      exec.stream = options.make_stream(
          {.clock = clock_, .name = exec.name, .spin = options.spin, .cls = exec.cls, .parts = parts()});
    exec.on_device = exec.stream != nullptr;
    if (!exec.on_device) exec.stream = std::make_unique<engine::HostStream>(clock_, std::move(stream));
  }
}

Result<> WorkerImpl::start_stream(Exec& exec, const Options& options) {
  if (auto started = exec.stream->start(exec); !started) return started;
  if (exec.index < device::ClassStreams::first_best_effort && !exec.on_device)
    exec.stream->call([&] { apply(exec.index == 0 ? places_.exec : places_.urgent, exec.name, notes_); });
  if (!options.make_team) return {};
  Result<std::unique_ptr<engine::Team>> team = nullptr;
  exec.stream->call(
      [&] { team = options.make_team({.threads = exec.threads, .cores = {}, .cls = exec.cls}); });
  if (!team) return std::unexpected(team.error());
  exec.team = std::move(*team);
  return {};
}

// Under the lock. Something runs that goes later than real-time work, and no such work does.
bool WorkerImpl::others_run() const {
  const auto runs = [this](const auto& exec) { return core_.running(exec->executor).has_value(); };
  return !runs(execs_[device::ClassStreams::real_time]) && std::ranges::any_of(execs_, runs);
}

// Under the lock. A best-effort run goes where fewest wait.
std::uint8_t WorkerImpl::stream_of(Class cls) {
  if (cls != Class::best_effort || classes_.count() == 1) return classes_.stream_of(cls);
  const auto fewest = std::ranges::min_element(best_effort_open_);
  return classes_.stream_of(cls, static_cast<int>(fewest - best_effort_open_.begin()));
}

// Of a real-time run on a stream that is the device's own; 0: all of the stream's. One that leaves room for
// others is in the way of none that goes on there: the second unit stands for what it leaves.
std::uint64_t WorkerImpl::units_of(const InferCommand& command, std::uint8_t stream) {
  if (classes_.count() == 1 || stream != device::ClassStreams::real_time || !execs_[stream]->on_device ||
      !parts())
    return 0;
  const HostModel* const host = find(command.model);
  const engine::Plan* const plan =
      host == nullptr || !host->compiled->lengths().empty() ? nullptr : host->compiled->plan(command.batch);
  return plan == nullptr || plan->whole_device() ? 0 : 1;
}

// Who hands over to another stops before it.
WorkerImpl::~WorkerImpl() {
  ending_ = true;
  input_.stop(false);
  const auto& urgent = execs_[classes_.stream_of(Class::real_time)];
  for (const auto& exec : execs_)
    if (exec != urgent) exec->stream->stop();  // they may be helping it
  urgent->stream->stop();
  load_.stop(false);
  drive(nobody, [this](TimePoint) {
    core_.abandon(out_);
    return TimePoint::max();
  });
  output_.stop(true);  // what has run: only its copies are missing
  tell_results();
  for (std::size_t i = 0; i < model_count_.load(); ++i) {
    const std::span<const std::uint32_t> pages = core_.pages(ModelId{static_cast<std::uint32_t>(i)});
    if (!pages.empty()) memory_->unmap(models_[i].range, pages);
    memory_->release(models_[i].range);
  }
}

// --- Models

Result<> WorkerImpl::add_model(ModelId id, std::shared_ptr<const engine::CompiledModel> model) {
  const std::lock_guard lock(adding_);
  const std::string context = "model " + std::to_string(id.value);
  const std::size_t count = model_count_.load(std::memory_order_relaxed);
  if (model == nullptr) return invalid(context + ": nothing was given");
  if (id.index() != count)
    return invalid(context + ": ids are dense and ascending: the next is " + std::to_string(count));
  if (count == max_models_)
    return fail(ErrorCode::resource_exhausted, context + ": the worker holds " + std::to_string(count) +
                                                   " models already, as many as it may");
  if (auto enough = enough_pages(*model); !enough) return in_context(context, enough.error());
  auto layouts = lay_out(*model, workspace_, memory_->io_size(), execs_.size());
  if (!layouts) return in_context(context, layouts.error());
  if (auto room = prepare_workspace(*layouts); !room) return in_context(context, room.error());
  auto range = memory_->reserve(pages_for(model->weights(), page()));
  if (!range) return in_context(context, range.error());

  const StreamSet streams = streams_of(Class::normal);
  if (auto made = make_states(*layouts, run_places(), streams, range->data); !made) {
    memory_->release(*range);
    return in_context(context, made.error());
  }

  HostModel& host = models_[count];
  host.compiled = std::move(model);
  host.layouts = std::move(*layouts);
  host.range = *range;
  host.streams = streams;
  {
    const std::lock_guard core(mutex_);
    core_.add_model(id, host.range.pages);
  }
  model_count_.store(count + 1, std::memory_order_release);
  return {};
}

// Whose states make a request of the class run at once. Those of a device's own streams are all made, as
// they are made with the device at rest (graphs are captured).
StreamSet WorkerImpl::streams_of(Class cls) const {
  StreamSet out = 0;
  for (std::size_t i = 0; i < execs_.size(); ++i)
    if (execs_.size() == 1 || execs_[i]->on_device || execs_[i]->cls == cls) out |= StreamSet{1} << i;
  return out;
}

Result<> WorkerImpl::expect(ModelId id, Class cls) {
  const std::lock_guard lock(adding_);
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr);
  host->streams |= streams_of(cls);
  return make_states(host->layouts, run_places(), host->streams, host->range.data);
}

// The first run of a stream is where its workspace begins, and so is each that no other waits beside.
std::vector<RunPlace> WorkerImpl::run_places() const {
  std::vector<RunPlace> out;
  for (std::size_t i = 0; i < execs_.size(); ++i)
    out.push_back({execs_[i]->team.get(), memory_->workspace(i * workspace_.count)});
  return out;
}

// The memory that one run of these plans works in is there before the first: of the normal stream, and of the
// real-time one. Two kinds of runs may still wait for memory: a run beside another that waits to resume, and
// best-effort runs.
Result<> WorkerImpl::prepare_workspace(std::span<const PlanLayout> layouts) {
  if (!populate_) return {};
  std::uint64_t most = 0;
  for (const PlanLayout& layout : layouts) most = std::max(most, layout.plan->workspace().count);
  const std::lock_guard lock(preparing_);
  if (most <= prepared_) return {};
  const std::uint64_t streams = classes_.count() > 1 ? 2 : 1;
  for (std::uint64_t stream = 0; stream < streams; ++stream)
    if (auto room = memory_->prepare_workspace(stream * workspace_.count, {most}); !room) return room;
  prepared_ = most;
  return {};
}

void WorkerImpl::take_back(ModelId id) {
  const std::lock_guard lock(adding_);
  const std::size_t count = model_count_.load(std::memory_order_relaxed);
  CARILLON_ASSERT(count > 0 && id.index() == count - 1);
  HostModel& host = models_[id.index()];
  model_count_.store(count - 1, std::memory_order_release);
  {
    const std::lock_guard core(mutex_);
    core_.take_back(id);
  }
  memory_->release(host.range);
  host.range = {};
  host.layouts.clear();
  host.compiled.reset();
  host.streams = 0;
}

Result<Worker::AddedSize> WorkerImpl::add_size(ModelId id, std::int64_t size,
                                               std::span<const std::int64_t> extents,
                                               std::span<const int> batches) {
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr && host->compiled->open() && size >= 1 && !batches.empty());
  host->sweep();
  auto made = host->compiled->make_plans(extents, batches, &sizes_ended_);
  if (!made) return std::unexpected(made.error());
  const engine::Plan& first = *made->front();
  AddedSize out{.outputs = {}, .effort = first.effort(), .memory = {}};
  for (const graph::TensorSpec& output : first.outputs()) out.outputs.push_back(output.shape);
  for (const auto& plan : *made) out.memory.count += plan->memory().count;
  if (auto added = take_over(*host, size, *std::move(made)); !added) return std::unexpected(added.error());
  return out;
}

Result<std::size_t> WorkerImpl::add_batches(ModelId id,
                                            std::vector<std::unique_ptr<const engine::Plan>> plans) {
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr && host->compiled->makes_later() && !plans.empty());
  host->sweep();
  for (;; plans.pop_back()) {
    const auto fits = lay_out(*host->compiled, 0, plans, workspace_, memory_->io_size(), 0);
    if (fits) break;
    if (fits.error().code != ErrorCode::resource_exhausted) return std::unexpected(fits.error());
    if (plans.size() == 1) return fail(ErrorCode::unsupported, fits.error().message);
  }
  const std::size_t count = plans.size();
  if (auto taken = take_over(*host, 0, std::move(plans)); !taken) return std::unexpected(taken.error());
  return count;
}

// Plans that were made later.
Result<> WorkerImpl::take_over(HostModel& host, std::int64_t size,
                               std::vector<std::unique_ptr<const engine::Plan>> plans) {
  auto layouts = lay_out(*host.compiled, size, plans, workspace_, memory_->io_size(), execs_.size());
  if (!layouts) return std::unexpected(layouts.error());
  if (auto room = prepare_workspace(*layouts); !room) return room;
  auto added = std::make_shared<SizedPlans>(size, std::move(plans), std::move(*layouts));
  if (auto made = make_states(added->layouts, run_places(), host.streams, host.range.data); !made)
    return made;
  const std::lock_guard lock(host.sizes_mutex);
  host.sizes.push_back(std::move(added));
  return {};
}

void WorkerImpl::remove_model(ModelId id) {
  const std::lock_guard lock(adding_);
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr);
  {
    const std::lock_guard core(mutex_);
    CARILLON_ASSERT(core_.pages(id).empty());
  }
  host->gone.store(true, std::memory_order_release);
  memory_->release(std::exchange(host->range, {}));
  host->layouts.clear();
  {
    const std::lock_guard sizes(host->sizes_mutex);
    host->sizes.clear();
    host->leaving.clear();
  }
  host->compiled.reset();
}

void WorkerImpl::remove_later(ModelId id, std::int64_t size) {
  HostModel* const host = find(id);
  CARILLON_ASSERT(host != nullptr);
  {
    const std::lock_guard lock(host->sizes_mutex);
    for (auto& each : host->sizes)
      if (each->size == size) host->leaving.push_back(std::move(each));
    std::erase(host->sizes, nullptr);
  }
  host->sweep();
}

Result<> WorkerImpl::enough_pages(const engine::CompiledModel& model) const {
  const std::uint64_t needed = pages_for(model.weights(), page());
  if (needed <= total_pages()) return {};
  return fail(ErrorCode::resource_exhausted, to_text(model.weights()) + " of weights need " +
                                                 std::to_string(needed) + " pages of " + to_text(page()) +
                                                 ", and the page cache has " + std::to_string(total_pages()));
}

// --- Actions come

bool WorkerImpl::submit(const LoadCommand& command) {
  return submit_load(device::LoadAction{command.id, command.model, command.window});
}

bool WorkerImpl::submit(const UnloadCommand& command) {
  return submit_load(device::UnloadAction{command.id, command.model, command.discard});
}

template <typename Action>
bool WorkerImpl::submit_load(const Action& action) {
  bool taken = false;
  drive(nobody, [&](TimePoint now) {
    if (ending_) return TimePoint::max();
    const Slot slot = core_.submit(action, now, out_);
    taken = slot != device::no_slot;
    if (taken)
      load(slot) = {{.id = action.id,
                     .life = life_.load(),
                     .model = action.model,
                     .times = {.received = now},
                     .error = {}}};
    return TimePoint::max();
  });
  return taken;
}

bool WorkerImpl::submit(const InferCommand& command) {
  bool taken = false;
  drive(nobody, [&](TimePoint now) {
    if (ending_) return TimePoint::max();
    const std::uint8_t stream = stream_of(command.cls);
    const bool preempts = stream == device::ClassStreams::real_time && others_run();
    Window window = command.window;
    // Of those that take turns on one stream a real-time run is the next.
    if (command.cls == Class::real_time && classes_.count() == 1) window.earliest = TimePoint::min();
    const Slot slot = core_.submit(device::InferAction{.id = command.id,
                                                       .model = command.model,
                                                       .window = window,
                                                       .cls = command.cls,
                                                       .stream = stream,
                                                       .units = units_of(command, stream)},
                                   now, out_);
    taken = slot != device::no_slot;
    if (!taken) return TimePoint::max();
    if (stream >= device::ClassStreams::first_best_effort)
      ++best_effort_open_[static_cast<std::size_t>(stream - device::ClassStreams::first_best_effort)];
    InferSlot& action = infer(slot);
    action.id = command.id;
    action.life = life_.load();
    action.model = command.model;
    action.batch = command.batch;
    if (command.batch > 0 && command.batch <= max_batch)
      std::copy_n(command.rows.begin(), command.batch, action.rows.begin());
    action.bad_rows.clear();
    action.odd_time = action.device_lost = false;
    action.error.clear();
    action.times = {.received = now, .preempts = preempts};
    return TimePoint::max();
  });
  return taken;
}

void WorkerImpl::evict(ActionId id, device::After after, TimePoint order) {
  drive(nobody, [&](TimePoint now) {
    core_.evict(id, after, order, now, out_);
    return TimePoint::max();
  });
}

// --- LOAD

TimePoint WorkerImpl::load_turn() {
  const Turn turn = drive(device::load_executor, [this](TimePoint now) {
    return ending_ ? TimePoint::max() : core_.turn(device::load_executor, now, out_);
  });
  if (!turn.work) return turn.next;
  copy_weights(turn);
  return TimePoint::min();
}

void WorkerImpl::copy_weights(const Turn& turn) {
  const Slot slot = turn.work->slot;
  LoadSlot& action = load(slot);
  HostModel& host = *find(action.model);
  action.times.exec_start = clock_.now();
  Result<> loaded = memory_->map(host.range, turn.pages);
  const bool mapped = loaded.has_value();
  if (mapped) {
    const std::uint64_t size = host.compiled->weights().count;
    load_busy_ = true;
    const auto packed = host.compiled->packed();
    const bool direct = !packed.empty() && memory_->access(host.range.data) == nullptr;
    if (direct) memory_->copy_in(host.range.data, packed);
    // Often enough for whoever watches that it goes on.
    const std::uint64_t step = memory_->access(host.range.data) != nullptr ? mib(1).count : page().count;
    for (std::uint64_t at = 0; at < size && !direct && loaded; at += step) {
      loaded_.fetch_add(1, std::memory_order_relaxed);
      const std::uint64_t bytes = std::min(step, size - at);
      if (std::byte* const to = memory_->access(host.range.data + at)) {
        loaded = host.compiled->write_weights(at, {to, bytes});
      } else {
        loaded = host.compiled->write_weights(at, std::span(page_).first(bytes));
        if (loaded) memory_->copy_in(host.range.data + at, std::span(page_).first(bytes));
      }
    }
    load_busy_ = false;
  }
  if (!loaded) {
    action.error = loaded.error().message;
    // A LOAD that failed has nothing mapped.
    if (mapped) memory_->unmap(host.range, turn.pages);
  }
  action.times.exec_end = clock_.now();
  drive(device::load_executor, [&](TimePoint now) {
    core_.copied(slot, loaded.has_value(), now, out_);
    return TimePoint::max();
  });
}

// --- INPUT and OUTPUT

TimePoint WorkerImpl::input_turn() {
  const Turn turn = drive(device::input_executor, [this](TimePoint now) {
    return ending_ ? TimePoint::max() : core_.turn(device::input_executor, now, out_);
  });
  if (!turn.work) return turn.next;
  const Slot slot = turn.work->slot;
  if (turn.work->kind == Command::Kind::gather) {
    take_rows(slot, device::input_executor);
  } else {
    LoadSlot& action = load(slot);
    action.times.exec_start = clock_.now();
    memory_->unmap(find(action.model)->range, turn.pages);
    action.times.exec_end = clock_.now();
    drive(device::input_executor, [&](TimePoint now) {
      core_.unmapped(slot, now, out_);
      return TimePoint::max();
    });
  }
  return TimePoint::min();
}

// For INPUT, or for the stream that does it itself, which may have the run to launch then.
WorkerImpl::Turn WorkerImpl::take_rows(Slot slot, Executor self) {
  InferSlot& action = infer(slot);
  action.times.input_start = clock_.now();
  action.host = find(action.model);
  device::Core::Gathered gathered;
  // What reads rows on a stream retire() waits for here: it does not wait for the stream.
  std::unique_lock own(own_gather_, std::defer_lock);
  if (self != device::input_executor) own.lock();
  if (own.owns_lock() && over(action.life)) {
    gathered.status = ActionStatus::failed;  // nobody hears of it any more
  } else if (std::string wrong = divide(action); !wrong.empty()) {
    action.error = std::move(wrong);
    gathered.status = ActionStatus::failed;
  } else {
    const std::lock_guard lock(mutex_);
    if (core_.take_io(slot, io_bytes(action)))
      action.io_offset = core_.io_offset(slot);
    else
      gathered.status = ActionStatus::no_memory;
  }
  if (gathered.status == ActionStatus::success) {
    action.io = io_.at(action.io_offset);
    gather(action);
    for (const InferSlot::Part& part : action.all_parts())
      io_.in(action.io_offset + part.io, part.layout->outputs_at);
    action.times.input_end = clock_.now();
    gathered.kernels = 0;
    for (const InferSlot::Part& part : action.all_parts()) {
      gathered.kernels += part.kernels();
      gathered.workspace = std::max(gathered.workspace, part.layout->plan->workspace().count);
    }
  }
  if (own.owns_lock()) own.unlock();
  return drive(self, [&](TimePoint now) {
    core_.gathered(slot, gathered, now, out_);
    return TimePoint::max();
  });
}

TimePoint WorkerImpl::output_turn() {
  const Turn turn = drive(device::output_executor,
                          [this](TimePoint now) { return core_.turn(device::output_executor, now, out_); });
  if (!turn.work) return turn.next;
  const Slot slot = turn.work->slot;
  InferSlot& action = infer(slot);
  action.times.output_start = clock_.now();
  if (!over(action.life)) {
    for (const InferSlot::Part& part : action.all_parts())
      io_.outputs(action.io_offset + part.io, *part.layout);
    scatter(action);
    // Else what lay there before would be taken for the answer.
    if (const auto healthy = memory_->health(); !healthy) {
      action.error = healthy.error().message;
      action.device_lost = true;
    }
  }
  action.times.output_end = clock_.now();
  drive(device::output_executor, [&](TimePoint now) {
    core_.scattered(slot, now, out_);
    return TimePoint::max();
  });
  return TimePoint::min();
}

// --- EXEC: what the stream does

TimePoint WorkerImpl::idle(Exec& exec) {
  Turn turn = drive(exec.executor, [&](TimePoint now) {
    return ending_ ? TimePoint::max() : core_.turn(exec.executor, now, out_);
  });
  if (!turn.work) return turn.next;
  if (turn.work->kind == Command::Kind::gather) {
    turn = take_rows(turn.work->slot, exec.executor);
    if (!turn.work) return TimePoint::min();
  }
  exec.running = turn.work->slot;
  begins(exec);
  InferSlot& action = infer(exec.running);
  // The part that the kernel is of.
  int first = turn.work->kernel;
  for (action.part = 0; first >= action.now().kernels(); ++action.part) first -= action.now().kernels();
  launch_part(exec, action, first);
  return TimePoint::min();
}

// What the stream runs has the device from now on.
void WorkerImpl::begins(Exec& exec) {
  const TimePoint now = clock_.now();
  if (exec.index == device::ClassStreams::real_time) real_time_.began(now);
  InferSlot& action = infer(exec.running);
  if (action.times.exec_start == TimePoint{})
    action.times.exec_start = now;
  else
    action.times.paused += now - action.times.exec_end;  // it resumes
  action.segment = {now, real_time_.so_far(now)};
}

// What runs is sure to end: what is next may be behind it on the device, so that there is no gap between
// them.
TimePoint WorkerImpl::committed(Exec& exec, TimePoint end) {
  Turn turn = drive(exec.executor, [&](TimePoint now) {
    return ending_ ? TimePoint::max() : core_.committed(exec.running, end, now, out_);
  });
  if (turn.work && turn.work->kind == Command::Kind::gather) turn = take_rows(turn.work->slot, exec.executor);
  if (!turn.work) return turn.next;
  exec.ahead = turn.work->slot;
  InferSlot& action = infer(exec.ahead);
  action.part = 0;
  launch_part(exec, action, 0);
  return TimePoint::max();
}

// Of a run whose operands begin at `io` and `workspace`; good until the next of that layout.
engine::Binding WorkerImpl::bind(const Exec& exec, const HostModel& host, PlanLayout& layout,
                                 std::uint64_t io, std::uint64_t workspace, graph::Faults& faults) const {
  PlanLayout::Pointers& pointers = layout.pointers[exec.index];
  if (pointers.state == nullptr) pointers.state = layout.plan->make_state(exec.team.get());
  for (std::size_t i = 0; i < layout.inputs.size(); ++i)
    pointers.inputs[i] = memory_->io(io) + layout.inputs[i].offset;
  for (std::size_t i = 0; i < layout.outputs.size(); ++i)
    pointers.outputs[i] = memory_->io(io) + layout.outputs[i].offset;
  return {.inputs = pointers.inputs,
          .outputs = pointers.outputs,
          .workspace = memory_->workspace(workspace),
          .weights = host.range.data,
          .faults = &faults,
          .state = pointers.state.get()};
}

void WorkerImpl::launch(Exec& exec, InferSlot& action, PlanLayout& layout, std::uint64_t io, int first) {
  exec.stream->launch({.run = action.launch,
                       .plan = layout.plan,
                       .kernels = {first, layout.plan->kernels()},
                       .binding = bind(exec, *action.host, layout, io, action.workspace, action.faults),
                       .share = share_});
}

void WorkerImpl::launch_part(Exec& exec, InferSlot& action, int first) {
  if (first == 0) {
    action.faults.clear();
    action.bad_before = action.bad_rows.size();
  }
  launch(exec, action, *action.now().layout, action.io_offset + action.now().io, first);
}

void WorkerImpl::completed(Exec& exec, const engine::Completion& completion) {
  InferSlot& action = infer(exec.running);
  if (action.alone.on)
    alone_completed(exec, action, completion);
  else
    part_completed(exec, action, completion);
}

void WorkerImpl::part_completed(Exec& exec, InferSlot& action, const engine::Completion& completion) {
  const bool bad_data = !completion.result && completion.result.error().code == ErrorCode::invalid_argument;
  if (!completion.result && !bad_data) return end_run(exec, action, 0, &completion.result.error());
  const InferSlot::Part& part = action.now();
  if (completion.next < part.kernels()) {
    ++action.times.preemptions;
    action.times.lost += completion.lost;
    return end_run(exec, action, action.kernels_before() + completion.next, nullptr);
  }
  if (completion.result && action.faults.of(graph::Faults::unknown) == nullptr) {
    for (const graph::Fault& fault : action.faults.all())
      action.bad_rows.push_back({action.place(part, fault.row), fault.error});
    return next_part(exec, action);
  }
  action.odd_time = true;
  if (part.layout->batch > 1) return run_alone(exec, action);
  action.bad_rows.push_back({action.place(part, 0), completion.result ? action.faults.all().front().error
                                                                      : completion.result.error()});
  next_part(exec, action);
}

void WorkerImpl::next_part(Exec& exec, InferSlot& action) {
  if (action.part + 1 < action.part_count) {
    ++action.part;
    return launch_part(exec, action, 0);
  }
  end_run(exec, action, action.kernels_before() + action.now().kernels(), nullptr);
}

void WorkerImpl::end_run(Exec& exec, InferSlot& action, int next, const Error* error) {
  if (error != nullptr) {
    action.error = error->message;
    action.device_lost = error->code == ErrorCode::unavailable;
  }
  const TimePoint now = clock_.now();
  action.times.exec_end = now;
  if (exec.team && exec.index == device::ClassStreams::normal) action.times.threads = exec.team->active();
  if (exec.index >= device::ClassStreams::first_best_effort)
    action.times.padded += std::clamp(real_time_.so_far(now) - action.segment.real_time, Duration{0},
                                      now - action.segment.start);
  else if (exec.index == device::ClassStreams::real_time)
    real_time_.ended(now);
  const Slot slot = std::exchange(exec.running, std::exchange(exec.ahead, device::no_slot));
  if (exec.running != device::no_slot) begins(exec);
  drive(exec.executor, [&](TimePoint at) {
    core_.ended(slot, next, error != nullptr, at, out_);
    return TimePoint::max();
  });
}

// Some row of the part has bad data, and nobody knows which: runs each by itself, and takes its outputs to
// where the part's lie.
void WorkerImpl::run_alone(Exec& exec, InferSlot& action) {
  {
    const std::lock_guard lock(mutex_);
    action.alone.io = core_.borrow_io(alone_layout(action).io_bytes);
  }
  if (!action.alone.io.there()) {
    const Error error{ErrorCode::resource_exhausted,
                      "a row of the batch has bad data, and the I/O cache has no room to find out which"};
    return end_run(exec, action, 0, &error);
  }
  action.alone.on = true;
  action.alone.row = 0;
  action.alone.offset = action.alone.io.offset();
  launch_alone(exec, action);
}

void WorkerImpl::leave_alone(InferSlot& action) {
  action.alone.on = false;
  const std::lock_guard lock(mutex_);
  core_.return_io(action.alone.io);
}

void WorkerImpl::launch_alone(Exec& exec, InferSlot& action) {
  if (next_alone(action, clock_.now(), io_.at(action.alone.offset))) {
    io_.in(action.alone.offset, alone_layout(action).outputs_at);
    return launch(exec, action, alone_layout(action), action.alone.offset, 0);
  }
  leave_alone(action);
  next_part(exec, action);
}

void WorkerImpl::alone_completed(Exec& exec, InferSlot& action, const engine::Completion& completion) {
  const Result<>& done = completion.result;
  if (!done && done.error().code != ErrorCode::invalid_argument) {
    leave_alone(action);
    return end_run(exec, action, 0, &done.error());
  }
  if (completion.next < alone_layout(action).plan->kernels() || over(action.life)) {
    // Ended early: where it resumes, it is with the whole part.
    leave_alone(action);
    action.bad_rows.resize(action.bad_before);
    return end_run(exec, action, action.kernels_before(), nullptr);
  }
  // Its outputs to where the part's lie, on the device too: OUTPUT takes them from there.
  const PlanLayout& alone = alone_layout(action);
  io_.outputs(action.alone.offset, alone);
  end_alone(action, done, io_.at(action.alone.offset));
  const PlanLayout& whole = *action.now().layout;
  io_.in(action.io_offset + action.now().io + whole.outputs_at, whole.io_bytes - whole.outputs_at);
  launch_alone(exec, action);
}

// --- The end of a life

std::uint32_t WorkerImpl::retire() {
  std::uint32_t next = 0;
  {
    const std::lock_guard telling(telling_);
    const std::lock_guard lock(mutex_);
    next = life_.load() + 1;
    life_.store(next);
    for (const auto& exec : execs_)
      if (const auto running = core_.running(exec->executor)) {
        exec->stream->give_up(infer(*running).launch);
        // Of the lowest priority it might not come to see that for long, where all cores are busy.
        if (exec->raises && exec->index >= device::ClassStreams::first_best_effort)
          raise_priority(exec->runner);
      }
    core_.retire();
    std::ranges::fill(best_effort_open_, 0);
    std::erase_if(results_, [](const ActionResult& result) { return !Measuring::owns(result.id); });
  }
  measuring_.life_ended();
  // What passes a row has seen the life before it ended, or never begins: one turn each, and it is done.
  // Threads that had results while telling_ was held left them in results_.
  input_.call([this] { tell_results(); });
  output_.call([] {});
  { const std::lock_guard own(own_gather_); }
  return next;
}

void WorkerImpl::probe_device(std::uint32_t life) {
  probing_ = true;
  const Result<> found = probe_ ? guarded(probe_) : Result<>{};
  probing_ = false;
  const auto report = [this, life, found] {
    {
      const std::lock_guard telling(telling_);
      if (!over(life)) sink_.on_probe({found, life});
    }
    tell_results();
  };
  if (!found) return report();
  rest_then(1, [this, report] {
    {
      const std::lock_guard lock(mutex_);
      core_.clear_memory([this](ModelId id) {
        if (const auto pages = core_.pages(id); !pages.empty())
          memory_->unmap(models_[id.index()].range, pages);
      });
    }
    report();
  });
}

// Once the streams from that one on, and LOAD, are between two turns.
void WorkerImpl::rest_then(std::size_t stream, std::function<void()> act) {
  if (stream == execs_.size()) {
    load_.post(std::move(act));
    return;
  }
  execs_[stream]->stream->post(
      [this, stream, act = std::move(act)]() mutable { rest_then(stream + 1, std::move(act)); });
}

// --- Measuring

Result<> WorkerImpl::between_runs(ModelId id, PlanLayout& layout, graph::Faults& faults,
                                  const std::function<void(const engine::Binding&, const Fill&)>& act) {
  const std::uint64_t needed = layout.plan->workspace().count;
  device::RangeLedger::Piece io, workspace;
  bool held = false;
  {
    const std::lock_guard lock(mutex_);
    io = core_.borrow_io(layout.io_bytes);
    if (needed > 0) workspace = core_.borrow_workspace(needed);
    held = core_.hold(id);
  }
  const std::string name = "model " + std::to_string(id.value);
  Result<> ran;
  if (!io.there() || (needed > 0 && !workspace.there()))
    ran =
        fail(ErrorCode::resource_exhausted, name + ": the I/O cache has no room; requests are being served");
  else if (!held)
    ran = fail(ErrorCode::unavailable, name + " was unloaded meanwhile");
  else if (!first().call([&] {
             std::memset(io_.at(io.offset()), 0, layout.io_bytes);
             io_.in(io.offset(), layout.io_bytes);
             const auto fill = [&](int way) {
               for (std::size_t i = 0; i < layout.inputs.size(); ++i) {
                 const TensorPlace& place = layout.inputs[i];
                 engine::make_up(way, i, layout.plan->inputs()[i].type,
                                 {io_.at(io.offset() + place.offset),
                                  place.row_bytes * static_cast<std::uint64_t>(layout.batch)});
               }
               io_.in(io.offset(), layout.io_bytes);
             };
             act(bind(*execs_.front(), *find(id), layout, io.offset(), workspace.offset(), faults), fill);
           }))
    ran = fail(ErrorCode::unavailable, "the worker stops");
  drive(nobody, [&](TimePoint now) {
    if (io.there()) core_.return_io(io);
    if (workspace.there()) core_.return_workspace(workspace);
    if (held) core_.let_go(id, now, out_);
    return TimePoint::max();
  });
  return ran;
}

Result<> check(const Options& options) {
  const Bytes most = gib(1ULL << 16);
  for (const auto& [name, size, least] :
       {std::tuple{"page_cache", options.page_cache, options.page},
        std::tuple{"io_cache", options.io_cache, Bytes{device::RangeLedger::granule}},
        std::tuple{"workspace", options.workspace, Bytes{1}}})
    if (size < least || size > most)
      return invalid(std::string(name) + " is " + to_text(size) + ": it must be at least " + to_text(least) +
                     " and at most " + to_text(most));
  if (options.queue < 1 || options.queue > 65536)
    return invalid("queue is " + std::to_string(options.queue) + ": it must be 1 to 65536 actions");
  if (options.max_models < 1 || options.max_models > (1U << 20))
    return invalid("max_models is " + std::to_string(options.max_models) + ": it must be 1 to 1048576");
  if (!(options.share > 0 && options.share <= 1))
    return invalid("share is " + std::to_string(options.share) + ": it must be above 0 and at most 1");
  if (const auto& classes = options.classes) {
    const int units = classes->units;
    if (units < 1 || units > 64)
      return invalid("classes: " + std::to_string(units) + " units: there can be 1 to 64");
    if (classes->best_effort < 1 || classes->best_effort > most_best_effort)
      return invalid("classes: " + std::to_string(classes->best_effort) +
                     " best-effort streams: there can be 1 to " + std::to_string(most_best_effort));
    if (classes->best_effort > units)
      return invalid("classes: " + std::to_string(classes->best_effort) + " best-effort streams on " +
                     std::to_string(units) + " units: there can be one a unit");
    if (classes->real_time_units < 0 || classes->real_time_units > units)
      return invalid("classes: real-time runs cannot use " + std::to_string(classes->real_time_units) +
                     " of " + std::to_string(units) + " units");
  }
  if (options.exec_threads < 0 || options.exec_threads > 4096)
    return invalid("exec_threads is " + std::to_string(options.exec_threads) +
                   ": it must be 0 (all cores) to 4096");
  const auto available = engine::available_memory();
  if (!available) return std::unexpected(available.error());
  const Bytes slots{options.queue * (sizeof(InferSlot) + sizeof(LoadSlot)) +
                    options.max_models * sizeof(HostModel)};
  const bool by_class = options.classes && options.classes->count() > 1;
  // Of a device's own memory the host has the inputs and outputs only.
  const Bytes needed = options.make_memory ? options.io_cache + slots
                                           : options.page_cache + options.io_cache +
                                                 options.workspace * (by_class ? 2U : 1U) + slots;
  if (options.populate && needed > *available)
    return fail(ErrorCode::resource_exhausted,
                "the worker may come to take " + to_text(needed) + " (page cache " +
                    to_text(options.page_cache) + ", I/O cache " + to_text(options.io_cache) +
                    ", workspace " + to_text(options.workspace) + (by_class ? ", twice" : "") + "), and " +
                    to_text(*available) + " are available: make them smaller");
  return {};
}

}  // namespace

Result<std::unique_ptr<Worker>> make_worker(const Options& options, const Clock& clock, ResultSink& results) {
  if (auto checked = check(options); !checked) return in_context("worker", checked.error());
  std::vector<std::string> notes;
  const Bytes page = options.make_memory ? page_size : options.page;
  const std::uint64_t count = options.page_cache.count / page.count;
  if (page * count < options.page_cache)
    notes.push_back("page cache: " + to_text(page * count) + " of " + to_text(options.page_cache) +
                    " are used: whole pages of " + to_text(page));
  const bool classes = options.classes && options.classes->count() > 1;
  const Bytes workspace = WorkerImpl::workspace_of(options);
  const engine::HostMemory::Sizes sizes{
      .pages = count,
      .page = page,
      .io = options.io_cache,
      .workspace = workspace * (classes ? 2U : 1U),
      .spare_workspace = workspace * (classes ? static_cast<unsigned>(options.classes->best_effort) : 0U),
      .used = options.populate};
  using Made = Result<std::unique_ptr<engine::DeviceMemory>>;
  Made memory = options.make_memory
                    ? options.make_memory(sizes.pages, sizes.io, sizes.workspace + sizes.spare_workspace)
                    : Made(engine::HostMemory::make(sizes, notes));
  if (!memory) return in_context("worker", memory.error());
  auto io = HostIo::make(**memory, notes);
  if (!io) return in_context("worker", io.error());
  auto worker = std::make_unique<WorkerImpl>(options, clock, results, std::move(*memory), std::move(*io),
                                             std::move(notes));
  if (auto started = worker->start(options); !started) return in_context("worker", started.error());
  return worker;
}

}  // namespace carillon::worker
