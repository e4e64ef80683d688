#include "carillon/device/core.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::device {
namespace {

constexpr Window any_time{TimePoint::min(), TimePoint::max()};

using Kind = Command::Kind;

}  // namespace

Core::Core(const Limits& limits)
    : limits_(limits),
      pages_(limits.pages, limits.page_group),
      io_(limits.io),
      infers_by_id_(std::min(limits.queue, limits.reserved)),
      load_(limits.queue, limits.reserved),
      input_(limits.queue, limits.reserved),
      output_(limits.queue, limits.reserved) {
  CARILLON_ASSERT(limits.streams >= 1 && limits.streams <= 64);
  const std::size_t reserved = std::min(limits.queue, limits.reserved);
  for (int i = 0; i < limits.streams; ++i)
    streams_.push_back({.queue = WindowQueue(limits.queue, limits.reserved),
                        .cold = WindowQueue(limits.queue, limits.reserved),
                        .workspace = RangeLedger(limits.workspace),
                        .place = static_cast<std::size_t>(i) < limits.places.size()
                                     ? limits.places[static_cast<std::size_t>(i)]
                                     : StreamPlace{}});
  actions_.reserve(2 * reserved);
  for (std::vector<Slot>& free : free_) free.reserve(reserved);
  unmaps_.reserve(reserved);
}

void Core::add_model(ModelId id, std::uint64_t pages) {
  CARILLON_ASSERT(id.index() == models_.size());
  Model& model = models_.emplace_back();
  model.pages = model.next_pages = pages;
  if (pages <= pages_.total()) model.held.reserve(pages);
}

void Core::take_back(ModelId id) {
  CARILLON_ASSERT(id.index() + 1 == models_.size() && absent(id));
  models_.pop_back();
}

void Core::set_pages(ModelId id, std::uint64_t pages) {
  Model& model = models_[id.index()];
  model.next_pages = pages;
  if (pages <= pages_.total()) model.held.reserve(std::max(pages, model.pages));
  if (model.residence == Residence::absent) model.pages = pages;
}

bool Core::loaded(ModelId id) const {
  const Model& model = models_[id.index()];
  return model.pages == 0 || model.residence == Residence::loaded;
}

// --- Slots

Slot Core::take_slot(ActionKind kind, ActionId id, ModelId model) {
  std::size_t& open = kind == ActionKind::infer ? infers_open_ : loads_open_;
  if (open == limits_.queue) return no_slot;
  ++open;
  std::vector<Slot>& free = free_of(kind);
  if (free.empty()) {
    // A pair: the even one for INFERs.
    free_[0].push_back(static_cast<Slot>(actions_.size()));
    free_[1].push_back(static_cast<Slot>(actions_.size() + 1));
    actions_.resize(actions_.size() + 2);
  }
  const Slot slot = free.back();
  free.pop_back();
  Action& action = actions_[slot];
  action = {.id = id, .model = model, .number = numbers_++, .kind = kind};
  if (kind == ActionKind::load && known(model)) {
    Model& m = models_[model.index()];
    if (m.loads++ == 0) m.first_load = action.number;
    action.counted = true;
  }
  return slot;
}

void Core::free_slot(Slot slot) {
  Action& action = actions_[slot];
  if (action.kind == ActionKind::infer) {
    --infers_open_;
    if (!action.orphaned) forget(slot);
  } else {
    --loads_open_;
  }
  action.state = State::free;
  if (action.counted) count_out(action);
  free_of(action.kind).push_back(slot);
}

// A LOAD is open no more.
void Core::count_out(Action& load) {
  load.counted = false;
  Model& model = models_[load.model.index()];
  if (--model.loads == 0 || model.first_load != load.number) return;
  model.first_load = std::numeric_limits<std::uint64_t>::max();
  for (const Action& other : actions_)
    if (other.counted && other.model == load.model)
      model.first_load = std::min(model.first_load, other.number);
}

// From here on nobody finds it by its id. (Ids that come twice are somebody's mistake, not ours to die of.)
void Core::forget(Slot slot) {
  infers_by_id_.erase(actions_[slot].id.value, slot);
}

void Core::drop_memory(Action& action) {
  if (action.io.there()) {
    io_.release(std::exchange(action.io, {}));
    if (action.cls == Class::best_effort) --patient_io_;
  }
  if (action.workspace.there())
    streams_[action.stream].workspace.release(std::exchange(action.workspace, {}));
}

