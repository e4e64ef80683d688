#include "carillon/explain/decisions.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace carillon::explain {

using schedule::ActionKind;
using schedule::ActionStatus;

namespace {

// So long before a request's time actions are looked for that reach into it.
constexpr Duration reach = std::chrono::seconds{10};

}  // namespace

void Decisions::add(const schedule::Event& event, TimePoint now, const schedule::Actions& actions) {
  last_ = std::max(last_, now);
  hear(event, now);
  for (const schedule::Action& action : actions) carry_out(action, now);
}

const RequestFacts* Decisions::find(std::uint64_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &requests_[found->second];
}

Decisions::Device& Decisions::device(DeviceId id) {
  if (id.index() >= devices_.size()) devices_.resize(id.index() + 1);
  return devices_[id.index()];
}

RequestFacts* Decisions::open(RequestId id) {
  const auto found = by_number_.find(id.value);
  if (found == by_number_.end() || requests_[found->second].outcome != Outcome::open) return nullptr;
  return &requests_[found->second];
}

void Decisions::hear(const schedule::Event& event, TimePoint now) {
  if (const auto* arrived = std::get_if<schedule::RequestArrived>(&event)) {
    const Request& r = arrived->request;
    if (r.model.index() >= models_.size()) return;
    const auto [place, fresh] = by_number_.emplace(r.id.value, requests_.size());
    if (!fresh) {
      // Refused for its first deadline, and waits on without it: a queue policy delays (docs/repository.md).
      RequestFacts& request = requests_[place->second];
      if (request.outcome != Outcome::refused) return;
      request.outcome = Outcome::open;
      request.cause = Cause::none;
      request.ended = never;
      request.deadline = r.deadline;
      request.deadline_from = r.deadline == TimePoint::max() ? DeadlineFrom::none : DeadlineFrom::given;
      return;
    }
    RequestFacts facts{.number = r.id.value,
                       .model = models_[r.model.index()].name,
                       .cls = r.cls,
                       .priority = r.priority,
                       .log_request = r.id.value,
                       .arrival = std::min(r.arrival, now),
                       .deadline = r.deadline};
    if (r.app.value != 0) facts.application = std::to_string(r.app.value);
    facts.deadline_from = r.deadline == TimePoint::max() ? DeadlineFrom::none : DeadlineFrom::given;
    facts.decided = now;
    requests_.push_back(std::move(facts));
    models_of_.push_back(r.model);
  } else if (const auto* gone = std::get_if<schedule::RequestCancelled>(&event)) {
    if (RequestFacts* request = open(gone->request)) {
      request->outcome = Outcome::cancelled;
      request->cause = Cause::client_gone;
      request->ended = now;
    }
  } else if (const auto* report = std::get_if<schedule::ActionDone>(&event)) {
    done(*report, now);
  } else if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
    if (change->alive)
      device(change->device) = {.alive = true};
    else
      take_out(change->device, now);
  } else if (const auto* model = std::get_if<schedule::ModelChanged>(&event)) {
    if (!model->info) return;
    if (model->model.index() >= models_.size()) models_.resize(model->model.index() + 1);
    Model& of = models_[model->model.index()];
    of = {.name = model->info->name, .pages = model->info->pages, .batches = model->info->batches};
    if (!model->info->batches.empty()) {
      of.exec = model->info->batches.front().exec;
      of.batch = model->info->batches.front().batch;
    }
  } else if (const auto* times = std::get_if<schedule::TimesChanged>(&event)) {
    if (times->model.index() >= models_.size()) return;
    Model& of = models_[times->model.index()];
    for (const schedule::BatchProfile& b : times->batches)
      if (b.batch == of.batch && std::ranges::find(of.batches, b) == of.batches.end()) of.exec = b.exec;
    of.batches = times->batches;
  }
}

void Decisions::done(const schedule::ActionDone& report, TimePoint now) {
  const auto found = flights_.find(report.id.value);
  if (found == flights_.end()) return;
  Flight flight = std::move(found->second);
  flights_.erase(found);
  ActionFacts& action = actions_[flight.action];
  action.status = report.status;
  action.ended = now;
  if (report.end > report.start && report.duration > Duration{0}) {
    action.exec_start = report.start;
    action.exec_end = report.end;
    action.paused = std::max(Duration{0}, report.end - report.start - report.duration);
  }
  Device& on = device(DeviceId{action.device});
  land(flight);
  const bool success = report.status == ActionStatus::success;
  if (action.kind == ActionKind::load && success) on.loaded.push_back(flight.model);
  if (action.kind == ActionKind::unload && success) std::erase(on.loaded, flight.model);
  if (action.kind != ActionKind::infer || action.again || !success) return;
  for (const RequestId id : flight.requests)
    if (RequestFacts* request = open(id)) {
      request->outcome = now <= request->deadline ? Outcome::on_time : Outcome::late;
      request->ended = now;
    }
}

// It is not under way any more.
void Decisions::land(Flight& flight) {
  const ActionFacts& action = actions_[flight.action];
  Device& on = device(DeviceId{action.device});
  if (action.kind == ActionKind::load) --models_[flight.model.index()].loading;
  if (action.kind != ActionKind::infer) return;
  on.busy -= action.predicted;
  --on.actions;
}

void Decisions::take_out(DeviceId id, TimePoint now) {
  for (auto flight = flights_.begin(); flight != flights_.end();) {
    ActionFacts& action = actions_[flight->second.action];
    if (action.device != id.value) {
      ++flight;
      continue;
    }
    action.lost = true;
    action.ended = now;
    land(flight->second);
    flight = flights_.erase(flight);
  }
  device(id) = {};
}

