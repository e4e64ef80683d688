#include "carillon/schedule/fcfs/fcfs.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::schedule {

TimePoint Fcfs::decide(const Event& event, TimePoint now, Actions& out) {
  struct Visitor {
    Fcfs& self;
    TimePoint now;
    Actions& out;
    void operator()(const RequestArrived& e) const {
      const ModelId model = e.request.model;
      CARILLON_ASSERT(model.index() < self.models_.size());
      if (!self.state_.can_hold(model)) {
        const Reason reason = self.state_.served(model) ? Reason::no_device : Reason::no_model;
        self.book_.refuse(e.request.id, reason, TimePoint::max(), out);
        return;
      }
      const Sequence sequence = self.next_sequence_++;
      CARILLON_ASSERT(self.requests_.insert(e.request.id, {.request = e.request, .sequence = sequence}));
      self.models_[model.index()].waiting.insert({sequence, e.request.id});
      self.list(model);
      if (e.more)
        self.gathered_.insert(model);
      else
        self.offer(model, now, out);
    }
    void operator()(const AllArrived&) const {
      for (const ModelId model : std::exchange(self.gathered_, {})) self.offer(model, now, out);
    }
    void operator()(const RequestCancelled& e) const {
      self.book_.close(e.request);
      const auto open = self.requests_.erase(e.request);
      if (!open || !open->waiting) return;
      self.models_[open->request.model.index()].waiting.erase({open->sequence, e.request});
      self.list(open->request.model);
    }
    void operator()(const ActionDone& e) const { self.done(e, now, out); }
    void operator()(const DeviceChanged& e) const { self.changed(e, now, out); }
    void operator()(const Wake&) const { self.asked_wake_ = TimePoint::max(); }
    void operator()(const RequestProfiled&) const {}
    void operator()(const ModelChanged& e) const { self.model_changed(e, now, out); }
    void operator()(const TimesChanged& e) const { self.state_.times_changed(e, now); }
  };
  std::visit(Visitor{*this, now, out}, event);
  if (const auto* arrival = std::get_if<RequestArrived>(&event); arrival && arrival->more) return asked_wake_;
  run_loads(now, out);
  state_.unload_leaving(out);
  asked_wake_ = std::min(asked_wake_, wake_);
  return asked_wake_;
}

void Fcfs::model_changed(const ModelChanged& event, TimePoint now, Actions& out) {
  if (event.model.index() == models_.size()) {
    state_.model_changed(event);
    Model model;
    if (const ModelId home = state_.home(event.model); home != event.model)
      model.places = models_[home.index()].places;
    models_.push_back(std::move(model));
    return;
  }
  unlist(event.model);
  const bool at_home = state_.home(event.model) == event.model;
  if (at_home)  // else its copies are another's
    for (const ModelId each : state_.family(event.model)) {
      unlist(each);
      models_[each.index()].places.clear();
    }
  state_.model_changed(event);
  if (at_home)
    for (const ModelId each : state_.family(event.model))
      if (each != event.model) list(each);
  if (!event.info) return refuse_all(event.model, Reason::no_model, out);
  if (!state_.can_hold(event.model)) return refuse_all(event.model, Reason::no_device, out);
  list(event.model);
  offer(event.model, now, out);
}

void Fcfs::done(const ActionDone& event, TimePoint now, Actions& out) {
  const auto finished = state_.finish(event, now);
  if (!finished) return;
  update_room(finished->device);
  const ModelId model = finished->model;
  Model& m = models_[model.index()];
  switch (finished->kind) {
    case ActionKind::infer:
      if (event.status == ActionStatus::success) {
        for (const RequestId id : finished->requests) {
          book_.close(id);
          requests_.erase(id);
        }
        break;
      }
      give_back(*finished, Book::failure_of(event.status), out);
      if (state_.residence(finished->device, model) == Residence::absent) displace(model, finished->device);
      offer(model, now, out);
      break;
    case ActionKind::load:
      if (finished->outdated) break;
      if (event.status == ActionStatus::success) break;
      displace(model, finished->device);
      state_.load_failed(finished->device, model, options_.load_pause, options_.load_attempts, now);
      if (m.places.empty() && state_.loads_fail_everywhere(model, options_.load_attempts))
        for (const ModelId each : state_.family(model)) refuse_all(each, Reason::device_failed, out);
      break;
    case ActionKind::unload:
      break;
  }
  fill(finished->device, now, out);
}