void Core::report(Slot slot, ActionStatus status, Commands& out, Failure failure) {
  const Action& action = actions_[slot];
  drop_memory(actions_[slot]);
  out.push_back({.kind = Kind::report, .status = status, .failure = failure, .slot = slot});
  free_slot(slot);
  if (action.kind == ActionKind::load && known(action.model)) end_wait(action.model, out);
}

void Core::wake(Executor executor, Commands& out) {
  out.push_back({.kind = Kind::wake, .executor = executor});
}

Entry Core::entry(Slot slot) const {
  const Action& action = actions_[slot];
  return {.order = action.window.earliest, .id = action.id, .window = action.window, .slot = slot};
}

// --- LOAD and UNLOAD

Slot Core::submit(const LoadAction& load, TimePoint, Commands& out) {
  const Slot slot = take_slot(ActionKind::load, load.id, load.model);
  if (slot == no_slot) return slot;
  actions_[slot].window = load.window;
  actions_[slot].pages = load.pages;
  actions_[slot].state = State::load_queued;
  load_.push(entry(slot));
  if (copying_ == no_slot && load_.front().slot == slot) wake(load_executor, out);
  return slot;
}

Slot Core::submit(const UnloadAction& unload, TimePoint now, Commands& out) {
  const Slot slot = take_slot(ActionKind::unload, unload.id, unload.model);
  if (slot == no_slot) return slot;
  if (!known(unload.model)) {
    report(slot, ActionStatus::failed, out, Failure::unknown_model);
    return slot;
  }
  park(slot);
  if (unload.discard)
    for (const Action& action : actions_)
      if (action.kind == ActionKind::infer && action.model == unload.model && action.begun &&
          !action.orphaned && (action.state == State::exec_queued || action.state == State::running))
        evict(action.id, After::drop, now, now, out);
  settle(models_[unload.model.index()], out);
  return slot;
}

void Core::park(Slot slot) {
  Action& action = actions_[slot];
  Model& model = models_[action.model.index()];
  action.state = State::parked;
  action.next_parked = no_slot;
  (model.first_parked == no_slot ? model.first_parked : actions_[model.last_parked].next_parked) = slot;
  model.last_parked = slot;
}

// Carries out what is parked, as far as the model's pages allow.
void Core::settle(Model& model, Commands& out) {
  while (model.first_parked != no_slot) {
    const Slot slot = model.first_parked;
    Action& action = actions_[slot];
    if (model.residence == Residence::copying || model.residence == Residence::unmapping) return;
    if (action.kind == ActionKind::unload) {
      if (model.residence != Residence::absent) model.residence = Residence::leaving;
      if (model.residence != Residence::absent && model.uses > 0) return;
    } else if (model.residence == Residence::leaving) {
      return;
    }
    model.first_parked = action.next_parked;
    if (action.kind == ActionKind::load) {
      action.state = State::load_queued;
      load_.push(entry(slot));
      if (copying_ == no_slot) wake(load_executor, out);
    } else if (model.residence == Residence::absent || model.pages == 0) {
      model.residence = Residence::absent;
      model.pages = model.next_pages;
      report(slot, ActionStatus::success, out);
    } else {
      begin_unmap(slot, out);
    }
  }
}

void Core::begin_unmap(Slot slot, Commands& out) {
  actions_[slot].state = State::unmap_queued;
  models_[actions_[slot].model.index()].residence = Residence::unmapping;
  unmaps_.push_back(slot);
  wake(input_executor, out);
}

void Core::release_pages(Model& model) {
  pages_.give_back(model.held);
  model.held.clear();
  model.residence = Residence::absent;
  model.pages = model.next_pages;
}

