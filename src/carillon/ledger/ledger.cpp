#include "carillon/ledger/ledger.h"

#include <algorithm>
#include <variant>

#include "carillon/base/assert.h"
#include "carillon/ledger/chances.h"

namespace carillon::ledger {
namespace {

std::size_t index_of(Lane lane) {
  return static_cast<std::size_t>(lane);
}

bool takes_pages(const std::shared_ptr<const ModelInfo>& info) {
  return info != nullptr && info->pages > 0;
}

// Actions that are over.
void give_back(std::vector<std::uint32_t>& over, Slab<Ledger::Action>& actions) {
  for (const std::uint32_t place : over) actions.give_back(place);
  over.clear();
}

}  // namespace

Ledger::Ledger() {
  for (auto& each : chances_) each = std::make_unique<Chances>(Environment{});
}

Ledger::~Ledger() = default;
Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;

void Ledger::apply(const Event& event, TimePoint now) {
  ++tick_;
  if (!changes_.ended.empty()) give_back(changes_.ended, actions_);
  if (!changes_.lost.empty()) give_back(changes_.lost, actions_);
  changes_.back.clear();
  changes_.refused.clear();
  sent_before_ = sent_;
  std::visit([&](const auto& what) { on(what, now); }, event);
}

void Ledger::book(const Order& order, TimePoint now) {
  ++tick_;
  std::visit([&](const auto& what) { on(what, now); }, order);
}

void Ledger::planned_by(const Environment& environment, bool by_device) {
  by_device_ = by_device;
  of(Class::normal) = ExecTimes(by_device);
  margins_ = Margins(environment);
  learnt(Class::normal) = Chances(environment);
}

void Ledger::classed_by(const Environment& environment, bool tells_share) {
  classed_ = true;
  tells_share_ = tells_share;
  urgent_margins_ = Margins(environment);
  for (const Class cls : {Class::real_time, Class::best_effort}) learnt(cls) = Chances(environment);
}

void Ledger::model_changed(Class cls, const ModelChanged& change) {
  ExecTimes& times = of(cls);
  const bool anew = times.came(change.model);
  times.model_changed(change);
  learnt(cls).model_changed(change.model, times.info(change.model), anew);
}

void Ledger::times_changed(Class cls, const TimesChanged& change, TimePoint now) {
  ExecTimes& times = of(cls);
  times.times_changed(change, now);
  if (times.came(change.model)) learnt(cls).model_changed(change.model, times.info(change.model), false);
}

// --- Requests

void Ledger::on(const RequestArrived& event, TimePoint) {
  OpenRequest& request = requests_.open(event.request.id);
  request.told = event.request;
  request.action = none;
  request.withdrawn = 0;
  request.tries = {};
  known(event.request.model);
}

void Ledger::on(const RequestCancelled& event, TimePoint) {
  OpenRequest* const request = requests_.find(event.request);
  if (request == nullptr || request->withdrawn > 0)
    return;  // it has been answered or refused, or told before
  if (request->action == none) return requests_.close(event.request);
  request->withdrawn = tick_;
  --actions_[request->action].wanted;
}

void Ledger::on(const Refuse& order, TimePoint) {
  const OpenRequest* const request = requests_.find(order.request);
  if (request == nullptr) return;
  changes_.refused.push_back({order, request->told.model, request->told.cls});
  requests_.close(order.request);
}

// The INFER has ended with `status`. None: its device went, and `had` received the INFER.
void Ledger::give_back_requests(Action& action, std::optional<ActionStatus> status, bool had) {
  const bool answered = status == ActionStatus::success;
  for (const RequestId id : action.requests) {
    OpenRequest* const request = answered ? nullptr : requests_.find(id);
    if (request == nullptr || request->withdrawn > 0) {
      requests_.close(id);
      continue;
    }
    request->action = none;
    changes_.back.push_back(id);
    if (!status)
      request->tries.lost += had ? 1 : 0;
    else if (*status == ActionStatus::too_late)
      ++request->tries.late;
    else if (*status != ActionStatus::stopped)
      ++request->tries.failed;
  }
}

// --- Orders

const Ledger::Action* Ledger::action(ActionId id) const {
  const auto at = place_of(id);
  return at ? &actions_[*at] : nullptr;
}

std::uint32_t Ledger::send(ActionId id, ActionKind kind, Lane lane, DeviceId device, ModelId model,
                           Window window, Duration expected, TimePoint now) {
  CARILLON_ASSERT(device.index() < devices_.size());
  Model& m = known(model);
  Device& d = devices_[device.index()];
  const std::uint32_t at = actions_.take();
  Action& action = actions_[at];
  action.id = id;
  action.kind = kind;
  action.lane = lane;
  action.cls = Class::normal;
  action.device = device;
  action.model = model;
  action.incarnation = d.incarnation;
  action.version = m.version;
  action.place = sent_++;
  action.requests.clear();
  action.promises.clear();
  action.wanted = 0;
  action.profiled.reset();
  action.window = window;
  action.order = window.earliest;
  action.expected = expected;
  action.sent = now;
  action.cold = action.uses_copy = action.at_once = action.stopped = false;
  action.taken = true;
  action.preempted = 0;
  action.overtaken = 0;
  action_at_.insert(id.value, at);
  line_up(d.under_way[index_of(lane)], at);
  ++m.under_way;
  if (kind == ActionKind::load) ++m.loading;
  if (kind != ActionKind::unload) ++d.wanted_for;
  if (kind == ActionKind::infer) {
    ++d.runs;
    d.busy += expected;
  }
  return at;
}

void Ledger::on(const Load& order, TimePoint now) {
  if (!books(order.id, order.device)) return;
  send(order.id, ActionKind::load, Lane::load, order.device, order.model, order.window, order.expected, now);
  Device& d = devices_[order.device.index()];
  Model& m = models_[order.model.index()];
  Copy& copy = copy_there(d, order.model);
  copy.load = order.id;
  copy.brought = false;
  copy.version = m.version;
  copy.pages = m.info != nullptr ? m.info->pages : 0;
  copy.last_use = now;
  reside(d, order.device, order.model, copy, Residence::loading);
}

void Ledger::on(const Unload& order, TimePoint now) {
  if (!books(order.id, order.device)) return;
  send(order.id, ActionKind::unload, Lane::load, order.device, order.model, {now, TimePoint::max()},
       Duration{0}, now);
  Device& d = devices_[order.device.index()];
  reside(d, order.device, order.model, copy_there(d, order.model), Residence::unloading);
}

void Ledger::on(const Infer& order, TimePoint now) {
  if (!books(order.id, order.device)) return;
  const std::uint32_t at = send(order.id, ActionKind::infer, lane_of(order.cls), order.device, order.model,
                                order.window, order.expected, now);
  Action& action = actions_[at];
  const Model& m = models_[order.model.index()];
  action.cls = order.cls;
  action.requests.assign(order.requests.begin(), order.requests.end());
  for (const RequestId id : order.requests)
    if (OpenRequest* const request = requests_.find(id)) {
      request->action = at;
      ++action.wanted;
    }
  Device& d = devices_[order.device.index()];
  action.run = of(order.cls).run(order.planned_as.value_or(order.model), order.requests.size());
  action.at_once = order.window.earliest <= now && d.under_way[index_of(lane_of(order.cls))].size() == 1;
  if (takes_pages(m.info)) {
    Copy& copy = copy_there(d, order.model);
    action.uses_copy = true;
    action.cold = copy.residence == Residence::loading;
    action.at_once = action.at_once && !action.cold;
    ++copy.users[static_cast<std::size_t>(order.cls)];
    if (order.cls == Class::normal && copy.residence == Residence::loaded) copy.last_use = now;
  }
  promise(action, now);
}

// EXEC starts when the order is there, behind what the lane has and what loads the model.
void Ledger::promise(Action& action, TimePoint now) {
  const Chances& chances = this->chances(action.cls);
  if (!of(action.cls).knows(action.run)) return;
  const Device& d = device_of(action);
  const Duration way = chances.way(action.device);
  TimePoint start = now;
  const auto behind = [&](Lane lane, auto&& waits_for) {
    TimePoint free = d.ended[index_of(lane)];
    for (const std::uint32_t at : d.under_way[index_of(lane)]) {
      const Action& other = actions_[at];
      if (&other == &action) break;
      free = std::max(free, saturating_add(std::max(other.sent, other.window.earliest), way));
      free = saturating_add(free, other.expected);
      if (waits_for(other)) start = std::max(start, free);
    }
  };
  if (action.cls != Class::best_effort) behind(action.lane, [](const Action&) { return true; });
  if (action.cold) behind(Lane::load, [&](const Action& load) { return load.model == action.model; });
  start = std::max({start, saturating_add(now, way), action.window.earliest});
  const Chances::There there = chances.there(action.device, action.run.model);
  TimePoint sure = TimePoint::max();  // what has at least until then cannot be late
  for (const RequestId id : action.requests) {
    const OpenRequest* const request = requests_.find(id);
    if (request == nullptr) continue;
    const TimePoint deadline = request->told.deadline;
    const double late = deadline >= sure ? 0 : there.late(action.run.index, deadline - start);
    if (late == 0) sure = std::min(sure, deadline);
    action.promises.push_back({deadline, late});
  }
}

Ledger::Kept Ledger::kept(const Action& action, TimePoint heard) const {
  Kept kept;
  for (const Action::Promise& promise : action.promises) {
    ++kept.answers;
    kept.expected += promise.late;
    if (heard <= promise.deadline) continue;
    ++kept.late;
    if (promise.late > chances(action.cls).promised(action.run.model)) ++kept.avoidable;
  }
  return kept;
}

void Ledger::on(const Profile& order, TimePoint now) {
  if (!books(order.id, order.device)) return;
  const std::uint32_t at = send(order.id, ActionKind::infer, Lane::exec, order.device, order.model,
                                order.window, order.expected, now);
  actions_[at].profiled = order.request;
}

void Ledger::on(const Stop& order, TimePoint) {
  if (const auto at = action_at_.find(order.id.value)) actions_[*at].stopped = true;
}

void Ledger::on(const Preempt& order, TimePoint) {
  const auto at = action_at_.find(order.id.value);
  if (!at) return;
  Action& action = actions_[*at];
  ++action.preempted;
  action.order = order.order;
  std::vector<std::uint32_t>& lined = device_of(action).under_way[index_of(action.lane)];
  lined.erase(std::ranges::find(lined, *at));
  line_up(lined, *at);
}

// Mostly it is the last.
void Ledger::line_up(std::vector<std::uint32_t>& lined, std::uint32_t at) {
  const auto goes_first = [&](std::uint32_t other) {
    const Action &a = actions_[other], &b = actions_[at];
    return a.order != b.order ? a.order < b.order : a.id < b.id;
  };
  auto place = lined.end();
  while (place != lined.begin() && !goes_first(*(place - 1))) --place;
  lined.insert(place, at);
}

void Ledger::on(const GiveUp& order, TimePoint) {
  if (!devices_[order.device.index()].alive) return;
  restart(order.device);
  margins_.start(order.device, false);
  if (classed_) urgent_margins_.start(order.device, false);
  for (auto& each : chances_) each->start(order.device, false);
}

// The device has it no more. False: it never had.
bool Ledger::leaves_device(Action& action) {
  if (!std::exchange(action.taken, false)) return false;
  Model& m = models_[action.model.index()];
  --m.under_way;
  if (action.kind == ActionKind::load) --m.loading;
  if (action.kind == ActionKind::infer) {
    Device& d = device_of(action);
    --d.runs;
    d.busy -= action.expected;
  }
  return true;
}

void Ledger::apply(const NotTaken& event, TimePoint) {
  ++tick_;
  if (const auto at = action_at_.find(event.action.value)) leaves_device(actions_[*at]);
}

// --- Reports

void Ledger::on(const ActionDone& event, TimePoint now) {
  const auto at = action_at_.find(event.id.value);
  if (!at) return;  // it went with its device, or is reported twice
  Action& action = actions_[*at];
  Device& d = device_of(action);
  const bool had = leaves_device(action);
  action_at_.erase(event.id.value);
  std::vector<std::uint32_t>& lined = d.under_way[index_of(action.lane)];
  lined.erase(std::ranges::find(lined, *at));
  // Of a device that never had it the end says nothing.
  for (const std::uint32_t other : lined)
    if (had && actions_[other].overtaken == 0 && actions_[other].place < action.place &&
        actions_[other].window.earliest <= action.window.earliest)
      actions_[other].overtaken = tick_;
  if (had) {
    d.reported[index_of(action.lane)] = tick_;
    d.ran[index_of(action.lane)] += event.duration;
    d.ended[index_of(action.lane)] = std::min(event.end, now);
  }
  if (action.kind != ActionKind::unload) --d.wanted_for;
  switch (action.kind) {
    case ActionKind::load:
      ended_load(event, action, now);
      break;
    case ActionKind::unload:
      ended_unload(event, action);
      break;
    case ActionKind::infer:
      if (event.status == ActionStatus::success && !action.promises.empty()) {
        const Kept kept = this->kept(action, now);
        learnt(action.cls).judge(action.device, kept.expected, kept.late);
      }
      ended_run(event, action, now);
      give_back_requests(action, event.status);
      break;
  }
  changes_.ended.push_back(*at);
}

void Ledger::ended_load(const ActionDone& done, const Action& load, TimePoint now) {
  Device& d = device_of(load);
  const bool success = done.status == ActionStatus::success;
  Copy& copy = copy_there(d, load.model);
  copy.arriving = false;
  if (success) hold(load.model, copy, true);
  copy.failures = success ? 0 : copy.failures + 1;
  if (!success) return reside(d, load.device, load.model, copy, Residence::absent);
  if (copy.residence == Residence::leaving) return;
  copy.last_use = now;
  reside(d, load.device, load.model, copy, Residence::loaded);
}

// Whatever the device said: nobody asks it for the copy any more.
void Ledger::ended_unload(const ActionDone& done, const Action& unload) {
  Device& d = device_of(unload);
  Copy& copy = copy_there(d, unload.model);
  if (done.status == ActionStatus::success) hold(unload.model, copy, false);
  reside(d, unload.device, unload.model, copy, Residence::absent);
}

void Ledger::ended_run(const ActionDone& done, const Action& run, TimePoint now) {
  Device& d = device_of(run);
  const bool success = done.status == ActionStatus::success;
  if (success && done.threads > 0) d.threads = done.threads;
  const bool ran = success || done.status == ActionStatus::failed || done.status == ActionStatus::stopped;
  if (run.cls == Class::real_time && ran) d.urgent.add(done.duration, now);
  if (run.cls == Class::normal) d.urgent_share = tells_share_ ? d.urgent.at(now) : 0;
  if (success && !run.profiled) learn(done, run, now);
  if (!run.uses_copy) return;
  Copy& copy = copy_there(d, run.model);
  --copy.users[static_cast<std::size_t>(run.cls)];
  // The device knows better. (One that was sent ahead of a LOAD that came late says nothing.)
  if (done.status == ActionStatus::not_loaded && copy.residence == Residence::loaded && !run.cold &&
      run.version == models_[run.model.index()].version)
    reside(d, run.device, run.model, copy, Residence::absent);
}

// By which plan a batch ran whose times have changed since, nobody knows: it teaches neither times nor paces,
// and no margins for lasting longer.
void Ledger::learn(const ActionDone& done, const Action& run, TimePoint now) {
  ExecTimes& times = of(run.cls);
  if (!times.knows(run.run)) return;
  Device& d = device_of(run);
  Duration took = done.duration;
  bool tells = times.tells(run.run), other_pace = false;
  if (run.cls == Class::normal) {
    if (d.urgent_share > 0) took = BusyShare::stretched(took, d.urgent_share);
    other_pace = done.threads > 0 && d.paced > 0 && done.threads != d.paced;
    if (other_pace && tells) {
      margins_.start(run.device, true);
      const auto [few, many] = std::minmax(done.threads, d.paced);
      const double ratio = static_cast<double>(many) / few;
      times.begin_other_pace(run.device, run.run, took, ratio, now);
      const Duration expected = learnt(run.cls).exec(run.device, run.run.model, run.run.index);
      learnt(run.cls).other_pace(
          run.device, std::clamp(MeasuredTimes::times_seed(took, expected), 1 / (2 * ratio), 2 * ratio));
    }
    if (done.threads > 0 && !(other_pace && !tells)) d.paced = done.threads;
  }
  const bool other_times = !tells && times.same_version(run.run);
  if (run.cls != Class::best_effort)
    taught(run.cls).observe(run.device, {.decided = run.sent,
                                         .at_once = run.at_once,
                                         .estimate = other_pace || other_times ? took : run.expected,
                                         .start = done.start,
                                         .end = done.end,
                                         .took = took,
                                         .heard = now});
  if (!tells) return;
  times.add(run.device, run.run, took, now);
  learnt(run.cls).observe(run.device, {.model = run.run.model,
                                       .index = run.run.index,
                                       .sent = run.sent,
                                       .at_once = run.at_once,
                                       .start = done.start,
                                       .took = took,
                                       .heard = now});
}

void Ledger::recall(DeviceId device, const Earlier& run) {
  ExecTimes& times = of(run.cls);
  const ExecTimes::Run which = times.run(run.model, run.rows);
  if (!times.knows(which)) return;
  times.add(device, which, run.took, run.end);
  learnt(run.cls).recall(device, which.model, which.index, run.took, run.end);
  if (run.cls != Class::best_effort) taught(run.cls).recall(device, run.took, run.expected, run.end);
}

void Ledger::arrived(DeviceId device, Class cls, Duration after_order, TimePoint now) {
  if (cls != Class::best_effort) taught(cls).arrived(device, after_order, now);
}

void Ledger::delivered(DeviceId device, Class cls, Duration after_end, TimePoint now) {
  if (cls != Class::best_effort) taught(cls).delivered(device, after_end, now);
}

Doubted Ledger::book(const Doubt& doubt, TimePoint now) {
  ExecTimes& times = of(doubt.cls);
  Doubted changed;
  const auto idles = [&](DeviceId id) {
    return devices_[id.index()].under_way[index_of(lane_of(doubt.cls))].empty();
  };
  changed.chances = learnt(doubt.cls).doubt(doubt.model, doubt.left, now, idles);
  if (doubt.cls == Class::normal && by_device_) {
    changed.times = times.doubt_row(doubt.model, margins_.least().exec_within(doubt.left), now, idles);
    changed.margins = margins_.doubt(doubt.left, times.shortest(doubt.model), now);
    return changed;
  }
  if (doubt.cls != Class::best_effort)
    changed.margins = (doubt.cls == Class::normal ? margins_ : urgent_margins_)
                          .doubt(doubt.left, times.of(doubt.model, 0), now);
  changed.times = times.doubt_all(doubt.model, now);
  return changed;
}

// --- Devices, models and what is where

void Ledger::on(const DeviceChanged& event, TimePoint now) {
  if (event.device.index() >= devices_.size()) devices_.resize(event.device.index() + 1);
  restart(event.device);
  Device& d = devices_[event.device.index()];
  d.alive = event.alive;
  d.pages = event.alive ? event.pages : 0;
  d.best_effort = event.best_effort;
  margins_.start(event.device, event.alive);
  if (classed_) urgent_margins_.start(event.device, event.alive);
  for (auto& each : chances_) each->start(event.device, event.alive);
  alive_ += event.alive ? 1 : 0;
  for (const ModelId model : event.held) bring(event.device, model, now);
}

void Ledger::bring(DeviceId id, ModelId model, TimePoint now) {
  Device& d = devices_[id.index()];
  const Model& m = models_[model.index()];
  CARILLON_ASSERT(d.alive && m.served && m.info->pages > 0 && d.taken + m.info->pages <= d.pages);
  Copy& copy = copy_there(d, model);
  copy.brought = true;
  copy.version = m.version;
  copy.pages = m.info->pages;
  copy.last_use = now;
  reside(d, id, model, copy, Residence::loaded);
  hold(model, copy, true);
}

// What was there and under way is lost.
void Ledger::restart(DeviceId id) {
  Device& d = devices_[id.index()];
  alive_ -= std::exchange(d.alive, false) ? 1 : 0;
  ++d.incarnation;
  for (std::vector<std::uint32_t>& lined : d.under_way) {
    for (const std::uint32_t at : lined) {
      Action& action = actions_[at];
      const bool had = leaves_device(action) && action.place < sent_before_;
      give_back_requests(action, std::nullopt, had);
      action_at_.erase(action.id.value);
      changes_.lost.push_back(at);
    }
    lined.clear();
  }
  d.wanted_for = 0;  // runs and their time left with the actions
  d.reported = {};
  d.ran = {};
  d.ended = {};
  d.urgent = {};
  d.urgent_share = 0;
  for (auto& [model, copy] : d.copies) {
    reside(d, id, model, copy, Residence::absent);
    hold(model, copy, false);
    copy.arriving = copy.brought = false;
    copy.failures = 0;
    copy.users = {};
  }
}

void Ledger::on(const ModelChanged& event, TimePoint) {
  if (classed_)
    for (const Class cls : {Class::real_time, Class::best_effort}) model_changed(cls, event);
  const bool comes_first =
      event.model.index() >= models_.size() || models_[event.model.index()].info == nullptr;
  Model& m = known(event.model);
  m.served = event.info != nullptr;
  if (event.info) m.info = event.info;
  if (comes_first) return;
  ++m.version;
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    Copy* const copy = find(devices_[i], event.model);
    if (copy == nullptr) continue;
    copy->arriving = copy->arriving || copy->residence == Residence::loading;
    if (copy->residence == Residence::loaded || copy->residence == Residence::loading)
      reside(devices_[i], DeviceId{i}, event.model, *copy, Residence::leaving);
  }
}