void Fcfs::give_back(const SentAction& infer, Book::Failure failure, Actions& out) {
  for (const RequestId id : infer.requests) {
    OpenRequest* open = requests_.find(id);
    if (open == nullptr) continue;  // cancelled meanwhile
    // Of a version that the model has no more: the one that it has may fit nowhere.
    const bool possible = !infer.outdated || state_.can_hold(infer.model);
    if (!possible || !book_.try_again(id, failure)) {
      const Reason reason = !state_.served(infer.model) ? Reason::no_model
                            : possible                  ? Book::reason_of(failure)
                                                        : Reason::no_device;
      requests_.erase(id);
      book_.refuse(id, reason, TimePoint::max(), out);
      continue;
    }
    open->waiting = true;
    models_[infer.model.index()].waiting.insert({open->sequence, id});
  }
  list(infer.model);
}

void Fcfs::changed(const DeviceChanged& event, TimePoint now, Actions& out) {
  if (event.device.index() == ready_.size()) {
    ready_.emplace_back();
    listed_room_.emplace_back();
  }
  const auto lost = state_.device_changed(event, now);
  update_room(event.device);
  for (std::size_t i = 0; i < models_.size(); ++i)
    displace(ModelId{static_cast<std::uint32_t>(i)}, event.device);
  for (const ModelId model : event.held) place(model, event.device);
  for (const SentAction& infer : lost) give_back(infer, Book::Failure::lost, out);
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const ModelId model{static_cast<std::uint32_t>(i)};
    if (!models_[i].waiting.empty() && !state_.can_hold(model)) refuse_all(model, Reason::no_device, out);
  }
  // What was given back may be loaded on devices that are idle.
  for (std::size_t i = 0; i < ready_.size(); ++i) fill(DeviceId{static_cast<std::uint32_t>(i)}, now, out);
}

// A model has something new to run.
void Fcfs::offer(ModelId model, TimePoint now, Actions& out) {
  for (const DeviceId device : models_[model.index()].places) fill(device, now, out);
  if (!everywhere(model)) return;
  while (!room_.empty() && !everywhere_.empty()) fill(room_.begin()->second, now, out);
}

void Fcfs::update_room(DeviceId device) {
  const std::size_t pending = state_.exec(device).pending().size();
  std::optional<std::size_t>& listed = listed_room_[device.index()];
  if (listed) room_.erase({*listed, device});
  listed.reset();
  if (!state_.alive(device) || pending >= options_.outstanding) return;
  room_.insert({pending, device});
  listed = pending;
}

void Fcfs::refuse_all(ModelId model, Reason reason, Actions& out) {
  for (const auto& [sequence, id] : models_[model.index()].waiting) {
    requests_.erase(id);
    book_.refuse(id, reason, TimePoint::max(), out);
  }
  models_[model.index()].waiting.clear();
  list(model);
}

void Fcfs::unlist(ModelId model) {
  Model& m = models_[model.index()];
  if (m.listed == no_sequence) return;
  everywhere_.erase({m.listed, model});
  waiting_.erase({m.listed, model});
  homeless_.erase({m.listed, model});
  for (const DeviceId device : m.places) ready_[device.index()].erase({m.listed, model});
  m.listed = no_sequence;
}

void Fcfs::list(ModelId model) {
  Model& m = models_[model.index()];
  const bool waits = !m.waiting.empty() && state_.served(model);
  const Sequence oldest = waits ? m.waiting.begin()->first : no_sequence;
  if (oldest == m.listed) return;
  unlist(model);
  m.listed = oldest;
  if (oldest == no_sequence) return;
  if (everywhere(model)) {
    everywhere_.insert({oldest, model});
    return;
  }
  waiting_.insert({oldest, model});
  if (m.places.empty()) homeless_.insert({oldest, model});
  for (const DeviceId device : m.places) ready_[device.index()].insert({oldest, model});
}

// So it is of all that run with its weights.
void Fcfs::place(ModelId model, DeviceId device) {
  for (const ModelId each : state_.family(model)) {
    unlist(each);
    models_[each.index()].places.push_back(device);
    list(each);
  }
}

void Fcfs::displace(ModelId model, DeviceId device) {
  for (const ModelId each : state_.family(model)) {
    auto& places = models_[each.index()].places;
    const auto found = std::find(places.begin(), places.end(), device);
    if (found == places.end()) return;
    unlist(each);
    places.erase(found);
    list(each);
  }
}