TimePoint Core::turn_load(TimePoint now, Commands& out) {
  while (copying_ == no_slot) {
    const Decision decision = load_.next(now);
    if (decision.kind == Decision::Kind::idle) return TimePoint::max();
    if (decision.kind == Decision::Kind::wait_until) return decision.at;
    const Slot slot = decision.entry.slot;
    Action& action = actions_[slot];
    if (decision.kind == Decision::Kind::refuse) {
      report(slot, ActionStatus::too_late, out);
      continue;
    }
    if (!known(action.model)) {
      report(slot, ActionStatus::failed, out, Failure::unknown_model);
      continue;
    }
    Model& model = models_[action.model.index()];
    if (model.residence == Residence::leaving || model.residence == Residence::unmapping) {
      park(slot);
      continue;
    }
    if (model.residence == Residence::loaded) {
      report(slot, ActionStatus::failed, out, Failure::loaded_already);
      continue;
    }
    model.pages = action.pages.value_or(model.next_pages);
    if (model.pages > pages_.free()) {
      report(slot, ActionStatus::no_memory, out);
      continue;
    }
    model.held.resize(model.pages);
    const bool taken = pages_.take(model.held);
    CARILLON_ASSERT(taken);
    model.residence = Residence::copying;
    action.state = State::copying;
    copying_ = slot;
    ++in_hand_;
    out.push_back({.kind = Kind::copy, .slot = slot});
  }
  return TimePoint::max();
}

void Core::copied(Slot slot, bool done, TimePoint, Commands& out) {
  CARILLON_ASSERT(copying_ == slot);
  copying_ = no_slot;
  --in_hand_;
  Action& action = actions_[slot];
  Model& model = models_[action.model.index()];
  const bool orphaned = action.orphaned;
  if (!done)
    release_pages(model);
  else
    model.residence = orphaned ? Residence::leaving : Residence::loaded;
  if (orphaned)
    free_slot(slot);
  else
    report(slot, done ? ActionStatus::success : ActionStatus::failed, out,
           done ? Failure::none : Failure::executor);
  settle(model, out);
  if (load_.size() > 0) wake(load_executor, out);
}

void Core::unmapped(Slot slot, TimePoint, Commands& out) {
  CARILLON_ASSERT(unmapping_ && actions_[slot].state == State::unmapping);
  unmapping_ = false;
  --in_hand_;
  Model& model = models_[actions_[slot].model.index()];
  release_pages(model);
  if (actions_[slot].orphaned)
    free_slot(slot);
  else
    report(slot, ActionStatus::success, out);
  settle(model, out);
  if (!unmaps_.empty() || input_.size() > 0) wake(input_executor, out);
}

// --- INFER

Slot Core::submit(const InferAction& infer, TimePoint now, Commands& out) {
  CARILLON_ASSERT(infer.stream < streams_.size());
  const Slot slot = take_slot(ActionKind::infer, infer.id, infer.model);
  if (slot == no_slot) return slot;
  Action& action = actions_[slot];
  action.window = infer.window;
  action.stream = infer.stream;
  action.cls = infer.cls;
  action.units = streams_[infer.stream].place.units;
  if (infer.units != 0) action.units &= infer.units;
  action.share = infer.share;
  action.state = State::input_queued;
  infers_by_id_.try_insert(infer.id.value, slot);
  streams_[infer.stream].used = now;
  if (Stream& stream = streams_[infer.stream]; stream.place.gathers) {
    action.state = State::exec_queued;
    stream.queue.push(entry(slot));
    if (stream.queue.front().slot != slot) return slot;
    if (stream.running != no_slot) {
      if (stream.place.ahead && stream.ahead == no_slot) wake(executor(slot), out);
      return slot;
    }
    // Whoever submits has the way cleared, while the stream's own thread wakes.
    if (infer.window.contains(now)) make_way(stream, action.units, out);
    wake(executor(slot), out);
    return slot;
  }
  if (limits_.gathers == 0) {
    if (infer.window.latest < now)
      report(slot, ActionStatus::too_late, out);
    else
      begin_gather(slot, out);
    return slot;
  }
  // At once, the most urgent first; what cannot be in time any more is not even copied.
  input_.push({.order = infer.window.earliest,
               .id = infer.id,
               .window = {TimePoint::min(), infer.window.latest},
               .slot = slot});
  if (gathering_ < limits_.gathers && !unmapping_ && input_.front().slot == slot) wake(input_executor, out);
  return slot;
}

TimePoint Core::turn_input(TimePoint now, Commands& out) {
  if (!unmapping_ && !unmaps_.empty()) {
    const Slot slot = unmaps_.front();
    unmaps_.erase(unmaps_.begin());
    actions_[slot].state = State::unmapping;
    unmapping_ = true;
    ++in_hand_;
    out.push_back({.kind = Kind::unmap, .slot = slot});
  }
  while (!unmapping_ && gathering_ < limits_.gathers) {
    const Decision decision = input_.next(now);
    if (decision.kind == Decision::Kind::idle) break;
    const Slot slot = decision.entry.slot;
    if (decision.kind == Decision::Kind::refuse) {
      report(slot, ActionStatus::too_late, out);
      continue;
    }
    begin_gather(slot, out);
  }
  return TimePoint::max();
}

