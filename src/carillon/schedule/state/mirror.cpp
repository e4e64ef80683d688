#include "carillon/schedule/state/mirror.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

// Runs that are reported: what it takes to find the shortest LOAD anew is shared by so many.
constexpr unsigned bound_holds = 256;

}  // namespace

void Mirror::reads(ledger::Ledger& ledger) {
  CARILLON_ASSERT(models_.empty() && devices_.empty());
  ledger.planned_by(environment_, options_.by_device);
  ledger_ = &ledger;
  times_ = &ledger.times(Class::normal);
  margins_ = &ledger.margins(Class::normal);
}

void Mirror::model_changed(const ModelChanged& change) {
  const std::size_t index = change.model.index();
  CARILLON_ASSERT(index < models_.size() || (index == models_.size() && change.info));
  if (change.info) {
    const auto& batches = change.info->batches;
    CARILLON_ASSERT(change.info->id == change.model && !batches.empty() && batches.front().batch == 1);
    for (std::size_t i = 1; i < batches.size(); ++i) CARILLON_ASSERT(batches[i - 1].batch < batches[i].batch);
  }
  ledger_->plan(change);
  const bool comes_first = index == models_.size();
  if (comes_first) {
    models_.push_back(
        Model{.info = *change.info, .load = profile::RollingWindow(change.info->load), .family = {}});
    const ModelId home = change.info->weights_of.value_or(change.model);
    CARILLON_ASSERT(home.index() <= index && this->home(home) == home);
    models_[home.index()].family.push_back(change.model);
  }
  Model& m = models_[index];
  if (!comes_first) {
    if (change.info) {
      CARILLON_ASSERT(change.info->weights_of == m.info.weights_of);
      m.info = *change.info;
    }
    m.served = change.info != nullptr;
    // Those that run with its weights change after it: until then nothing of them is sent.
    for (const ModelId each : m.family) {
      if (each == change.model) continue;
      models_[each.index()].served = false;
      models_[each.index()].info.pages = m.info.pages;
    }
    ++m.changes;
    m.places = 0;
    m.load = profile::RollingWindow(m.info.load);
    for (const std::uint32_t i : m.devices) {
      Device& d = devices_[i];
      OnDevice& on = *find(d, change.model);
      if (on.residence == Residence::loaded) d.lru.erase({on.last_use, change.model});
      on.arriving = on.arriving || on.residence == Residence::loading;
      if (on.residence == Residence::loaded || on.residence == Residence::loading)
        on.residence = Residence::leaving;
      on.load = profile::RollingWindow(m.info.load);
      on.failed_loads = 0;
      on.load_not_before = TimePoint::min();
      look_whether_it_leaves(DeviceId{i}, change.model, on);
    }
  }
  find_shortest_load(m);
}

void Mirror::times_changed(const TimesChanged& change, TimePoint now) {
  Model& m = models_[change.model.index()];
  ledger_->plan(change, now);
  m.info.batches = change.batches;
  find_shortest_load(m);
}

void Mirror::look_whether_it_leaves(DeviceId id, ModelId model, const OnDevice& on) {
  if (on.residence == Residence::leaving && !on.arriving && on.pending_infers == 0)
    leaving_.emplace_back(id, model);
}

void Mirror::unload_left(Actions& out) {
  for (const auto& [id, model] : leaving_) {
    const OnDevice* on = find(device(id), model);
    if (on->residence != Residence::leaving) continue;  // it went with its device
    out.emplace_back(Unload{begin_unload(id, model), id, model});
  }
  leaving_.clear();
}

