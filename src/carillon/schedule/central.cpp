#include "carillon/schedule/central.h"

#include <algorithm>
#include <variant>

namespace carillon::schedule {

bool Central::ready(DeviceId device, TimePoint now) const {
  return fleet_.alive(device) && fleet_.pending(device) <= 1 && !fleet_.overdue(device, now) &&
         fleet_.free_at(device, now) <= now + fleet_.environment().dispatch;
}

TimePoint Central::ready_at(DeviceId device, TimePoint now) const {
  if (!fleet_.alive(device) || fleet_.pending(device) != 1 || fleet_.overdue(device, now))
    return TimePoint::max();
  // Without a way to go, the report of the end is as early as the clock.
  if (fleet_.environment().dispatch == Duration{0}) return TimePoint::max();
  const TimePoint at = fleet_.free_at(device, now) - fleet_.environment().dispatch;
  return at > now ? at : TimePoint::max();  // it is ready already, and had its turn
}

void Central::update_device(DeviceId device, TimePoint now) {
  ready_.erase(device);
  ready_at_.remove(device.value);
  if (!fleet_.alive(device) || fleet_.pending(device) > 1) return;
  const TimePoint at = fleet_.free_at(device, now) - fleet_.environment().dispatch;
  if (at <= now)
    ready_.insert(device);
  else
    ready_at_.set(device.value, at);
}

ActionId Central::send(DeviceId device, ModelId model, int index, std::vector<Request> requests,
                       Window window, TimePoint now, Actions& out) {
  const ActionId id = fleet_.send(device, model, index, std::move(requests), window, now, out);
  update_device(device, now);
  return id;
}

int Central::fitting(ModelId model, std::size_t requests, TimePoint start, TimePoint deadline) const {
  int high = fleet_.batch_index(model, requests);
  if (start + fleet_.span(model, high) <= deadline) return high;
  if (start + fleet_.span(model, 0) > deadline) return -1;
  int low = 0;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (start + fleet_.span(model, middle) <= deadline ? low : high) = middle;
  }
  return low;
}

TimePoint Central::decide(const Event& event, TimePoint now, Actions& out) {
  if (fleet_.take_doubt()) margins_changed();
  if (!std::visit([&](const auto& what) { return hear(what, now, out); }, event)) return asked_wake_;
  if (prepare_at_ <= now) prepare(now, out);
  if (fleet_.wake_at() <= now) fleet_.wake(now, out);
  for (; ready_at_.top_at() <= now; ready_at_.remove(ready_at_.top()))
    ready_.insert(DeviceId{ready_at_.top()});
  step(now, out);
  fleet_.load_for_waiting(now, out);
  const TimePoint wake = std::max(std::min(wake_at(now), fleet_.wake_at()), now + Duration{1});
  asked_wake_ = std::min(asked_wake_, wake);
  return asked_wake_;
}

bool Central::hear(const RequestArrived& arrival, TimePoint now, Actions& out) {
  const Request& request = arrival.request;
  if (!fleet_.served(request.model)) {
    book_.refuse(request.id, Reason::no_model, TimePoint::max(), out);
    return always_steps() && !arrival.more;
  }
  fleet_.arrived(request, now, out);
  asked(request, now);
  if (!fleet_.anywhere(request.model)) {
    const bool first = waiting_since(request.model) == TimePoint::max();
    if (first) fleet_.set_waiting(request.model, {now, 1});
    if (!fleet_.want(request.model, now, out)) {
      if (first) fleet_.set_waiting(request.model, {});
      book_.refuse(request.id, Reason::no_device, TimePoint::max(), out);
      return always_steps() && !arrival.more;
    }
  }
  enqueue(request, now);
  arrived(request.model);
  tell_waiting(request.model);
  look(request.model, now, out);
  return !arrival.more;
}

bool Central::hear(const RequestCancelled& gone, TimePoint now, Actions& out) {
  book_.close(gone.request);
  const bool waited = remove(gone.request, gone.model);
  if (!waited) fleet_.forget(gone.request, gone.model);
  tell_waiting(gone.model);
  if (waited) look(gone.model, now, out);
  return true;
}

bool Central::hear(const ActionDone& done, TimePoint now, Actions& out) {
  if (reported_otherwise(done, now)) return true;
  auto report = fleet_.finish(done, now, out);
  if (report.unloadable)
    for (const ModelId each : fleet_.family(*report.unloadable))
      refuse_all(each, Reason::device_failed, now, out);
  if (report.margins) margins_changed();
  if (report.loaded) loaded(report.loaded->first, now);
  if (!report.flight) return true;
  if (done.status != ActionStatus::success)
    give_back(*report.flight, Book::failure_of(done.status), now, out);
  else
    for (const Request& request : report.flight->requests) book_.close(request.id);
  tell_waiting(report.flight->model);
  update_device(report.flight->device, now);
  reported(*report.flight, done, now);
  return true;
}

bool Central::hear(const DeviceChanged& change, TimePoint now, Actions& out) {
  auto lost = fleet_.device_changed(change, now, out);
  flights_changed();
  device_changed(change.device, now);
  update_device(change.device, now);
  for (Fleet::Flight& flight : lost) give_back(flight, Book::Failure::lost, now, out);
  for (std::size_t i = 0; i < fleet_.model_count(); ++i) {
    const ModelId model{static_cast<std::uint32_t>(i)};
    tell_waiting(model);
    if (!waits(model)) continue;
    if (fleet_.want(model, now, out))
      look(model, now, out);
    else
      refuse_all(model, Reason::no_device, now, out);
  }
  return true;
}