void Core::begin_gather(Slot slot, Commands& out) {
  actions_[slot].state = State::gathering;
  ++gathering_;
  ++in_hand_;
  out.push_back({.kind = Kind::gather, .executor = input_executor, .slot = slot});
}

bool Core::take_io(Slot slot, std::uint64_t bytes) {
  Action& action = actions_[slot];
  CARILLON_ASSERT(action.state == State::gathering && !action.io.there());
  // Best-effort runs keep theirs for long, also while others go first: so a quarter is kept from them. One of
  // them may have what it needs.
  const bool patient = action.cls == Class::best_effort;
  if (patient && patient_io_ > 0 && io_.free().count < bytes + io_.capacity().count / 4) return false;
  action.io = io_.allocate(bytes);
  if (patient && action.io.there()) ++patient_io_;
  return action.io.there();
}

void Core::gathered(Slot slot, const Gathered& result, TimePoint now, Commands& out) {
  Action& action = actions_[slot];
  CARILLON_ASSERT(action.state == State::gathering && result.kernels >= 1);
  if (streams_[action.stream].running == slot) return own_gathered(slot, result, now, out);
  if (streams_[action.stream].ahead == slot) return ahead_gathered(slot, result, out);
  --gathering_;
  --in_hand_;
  if (input_.size() > 0) wake(input_executor, out);
  if (!take_result(slot, result, out)) return;
  Stream& stream = streams_[action.stream];
  stream.queue.push(entry(slot));
  if (stream.queue.front().slot != slot) return;
  if (stream.running == no_slot || (stream.place.ahead && stream.ahead == no_slot)) wake(executor(slot), out);
  if (stream.running != no_slot) yield_to_first(stream, out);
}

// Whether the action goes on.
bool Core::take_result(Slot slot, const Gathered& result, Commands& out) {
  Action& action = actions_[slot];
  if (give_back_orphan(slot)) return false;
  if (action.wanted == After::drop || result.status != ActionStatus::success) {
    const bool dropped = action.wanted == After::drop;
    report(slot, dropped ? ActionStatus::stopped : result.status, out,
           dropped ? Failure::none : Failure::executor);
    return false;
  }
  action.gathered = true;
  action.kernels = result.kernels;
  action.workspace_bytes = result.workspace;
  action.state = State::exec_queued;
  return true;
}

// A stream's own: the run begins in the same call.
void Core::own_gathered(Slot slot, const Gathered& result, TimePoint now, Commands& out) {
  Action& action = actions_[slot];
  Stream& stream = streams_[action.stream];
  const Executor executor = this->executor(slot);
  stream.running = no_slot;
  --in_hand_;
  if (!take_result(slot, result, out)) return look_again(stream, executor, out);
  if (!loaded(action.model)) {
    if (wait_for_load(stream, slot))
      wake(executor, out);  // to plan the end of its window
    else
      report(slot, ActionStatus::not_loaded, out);
    return look_again(stream, executor, out);
  }
  if (!in_the_way(stream, action.units, now) && take_workspace(action)) return launch(executor, slot, out);
  stream.queue.push(entry(slot));
  wake(executor, out);
}

// Nothing runs on the stream any more: what is next, or who waited for it.
void Core::look_again(const Stream& stream, Executor executor, Commands& out) {
  if (stream.queue.size() > 0)
    wake(executor, out);
  else
    release_held(stream, out);
}

bool Core::take_workspace(Action& action) {
  if (action.workspace.there()) return true;
  Stream& stream = streams_[action.stream];
  stream.largest = std::max(stream.largest, action.workspace_bytes);
  // Enough for what may run behind it.
  if (stream.place.ahead && action.kernels == 1 && stream.largest > 0)
    action.workspace = stream.workspace.allocate(stream.largest);
  if (action.workspace.there() || action.workspace_bytes == 0) return true;
  action.workspace = stream.workspace.allocate(action.workspace_bytes);
  return action.workspace.there();
}

