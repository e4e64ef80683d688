#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/device/core.h"

namespace carillon::device {
namespace {

constexpr Window any_time{TimePoint::min(), TimePoint::max()};

}  // namespace

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
      out.push_back({.kind = Command::Kind::gather, .executor = executor, .slot = slot});
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

// Streams of a later rank make way on these units: their runs end before the next kernel, and resume first.
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
  out.push_back(
      {.kind = Command::Kind::launch, .executor = executor(slot), .slot = slot, .kernel = action.next});
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
    out.push_back({.kind = Command::Kind::gather, .executor = executor(first.slot), .slot = first.slot});
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
  out.push_back({.kind = Command::Kind::evict, .executor = executor(slot), .slot = slot});
}

// The stream's run ends before its next kernel if it is to make way for the first action of the queue. While
// the run would be first itself it goes on: the stream would only resume it.
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

}  // namespace carillon::device
