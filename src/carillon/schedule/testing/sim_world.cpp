#include "carillon/schedule/testing/sim_world.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::schedule::testing {
namespace {

constexpr std::uint64_t first_brought = std::uint64_t{1} << 63;  // ids that no scheduler gives

device::ClassStreams streams_of(const SimWorld::Options& options) {
  return {.units = options.best_effort, .best_effort = options.best_effort};
}

}  // namespace

SimWorld::SimWorld(Scheduler& scheduler, const Options& options, std::vector<ModelInfo> models)
    : scheduler_(scheduler),
      options_(options),
      models_(std::move(models)),
      versions_(models_.size()),
      served_(models_.size(), true),
      random_(options.seed),
      devices_(options.pages.size()) {
  scheduler_.reads(ledger_);
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

void SimWorld::plan(TimePoint at, Step step, std::uint64_t what, std::uint64_t stamp, std::uint64_t detail) {
  queue_.insert({std::max(at, now_), next_order_++, step, what, stamp, detail});
}

void SimWorld::arrive(Request request, TimePoint at, bool more) {
  request.id = next_id();
  request.arrival = at;
  requests_.push_back({.request = request, .more = more});
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

void SimWorld::times(ModelId id, Retime change, TimePoint at) {
  plan(at, Step::times, retimes_.size());
  retimes_.emplace_back(id, std::move(change));
}

// The device's LOADs of an earlier life, as it were, which take no time.
void SimWorld::bring(SimDevice& d) {
  std::uint64_t room = d.core->core().free_pages();
  for (std::uint32_t m = 0; m < models_.size(); ++m) {
    const ModelInfo& model = models_[m];
    if (!served_[m] || model.pages == 0 || model.pages > room || random_.uniform() >= options_.keeps)
      continue;
    room -= model.pages;
    d.held.push_back(model.id);
    if (random_.uniform() < options_.keeps_not) continue;
    actions_.push_back({.id = ActionId{first_brought + brought_++},
                        .kind = ActionKind::load,
                        .device = DeviceId{static_cast<std::uint32_t>(d.index)},
                        .model = model.id,
                        .window = {TimePoint::min(), TimePoint::max()},
                        .version = versions_[m],
                        .pages = model.pages,
                        .life = d.life,
                        .reported = true,
                        .brought = true});
    receive(actions_.size() - 1);
  }
}

void SimWorld::tell(const SimDevice& d) {
  decide(DeviceChanged{DeviceId{static_cast<std::uint32_t>(d.index)}, d.alive, options_.pages[d.index],
                       options_.best_effort, d.held});
}

// Whoever waits for a model that goes is refused at once.
void SimWorld::change(const ModelChanged& change) {
  const std::size_t model = change.model.index();
  if (change.info) models_[model] = *change.info;
  for (SimDevice& d : devices_)
    if (change.info && d.core != nullptr) d.core->set_pages(change.model, change.info->pages);
  served_[model] = change.info != nullptr;
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
          decide(RequestArrived{requests_[entry.what].request, requests_[entry.what].more});
          gathering_ = gathering_ || requests_[entry.what].more;
        }
        break;
      case Step::model:
        change(changes_[entry.what]);
        break;
      case Step::times: {
        const auto& [id, retime] = retimes_[entry.what];
        ModelInfo& info = models_[id.index()];
        retime(info.batches);
        decide(TimesChanged{id, info.batches});
        break;
      }
      case Step::cancel: {
        RequestLog& log = requests_[entry.what];
        if (log.request.arrival > now_) break;
        if (log.outcome == Outcome::open) log.outcome = Outcome::cancelled;
        decide(RequestCancelled{RequestId{entry.what}, log.request.model});
        break;
      }
      case Step::device: {
        SimDevice& d = devices_[entry.what];
        ++d.life;
        d.world = this;
        d.index = entry.what;
        d.alive = entry.stamp == 1;
        d.versions.clear();
        d.held.clear();
        d.core.reset();
        if (d.alive) {
          device::Limits limits{.pages = options_.pages[entry.what],
                                .queue = 1 << 20,
                                .reserved = 8,
                                .gathers = 0,
                                .scatters = 0};
          if (options_.classes) {
            const device::ClassStreams streams = streams_of(options_);
            limits.streams = streams.count();
            limits.places = streams.places();
          }
          d.core = std::make_unique<device::VirtualDevice>(limits, Duration{0}, d);
          for (const ModelInfo& model : models_) d.core->add_model(model.id, model.pages);
          if (options_.keeps > 0) bring(d);
        }
        if (options_.keeps > 0)
          plan(now_, Step::there, entry.what, d.life);
        else
          tell(d);
        break;
      }
      case Step::there:
        if (const SimDevice& d = devices_[entry.what]; d.life == entry.stamp) {
          if ((d.core != nullptr && d.core->core().open() > 0) || entry.what > ledger_.devices())
            plan(now_, Step::there, entry.what, entry.stamp);
          else
            tell(d);
        }
        break;
      case Step::receive:
        receive(entry.what);
        break;
      case Step::run:
        if (devices_[entry.what].life == entry.stamp) devices_[entry.what].core->event(entry.detail, now_);
        break;
      case Step::evict: {
        const ActionLog& a = actions_[entry.what];
        SimDevice& d = devices_[a.device.index()];
        if (a.life == d.life)
          d.core->evict(a.id, static_cast<device::After>(entry.stamp),
                        TimePoint{Duration{static_cast<std::int64_t>(entry.detail)}}, now_);
        break;
      }
      case Step::report:
        report(entry.what);
        break;
      case Step::wake:
        if (entry.stamp == wake_stamp_) decide(Wake{});
        break;
    }
    if (gathering_ && (queue_.empty() || queue_.begin()->at > now_)) {
      gathering_ = false;
      decide(AllArrived{});
    }
  }
  if (!queue_.empty()) return;
  for (const RequestLog& log : requests_)
    if (log.outcome == Outcome::open)
      problem("no outcome", "request " + std::to_string(log.request.id.value));
  for (std::size_t i = 0; i < actions_.size(); ++i)
    if (!actions_[i].reported && devices_[actions_[i].device.index()].life == actions_[i].life)
      problem("no report", "action " + std::to_string(i));
  for (const SimDevice& d : devices_)
    for (const auto& [model, version] : d.versions)
      if (d.core != nullptr && !d.core->core().absent(model) &&
          (!served_[model.index()] || version != versions_[model.index()]))
        problem("a copy of what is not served any more", "model " + std::to_string(model.value));
}