TimePoint Core::turn_stream(Executor executor, TimePoint now, Commands& out) {
  Stream& stream = streams_[executor - first_stream];
  while (stream.cold.size() > 0 && stream.cold.front().window.latest < now) {
    const Slot slot = stream.cold.front().slot;
    stream.cold.remove(slot);
    report(slot, ActionStatus::too_late, out);
  }
  TimePoint next = begin_next(executor, now, out);
  if (stream.running == no_slot) release_held(stream, out);
  if (stream.cold.size() > 0)
    next = std::min(next, saturating_add(stream.cold.front().window.latest, Duration{1}));
  return next;
}

// A LOAD of its model that was submitted before it is open.
bool Core::load_comes(const Action& infer) const {
  const Model& model = models_[infer.model.index()];
  return model.loads > 0 && model.first_load < infer.number;
}

// An INFER that has left its stream's queue, as its model is not there. False where it has nothing to wait
// for.
bool Core::wait_for_load(Stream& stream, Slot slot) {
  Action& action = actions_[slot];
  if (!load_comes(action)) return false;
  action.cold = true;
  Entry entry = this->entry(slot);
  entry.order = entry.window.latest;
  stream.cold.push(entry);
  return true;
}

// A LOAD of the model has ended. INFERs that wait for no other LOAD return to their stream's queue.
void Core::end_wait(ModelId model, Commands& out) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    while (const Entry* const entry = stream.cold.find_first([&](const Entry& each) {
      const Action& action = actions_[each.slot];
      return action.model == model && (loaded(model) || !load_comes(action));
    })) {
      const Slot slot = entry->slot;
      stream.cold.remove(slot);
      actions_[slot].cold = false;
      stream.queue.push(this->entry(slot));
      if (stream.queue.front().slot != slot) continue;
      if (stream.running == no_slot || (stream.place.ahead && stream.ahead == no_slot))
        wake(executor(slot), out);
      // One that gathers for itself looks before it launches.
      if (stream.running != no_slot && actions_[stream.running].state == State::running)
        yield_to_first(stream, out);
    }
  }
}

TimePoint Core::begin_next(Executor executor, TimePoint now, Commands& out) {
  Stream& stream = streams_[executor - first_stream];
  stream.starved = stream.held = false;
  while (stream.running == no_slot) {
    if (stream.queue.size() > 0 && in_the_way(stream, actions_[stream.queue.front().slot].units, now)) {
      stream.held = true;  // until that stream has nothing any more
      return TimePoint::max();
    }
    const Decision decision = stream.queue.next(now);
    if (decision.kind == Decision::Kind::idle) return TimePoint::max();
    if (decision.kind == Decision::Kind::wait_until) return decision.at;
    Slot slot = decision.entry.slot;
    Action& action = actions_[slot];
    if (decision.kind == Decision::Kind::refuse) {
      report(slot, ActionStatus::too_late, out);
      continue;
    }
    if (!known(action.model)) {
      report(slot, ActionStatus::failed, out, Failure::unknown_model);
      continue;
    }
    if (!action.begun && !loaded(action.model)) {
      if (!wait_for_load(stream, slot)) report(slot, ActionStatus::not_loaded, out);
      continue;
    }
    if (!action.gathered) {
      stream.running = slot;
      action.state = State::gathering;
      ++in_hand_;
      out.push_back({.kind = Kind::gather, .executor = executor, .slot = slot});
      make_way(stream, action.units, out);
      return TimePoint::max();
    }
    if (!take_workspace(action)) {
      stream.queue.push(decision.entry);
      const Entry* resumes =
          stream.queue.find_first([this](const Entry& other) { return actions_[other.slot].begun; });
      if (resumes == nullptr) {
        stream.starved = true;  // until what was borrowed is back
        return TimePoint::max();
      }
      slot = resumes->slot;
      if (in_the_way(stream, actions_[slot].units, now)) {
        stream.held = true;
        return TimePoint::max();
      }
      stream.queue.remove(slot);
    }
    launch(executor, slot, out);
  }
  return TimePoint::max();
}

