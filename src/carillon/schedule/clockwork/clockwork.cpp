#include "carillon/schedule/clockwork/clockwork.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

// capacity_g of the load priority. Demands are in parts of it, so that any number would do.
constexpr Duration capacity = 100ms;

}  // namespace

Clockwork::Clockwork(const Environment& environment, const ClockworkOptions& options)
    : options_(options),
      preempts_(environment.preemption == Preemption::deadline),
      state_({.preemptions = options.preemptions}, environment),
      book_(options.attempts, options.late_attempts),
      shares_(options.rate_window,
              [this](ModelId model, double rate, Duration slo) { return devices_for(model, rate, slo); }),
      needed_(capacity) {
  CARILLON_ASSERT(options.ahead >= Duration{0} && options.longest_ahead >= Duration{0} &&
                  options.patience > Duration{0} && environment.dispatch >= Duration{0} &&
                  environment.answer >= Duration{0} && environment.overrun >= 0);
  CARILLON_ASSERT(options.patient_share > 0 && options.patient_share <= 1);
}

void Clockwork::model_changed(const ModelChanged& event, TimePoint now, Actions& out) {
  const ModelId model = event.model;
  if (model.index() < models_.size()) return renew_model(event, now, out);
  state_.model_changed(event);
  Model& m = models_.emplace_back();
  m.queues[patient_rank] = ModelQueue(false);
  m.wide = event.info->pages == 0;
  shares_.add_model();
  needed_.add_model();
  adopt_places(model);
}

// All its copies are lost. What waits is refused where it went, else it waits for the new version.
void Clockwork::renew_model(const ModelChanged& event, TimePoint now, Actions& out) {
  const ModelId model = event.model;
  Model& m = models_[model.index()];
  const std::vector<RequestId> waiting = take_waiting(model);
  while (!m.places.empty()) {
    if (state_.home(model) == model)
      displace(model, m.places.back().device, now);
    else
      take_place(model, m.places.back().device, now);
  }
  set_missed(model, TimePoint::max());
  m.room_on = no_device;
  m.shortest_version = unknown_version;
  state_.model_changed(event);
  set_wide(model, everywhere(model));
  adopt_places(model);
  for (const RequestId id : waiting) {
    OpenRequest& open = *requests_.find(id);
    if (!state_.can_hold(model)) {
      requests_.erase(id);
      book_.refuse(id, event.info ? Reason::no_device : Reason::no_model, TimePoint::max(), out);
      continue;
    }
    open.demand = demand_of(open.request);
    enqueue(open);
  }
  for (int rank = 0; rank < ranks; ++rank) update_queue(model, rank);
  if (!waiting.empty() && state_.can_hold(model)) offer(model, now, out);
}

// What waits is seen anew: whether it is in time, what it asks of devices, and with whom it shares a batch.
void Clockwork::times_changed(const TimesChanged& event, TimePoint now, Actions& out) {
  const ModelId model = event.model;
  if (!state_.served(model)) return;
  const std::vector<RequestId> waiting = take_waiting(model);
  state_.times_changed(event, now);
  for (const RequestId id : waiting) {
    OpenRequest& open = *requests_.find(id);
    open.demand = demand_of(open.request);
    enqueue(open);
  }
  for (int rank = 0; rank < ranks; ++rank) update_queue(model, rank);
  if (!waiting.empty()) offer(model, now, out);
}

// Takes all that waits for the model out of where it waits.
std::vector<RequestId> Clockwork::take_waiting(ModelId model) {
  std::vector<RequestId> waiting;
  for (int rank = 0; rank < ranks; ++rank) {
    ModelQueue& queue = models_[model.index()].queues[static_cast<std::size_t>(rank)];
    while (!queue.empty()) {
      waiting.push_back(queue.head().id);
      queue.erase(queue.head());
      add_demand(model, -requests_.find(waiting.back())->demand);
    }
    update_queue(model, rank);
  }
  for (const Request& request : stragglers_.take(model)) waiting.push_back(request.id);
  return waiting;
}

