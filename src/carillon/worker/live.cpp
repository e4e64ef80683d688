#include "carillon/worker/live.h"

#include "carillon/base/assert.h"
#include "carillon/engine/host/memory.h"
#include "carillon/worker/guarded.h"

namespace carillon::worker {
namespace {

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

}  // namespace

LiveWorker::LiveWorker(const Options& options, const Clock& clock, ResultSink& sink,
                       std::unique_ptr<engine::DeviceMemory> memory, HostIo io,
                       std::vector<std::string> notes)
    : classes_(options.classes.value_or(device::ClassStreams{.yielding = device::Yielding::turns})),
      workspace_(workspace_of(options)),
      credit_{.infers = options.queue, .loads = options.queue},
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
             .loads_beside = Measuring::loads_at_a_time,
             .reserved = options.queue,
             .streams = classes_.count(),
             .places = places_of(classes_, options.make_stream != nullptr, options.classes.has_value())}),
      infers_(std::make_unique<InferSlot[]>(options.queue + Measuring::loads_at_a_time)),
      loads_(std::make_unique<LoadSlot[]>(options.queue + Measuring::loads_at_a_time)),
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

// Who hands over to another stops before it.
LiveWorker::~LiveWorker() {
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

Result<> LiveWorker::start(const Options& options) {
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
void LiveWorker::name_threads() {
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

schedule::Excuse LiveWorker::slowness(schedule::Lane lane) {
  Watch& watch = watches_[static_cast<std::size_t>(lane)];
  std::uint64_t steps = lane == schedule::Lane::load ? loaded_.load() : 0;
  for (const auto& exec : execs_)
    if (lane != schedule::Lane::load && (execs_.size() == 1 || lane_of(exec->cls) == lane))
      steps += exec->stream->steps();
  const bool moved = std::exchange(watch.steps, steps) != steps;
  return {
      .device = {}, .lane = lane, .starved = watch.wait.longest(watch.threads, clock_.now()), .moved = moved};
}

// Whole granules, so that the streams' lie one behind the other.
Bytes LiveWorker::workspace_of(const Options& options) {
  constexpr std::uint64_t granule = device::RangeLedger::granule;
  return {(options.workspace.count + granule - 1) / granule * granule};
}

// --- What the core says

void LiveWorker::handle(const Command& command, int self, Turn& turn, std::uint64_t& wakes) {
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
void LiveWorker::wake(std::uint64_t executors, int self) {
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
void LiveWorker::note_result(const Command& command) {
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
void LiveWorker::tell_results() {
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

// --- The end of a life

std::uint32_t LiveWorker::retire() {
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
  { const std::lock_guard rows(rows_); }  // whoever has a row by now; nobody takes one of this life after it
  input_.wake();                          // for results that others left while telling_ was held
  return next;
}

void LiveWorker::probe_device(std::uint32_t life) {
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

// Once the threads from that place on, the streams' and then the others, are between two turns.
void LiveWorker::rest_then(std::size_t place, std::function<void()> act) {
  const std::array others{&load_, &input_, &output_};
  if (place == execs_.size() + others.size()) return act();
  auto next = [this, place, act = std::move(act)]() mutable { rest_then(place + 1, std::move(act)); };
  if (place < execs_.size())
    execs_[place]->stream->post(std::move(next));
  else
    others[place - execs_.size()]->post(std::move(next));
}

}  // namespace carillon::worker
