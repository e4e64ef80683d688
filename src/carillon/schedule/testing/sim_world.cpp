#include "carillon/schedule/testing/sim_world.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::schedule::testing {

SimWorld::SimWorld(Scheduler& scheduler, const Options& options, std::vector<ModelInfo> models)
    : scheduler_(scheduler),
      options_(options),
      models_(std::move(models)),
      versions_(models_.size()),
      served_(models_.size(), true),
      random_(options.seed),
      devices_(options.pages.size()) {
  for (const ModelInfo& model : models_) decide(model_comes(model));
  for (std::size_t i = 0; i < devices_.size(); ++i)
    device(DeviceId{static_cast<std::uint32_t>(i)}, true, TimePoint{});
}

void SimWorld::problem(const std::string& kind, const std::string& detail) {
  problems_.emplace(kind, detail + " at " + std::to_string(now_.time_since_epoch().count()) + " ns");
}

std::string SimWorld::problems_text() const {
  std::string text;
  for (const auto& [kind, detail] : problems_) text += kind + ": " + detail + "\n";
  return text;
}

void SimWorld::plan(TimePoint at, Step step, std::uint64_t what, std::uint64_t stamp) {
  queue_.insert({std::max(at, now_), next_order_++, step, what, stamp});
}

void SimWorld::arrive(Request request, TimePoint at) {
  request.id = next_id();
  request.arrival = at;
  requests_.push_back({.request = request});
  plan(at, Step::arrive, request.id.value);
}

void SimWorld::cancel(RequestId id, TimePoint at) {
  plan(at, Step::cancel, id.value);
}

void SimWorld::device(DeviceId id, bool alive, TimePoint at) {
  plan(at, Step::device, id.value, alive ? 1 : 0);
}

void SimWorld::model(const ModelChanged& change, TimePoint at) {
  plan(at, Step::model, changes_.size());
  changes_.push_back(change);
}

// Whoever waits for a model that goes is refused at once.
void SimWorld::change(const ModelChanged& change) {
  const std::size_t model = change.model.index();
  if (change.info) models_[model] = *change.info;
  served_[model] = change.info.has_value();
  ++versions_[model];
  decide(change);
  if (change.info) return;
  std::set<RequestId> under_way;
  for (const ActionLog& a : actions_)
    if (!a.reported && a.life == devices_[a.device.index()].life)
      under_way.insert(a.requests.begin(), a.requests.end());
  for (const RequestLog& log : requests_)
    if (log.outcome == Outcome::open && log.heard && log.request.model == change.model &&
        !under_way.contains(log.request.id))
      problem("waits for a model that went", "request " + std::to_string(log.request.id.value));
}

void SimWorld::run(TimePoint until) {
  while (!queue_.empty() && queue_.begin()->at <= until) {
    const Entry entry = *queue_.begin();
    queue_.erase(queue_.begin());
    now_ = entry.at;
    switch (entry.step) {
      case Step::arrive:
        if (requests_[entry.what].outcome == Outcome::open) {
          requests_[entry.what].heard = true;
          decide(RequestArrived{requests_[entry.what].request});
        }
        break;
      case Step::model:
        change(changes_[entry.what]);
        break;
      case Step::cancel: {
        RequestLog& log = requests_[entry.what];
        if (log.request.arrival > now_) break;
        if (log.outcome == Outcome::open) log.outcome = Outcome::cancelled;
        decide(RequestCancelled{RequestId{entry.what}, log.request.model});
        break;
      }
      case Step::device: {
        SimDevice& d = devices_[entry.what];
        const std::uint64_t life = d.life + 1;
        d = SimDevice{};
        d.life = life;
        d.alive = entry.stamp == 1;
        d.total = options_.pages[entry.what];
        decide(DeviceChanged{DeviceId{static_cast<std::uint32_t>(entry.what)}, d.alive, d.total});
        break;
      }
      case Step::receive:
        receive(entry.what);
        break;
      case Step::start: {
        SimDevice& d = devices_[entry.what];
        if (d.life != entry.stamp) break;
        kick(d, d.exec);
        kick(d, d.load);
        break;
      }
      case Step::end:
        finish(entry.what);
        break;
      case Step::stop:
        stop(entry.what);
        break;
      case Step::report:
        report(entry.what);
        break;
      case Step::wake:
        if (entry.stamp == wake_stamp_) decide(Wake{});
        break;
    }
    check();
  }
  if (!queue_.empty()) return;
  for (const RequestLog& log : requests_)
    if (log.outcome == Outcome::open)
      problem("no outcome", "request " + std::to_string(log.request.id.value));
  for (std::size_t i = 0; i < actions_.size(); ++i)
    if (!actions_[i].reported && devices_[actions_[i].device.index()].life == actions_[i].life)
      problem("no report", "action " + std::to_string(i));
  for (const SimDevice& d : devices_)
    for (const auto& [model, copy] : d.loaded)
      if (!served_[model.index()] || copy.version != versions_[model.index()])
        problem("a copy of what is not served any more", "model " + std::to_string(model.value));
}