void Ledger::on(const TimesChanged& event, TimePoint now) {
  if (classed_)
    for (const Class cls : {Class::real_time, Class::best_effort}) times_changed(cls, event, now);
  Model& m = known(event.model);
  if (m.info == nullptr) return;
  CARILLON_ASSERT(same_sizes(m.info->batches, event.batches));
  auto info = std::make_shared<ModelInfo>(*m.info);
  info->batches = event.batches;
  m.info = std::move(info);
}

const Ledger::Copy* Ledger::copy(DeviceId device, ModelId model) const {
  return device.index() < devices_.size()
             ? const_cast<Ledger*>(this)->find(const_cast<Device&>(devices_[device.index()]), model)
             : nullptr;
}

Ledger::Copy* Ledger::find(Device& device, ModelId model) {
  if (model.index() >= device.copy_of.size() || device.copy_of[model.index()] == none) return nullptr;
  return &device.copies[device.copy_of[model.index()]].second;
}

Ledger::Copy& Ledger::copy_there(Device& device, ModelId model) {
  if (Copy* const found = find(device, model)) return *found;
  if (model.index() >= device.copy_of.size()) device.copy_of.resize(models_.size(), none);
  device.copy_of[model.index()] = static_cast<std::uint32_t>(device.copies.size());
  return device.copies.emplace_back(model, Copy{}).second;
}

void Ledger::hold(ModelId model, Copy& copy, bool held) {
  if (std::exchange(copy.held, held) == held) return;
  std::uint32_t& count = models_[model.index()].held;
  held ? ++count : --count;
}

void Ledger::reside(Device& device, DeviceId id, ModelId model, Copy& copy, Residence residence) {
  const Residence before = std::exchange(copy.residence, residence);
  if (before == residence) return;
  if (before == Residence::absent) device.taken += copy.pages;
  if (residence == Residence::absent) device.taken -= copy.pages;
  if (before == Residence::unloading) device.freeing -= copy.pages;
  if (residence == Residence::unloading) device.freeing += copy.pages;
  const auto leaves = [](Residence r) { return r == Residence::leaving || r == Residence::unloading; };
  device.leaving -= leaves(before) ? 1 : 0;
  device.leaving += leaves(residence) ? 1 : 0;
  Model& m = models_[model.index()];
  if (before == Residence::loading) --m.coming;
  if (residence == Residence::loading) ++m.coming;
  if (before == Residence::loaded) std::erase(m.places, id);
  if (residence == Residence::loaded) m.places.push_back(id);
}

}  // namespace carillon::ledger