// Another stream that goes first has, or may begin, what uses some of these units.
bool Core::in_the_way(const Stream& stream, std::uint64_t units, TimePoint now) const {
  for (const Stream& other : streams_) {
    if (other.place.rank >= stream.place.rank) continue;
    for (const Slot runs : {other.running, other.ahead})
      if (runs != no_slot && (actions_[runs].units & units) != 0) return true;
    if (other.running != no_slot || other.starved || other.held || other.queue.size() == 0) continue;
    const Entry& first = other.queue.front();
    if (first.window.contains(now) && (actions_[first.slot].units & units) != 0) return true;
  }
  return false;
}

// What streams that go later run on these units ends before its next kernel, and is first to resume.
void Core::make_way(const Stream& stream, std::uint64_t units, Commands& out) {
  for (const Stream& other : streams_) {
    if (other.place.rank <= stream.place.rank || other.running == no_slot) continue;
    Action& action = actions_[other.running];
    if ((action.units & units) == 0 || action.orphaned) continue;
    if (action.state == State::gathering) continue;  // it looks before it launches
    if (!action.wanted) {                            // else it resumes where it was told to
      action.wanted = After::resume;
      action.resume_order = TimePoint::min();
    }
    end_early(other.running, out);
  }
}

// Who waited for the stream, and finds its units free of what it runs now, looks again.
void Core::release_held(const Stream& stream, Commands& out) {
  const std::uint64_t taken = stream.running == no_slot ? 0 : actions_[stream.running].units;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream& other = streams_[i];
    if (!other.held || other.place.rank <= stream.place.rank) continue;
    if (taken != 0 && (other.place.units & taken) != 0) continue;
    other.held = false;
    wake(static_cast<Executor>(first_stream + i), out);
  }
}

void Core::launch(Executor executor, Slot slot, Commands& out) {
  Stream& stream = streams_[executor - first_stream];
  stream.running = slot;
  put_on_device(stream, slot, out);
  yield_to_first(stream, out);  // where it was told to before it began
  release_held(stream, out);
}

void Core::put_on_device(const Stream& stream, Slot slot, Commands& out) {
  Action& action = actions_[slot];
  action.state = State::running;
  if (!action.begun) ++models_[action.model.index()].uses;
  action.begun = true;
  action.ending = false;
  ++in_hand_;
  out.push_back({.kind = Kind::launch, .executor = executor(slot), .slot = slot, .kernel = action.next});
  if (streams_.size() > 1) make_way(stream, action.units, out);
}

// The run is over, or given up: gives back what it had of its own.
void Core::end_use(Action& action, Commands& out) {
  Model& model = models_[action.model.index()];
  CARILLON_ASSERT(action.begun && model.uses > 0);
  --model.uses;
  if (action.workspace.there())
    streams_[action.stream].workspace.release(std::exchange(action.workspace, {}));
  if (model.uses == 0) settle(model, out);
}

// Both are one kernel, and the workspace of the first is enough.
bool Core::fits_behind(const Action& next, const Action& run) const {
  return run.kernels == 1 && next.kernels == 1 &&
         next.workspace_bytes <= run.workspace.count * RangeLedger::granule;
}

TimePoint Core::committed(Slot slot, TimePoint end, TimePoint now, Commands& out) {
  Stream& stream = streams_[actions_[slot].stream];
  CARILLON_ASSERT(stream.running == slot);
  const Action& run = actions_[slot];
  if (!stream.place.ahead || stream.ahead != no_slot || stream.queue.size() == 0 || run.kernels != 1 ||
      run.orphaned)
    return TimePoint::max();
  const Entry first = stream.queue.front();
  Action& next = actions_[first.slot];
  if (first.window.earliest > now) return first.window.earliest;
  // What would be refused waits for its own turn.
  if (first.window.latest < std::max(end, now) || next.begun || next.wanted || !known(next.model) ||
      !loaded(next.model) || in_the_way(stream, next.units, now))
    return TimePoint::max();
  for (const Stream& other : streams_)
    if (other.place.rank < stream.place.rank && other.used > now - std::chrono::seconds{1})
      return TimePoint::max();
  if (next.gathered) {
    if (!fits_behind(next, run)) return TimePoint::max();
    stream.queue.remove(first.slot);
    launch_ahead(stream, first.slot, out);
  } else {
    stream.queue.remove(first.slot);
    stream.ahead = first.slot;
    next.state = State::gathering;
    ++in_hand_;
    out.push_back({.kind = Kind::gather, .executor = executor(first.slot), .slot = first.slot});
    make_way(stream, next.units, out);
  }
  return TimePoint::max();
}