std::vector<SentAction> Mirror::device_changed(const DeviceChanged& change, TimePoint now) {
  CARILLON_ASSERT(change.device.index() <= devices_.size());
  if (change.device.index() == devices_.size()) devices_.emplace_back();
  Device& d = devices_[change.device.index()];

  std::vector<SentAction> lost;
  std::vector<ActionId> gone;
  for (const auto& p : d.exec.pending()) gone.push_back(p.id);
  std::sort(gone.begin(), gone.end());
  for (const ActionId id : gone) {
    SentAction& infer = lost.emplace_back(std::move(*actions_.erase(id)));
    infer.outdated = infer.version != models_[infer.model.index()].changes;
  }
  for (const auto& p : d.load.pending()) actions_.erase(p.id);
  // UNLOADs are on no executor; their late reports find the model absent, or loaded anew, and are ignored
  // because their ids are no longer known.
  for (std::size_t model = 0; model < d.slot_of.size(); ++model) {
    if (d.slot_of[model] == no_slot) continue;
    OnDevice& on = d.slots[d.slot_of[model]];
    if (on.residence == Residence::unloading) actions_.erase(on.load_action);
    if (on.residence == Residence::loaded || on.residence == Residence::loading) --models_[model].places;
    on.residence = Residence::absent;  // what was measured there stays known
    on.arriving = false;
    on.pending_infers = 0;
    on.failed_loads = 0;
    on.load_not_before = TimePoint::min();
  }
  d.exec = {};
  d.load = {};
  d.lru.clear();
  d.alive = change.alive;
  d.total_pages = d.free_pages = change.alive ? change.pages : 0;
  d.freeing_pages = 0;
  for (const ModelId model : change.held) {
    Model& m = models_[model.index()];
    CARILLON_ASSERT(home(model) == model && m.info.pages <= d.free_pages);
    OnDevice& on = get(d, model);
    on.residence = Residence::loaded;
    on.pages = m.info.pages;
    on.last_use = now;
    d.free_pages -= on.pages;
    d.lru.insert({now, model});
    ++m.places;
  }
  margins_seen_ = margins_->version();
  alive_ = 0;
  largest_pages_ = 0;
  for (const Device& each : devices_) {
    if (!each.alive) continue;
    ++alive_;
    largest_pages_ = std::max(largest_pages_, each.total_pages);
  }
  return lost;
}

Mirror::OnDevice& Mirror::get(Device& d, ModelId model) {
  if (OnDevice* found = find(d, model)) return *found;
  if (model.index() >= d.slot_of.size()) d.slot_of.resize(models_.size(), no_slot);
  d.slot_of[model.index()] = static_cast<std::uint32_t>(d.slots.size());
  Model& m = models_[model.index()];
  m.devices.push_back(static_cast<std::uint32_t>(&d - devices_.data()));
  return d.slots.emplace_back(OnDevice{.load = profile::RollingWindow(m.info.load)});
}

TimePoint Mirror::last_use(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), home(model));
  return on == nullptr ? TimePoint::min() : on->last_use;
}

TimePoint Mirror::ready_at(DeviceId id, ModelId model, TimePoint now) const {
  const Device& d = device(id);
  if (models_[model.index()].info.pages == 0) return d.alive ? now : TimePoint::max();
  const OnDevice* on = find(d, home(model));
  if (on == nullptr) return TimePoint::max();
  switch (on->residence) {
    case Residence::loaded:
      return now;
    case Residence::loading:
      return d.load.end_of(on->load_action, now);
    case Residence::absent:
    case Residence::leaving:
    case Residence::unloading:
      return TimePoint::max();
  }
  return TimePoint::max();
}

bool Mirror::load_overdue(DeviceId id, ModelId model, TimePoint now) const {
  const Device& d = device(id);
  const OnDevice* on = find(d, home(model));
  // Behind another that is overdue it ends nobody knows when, too.
  return on != nullptr && on->residence == Residence::loading &&
         (d.load.overdue(now) || d.load.end_of(on->load_action, now) <= now);
}

void Mirror::use(Device& d, ModelId model, OnDevice& on, TimePoint now) {
  if (on.last_use == now) return;
  auto node = d.lru.extract({on.last_use, model});
  CARILLON_ASSERT(!node.empty());
  node.value().first = on.last_use = now;
  d.lru.insert(d.lru.end(), std::move(node));
}

void Mirror::drop(Device& d, ModelId model, OnDevice& on) {
  d.lru.erase({on.last_use, model});
  on.residence = Residence::absent;
  --models_[model.index()].places;
  d.free_pages += on.pages;
}

