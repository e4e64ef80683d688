#include "carillon/base/assert.h"
#include "carillon/device/core.h"

namespace carillon::device {

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

void Core::unpark(Slot slot) {
  Model& model = models_[actions_[slot].model.index()];
  Slot before = no_slot;
  for (Slot at = model.first_parked; at != slot; at = actions_[at].next_parked) before = at;
  (before == no_slot ? model.first_parked : actions_[before].next_parked) = actions_[slot].next_parked;
  if (model.last_parked == slot) model.last_parked = before;
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
    out.push_back({.kind = Command::Kind::copy, .slot = slot});
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

}  // namespace carillon::device