Fcfs::Sequence Fcfs::oldest(ModelId model) const {
  Sequence out = no_sequence;
  for (const ModelId each : state_.family(model)) out = std::min(out, models_[each.index()].listed);
  return out;
}

void Fcfs::fill(DeviceId device, TimePoint now, Actions& out) {
  if (!state_.alive(device)) return;
  while (state_.exec(device).pending().size() < options_.outstanding) {
    const Order& ready = ready_[device.index()];
    auto next = std::find_if(ready.begin(), ready.end(), [&](const auto& entry) {
      return state_.residence(device, entry.second) == Residence::loaded;
    });
    if (!everywhere_.empty() && (next == ready.end() || *everywhere_.begin() < *next))
      next = everywhere_.begin();
    else if (next == ready.end())
      return;
    const ModelId model = next->second;
    Model& m = models_[model.index()];
    const auto& batches = state_.model(model).batches;
    std::size_t index = batches.size() - 1;
    while (static_cast<std::size_t>(batches[index].batch) > m.waiting.size()) --index;
    std::vector<RequestId> members;
    for (int i = 0; i < batches[index].batch; ++i) {
      members.push_back(m.waiting.begin()->second);
      m.waiting.erase(m.waiting.begin());
      requests_.find(members.back())->waiting = false;
    }
    list(model);
    const Duration expected = state_.exec_estimate(device, model, static_cast<int>(index));
    const ActionId id =
        state_.begin_infer(device, model, static_cast<int>(index), members, now, expected, now);
    update_room(device);
    out.emplace_back(Infer{id, device, model, std::move(members), {now, TimePoint::max()}, expected});
  }
}

void Fcfs::run_loads(TimePoint now, Actions& out) {
  wake_ = TimePoint::max();
  if (waiting_.empty()) return;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    if (!state_.alive(device) || !state_.load(device).idle()) continue;
    const auto load_first = [&](const Order& order, bool may_evict) {
      for (const auto& [sequence, model] : order)
        if (state_.residence(device, model) == Residence::absent &&
            try_load(device, state_.home(model), may_evict, now, out))
          return true;
      return false;
    };
    if (!homeless_.empty()) {
      load_first(homeless_, true);
    } else if (state_.exec(device).idle() && ready_[i].empty()) {
      load_first(waiting_, false);
    }
  }
}

// The LOAD does not follow by itself where it needs room first: it is to be asked for again.
bool Fcfs::load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) {
  const DeviceId device = wanted.device;
  const ModelId model = state_.home(wanted.model);
  if (!state_.alive(device) || everywhere(model) || !state_.load(device).idle() ||
      state_.residence(device, model) != Residence::absent)
    return true;
  if (state_.free_pages(device) >= state_.model(model).pages) {
    (void)try_load(device, model, false, now, out);
    return true;
  }
  const auto victims = state_.room_ahead(wanted);
  if (!victims) return true;
  for (const ModelId victim : *victims) {
    displace(victim, device);
    out.emplace_back(Unload{state_.begin_unload(device, victim), device, victim});
  }
  return true;
}

// True where a LOAD was sent, or will be as soon as evictions are reported.
bool Fcfs::try_load(DeviceId device, ModelId model, bool may_evict, TimePoint now, Actions& out) {
  const std::uint64_t pages = state_.model(model).pages;
  if (pages > state_.total_pages(device) || !state_.served(model)) return false;
  if (const TimePoint due = state_.load_not_before(device, model); due > now) {
    wake_ = std::min(wake_, due);
    return false;
  }
  if (state_.free_pages(device) < pages) {
    std::uint64_t room = state_.free_pages(device) + state_.freeing_pages(device);
    if (room >= pages) return true;
    if (!may_evict) return false;
    std::vector<ModelId> victims;
    state_.visit_lru(device, [&](ModelId candidate, TimePoint) {
      if (oldest(candidate) < oldest(model)) return true;  // somebody older waits for it
      victims.push_back(candidate);
      room += state_.model(candidate).pages;
      return room < pages;
    });
    if (room < pages) return false;
    for (const ModelId victim : victims) {
      displace(victim, device);
      out.emplace_back(Unload{state_.begin_unload(device, victim), device, victim});
    }
    return true;
  }
  const Duration expected = state_.load_estimate(device, model);
  out.emplace_back(Load{state_.begin_load(device, model, now, expected, now),
                        device,
                        model,
                        {now, TimePoint::max()},
                        expected});
  place(model, device);
  return true;
}

}  // namespace carillon::schedule
