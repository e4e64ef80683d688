#include "carillon/device/core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::device {

Core::Core(const Limits& limits)
    : limits_(limits),
      pages_(limits.pages, limits.page_group),
      io_(limits.io),
      infers_by_id_(std::min(limits.queue, limits.reserved)),
      load_(limits.queue + limits.loads_beside, limits.reserved),
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
  const bool infer = kind == ActionKind::infer;
  std::size_t& open = infer ? infers_open_ : loads_open_;
  if (open == limits_.queue + (infer ? 0 : limits_.loads_beside)) return no_slot;
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
  out.push_back({.kind = Command::Kind::report, .status = status, .failure = failure, .slot = slot});
  free_slot(slot);
  if (action.kind == ActionKind::load && known(action.model)) end_wait(action.model, out);
}

void Core::wake(Executor executor, Commands& out) {
  out.push_back({.kind = Command::Kind::wake, .executor = executor});
}

Entry Core::entry(Slot slot) const {
  const Action& action = actions_[slot];
  return {.order = action.window.earliest, .id = action.id, .window = action.window, .slot = slot};
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

bool Core::cancel(ActionId id, TimePoint now, Commands& out) {
  if (const auto infer = infers_by_id_.find(id.value)) {
    if (actions_[*infer].begun) return false;
    evict(id, After::drop, now, now, out);
    return true;
  }
  for (Slot slot = 1; slot < actions_.size(); slot += 2) {
    const Action& action = actions_[slot];
    if (action.id != id || action.kind != ActionKind::load) continue;
    if (action.state == State::load_queued)
      load_.remove(slot);
    else if (action.state == State::parked)
      unpark(slot);
    else
      continue;
    report(slot, ActionStatus::stopped, out);
    return true;
  }
  return false;
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