bool Central::hear(const Wake&, TimePoint, Actions&) {
  asked_wake_ = TimePoint::max();
  return true;
}

bool Central::hear(const RequestProfiled& sample, TimePoint now, Actions&) {
  profiled(sample, now);
  return true;
}

bool Central::hear(const ModelChanged& change, TimePoint now, Actions& out) {
  if (change.model.index() != fleet_.model_count()) {
    model_changed(change, now, out);
    return true;
  }
  fleet_.model_changed(change, now, out);
  add_model(*change.info);
  return false;
}

bool Central::hear(const TimesChanged& times, TimePoint now, Actions& out) {
  if (!fleet_.served(times.model)) return always_steps();
  fleet_.times_changed(times, now);
  times_changed(times.model, now);
  tell_waiting(times.model);
  look(times.model, now, out);
  return true;
}

// What waits is refused where its model went, else it waits for the new version.
void Central::model_changed(const ModelChanged& change, TimePoint now, Actions& out) {
  const ModelId model = change.model;
  std::vector<Request> waiting;
  take_all(model, waiting);
  fleet_.model_changed(change, now, out);
  flights_changed();
  if (change.info) add_model(*change.info);
  const bool possible =
      change.info && (waiting.empty() || fleet_.anywhere(model) || fleet_.want(model, now, out));
  for (const Request& request : waiting) {
    if (possible) {
      enqueue(request, now);
      continue;
    }
    book_.refuse(request.id, fleet_.why_not(model), TimePoint::max(), out);
  }
  tell_waiting(model);
  look(model, now, out);
}

bool Central::refuse(const Request& request, Duration alone, TimePoint now, Actions& out) {
  const TimePoint would_finish = now + alone;
  const bool late = would_finish > request.deadline;
  if (late) fleet_.doubt(request, now);
  book_.refuse(request.id, Book::reason_of(request, alone), would_finish, out);
  return late;
}

void Central::refuse_all(ModelId model, Reason reason, TimePoint now, Actions& out) {
  taken_.clear();
  take_all(model, taken_);
  for (const Request& request : taken_) book_.refuse(request.id, reason, TimePoint::max(), out);
  tell_waiting(model);
  look(model, now, out);
}

void Central::give_back(Fleet::Flight& flight, Book::Failure failure, TimePoint now, Actions& out) {
  const ModelId model = flight.model;
  tell_waiting(model, now);
  const bool possible = fleet_.anywhere(model) || fleet_.want(model, now, out);
  for (const Request& request : flight.requests) {
    if (possible && book_.try_again(request.id, failure))
      enqueue(request, now);
    else
      book_.refuse(request.id, possible ? Book::reason_of(failure) : fleet_.why_not(model), TimePoint::max(),
                   out);
  }
  look(model, now, out);
}

void Queued::list(ModelId model) {
  const auto& queue = queues_[model.index()];
  if (queue.empty())
    expiry_.remove(model.value);
  else
    expiry_.set(model.value, queue.front().deadline);
  queue_changed(model);
  const TimePoint since = waiting_since(model);
  TimePoint& listed = since_[model.index()];
  if (since == listed) return;
  if (listed != TimePoint::max()) waiting_.erase({listed, model});
  if (since != TimePoint::max()) waiting_.insert({since, model});
  listed = since;
}

void Queued::enqueue(const Request& request, TimePoint) {
  queues_[request.model.index()].push(request);
  list(request.model);
}

bool Queued::remove(RequestId id, ModelId model) {
  const bool there = queues_[model.index()].remove(id);
  list(model);
  return there;
}

void Queued::take_all(ModelId model, std::vector<Request>& taken) {
  auto& queue = queues_[model.index()];
  taken.insert(taken.end(), queue.begin(), queue.end());
  queue.clear();
  list(model);
}

TimePoint Queued::waiting_since(ModelId model) const {
  const auto& queue = queues_[model.index()];
  return queue.empty() ? TimePoint::max() : queue.front().arrival;
}

std::vector<Request> Queued::pop(ModelId model, std::size_t n) {
  auto& queue = queues_[model.index()];
  std::vector<Request> taken(queue.begin(), queue.begin() + n);
  queue.pop_front(n);
  list(model);
  tell_waiting(model);
  return taken;
}

void Queued::refuse_head(ModelId model, TimePoint now, Actions& out) {
  for (const Request& request : pop(model, 1)) refuse(request, now, out);
}

void Queued::expire(TimePoint now, Actions& out) {
  while (expiry_.top_at() <= now) refuse_head(ModelId{expiry_.top()}, now, out);
}

ActionId Queued::send_first(DeviceId device, ModelId model, int index, TimePoint latest, TimePoint now,
                            Actions& out) {
  auto requests = pop(model, static_cast<std::size_t>(fleet_.batch_size(model, index)));
  const TimePoint earliest = std::max(now, start_on(device, now) - fleet_.environment().dispatch);
  return send(device, model, index, std::move(requests), {earliest, std::max(latest, earliest)}, now, out);
}

TimePoint Queued::wake_at(TimePoint) const {
  return expiry_.empty() ? TimePoint::max() : std::min(expiry_.top_at(), next_ready_at());
}

}  // namespace carillon::schedule