void SimWorld::decide(const Event& event) {
  ++decisions_;
  out_.clear();
  ledger_.apply(event, now_);
  const TimePoint wake = scheduler_.decide(event, now_, out_);
  const Actions actions = std::move(out_);
  out_ = {};
  for (const Action& action : actions) {
    ledger_.book(action, now_);
    take(action);
  }
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
    const std::size_t stopped = find(stop->id);
    if (stopped == actions_.size() || actions_[stopped].kind != ActionKind::infer)
      problem("stop of what is no INFER", std::to_string(stop->id.value));
    else
      plan(now_ + options_.latency, Step::evict, stopped, static_cast<std::uint64_t>(device::After::drop));
    return;
  }
  if (const auto* preempt = std::get_if<Preempt>(&action)) {
    mix(preempt->id.value);
    const std::size_t preempted = find(preempt->id);
    if (preempted == actions_.size() || actions_[preempted].kind != ActionKind::infer)
      problem("preemption of what is no INFER", std::to_string(preempt->id.value));
    else
      plan(now_ + options_.latency, Step::evict, preempted, static_cast<std::uint64_t>(device::After::resume),
           static_cast<std::uint64_t>(preempt->order.time_since_epoch().count()));
    return;
  }
  ActionLog log;
  std::uint64_t id = 0;
  if (const auto* load = std::get_if<Load>(&action)) {
    id = load->id.value;
    log.kind = ActionKind::load;
    log.device = load->device;
    log.model = load->model;
    log.window = load->window;
    log.duration = noisy(models_[load->model.index()].load);
    if (!served_[load->model.index()]) problem("load of a model that went", "action " + std::to_string(id));
    if (random_.uniform() < options_.load_failures) log.planned = ActionStatus::failed;
    if (options_.lacks.contains({load->device, load->model}) && now_ < options_.lacks_until) {
      log.planned = ActionStatus::failed;
      log.duration = Duration{1};
    }
    ++loads_;
  } else if (const auto* unload = std::get_if<Unload>(&action)) {
    id = unload->id.value;
    log.kind = ActionKind::unload;
    log.device = unload->device;
    log.model = unload->model;
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
    log.cls = infer.cls;
    log.kind = ActionKind::infer;
    log.device = infer.device;
    log.model = infer.model;
    log.requests = infer.requests;
    log.window = infer.window;
    if (options_.classes)
      sent_by_class(infer, log);
    else if (infer.cls != Class::normal)
      problem("a class without its stream", std::to_string(id));
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
    log.duration = noisy(by_app(infer, by_size(infer, plan->exec)));
    const double luck = random_.uniform();
    if (luck < options_.infer_failures)
      log.planned = ActionStatus::failed;
    else if (luck < options_.infer_failures + options_.not_started)
      log.planned = ActionStatus::no_memory;
    ++infers_;
  }
  // Where there are classes, some of a policy's own are held back, and the others' lie apart.
  if (!options_.classes && !options_.subclusters && id != actions_.size() - brought_)
    problem("action ids", "not ascending by one");
  if (!logged_.emplace(ActionId{id}, actions_.size()).second) problem("action ids", "one comes twice");
  log.id = ActionId{id};
  if (!devices_[log.device.index()].alive) problem("action for a dead device", std::to_string(id));
  log.life = devices_[log.device.index()].life;
  log.version = versions_[log.model.index()];
  log.pages = models_[log.model.index()].pages;
  actions_.push_back(std::move(log));
  plan(now_ + options_.latency, Step::receive, actions_.size() - 1);
}