void Core::launch_ahead(Stream& stream, Slot slot, Commands& out) {
  stream.ahead = slot;
  put_on_device(stream, slot, out);
}

void Core::ahead_gathered(Slot slot, const Gathered& result, Commands& out) {
  Action& action = actions_[slot];
  Stream& stream = streams_[action.stream];
  stream.ahead = no_slot;
  --in_hand_;
  if (!take_result(slot, result, out)) return;
  if (loaded(action.model) && fits_behind(action, actions_[stream.running]))
    return launch_ahead(stream, slot, out);
  stream.queue.push(entry(slot));
}

void Core::ended(Slot slot, int next, bool failed, TimePoint, Commands& out) {
  Action& action = actions_[slot];
  Stream& stream = streams_[action.stream];
  CARILLON_ASSERT(stream.running == slot && next <= action.kernels);
  stream.running = std::exchange(stream.ahead, no_slot);
  // Behind it runs what has its workspace from now on.
  if (stream.running != no_slot && actions_[stream.running].state == State::running &&
      !actions_[stream.running].orphaned)
    std::swap(actions_[stream.running].workspace, action.workspace);
  --in_hand_;
  const Executor executor = this->executor(slot);
  if (!give_back_orphan(slot)) {
    action.next = next;
    const bool whole = !failed && next == action.kernels;
    if (!failed && !whole && action.wanted != After::drop) {
      action.state = State::exec_queued;
      stream.queue.push({.order = action.resume_order, .id = action.id, .window = any_time, .slot = slot});
      // Where another stream made it end, what it is to make way for in its own may still have to come.
      if (stream.queue.front().slot != slot) action.wanted.reset();
    } else {
      end_use(action, out);
      if (whole && limits_.scatters > 0) {
        action.state = State::output_queued;
        output_.push({.order = action.window.earliest, .id = action.id, .window = any_time, .slot = slot});
        if (scattering_ < limits_.scatters) wake(output_executor, out);
      } else if (failed) {
        report(slot, ActionStatus::failed, out, Failure::executor);
      } else {
        report(slot, whole ? ActionStatus::success : ActionStatus::stopped, out);
      }
    }
  }
  if (stream.running == no_slot) return look_again(stream, executor, out);
  release_held(stream, out);
  yield_to_first(stream, out);  // where it was told to before
  if (stream.queue.size() > 0) wake(executor, out);
}

TimePoint Core::turn_output(TimePoint now, Commands& out) {
  while (scattering_ < limits_.scatters) {
    const Decision decision = output_.next(now);
    if (decision.kind == Decision::Kind::idle) break;
    const Slot slot = decision.entry.slot;
    actions_[slot].state = State::scattering;
    ++scattering_;
    ++in_hand_;
    out.push_back({.kind = Kind::scatter, .slot = slot});
  }
  return TimePoint::max();
}

void Core::scattered(Slot slot, TimePoint, Commands& out) {
  CARILLON_ASSERT(actions_[slot].state == State::scattering);
  --scattering_;
  --in_hand_;
  if (output_.size() > 0) wake(output_executor, out);
  if (!give_back_orphan(slot)) report(slot, ActionStatus::success, out);
}

TimePoint Core::turn(Executor executor, TimePoint now, Commands& out) {
  switch (executor) {
    case load_executor:
      return turn_load(now, out);
    case input_executor:
      return turn_input(now, out);
    case output_executor:
      return turn_output(now, out);
    default:
      return turn_stream(executor, now, out);
  }
}

void Core::evict(ActionId id, After after, TimePoint order, TimePoint, Commands& out) {
  const auto found = infers_by_id_.find(id.value);
  if (!found) return;
  const Slot slot = *found;
  Action& action = actions_[slot];
  Stream& stream = streams_[action.stream];
  switch (action.state) {
    case State::input_queued:
      if (after == After::resume) break;
      input_.remove(slot);
      return report(slot, ActionStatus::stopped, out);
    case State::gathering:
      if (after == After::resume) break;
      action.wanted = After::drop;
      return;
    case State::exec_queued:
      if (after == After::resume && !action.begun) break;
      (action.cold ? stream.cold : stream.queue).remove(slot);
      if (after == After::resume) {
        action.wanted = After::resume;  // should it go on before what it is to make way for is there
        action.resume_order = order;
        stream.queue.push({.order = order, .id = id, .window = any_time, .slot = slot});
      } else {
        if (action.begun) end_use(action, out);
        report(slot, ActionStatus::stopped, out);
      }
      if (stream.running == no_slot)
        look_again(stream, static_cast<Executor>(first_stream + action.stream), out);
      return;
    case State::running:
      if (action.wanted != After::drop) action.wanted = after;
      action.resume_order = order;
      if (after == After::resume)
        yield_to_first(stream, out);
      else
        end_early(slot, out);
      return;
    default:
      return;  // it has run, and its own report stands
  }
  // It has its place until it begins; what it is to make way for may still come after that.
  if (action.wanted == After::drop) return;
  action.wanted = After::resume;
  action.resume_order = order;
}

