#include "carillon/base/processors.h"
#include "carillon/engine/host_stream.h"
#include "carillon/worker/alone.h"
#include "carillon/worker/live.h"

namespace carillon::worker {

// --- Streams

std::vector<device::StreamPlace> LiveWorker::places_of(const device::ClassStreams& classes, bool on_device,
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

void LiveWorker::make_streams(const Options& options) {
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

Result<> LiveWorker::start_stream(Exec& exec, const Options& options) {
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
bool LiveWorker::others_run() const {
  const auto runs = [this](const auto& exec) { return core_.running(exec->executor).has_value(); };
  return !runs(execs_[device::ClassStreams::real_time]) && std::ranges::any_of(execs_, runs);
}

// Under the lock. A best-effort run goes where fewest wait.
std::uint8_t LiveWorker::stream_of(Class cls) {
  if (cls != Class::best_effort || classes_.count() == 1) return classes_.stream_of(cls);
  const auto fewest = std::ranges::min_element(best_effort_open_);
  return classes_.stream_of(cls, static_cast<int>(fewest - best_effort_open_.begin()));
}

// Of a real-time run on a stream that is the device's own; 0: all of the stream's. One that leaves room for
// others is in the way of none that goes on there: the second unit stands for what it leaves.
std::uint64_t LiveWorker::units_of(const InferCommand& command, std::uint8_t stream) {
  if (classes_.count() == 1 || stream != device::ClassStreams::real_time || !execs_[stream]->on_device ||
      !parts())
    return 0;
  const HostModel* const host = find(command.model);
  const engine::Plan* const plan =
      host == nullptr || !host->compiled->lengths().empty() ? nullptr : host->compiled->plan(command.batch);
  return plan == nullptr || plan->whole_device() ? 0 : 1;
}

// --- What a stream does

TimePoint LiveWorker::idle(Exec& exec) {
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
void LiveWorker::begins(Exec& exec) {
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
TimePoint LiveWorker::committed(Exec& exec, TimePoint end) {
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
engine::Binding LiveWorker::bind(const Exec& exec, const HostModel& host, PlanLayout& layout,
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

void LiveWorker::launch(Exec& exec, InferSlot& action, PlanLayout& layout, std::uint64_t io, int first) {
  exec.stream->launch({.run = action.launch,
                       .plan = layout.plan,
                       .kernels = {first, layout.plan->kernels()},
                       .binding = bind(exec, *action.host, layout, io, action.workspace, action.faults),
                       .share = share_});
}

void LiveWorker::launch_part(Exec& exec, InferSlot& action, int first) {
  if (first == 0) {
    action.faults.clear();
    action.bad_before = action.bad_rows.size();
  }
  launch(exec, action, *action.now().layout, action.io_offset + action.now().io, first);
}

void LiveWorker::completed(Exec& exec, const engine::Completion& completion) {
  InferSlot& action = infer(exec.running);
  if (action.alone.on)
    alone_completed(exec, action, completion);
  else
    part_completed(exec, action, completion);
}

void LiveWorker::part_completed(Exec& exec, InferSlot& action, const engine::Completion& completion) {
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

void LiveWorker::next_part(Exec& exec, InferSlot& action) {
  if (action.part + 1 < action.part_count) {
    ++action.part;
    return launch_part(exec, action, 0);
  }
  end_run(exec, action, action.kernels_before() + action.now().kernels(), nullptr);
}

void LiveWorker::end_run(Exec& exec, InferSlot& action, int next, const Error* error) {
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
void LiveWorker::run_alone(Exec& exec, InferSlot& action) {
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

void LiveWorker::leave_alone(InferSlot& action) {
  action.alone.on = false;
  const std::lock_guard lock(mutex_);
  core_.return_io(action.alone.io);
}

void LiveWorker::launch_alone(Exec& exec, InferSlot& action) {
  if (next_alone(action, clock_.now(), io_.at(action.alone.offset))) {
    io_.in(action.alone.offset, alone_layout(action).outputs_at);
    return launch(exec, action, alone_layout(action), action.alone.offset, 0);
  }
  leave_alone(action);
  next_part(exec, action);
}

void LiveWorker::alone_completed(Exec& exec, InferSlot& action, const engine::Completion& completion) {
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

}  // namespace carillon::worker