// A model with sizes takes its time at the first of them by the size of its rows.
Duration SimWorld::by_size(const Infer& infer, Duration exec) const {
  const ModelInfo& model = models_[infer.model.index()];
  if (model.sizes.empty()) return exec;
  double rows = 0;
  for (const RequestId r : infer.requests) rows += requests_[r.value].request.effort.size();
  const double share = rows / static_cast<double>(infer.requests.size()) / model.sizes.front().row.size();
  return std::max(Duration{1}, from_ns(static_cast<double>(exec.count()) * share));
}

// A batch takes what its longest request does.
Duration SimWorld::by_app(const Infer& infer, Duration exec) const {
  std::uint32_t longest = 1;
  if (options_.by_app)
    for (const RequestId r : infer.requests)
      longest = std::max(longest, std::min(8U, requests_[r.value].request.app.value));
  return exec * longest;
}

std::size_t SimWorld::find(ActionId id) const {
  const auto found = logged_.find(id);
  return found == logged_.end() ? actions_.size() : found->second;
}

// Each request in its class's stream, or in the normal one, and no more at a time than a class may have.
void SimWorld::sent_by_class(const Infer& infer, const ActionLog& log) {
  for (const RequestId r : infer.requests)
    if (infer.cls != Class::normal && requests_[r.value].request.cls != infer.cls)
      problem("in another class's stream", "request " + std::to_string(r.value));
  if (infer.cls == Class::normal) return;
  int under_way = 1;
  for (const ActionLog& other : actions_)
    under_way += !other.reported && other.kind == ActionKind::infer && other.cls == infer.cls &&
                         other.device == log.device && other.life == devices_[log.device.index()].life
                     ? 1
                     : 0;
  if (under_way > (infer.cls == Class::real_time ? 2 : 2 * options_.best_effort))
    problem("too many of a class", "action " + std::to_string(infer.id.value));
}

void SimWorld::receive(std::uint64_t id) {
  const ActionLog& a = actions_[id];
  SimDevice& d = devices_[a.device.index()];
  if (a.life != d.life) return;
  const device::Work work{.tag = id, .time = a.duration, .outcome = a.planned};
  switch (a.kind) {
    case ActionKind::unload:
      d.core->submit(device::UnloadAction{a.id, a.model}, id, now_);
      break;
    case ActionKind::load:
      d.core->submit(device::LoadAction{a.id, a.model, a.window, a.pages}, work, now_);
      break;
    case ActionKind::infer:
      d.core->submit(device::InferAction{.id = a.id,
                                         .model = a.model,
                                         .window = a.window,
                                         .cls = a.cls,
                                         .stream = options_.classes ? streams_of(options_).stream_of(a.cls)
                                                                    : std::uint8_t{0}},
                     work, now_);
      break;
  }
}

void SimWorld::SimDevice::plan(TimePoint at, std::uint64_t what) {
  world->plan(at, Step::run, index, life, what);
}

Duration SimWorld::SimDevice::begins(std::uint64_t tag, Duration planned, bool resumes) {
  const ActionLog& a = world->actions_[tag];
  if (!resumes && !a.window.contains(world->now_))
    world->problem("start outside of its window", "action " + std::to_string(tag));
  if (a.kind == ActionKind::load)
    versions[a.model] = a.version;
  else if (a.pages > 0 && versions[a.model] != a.version)
    world->problem("infer on a copy of another version", "action " + std::to_string(tag));
  return planned;
}

void SimWorld::SimDevice::done(const device::Done& done) {
  ActionLog& a = world->actions_[done.tag];
  a.start = done.start;
  a.end = done.end;
  a.busy = done.busy;
  if (a.brought) return;
  if (done.status == ActionStatus::too_late) ++world->too_late_;
  if (done.status == ActionStatus::not_loaded) ++world->not_loaded_;
  if (a.kind == ActionKind::load && done.status == ActionStatus::no_memory)
    world->problem("load without free pages", "action " + std::to_string(done.tag));
  if (done.failure == device::Failure::loaded_already)
    world->problem("load of what is loaded", "action " + std::to_string(done.tag));
  const bool answers = a.kind == ActionKind::infer && done.ran && done.status != ActionStatus::stopped;
  world->report_later(done.tag, done.status, world->now_ + (answers ? world->options_.io : Duration{0}));
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
  decide(ActionDone{a.id, a.status, a.start, a.end, a.kind == ActionKind::infer ? a.busy : a.duration});
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