// The request stands in its queue from now on; the queue is to be updated.
void Clockwork::enqueue(OpenRequest& open) {
  const Request& r = open.request;
  const int rank = rank_of(r);
  open.waiting = true;
  models_[r.model.index()].queues[static_cast<std::size_t>(rank)].insert(
      {has_deadline(r) ? r.deadline : r.arrival, r.priority, open.sequence, r.id});
  add_demand(r.model, open.demand);
}

TimePoint Clockwork::decide(const Event& event, TimePoint now, Actions& out) {
  struct Visitor {
    Clockwork& self;
    TimePoint now;
    Actions& out;
    void operator()(const RequestArrived& e) const { self.arrived(e, now, out); }
    void operator()(const AllArrived&) const {
      for (const ModelId model : std::exchange(self.gathered_, {})) self.offer(model, now, out);
    }
    void operator()(const RequestCancelled& e) const { self.cancelled(e.request); }
    void operator()(const ActionDone& e) const { self.done(e, now, out); }
    void operator()(const DeviceChanged& e) const { self.changed(e, now, out); }
    void operator()(const Wake&) const { self.asked_wake_ = TimePoint::max(); }
    void operator()(const RequestProfiled&) const {}
    void operator()(const ModelChanged& e) const { self.model_changed(e, now, out); }
    void operator()(const TimesChanged& e) const { self.times_changed(e, now, out); }
  };
  std::visit(Visitor{*this, now, out}, event);
  if (const auto* arrival = std::get_if<RequestArrived>(&event); arrival && arrival->more) return asked_wake_;
  fill_due(now, out);
  // What expires may be a reason to load something.
  std::size_t missed = 0;
  do {
    run_loads(now, out);
    missed = missed_.size();
    expire(now, out);
    expire_stragglers(now, out);
  } while (missed_.size() > missed);
  state_.unload_leaving(out);
  // A wake that comes too early does no harm, so only a nearer time is worth asking for.
  asked_wake_ = std::min(asked_wake_, next_wake(now));
  return asked_wake_;
}

void Clockwork::arrived(const RequestArrived& arrival, TimePoint now, Actions& out) {
  const Request& request = arrival.request;
  CARILLON_ASSERT(request.model.index() < models_.size());
  if (!state_.can_hold(request.model)) {
    const Reason reason = state_.served(request.model) ? Reason::no_device : Reason::no_model;
    book_.refuse(request.id, reason, TimePoint::max(), out);
    return;
  }
  if (has_deadline(request))
    shares_.asked(request.model, request.deadline - request.arrival, state_.alive_count(), now);
  bool straggles = false;
  if (has_deadline(request) && !in_time(request.model, request.deadline, now) &&
      !could_overtake(request, now)) {
    TimePoint finish = would_finish(request.model, now);
    straggles = finish > request.deadline && usually_in_time(request, now);
    if (finish > request.deadline && !straggles) {
      // A deadline may lie anywhere on the timeline.
      const Duration left = std::min(std::max(request.deadline, now), saturating_add(now, 1h)) - now;
      const ledger::Doubted doubted = state_.doubt(request.model, left, now);
      if (doubted.margins) update_queues();
      if (doubted.any()) finish = would_finish(request.model, now);
    }
    if (finish > request.deadline && !straggles) {
      missed(request, now, out);
      book_.refuse(request.id, Reason::cannot_finish, finish, out);
      return;
    }
  }
  OpenRequest open{.request = request, .sequence = next_sequence_++};
  if (straggles) {
    straggle(open, *last_usual_start(request));
  } else {
    open.demand = demand_of(request);
    enqueue(open);
    update_queue(request.model, rank_of(request));
  }
  CARILLON_ASSERT(requests_.insert(request.id, open));
  if (arrival.more)
    gathered_.insert(request.model);
  else
    offer(request.model, now, out);
}