void SimWorld::decide(const Event& event) {
  ++decisions_;
  out_.clear();
  const TimePoint wake = scheduler_.decide(event, now_, out_);
  const Actions actions = std::move(out_);
  out_ = {};
  for (const Action& action : actions) take(action);
  if (std::holds_alternative<Wake>(event)) wake_at_ = TimePoint::max();
  if (wake == wake_at_) return;
  if (wake <= now_) problem("wake in the past", std::to_string(wake.time_since_epoch().count()));
  wake_at_ = wake;
  ++wake_stamp_;
  if (wake < TimePoint::max()) plan(wake, Step::wake, 0, wake_stamp_);
}

void SimWorld::take(const Action& action) {
  if (on_action != nullptr) on_action(action, now_);
  const auto mix = [this](std::uint64_t v) { digest_ = (digest_ ^ v) * 1099511628211ULL; };
  mix(action.index());
  mix(static_cast<std::uint64_t>(now_.time_since_epoch().count()));
  const auto noisy = [this](Duration d) {
    double factor = options_.speed * (1 + options_.noise * std::abs(random_.normal()));
    if (options_.hiccups > 0 && random_.uniform() < options_.hiccups) factor *= 10;
    return from_ns(static_cast<double>(d.count()) * factor);
  };
  if (const auto* refuse = std::get_if<Refuse>(&action)) {
    mix(refuse->request.value);
    RequestLog& log = requests_[refuse->request.value];
    if (log.outcome != Outcome::open) {
      problem("refused what has an outcome", "request " + std::to_string(refuse->request.value));
      return;
    }
    if (refuse->reason == Reason::no_model && served_[log.request.model.index()])
      problem("says that a model went", "request " + std::to_string(refuse->request.value));
    log.outcome = Outcome::refused;
    log.answered = now_;
    log.reason = refuse->reason;
    log.would_finish = refuse->would_finish;
    return;
  }
  if (const auto* stop = std::get_if<Stop>(&action)) {
    mix(stop->id.value);
    if (stop->id.value >= actions_.size() || actions_[stop->id.value].kind != ActionKind::infer)
      problem("stop of what is no INFER", std::to_string(stop->id.value));
    else
      plan(now_ + options_.latency, Step::stop, stop->id.value);
    return;
  }
  ActionLog log;
  std::uint64_t id = 0;
  if (const auto* load = std::get_if<Load>(&action)) {
    id = load->id.value;
    log = {.kind = ActionKind::load, .device = load->device, .model = load->model, .window = load->window};
    log.duration = noisy(models_[load->model.index()].load);
    if (!served_[load->model.index()]) problem("load of a model that went", "action " + std::to_string(id));
    if (random_.uniform() < options_.load_failures) log.planned = ActionStatus::failed;
    ++loads_;
  } else if (const auto* unload = std::get_if<Unload>(&action)) {
    id = unload->id.value;
    log = {.kind = ActionKind::unload, .device = unload->device, .model = unload->model};
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const ActionLog& other = actions_[actions_.size() - 1 - i];
      if (i > 200) break;
      if (!other.reported && other.kind == ActionKind::infer && other.pages > 0 &&
          other.device == unload->device && other.model == unload->model &&
          other.life == devices_[other.device.index()].life)
        problem("unload of a model in use", "action " + std::to_string(id));
    }
    ++unloads_;
  } else {
    const auto& infer = std::get<Infer>(action);
    id = infer.id.value;
    log = {.kind = ActionKind::infer,
           .device = infer.device,
           .model = infer.model,
           .requests = infer.requests,
           .window = infer.window};
    const auto& batches = models_[infer.model.index()].batches;
    const auto plan = std::find_if(batches.begin(), batches.end(), [&](const BatchProfile& b) {
      return b.batch == static_cast<int>(infer.requests.size());
    });
    if (plan == batches.end()) {
      problem("no plan for a batch", std::to_string(infer.requests.size()));
      return;
    }
    for (const RequestId r : infer.requests) {
      mix(r.value);
      if (requests_[r.value].request.model != infer.model) problem("wrong model", std::to_string(r.value));
      if (requests_[r.value].outcome != Outcome::open)
        problem("ran what has an outcome", "request " + std::to_string(r.value));
    }
    if (!served_[infer.model.index()]) problem("infer of a model that went", "action " + std::to_string(id));
    log.duration = noisy(plan->exec);
    const double luck = random_.uniform();
    if (luck < options_.infer_failures)
      log.planned = ActionStatus::failed;
    else if (luck < options_.infer_failures + options_.not_started)
      log.planned = ActionStatus::no_memory;
    ++infers_;
  }
  if (id != actions_.size()) problem("action ids", "not ascending by one");
  if (!devices_[log.device.index()].alive) problem("action for a dead device", std::to_string(id));
  log.life = devices_[log.device.index()].life;
  log.version = versions_[log.model.index()];
  log.pages = models_[log.model.index()].pages;
  actions_.push_back(std::move(log));
  plan(now_ + options_.latency, Step::receive, id);
}

