#include "carillon/simulate/checker.h"

#include <algorithm>

#include <fmt/format.h>

namespace carillon::simulate {

Checker::Checker(const workload::Scenario& scenario, Duration clock_offset)
    : infos_(model_infos(scenario)), clock_offset_(clock_offset) {}

void Checker::problem(const std::string& kind, const std::string& detail, TimePoint at) {
  problems_.emplace(kind, fmt::format("{} at {} ns", detail, at.time_since_epoch().count()));
}

std::string Checker::text() const {
  std::string text;
  for (const auto& [kind, detail] : problems_) text += kind + ": " + detail + "\n";
  return text;
}

Checker::Device& Checker::device(DeviceId id) {
  if (devices_.size() <= id.index()) devices_.resize(id.index() + 1);
  return devices_[id.index()];
}

void Checker::on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions) {
  ++checks_;
  if (now < last_) problem("time ran backwards", "a decision", now);
  last_ = now;
  if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
    const std::uint64_t id = arrival->request.id.value;
    if (requests_.size() <= id) {
      requests_.resize(id + 1, State::unknown);
      models_of_.resize(id + 1);
    }
    requests_[id] = State::open;
    models_of_[id] = arrival->request.model;
  } else if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
    Device& d = device(change->device);
    const std::uint64_t life = d.life + 1;
    d = Device{};
    d.life = life;
    d.alive = change->alive;
    d.pages = change->pages;
  }
  std::set<RequestId> refused;
  for (const schedule::Action& action : actions) {
    if (const auto* infer = std::get_if<schedule::Infer>(&action)) {
      take(infer->id, {Kind::infer, infer->device, infer->model, infer->window}, now);
      if (infer->model.index() >= infos_.size()) {
        problem("unknown model", fmt::format("INFER {}", infer->id.value), now);
        continue;
      }
      const auto& batches = infos_[infer->model.index()].batches;
      if (std::none_of(batches.begin(), batches.end(), [&](const schedule::BatchProfile& b) {
            return static_cast<std::size_t>(b.batch) == infer->requests.size();
          }))
        problem("no such batch size", fmt::format("{} in INFER {}", infer->requests.size(), infer->id.value),
                now);
      auto ids = infer->requests;
      std::sort(ids.begin(), ids.end());
      if (std::adjacent_find(ids.begin(), ids.end()) != ids.end())
        problem("a request twice in a batch", fmt::format("INFER {}", infer->id.value), now);
      for (const RequestId id : ids) {
        if (id.value >= requests_.size() || requests_[id.value] != State::open)
          problem("ran what is not open", fmt::format("request {}", id.value), now);
        else if (models_of_[id.value] != infer->model)
          problem("ran under another model", fmt::format("request {}", id.value), now);
      }
    } else if (const auto* load = std::get_if<schedule::Load>(&action)) {
      take(load->id, {Kind::load, load->device, load->model, load->window}, now);
    } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
      take(unload->id, {Kind::unload, unload->device, unload->model, {TimePoint::min(), TimePoint::max()}},
           now);
    } else if (const auto* refuse = std::get_if<schedule::Refuse>(&action)) {
      const std::uint64_t id = refuse->request.value;
      if (id >= requests_.size() || requests_[id] != State::open)
        problem("refused what is not open", fmt::format("request {}", id), now);
      if (!refused.insert(refuse->request).second)
        problem("two outcomes", fmt::format("request {}", id), now);
    } else if (const auto* wake = std::get_if<schedule::WakeAt>(&action)) {
      if (wake->at <= now) problem("a wake in the past", "WakeAt", now);
    }
  }
}

void Checker::take(ActionId id, Action action, TimePoint now) {
  if (id < next_action_) problem("an action's id was used before", fmt::format("action {}", id.value), now);
  next_action_ = ActionId{id.value + 1};
  const Device& d = device(action.device);
  if (!d.alive) problem("an action for a dead device", fmt::format("action {}", id.value), now);
  if (action.window.latest < action.window.earliest)
    problem("a window that ends before it begins", fmt::format("action {}", id.value), now);
  action.life = d.life;
  actions_.insert(id, std::move(action));
}

void Checker::on_start(ActionId id, DeviceId, TimePoint at) {
  ++checks_;
  Action* action = actions_.find(id);
  if (action == nullptr) {
    problem("started what was not sent", fmt::format("action {}", id.value), at);
    return;
  }
  Device& d = device(action->device);
  if (action->life != d.life) problem("started on a dead device", fmt::format("action {}", id.value), at);
  if (action->started) problem("started twice", fmt::format("action {}", id.value), at);
  action->started = true;
  if (++d.running[action->kind == Kind::infer ? 0 : 1] > 1)
    problem("two things at once", fmt::format("action {}", id.value), at);
}

void Checker::on_end(ActionId id, DeviceId, schedule::ActionStatus status, TimePoint at) {
  ++checks_;
  const auto found = actions_.erase(id);
  if (!found) {
    problem("ended what was not sent", fmt::format("action {}", id.value), at);
    return;
  }
  const Action& action = *found;
  Device& d = device(action.device);
  if (action.life != d.life) return;
  if (action.started) --d.running[action.kind == Kind::infer ? 0 : 1];
  const bool ran = status == schedule::ActionStatus::success || status == schedule::ActionStatus::failed;
  if (ran && action.kind != Kind::unload && action.window.earliest > saturating_add(at, clock_offset_))
    problem("ran before its window", fmt::format("action {}", id.value), at);
  if (status != schedule::ActionStatus::success) return;
  const std::uint64_t pages = infos_[action.model.index()].pages;
  if (action.kind == Kind::load && pages > 0) {
    if (!d.holds.insert(action.model).second) problem("loaded twice", fmt::format("action {}", id.value), at);
    d.used += pages;
    if (d.used > d.pages) problem("more pages than there are", fmt::format("action {}", id.value), at);
  }
  if (action.kind == Kind::unload && d.holds.erase(action.model) == 1) d.used -= pages;
  if (action.kind == Kind::infer && pages > 0 && !d.holds.contains(action.model))
    problem("ran without its weights", fmt::format("action {}", id.value), at);
}

void Checker::on_outcome(const Request& request, Outcome outcome, TimePoint at) {
  ++checks_;
  const std::uint64_t id = request.id.value;
  if (requests_.size() <= id) {  // its client went before the scheduler heard of it
    requests_.resize(id + 1, State::unknown);
    models_of_.resize(id + 1);
  }
  if (requests_[id] == State::closed) problem("two outcomes", fmt::format("request {}", id), at);
  requests_[id] = State::closed;
  if (outcome == Outcome::on_time && at > request.deadline)
    problem("called on time but late", fmt::format("request {}", id), at);
  if (outcome == Outcome::late && at <= request.deadline)
    problem("called late but on time", fmt::format("request {}", id), at);
  if (outcome == Outcome::unanswered) problem("never answered", fmt::format("request {}", id), at);
}

void Checker::finish(const Figures& figures) {
  for (std::size_t id = 0; id < requests_.size(); ++id)
    if (requests_[id] == State::open) problem("no outcome", fmt::format("request {}", id), last_);
  for (const ModelFigures& m : figures.models)
    if (m.on_time + m.late + m.refused + m.cancelled != m.offered)
      problem("outcomes do not add up", m.name, last_);
}

}  // namespace carillon::simulate