// The share of a device that it takes to have the request in time: its work over the time that it can wait,
// in parts of the capacity. No deadline, or one far away, is `patience`. None of a model that needs no LOAD.
Duration Clockwork::demand_of(const Request& request) const {
  if (everywhere(request.model)) return Duration{0};
  const Duration exec = state_.model(request.model).batches.front().exec;
  const Duration span = state_.margins().least().span(exec), longest = std::max(exec, options_.patience);
  const TimePoint due = std::min(request.deadline, saturating_add(request.arrival, span + longest));
  const Duration wait = std::clamp(due - request.arrival - span, exec, longest);
  return std::max(from_ns(static_cast<double>(exec.count()) * (to_seconds(capacity) / to_seconds(wait))),
                  Duration{1});
}

void Clockwork::cancelled(RequestId id) {
  book_.close(id);
  const auto open = requests_.erase(id);
  if (!open || !open->waiting || stragglers_.erase(id)) return;
  const Request& r = open->request;
  const int rank = rank_of(r);
  CARILLON_ASSERT(models_[r.model.index()].queues[static_cast<std::size_t>(rank)].erase(
      {has_deadline(r) ? r.deadline : r.arrival, r.priority, open->sequence, id}));
  add_demand(r.model, -open->demand);
  update_queue(r.model, rank);
}

void Clockwork::done(const ActionDone& event, TimePoint now, Actions& out) {
  const auto finished = state_.finish(event, now);
  if (!finished) return;
  const ModelId model = finished->model;
  Model& m = models_[model.index()];
  switch (finished->kind) {
    case ActionKind::infer: {
      if (event.status == ActionStatus::success) {
        for (const RequestId id : finished->requests) {
          book_.close(id);
          if (const auto open = requests_.erase(id); open && has_deadline(open->request))
            shares_.answered(model);
        }
        if (finished->margins) update_queues();
      } else {
        give_back(*finished, event.status, now, out);
      }
      update_end(finished->device);
      // Estimates, and so bounds, have changed; or the worker told that the model is not there.
      if (state_.residence(finished->device, model) == Residence::absent)
        displace(model, finished->device, now);
      else
        update_bounds(model, finished->device);
      if (event.status != ActionStatus::success) offer(model, now, out);
      break;
    }
    case ActionKind::load:
      m.load_late = event.status == ActionStatus::too_late;
      if (finished->outdated) break;
      if (event.status != ActionStatus::success) {
        displace(model, finished->device, now);
        if (event.status == ActionStatus::too_late) {
          // Sent again at once, it would come too late again where the device's clock is ahead.
          state_.put_off_load(finished->device, model, saturating_add(now, options_.load_pause / 10));
        } else {
          state_.load_failed(finished->device, model, options_.load_pause, options_.load_attempts, now);
          if (m.places.empty() && state_.loads_fail_everywhere(model, options_.load_attempts))
            for (const ModelId each : state_.family(model)) refuse_all(each, Reason::device_failed, now, out);
        }
      }
      break;
    case ActionKind::unload:
      break;
  }
  fill(finished->device, now, out);
}

// Requests of an INFER that did not succeed (none as status: its device went) wait again, or are refused.
void Clockwork::give_back(const SentAction& infer, std::optional<ActionStatus> status, TimePoint now,
                          Actions& out) {
  // The window of what finds no weights was in time for the LOAD; the LOAD may not have been.
  const bool late = status == ActionStatus::too_late ||
                    (status == ActionStatus::not_loaded && models_[infer.model.index()].load_late);
  int touched = 0;  // ranks, as bits
  for (const RequestId id : infer.requests) {
    OpenRequest* open = requests_.find(id);
    if (open == nullptr) continue;  // cancelled meanwhile
    const Request& r = open->request;
    const bool served = state_.served(infer.model);
    const TimePoint finish = served ? would_finish(infer.model, now) : TimePoint::max();
    const bool hopeless = finish == TimePoint::max() || (has_deadline(r) && finish > r.deadline);
    // A device whose clock is ahead refuses every window, at once and for ever.
    const Book::Failure failure = !status                   ? Book::Failure::lost
                                  : late && has_deadline(r) ? Book::Failure::late
                                                            : Book::Failure::failed;
    if (hopeless || !book_.try_again(id, failure)) {
      requests_.erase(id);
      const Reason reason = !served ? Reason::no_model : late ? Reason::rejected_late : Reason::device_failed;
      book_.refuse(id, reason, finish, out);
      continue;
    }
    enqueue(*open);
    touched |= 1 << rank_of(r);
  }
  for (int rank = 0; rank < ranks; ++rank)
    if ((touched & (1 << rank)) != 0) update_queue(infer.model, rank);
}