std::optional<std::vector<ModelId>> Mirror::room_ahead(const LoadAhead& wanted) const {
  const std::uint64_t needs = model(home(wanted.model)).pages;
  std::uint64_t room = free_pages(wanted.device) + freeing_pages(wanted.device);
  std::vector<ModelId> victims;
  for (const ModelId each : wanted.instead) {
    if (room >= needs) break;
    const ModelId victim = home(each);
    if (residence(wanted.device, victim) != Residence::loaded || pending_infers(wanted.device, victim) > 0)
      continue;
    room += model(victim).pages;
    victims.push_back(victim);
  }
  return room >= needs ? std::optional(std::move(victims)) : std::nullopt;
}

ActionId Mirror::begin_load(DeviceId id, ModelId model, TimePoint earliest, Duration expected,
                            TimePoint now) {
  Device& d = device(id);
  OnDevice& on = get(d, model);
  Model& m = models_[model.index()];
  const std::uint64_t pages = m.info.pages;
  CARILLON_ASSERT(pages > 0 && m.served && home(model) == model && d.alive &&
                  on.residence == Residence::absent && d.free_pages >= pages && earliest >= now);
  d.free_pages -= pages;
  on.residence = Residence::loading;
  on.pages = pages;
  on.load_action = next_action_;
  on.last_use = now;
  ++m.places;
  d.load.push(next_action_, model, earliest, expected);
  actions_.insert(next_action_, {.id = next_action_,
                                 .kind = ActionKind::load,
                                 .device = id,
                                 .model = model,
                                 .requests = {},
                                 .version = m.changes});
  return ActionId{next_action_.value++};
}

ActionId Mirror::begin_unload(DeviceId id, ModelId model) {
  Device& d = device(id);
  OnDevice& on = get(d, model);
  CARILLON_ASSERT(
      d.alive && on.pending_infers == 0 &&
      (on.residence == Residence::loaded || (on.residence == Residence::leaving && !on.arriving)));
  if (on.residence == Residence::loaded) {
    d.lru.erase({on.last_use, model});
    --models_[model.index()].places;
  }
  on.residence = Residence::unloading;
  on.load_action = next_action_;
  d.freeing_pages += on.pages;
  actions_.insert(
      next_action_,
      {.id = next_action_, .kind = ActionKind::unload, .device = id, .model = model, .requests = {}});
  return ActionId{next_action_.value++};
}

ActionId Mirror::begin_infer(DeviceId id, ModelId model, int batch_index, std::vector<RequestId> requests,
                             TimePoint earliest, Duration expected, TimePoint now, Duration dispatch,
                             TimePoint latest) {
  SentAction infer{
      .device = id, .model = model, .batch_index = batch_index, .sent = now, .expected = expected};
  infer.batch = static_cast<int>(requests.size());
  infer.requests = std::move(requests);
  return send_infer(std::move(infer), {earliest, latest}, dispatch);
}

ActionId Mirror::begin_infer(DeviceId id, ModelId model, int batch_index, std::vector<Request> members,
                             TimePoint earliest, Duration expected, TimePoint now, Duration dispatch,
                             TimePoint latest) {
  SentAction infer{
      .device = id, .model = model, .batch_index = batch_index, .sent = now, .expected = expected};
  infer.batch = static_cast<int>(members.size());
  infer.members = std::move(members);
  return send_infer(std::move(infer), {earliest, latest}, dispatch);
}

TimePoint Mirror::usual_free_at(DeviceId id, TimePoint now) const {
  const Executor& exec = this->exec(id);
  TimePoint free = exec.free_from();
  for (const Executor::Pending& pending : exec.pending()) {
    const TimePoint there = saturating_add(pending.order, margins_->usual(id).dispatch);
    free = std::max(saturating_add(std::max(free, there), pending.expected), now);
  }
  return std::clamp(free, now, exec.free_at(now));
}

std::optional<Overtaking> Mirror::overtaking(DeviceId id, std::size_t place, TimePoint now) const {
  const Device& d = device(id);
  if (!d.alive || place >= d.exec.pending().size()) return std::nullopt;
  const SentAction& next = *actions_.find(d.exec.pending()[place].id);
  const auto at =
      d.exec.overtaking(place, saturating_add(now, margins_->at(id).dispatch),
                        from_ns(options_.kernel * static_cast<double>(next.expected.count())), now);
  return at && at->evicts && next.preempted >= options_.preemptions ? std::nullopt : at;
}