ActionFacts& Decisions::sent(ActionId id, ActionKind kind, DeviceId device_id, ModelId model,
                             const Window& window, Duration expected, TimePoint now) {
  flights_[id.value] = {.action = actions_.size(), .model = model, .requests = {}};
  ActionFacts& action = actions_.emplace_back();
  action.entry = id.value;
  action.kind = kind;
  action.device = device_id.value;
  action.model = models_[model.index()].name;
  action.sent = now;
  action.window = window;
  action.predicted = expected;
  Device& on = device(device_id);
  if (kind == ActionKind::load) ++models_[model.index()].loading;
  if (kind == ActionKind::infer) {
    on.busy += expected;
    ++on.actions;
  }
  return action;
}

void Decisions::carry_out(const schedule::Action& what, TimePoint now) {
  // A log may say anything.
  const auto known = [&](const auto& action) {
    return action.model.index() < models_.size() && action.device.index() < devices_.size();
  };
  if (const auto* infer = std::get_if<schedule::Infer>(&what)) {
    if (!known(*infer)) return;
    ActionFacts& action =
        sent(infer->id, ActionKind::infer, infer->device, infer->model, infer->window, infer->expected, now);
    action.rows = static_cast<int>(infer->requests.size());
    for (const RequestId id : infer->requests) {
      action.requests.push_back(id.value);
      if (RequestFacts* request = open(id)) ++request->tries;
    }
    flights_[infer->id.value].requests = infer->requests;
    Model& model = models_[infer->model.index()];
    if (action.rows <= model.batch) {
      model.batch = action.rows;
      model.exec = infer->expected;
    }
  } else if (const auto* load = std::get_if<schedule::Load>(&what)) {
    if (known(*load))
      sent(load->id, ActionKind::load, load->device, load->model, load->window, load->expected, now);
  } else if (const auto* unload = std::get_if<schedule::Unload>(&what)) {
    if (known(*unload))
      sent(unload->id, ActionKind::unload, unload->device, unload->model,
           {TimePoint::min(), TimePoint::max()}, Duration{0}, now);
  } else if (const auto* again = std::get_if<schedule::Profile>(&what)) {
    if (!known(*again)) return;
    ActionFacts& action =
        sent(again->id, ActionKind::infer, again->device, again->model, again->window, again->expected, now);
    action.rows = 1;
    action.again = true;
  } else if (const auto* refuse = std::get_if<schedule::Refuse>(&what)) {
    RequestFacts* const request = open(refuse->request);
    if (request == nullptr) return;
    const bool on_time = refuse->reason != schedule::Reason::device_failed &&
                         refuse->reason != schedule::Reason::no_device &&
                         refuse->reason != schedule::Reason::no_model;
    request->outcome = on_time ? Outcome::refused : Outcome::failed;
    request->cause = cause_of(refuse->reason);
    request->ended = now;
    if (refuse->would_finish != TimePoint::max())
      request->would_take = std::max(Duration{0}, refuse->would_finish - request->arrival);
    request->expected = expectation(models_of_[by_number_.at(refuse->request.value)]);
  } else if (const auto* hangs = std::get_if<schedule::GiveUp>(&what)) {
    if (hangs->device.index() < devices_.size()) take_out(hangs->device, now);
  } else if (const auto* preempt = std::get_if<schedule::Preempt>(&what)) {
    if (const auto found = flights_.find(preempt->id.value); found != flights_.end())
      ++actions_[found->second.action].preemptions;
  }
}

Expectation Decisions::expectation(ModelId model) const {
  const Model& of = models_[model.index()];
  Expectation out{.exec = of.exec, .batch = of.batch, .loading = of.loading > 0};
  std::optional<std::size_t> best;
  bool best_holds = false;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const Device& each = devices_[i];
    if (!each.alive) continue;
    ++out.devices;
    const bool holds = of.pages == 0 || std::ranges::find(each.loaded, model) != each.loaded.end();
    out.holding += holds ? 1 : 0;
    if (!best || (holds && !best_holds) || (holds == best_holds && each.busy < devices_[*best].busy)) {
      best = i;
      best_holds = holds;
    }
  }
  if (!best) return out;
  out.device = static_cast<std::uint32_t>(*best);
  out.busy = devices_[*best].busy;
  out.actions = devices_[*best].actions;
  return out;
}

Story Decisions::story(const RequestFacts& request) const {
  const TimePoint end = request.ended != never ? request.ended : last_;
  const TimePoint until = request.outcome == Outcome::refused && request.deadline != TimePoint::max()
                              ? std::max(end, request.deadline)
                              : end;
  std::vector<ActionFacts> own, others;
  const TimePoint from = request.arrival.time_since_epoch() > Duration::min() + reach
                             ? request.arrival - reach
                             : TimePoint::min();
  for (auto at = std::ranges::lower_bound(actions_, from, {}, &ActionFacts::sent);
       at != actions_.end() && at->sent <= until; ++at) {
    const bool its = std::ranges::find(at->requests, request.number) != at->requests.end();
    if (its)
      own.push_back(*at);
    else if (at->ran() && at->exec_end > request.arrival && at->exec_start < until)
      others.push_back(*at);
  }
  Surroundings around{.own = own, .others = others, .came_later = {}, .now = last_};
  if (!own.empty()) {
    int later = 0;
    for (const std::uint64_t number : own.back().requests)
      if (const RequestFacts* other = find(number)) later += other->arrival > request.arrival ? 1 : 0;
    around.came_later = later;
  }
  return tell(request, around);
}

}  // namespace carillon::explain