void Core::end_early(Slot slot, Commands& out) {
  if (std::exchange(actions_[slot].ending, true)) return;
  out.push_back({.kind = Kind::evict, .executor = executor(slot), .slot = slot});
}

// What runs ends before its next kernel where it is to make way for what comes first now: not sooner, as the
// stream would only resume it.
void Core::yield_to_first(Stream& stream, Commands& out) {
  if (stream.running == no_slot || stream.queue.size() == 0) return;
  const Action& run = actions_[stream.running];
  const Entry& first = stream.queue.front();
  if (run.wanted != After::resume || run.orphaned ||
      std::tuple(run.resume_order, run.id) < std::tuple(first.order, first.id))
    return;
  Action& next = actions_[first.slot];
  if (!next.workspace.there()) {  // where it has no room, the run would go on
    if (!take_workspace(next)) return;
    if (next.workspace.there()) stream.workspace.release(std::exchange(next.workspace, {}));
  }
  end_early(stream.running, out);
}

// --- What else keeps a model's pages

bool Core::hold(ModelId id) {
  if (!loaded(id)) return false;
  ++models_[id.index()].uses;
  return true;
}

void Core::let_go(ModelId id, TimePoint, Commands& out) {
  Model& model = models_[id.index()];
  if (model.uses == 0) return;  // held in a life that is over
  if (--model.uses == 0) settle(model, out);
}

// OUTPUT's stays: what it has has run.
void Core::empty_queues() {
  load_.clear();
  input_.clear();
  for (Stream& stream : streams_) {
    stream.queue.clear();
    stream.cold.clear();
    stream.starved = stream.held = false;
  }
  unmaps_.clear();
  for (Model& model : models_) model.first_parked = model.last_parked = no_slot;
}

void Core::abandon(Commands& out) {
  empty_queues();
  for (Slot slot = 0; slot < actions_.size(); ++slot) switch (actions_[slot].state) {
      case State::load_queued:
      case State::parked:
      case State::unmap_queued:
      case State::input_queued:
      case State::exec_queued:
        report(slot, ActionStatus::failed, out, Failure::abandoned);
        break;
      default:
        break;
    }
}

// --- Lives

bool Core::give_back_orphan(Slot slot) {
  Action& action = actions_[slot];
  if (!action.orphaned) return false;
  drop_memory(action);
  free_slot(slot);
  return true;
}

void Core::retire() {
  empty_queues();
  output_.clear();
  for (Slot slot = 0; slot < actions_.size(); ++slot) {
    Action& action = actions_[slot];
    switch (action.state) {
      case State::free:
        break;
      case State::copying:
      case State::unmapping:
      case State::gathering:
      case State::running:
      case State::scattering:
        if (!std::exchange(action.orphaned, true) && action.kind == ActionKind::infer) forget(slot);
        if (action.counted) count_out(action);
        break;
      default:
        drop_memory(action);
        free_slot(slot);
    }
  }
  for (Model& model : models_) {
    model.uses = 0;
    const bool in_hand =
        model.residence == Residence::copying || (unmapping_ && model.residence == Residence::unmapping);
    if (model.residence != Residence::absent && !in_hand) model.residence = Residence::leaving;
  }
}

bool Core::at_rest(Executor executor) const {
  switch (executor) {
    case load_executor:
      return copying_ == no_slot;
    case input_executor:
      return gathering_ == 0 && !unmapping_;
    case output_executor:
      return scattering_ == 0;
    default:
      return streams_[executor - first_stream].running == no_slot;
  }
}

}  // namespace carillon::device