ActionId Mirror::overtake(const Overtaking& at, DeviceId id, ModelId model, int batch_index,
                          std::vector<RequestId> requests, Duration expected, TimePoint now, TimePoint latest,
                          Actions& out) {
  const ActionId next = device(id).exec.pending()[at.place].id;
  SentAction infer{
      .device = id, .model = model, .batch_index = batch_index, .sent = now, .expected = expected};
  infer.batch = static_cast<int>(requests.size());
  out.emplace_back(Infer{next_action_, id, model, requests, {at.order, latest}, expected});
  infer.requests = std::move(requests);
  if (at.evicts) {
    ++actions_.find(next)->preempted;
    out.emplace_back(Preempt{next, id, at.order + 1ns});
  }
  return send_infer(std::move(infer), {at.order, latest}, Duration{0}, &at);
}

ActionId Mirror::send_infer(SentAction&& infer, Window window, Duration dispatch, const Overtaking* at) {
  Device& d = device(infer.device);
  const Model& m = models_[infer.model.index()];
  CARILLON_ASSERT(d.alive && m.served && (at != nullptr || window.earliest >= infer.sent) &&
                  infer.batch == m.info.batches[static_cast<std::size_t>(infer.batch_index)].batch);
  if (m.info.pages > 0) {
    OnDevice& on = get(d, home(infer.model));
    infer.uses_copy = true;
    infer.sent_cold = on.residence == Residence::loading;
    CARILLON_ASSERT(infer.sent_cold || on.residence == Residence::loaded);
    ++on.pending_infers;
    if (!infer.sent_cold) use(d, home(infer.model), on, infer.sent);
  }
  infer.id = next_action_;
  infer.kind = ActionKind::infer;
  infer.version = m.changes;
  infer.times = times_->times_changes(infer.model, static_cast<std::size_t>(infer.batch_index));
  const TimePoint due = saturating_add(window.latest, infer.expected);
  if (at != nullptr)
    d.exec.overtake(*at, infer.id, infer.model, infer.expected, due);
  else
    d.exec.push(infer.id, infer.model, std::max(window.earliest, saturating_add(infer.sent, dispatch)),
                infer.expected, due, window.earliest);
  const ActionId id = infer.id;
  actions_.insert(id, std::move(infer));
  return ActionId{next_action_.value++};
}

void Mirror::forget(RequestId request, ModelId model) {
  for (const Device& d : devices_)
    for (const Executor::Pending& pending : d.exec.pending())
      if (pending.model == model)
        std::erase_if(actions_.find(pending.id)->members,
                      [request](const Request& r) { return r.id == request; });
}

// When what follows a reported action on its executor may start.
TimePoint Mirror::next_starts(const Executor& executor, const ActionDone& done, TimePoint now) const {
  const bool ran = done.status == ActionStatus::success || done.status == ActionStatus::failed ||
                   done.status == ActionStatus::stopped;
  if (options_.follows_reports) return ran ? std::min(done.end, now) : now;
  return ran ? std::max(executor.free_from(), std::min(done.end, now)) : executor.free_from();
}

std::optional<SentAction> Mirror::finish(const ActionDone& done, TimePoint now) {
  auto sent = actions_.erase(done.id);
  if (!sent) return sent;
  sent->outdated = sent->version != models_[sent->model.index()].changes;
  switch (sent->kind) {
    case ActionKind::load:
      finish_load(done, *sent, now);
      break;
    case ActionKind::unload: {
      Device& d = device(sent->device);
      OnDevice& on = get(d, sent->model);
      on.residence = Residence::absent;
      d.free_pages += on.pages;
      d.freeing_pages -= on.pages;
      break;
    }
    case ActionKind::infer:
      finish_infer(done, *sent, now);
      break;
  }
  return sent;
}