void Clockwork::changed(const DeviceChanged& event, TimePoint now, Actions& out) {
  if (event.device.index() == ports_.size()) {
    ports_.emplace_back();
    needed_.add_device();
  }
  const std::vector<SentAction> lost = state_.device_changed(event, now);
  for (std::size_t i = 0; i < models_.size(); ++i)
    displace(ModelId{static_cast<std::uint32_t>(i)}, event.device, now);
  for (const ModelId model : event.held) place(model, event.device);
  for (Model& m : models_) m.shortest_version = unknown_version;
  const std::size_t alive = state_.alive_count();
  needed_.set_alive(alive);
  update_end(event.device);
  set_wake(event.device, TimePoint::max());
  ports_[event.device.index()].patient_exec_at = ports_[event.device.index()].patient_load_at =
      TimePoint::min();
  for (const SentAction& infer : lost) give_back(infer, std::nullopt, now, out);
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const ModelId model{static_cast<std::uint32_t>(i)};
    if (!waiting(model)) continue;
    for (int rank = 0; rank < ranks; ++rank) update_queue(model, rank);
    if (state_.can_hold(model))
      offer(model, now, out);
    else
      refuse_all(model, Reason::no_device, now, out);
  }
}

void Clockwork::expire(TimePoint now, Actions& out) {
  while (expiries_.top_at() <= now) {
    const ModelId model{expiries_.top()};
    ModelQueue& queue = models_[model.index()].queues[urgent_rank];
    // Estimates may have fallen since the expiry was listed.
    if (last_start(model, queue.head().due) > now) {
      update_queue(model, urgent_rank);
      continue;
    }
    const Waiting head = queue.head();
    queue.erase(head);
    OpenRequest& waits = *requests_.find(head.id);
    add_demand(model, -waits.demand);
    update_queue(model, urgent_rank);
    if (usually_in_time(waits.request, now)) {
      straggle(waits, *last_usual_start(waits.request));
      offer(model, now, out);
      continue;
    }
    refuse_late(waits.request, now, out);
  }
}

// One that was admitted, and has waited for too long.
void Clockwork::refuse_late(Request request, TimePoint now, Actions& out) {
  requests_.erase(request.id);
  missed(request, now, out);
  // It may be that one could still be squeezed in if it went before all else: it is too late all the same.
  book_.refuse(request.id, Reason::deadline_passed,
               std::max(would_finish(request.model, now), saturating_add(request.deadline, Duration{1})),
               out);
}

void Clockwork::refuse_all(ModelId model, Reason reason, TimePoint now, Actions& out) {
  for (int rank = 0; rank < ranks; ++rank) {
    ModelQueue& queue = models_[model.index()].queues[static_cast<std::size_t>(rank)];
    while (!queue.empty()) {
      const Waiting head = queue.head();
      queue.erase(head);
      add_demand(model, -requests_.erase(head.id)->demand);
      book_.refuse(head.id, reason, reason == Reason::no_device ? TimePoint::max() : would_finish(model, now),
                   out);
    }
    update_queue(model, rank);
  }
  for (const Request& request : stragglers_.take(model)) {
    requests_.erase(request.id);
    book_.refuse(request.id, reason,
                 reason == Reason::no_device ? TimePoint::max() : would_finish(model, now), out);
  }
}

TimePoint Clockwork::next_wake(TimePoint now) const {
  TimePoint at = std::min({load_wake_, expiries_.top_at(), wakes_.top_at(), stragglers_.next_end()});
  if (wide_waiting())
    if (const auto next = by_end_.upper_bound(room_seen_); next != by_end_.end())
      at = std::min(at, saturating_add(next->first, -ahead()));
  CARILLON_ASSERT(at > now);
  return at;
}

}  // namespace carillon::schedule