void SimWorld::receive(std::uint64_t id) {
  ActionLog& a = actions_[id];
  SimDevice& d = devices_[a.device.index()];
  if (a.life != d.life) return;
  switch (a.kind) {
    case ActionKind::unload:
      if (const auto copy = d.loaded.find(a.model); copy != d.loaded.end()) {
        d.used -= copy->second.pages;
        d.loaded.erase(copy);
      }
      report_later(id, ActionStatus::success, now_);
      break;
    case ActionKind::load:
      d.load.queue.insert({a.window.earliest, id});
      kick(d, d.load);
      break;
    case ActionKind::infer:
      d.exec.queue.insert({a.window.earliest, id});
      kick(d, d.exec);
      break;
  }
}

// What a worker's executor does: the first action by `earliest`, in its window or not at all.
void SimWorld::kick(SimDevice& d, SimExecutor& executor) {
  while (!executor.busy && !executor.queue.empty()) {
    const auto [earliest, id] = *executor.queue.begin();
    ActionLog& a = actions_[id];
    if (earliest > now_) {
      plan(earliest, Step::start, a.device.value, d.life);
      return;
    }
    executor.queue.erase(executor.queue.begin());
    if (now_ > a.window.latest) {
      ++too_late_;
      report_later(id, ActionStatus::too_late, now_);
      continue;
    }
    if (a.kind == ActionKind::infer && a.pages > 0 && !d.loaded.contains(a.model)) {
      ++not_loaded_;
      report_later(id, ActionStatus::not_loaded, now_);
      continue;
    }
    if (a.planned == ActionStatus::no_memory) {
      report_later(id, ActionStatus::no_memory, now_);
      continue;
    }
    if (a.kind == ActionKind::load) {
      if (d.used + a.pages > d.total) {
        problem("load without free pages", "action " + std::to_string(id));
        report_later(id, ActionStatus::no_memory, now_);
        continue;
      }
      if (d.loaded.contains(a.model)) problem("load of what is loaded", "action " + std::to_string(id));
      d.used += a.pages;
      d.loading[a.model] = {a.version, a.pages};
    } else if (a.pages > 0 && d.loaded[a.model].version != a.version) {
      problem("infer on a copy of another version", "action " + std::to_string(id));
    }
    if (!a.window.contains(now_)) problem("start outside of its window", "action " + std::to_string(id));
    executor.busy = true;
    executor.running = id;
    a.start = now_;
    plan(now_ + a.duration, Step::end, id);
  }
}

