#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {

TimePoint Plain::decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) {
  if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
    if (change->device == DeviceId{0} && change->alive && !began_) {
      began_ = true;
      load(ModelId{0}, now, out);
      load(ModelId{1}, now, out);
      wake_ = stop;
    }
  } else if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
    const ModelId model = arrival->request.model;
    if (loaded_[model.index()] || (loading_[model.index()] && model.index() < 2)) {
      waiting_[model.index()].push_back(arrival->request.id);
      send(model, now, out);
    } else {
      out.emplace_back(schedule::Refuse{arrival->request.id, schedule::Reason::cannot_finish, now});
    }
  } else if (const auto* gone = std::get_if<schedule::RequestCancelled>(&event)) {
    std::erase(waiting_[gone->model.index()], gone->request);
    gone_.insert(gone->request);
  } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
    reported(*done, now, out);
  } else if (std::holds_alternative<schedule::Wake>(event)) {
    if (now == stop) {
      for (auto& [id, sent] : sent_)
        if (!stopped_ && !sent.requests.empty())
          out.emplace_back(schedule::Stop{*(stopped_ = id), DeviceId{0}});
      wake_ = swap;
    } else {
      loading_[1] = loaded_[1] = false;
      for (const RequestId id : waiting_[1])
        out.emplace_back(schedule::Refuse{id, schedule::Reason::deadline_passed, now});
      waiting_[1].clear();
      swapping_ = true;
      wake_ = TimePoint::max();
      unload(out);
    }
  }
  return wake_;
}

ActionId Plain::book(Sent sent) {
  const ActionId id{next_++};
  sent_[id] = std::move(sent);
  return id;
}

void Plain::load(ModelId model, TimePoint now, schedule::Actions& out) {
  loading_[model.index()] = true;
  out.emplace_back(schedule::Load{
      book({.load = model, .model = model}), DeviceId{0}, model, {now, TimePoint::max()}, 5ms});
}

void Plain::unload(schedule::Actions& out) {
  if (!swapping_) return;
  for (const auto& [id, sent] : sent_)
    if (sent.model == ModelId{1}) return;
  swapping_ = false;
  out.emplace_back(
      schedule::Unload{book({.unload = ModelId{1}, .model = ModelId{1}}), DeviceId{0}, ModelId{1}});
}

void Plain::send(ModelId model, TimePoint now, schedule::Actions& out) {
  auto& waiting = waiting_[model.index()];
  while (loaded_[model.index()] && waiting.size() >= static_cast<std::size_t>(batch)) {
    std::vector<RequestId> members(waiting.begin(), waiting.begin() + batch);
    waiting.erase(waiting.begin(), waiting.begin() + batch);
    out.emplace_back(schedule::Infer{book({.model = model, .requests = members}),
                                     DeviceId{0},
                                     model,
                                     members,
                                     {now + later, now + later + patience},
                                     5ms});
  }
}

void Plain::reported(const schedule::ActionDone& done, TimePoint now, schedule::Actions& out) {
  const auto found = sent_.find(done.id);
  if (found == sent_.end()) return;  // told twice
  const Sent sent = found->second;
  sent_.erase(found);
  if (sent.load) {
    loaded_[sent.model.index()] = done.status == ActionStatus::success;
    send(sent.model, now, out);
  } else if (sent.unload) {
    load(ModelId{2}, now, out);
  } else if (done.status != ActionStatus::success) {
    for (const RequestId id : sent.requests)
      if (!gone_.contains(id)) out.emplace_back(schedule::Refuse{id, schedule::Reason::rejected_late, now});
  }
  unload(out);
}

World::World() {
  scenario.name = "plain";
  scenario.seed = 5;
  scenario.devices = 1;
  scenario.duration = 300ms;
  scenario.warmup = 20ms;
  scenario.network_delay = delay;
  scenario.memory = mib(32);
  scenario.rate = 240;
  for (int i = 0; i < 3; ++i) {
    workload::ScenarioModel m{.name = "m" + std::to_string(i), .slo = 12ms, .max_batch = 2};
    m.latency.linear = true;
    m.latency.alpha = m.latency.beta = 2ms;
    m.weights = mib(16);
    m.load = 5ms;
    scenario.models.push_back(std::move(m));
  }
  options.interval = 70ms;
  options.timeline = 10;
}

std::map<std::string, std::string> World::problems() {
  Checker checker(scenario, options);
  checker_ = &checker;
  options.observer = this;
  int looks = 0;
  options.progress = [&](double) { return ++looks < 50; };
  Figures told = run(scenario, *this, options);
  if (figures) figures(told);
  checker.finish(told);
  return checker.problems();
}

TimePoint World::decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) {
  const TimePoint wake = plain.decide(event, now, out);
  if (decides) decides(event, now, out);
  // No id is used twice.
  for (schedule::Action& action : out)
    std::visit(
        [this](auto& added) {
          if constexpr (requires { added.id, added.model; })
            if (added.id == far_id) added.id.value += ++added_;
        },
        action);
  // Plain does not heed deaths.
  if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) alive_ = change->alive;
  if (!alive_) out.clear();
  return wakes ? wakes(wake, now) : wake;
}

void World::on_sent(const Request& request, Duration alone, TimePoint at) {
  Request r = request;
  if (!sent || sent(*checker_, r, alone, at)) checker_->on_sent(r, alone, at);
}

void World::on_device(DeviceId id, bool alive, Duration clock, TimePoint at) {
  if (!device || device(*checker_, id, alive, clock, at)) checker_->on_device(id, alive, clock, at);
}

void World::on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions,
                        TimePoint wake) {
  schedule::Event e = event;
  schedule::Actions a = actions;
  if (hide_wakes) wake = TimePoint::max();
  if (!decision || decision(*checker_, e, now, a)) checker_->on_decision(e, now, a, wake);
}

void World::on_decided(TimePoint at) {
  if (!decided || decided(*checker_, at)) checker_->on_decided(at);
}

void World::on_outcome(const Request& request, Outcome what, TimePoint at) {
  Request r = request;
  if (!outcome || outcome(*checker_, r, what, at)) checker_->on_outcome(r, what, at);
}

void World::on_start(ActionId id, DeviceId on, TimePoint at) {
  if (!start || start(*checker_, id, on, at)) checker_->on_start(id, on, at);
}

void World::on_end(ActionId id, DeviceId on, ActionStatus status, TimePoint at) {
  if (!end || end(*checker_, id, on, status, at)) checker_->on_end(id, on, status, at);
}

void cancelled(World& world) {
  world.options.faults.cancels = 0.5;
}

void of_two_modes(World& world) {
  for (auto& m : world.scenario.models) m.latency.modes = {{.mean = 2ms, .deviation = 300us}};
}

void closed_loop(World& world) {
  world.scenario.process = {.kind = workload::ArrivalKind::closed, .clients = 2};
}

void by_class(World& world) {
  world.scenario.models[1].cls = Class::real_time;
  world.decides = each<schedule::Infer>([](schedule::Infer& infer, TimePoint) {
    if (infer.model == ModelId{1} && infer.id.value % 3 == 0) infer.cls = Class::real_time;
  });
}

}  // namespace carillon::simulate::testing::broken
