#include "carillon/base/assert.h"
#include "carillon/device/core.h"

namespace carillon::device {

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
    out.push_back({.kind = Command::Kind::unmap, .slot = slot});
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
  out.push_back({.kind = Command::Kind::gather, .executor = input_executor, .slot = slot});
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

TimePoint Core::turn_output(TimePoint now, Commands& out) {
  while (scattering_ < limits_.scatters) {
    const Decision decision = output_.next(now);
    if (decision.kind == Decision::Kind::idle) break;
    const Slot slot = decision.entry.slot;
    actions_[slot].state = State::scattering;
    ++scattering_;
    ++in_hand_;
    out.push_back({.kind = Command::Kind::scatter, .slot = slot});
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

}  // namespace carillon::device