void SimWorld::stop(std::uint64_t id) {
  ActionLog& a = actions_[id];
  SimDevice& d = devices_[a.device.index()];
  if (a.life != d.life) return;
  if (d.exec.busy && d.exec.running == id) {
    a.stopped = true;
    a.end = now_;
    d.exec.busy = false;
    report_later(id, ActionStatus::stopped, now_);
    kick(d, d.exec);
  } else if (d.exec.queue.erase({a.window.earliest, id}) == 1) {
    a.stopped = true;
    a.start = a.end = now_;
    report_later(id, ActionStatus::stopped, now_);
  }
}

void SimWorld::finish(std::uint64_t id) {
  ActionLog& a = actions_[id];
  SimDevice& d = devices_[a.device.index()];
  if (a.life != d.life || a.stopped) return;
  SimExecutor& executor = a.kind == ActionKind::load ? d.load : d.exec;
  if (!executor.busy || executor.running != id) problem("two things at once", "action " + std::to_string(id));
  executor.busy = false;
  if (a.kind == ActionKind::load) {
    d.loading.erase(a.model);
    if (a.planned == ActionStatus::success)
      d.loaded[a.model] = {a.version, a.pages};
    else
      d.used -= a.pages;
  }
  a.end = now_;
  report_later(id, a.planned, now_ + (a.kind == ActionKind::infer ? options_.io : Duration{0}));
  kick(d, executor);
}

void SimWorld::report_later(std::uint64_t id, ActionStatus status, TimePoint at) {
  actions_[id].status = status;
  plan(at + options_.latency, Step::report, id);
}

void SimWorld::report(std::uint64_t id) {
  ActionLog& a = actions_[id];
  if (a.life != devices_[a.device.index()].life) return;
  if (a.reported) problem("reported twice", "action " + std::to_string(id));
  a.reported = true;
  if (a.kind == ActionKind::infer && a.status == ActionStatus::success)
    for (const RequestId r : a.requests) answer(r, now_, static_cast<int>(a.requests.size()));
  decide(ActionDone{ActionId{id}, a.status, a.start, a.end, a.duration});
}

void SimWorld::answer(RequestId id, TimePoint at, int batch) {
  RequestLog& log = requests_[id.value];
  if (log.outcome == Outcome::cancelled) return;
  if (log.outcome != Outcome::open) {
    problem("two outcomes", "request " + std::to_string(id.value));
    return;
  }
  log.outcome = at <= log.request.deadline ? Outcome::on_time : Outcome::late;
  log.answered = at;
  log.batch = batch;
}

void SimWorld::check() {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const SimDevice& d = devices_[i];
    if (d.used > d.total) problem("memory", "device " + std::to_string(i) + " is over its pages");
    if (devices_.size() > 4) continue;  // the sum below is for small worlds
    std::uint64_t sum = 0;
    for (const auto& [m, copy] : d.loaded) sum += copy.pages;
    for (const auto& [m, copy] : d.loading) sum += copy.pages;
    if (sum != d.used) problem("page count", "device " + std::to_string(i));
  }
}

SimWorld::Counts SimWorld::count(TimePoint from, TimePoint to) const {
  Counts counts;
  for (const RequestLog& log : requests_) {
    if (log.request.arrival < from || log.request.arrival >= to) continue;
    switch (log.outcome) {
      case Outcome::open:
        ++counts.open;
        break;
      case Outcome::on_time:
        ++counts.on_time;
        break;
      case Outcome::late:
        ++counts.late;
        break;
      case Outcome::refused:
        ++counts.refused;
        break;
      case Outcome::cancelled:
        ++counts.cancelled;
        break;
    }
  }
  return counts;
}

}  // namespace carillon::schedule::testing