void Mirror::finish_load(const ActionDone& done, const SentAction& sent, TimePoint now) {
  Device& d = device(sent.device);
  OnDevice& on = get(d, sent.model);
  Model& m = models_[sent.model.index()];
  d.load.remove(done.id, next_starts(d.load, done, now));
  if (sent.outdated) {
    on.arriving = false;
    if (done.status != ActionStatus::success) {
      on.residence = Residence::absent;
      d.free_pages += on.pages;
    }
    look_whether_it_leaves(sent.device, sent.model, on);
  } else if (done.status == ActionStatus::success) {
    on.residence = Residence::loaded;
    on.failed_loads = 0;
    on.load_not_before = TimePoint::min();
    profile::RollingWindow& load = options_.by_device ? on.load : m.load;
    load.add(done.duration, now);
    m.shortest_load = std::min(m.shortest_load, load.estimate());
    on.last_use = now;
    d.lru.insert({now, sent.model});
  } else {
    on.residence = Residence::absent;
    d.free_pages += on.pages;
    --m.places;
  }
}

void Mirror::load_failed(DeviceId id, ModelId model, Duration pause, int most, TimePoint now) {
  OnDevice& on = get(device(id), home(model));
  on.failed_loads = std::min(on.failed_loads + 1, most);
  on.load_not_before = saturating_add(now, pause * (1 << (on.failed_loads - 1)));
}

void Mirror::put_off_load(DeviceId id, ModelId model, TimePoint until) {
  get(device(id), home(model)).load_not_before = until;
}

bool Mirror::loads_fail_everywhere(ModelId model, int times) const {
  bool possible = false;
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    if (!devices_[i].alive || devices_[i].total_pages < models_[model.index()].info.pages) continue;
    if (failed_loads(DeviceId{i}, model) < times) return false;
    possible = true;
  }
  return possible;
}

TimePoint Mirror::next_load_try(ModelId model) const {
  TimePoint next = TimePoint::max();
  for (std::uint32_t i = 0; i < devices_.size(); ++i)
    if (devices_[i].alive && devices_[i].total_pages >= models_[model.index()].info.pages)
      next = std::min(next, load_not_before(DeviceId{i}, model));
  return next;
}

void Mirror::finish_infer(const ActionDone& done, SentAction& sent, TimePoint now) {
  Device& d = device(sent.device);
  Model& m = models_[sent.model.index()];
  const ModelId home = this->home(sent.model);
  OnDevice* const on = find(d, home);  // its copy
  const bool ran = done.status == ActionStatus::success || done.status == ActionStatus::failed ||
                   done.status == ActionStatus::stopped;
  sent.other_times =
      !sent.outdated &&
      sent.times != times_->times_changes(sent.model, static_cast<std::size_t>(sent.batch_index));
  d.exec.remove(done.id, next_starts(d.exec, done, now), ran ? std::optional(done.start) : std::nullopt);
  if (sent.uses_copy) --on->pending_infers;
  if (done.status == ActionStatus::success) {
    // The ledger has learned from it.
    sent.margins = std::exchange(margins_seen_, margins_->version()) != margins_->version();
    const std::uint64_t version = times_->others_version(sent.model);
    sent.other_estimates = std::exchange(m.estimates_seen, version) != version;
    if (options_.by_device && !sent.outdated && !sent.other_times && ++m.reports >= bound_holds)
      find_shortest_load(m);
  }
  if (on == nullptr) return;
  if (sent.outdated) look_whether_it_leaves(sent.device, home, *on);
  if (done.status == ActionStatus::not_loaded && on->residence == Residence::loaded && !sent.sent_cold &&
      !sent.outdated) {
    // The worker knows better. (One sent ahead of a LOAD that came late says nothing.)
    drop(d, home, *on);
    sent.copy_lost = true;
  }
}

// O(devices where it was).
void Mirror::find_shortest_load(Model& m) {
  m.shortest_load = m.info.load;
  m.reports = 0;
  for (const std::uint32_t device : m.devices)
    m.shortest_load = std::min(m.shortest_load, find(devices_[device], m.info.id)->load.estimate());
}

ledger::Doubted Mirror::doubt(ModelId model, Duration left, TimePoint now) {
  const ledger::Doubted changed = ledger_->book(ledger::Doubt{.model = model, .left = left}, now);
  models_[model.index()].estimates_seen = times_->others_version(model);
  margins_seen_ = margins_->version();
  return changed;
}

}  // namespace carillon::schedule
