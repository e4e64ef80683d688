#include "carillon/worker/live.h"

namespace carillon::worker {
namespace {

using schedule::ActionStatus;

// While it lives, one copy more is under way.
class UnderWay {
 public:
  explicit UnderWay(std::atomic<int>& copies) : copies_(copies) { ++copies_; }
  ~UnderWay() { --copies_; }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  std::atomic<int>& copies_;
};

}  // namespace

// --- Actions come

bool LiveWorker::submit(const LoadCommand& command) {
  return submit_load(device::LoadAction{command.id, command.model, command.window});
}

bool LiveWorker::submit(const UnloadCommand& command) {
  return submit_load(device::UnloadAction{command.id, command.model, command.discard});
}

template <typename Action>
bool LiveWorker::submit_load(const Action& action) {
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

bool LiveWorker::submit(const InferCommand& command) {
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

void LiveWorker::evict(ActionId id, device::After after, TimePoint order) {
  drive(nobody, [&](TimePoint now) {
    core_.evict(id, after, order, now, out_);
    return TimePoint::max();
  });
}

bool LiveWorker::cancel(ActionId id) {
  bool cancelled = false;
  drive(nobody, [&](TimePoint now) {
    cancelled = core_.cancel(id, now, out_);
    return TimePoint::max();
  });
  return cancelled;
}

// --- LOAD

TimePoint LiveWorker::load_turn() {
  const Turn turn = drive(device::load_executor, [this](TimePoint now) {
    return ending_ ? TimePoint::max() : core_.turn(device::load_executor, now, out_);
  });
  if (!turn.work) return turn.next;
  copy_weights(turn);
  return TimePoint::min();
}

void LiveWorker::copy_weights(const Turn& turn) {
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

TimePoint LiveWorker::input_turn() {
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
LiveWorker::Turn LiveWorker::take_rows(Slot slot, Executor self) {
  InferSlot& action = infer(slot);
  action.times.input_start = clock_.now();
  action.host = find(action.model);
  device::Core::Gathered gathered;
  std::shared_lock rows(rows_);
  if (over(action.life)) {
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
    rows.unlock();
    const UnderWay copies(copies_);
    for (const InferSlot::Part& part : action.all_parts())
      io_.in(action.io_offset + part.io, part.layout->outputs_at);
    action.times.input_end = clock_.now();
    gathered.kernels = 0;
    for (const InferSlot::Part& part : action.all_parts()) {
      gathered.kernels += part.kernels();
      gathered.workspace = std::max(gathered.workspace, part.layout->plan->workspace().count);
    }
  }
  if (rows.owns_lock()) rows.unlock();
  return drive(self, [&](TimePoint now) {
    core_.gathered(slot, gathered, now, out_);
    return TimePoint::max();
  });
}

TimePoint LiveWorker::output_turn() {
  const Turn turn = drive(device::output_executor,
                          [this](TimePoint now) { return core_.turn(device::output_executor, now, out_); });
  if (!turn.work) return turn.next;
  const Slot slot = turn.work->slot;
  InferSlot& action = infer(slot);
  action.times.output_start = clock_.now();
  if (!over(action.life)) {
    const UnderWay copies(copies_);
    for (const InferSlot::Part& part : action.all_parts())
      io_.outputs(action.io_offset + part.io, *part.layout);
    {
      const std::shared_lock rows(rows_);
      if (!over(action.life)) scatter(action);  // the device may have hung meanwhile
    }
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

}  // namespace carillon::worker
