#include "carillon/schedule/cluster_state.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

constexpr Duration stale_after = 1s;          // outliers may go
constexpr Duration idle_stale_after = 100ms;  // on a device that has nothing better to do
constexpr Duration renew_after = 10s;         // nothing measured counts any more

}  // namespace

void ClusterState::add_model(const ModelInfo& model) {
  CARILLON_ASSERT(model.id.index() == models_.size());
  CARILLON_ASSERT(!model.batches.empty() && model.batches.front().batch == 1);
  for (std::size_t i = 1; i < model.batches.size(); ++i)
    CARILLON_ASSERT(model.batches[i - 1].batch < model.batches[i].batch);
  find_bounds(models_.emplace_back(Model{.info = model}));
}

ClusterState::Device& ClusterState::device(DeviceId id) {
  CARILLON_ASSERT(id.index() < devices_.size());
  return devices_[id.index()];
}

std::vector<FinishedAction> ClusterState::device_changed(const DeviceChanged& change) {
  CARILLON_ASSERT(change.device.index() <= devices_.size());
  if (change.device.index() == devices_.size()) devices_.emplace_back();
  Device& d = devices_[change.device.index()];

  std::vector<FinishedAction> lost;
  std::vector<ActionId> gone;
  for (const auto& p : d.exec.pending()) gone.push_back(p.id);
  std::sort(gone.begin(), gone.end());
  for (const ActionId id : gone) lost.push_back(std::move(*actions_.erase(id)));
  for (const auto& p : d.load.pending()) actions_.erase(p.id);
  // UNLOADs are on no executor; their late reports find the model absent, or loaded anew, and are ignored
  // because their ids are no longer known.
  for (std::size_t slot = 0; slot < d.slots.size(); ++slot)
    if (d.slots[slot].residence == Residence::unloading) actions_.erase(d.slots[slot].load_action);

  const Device fresh;
  for (OnDevice& on : d.slots) {  // what was measured there stays known
    on.residence = Residence::absent;
    on.pending_infers = 0;
  }
  d.exec = fresh.exec;
  d.load = fresh.load;
  d.lru.clear();
  d.alive = change.alive;
  d.total_pages = d.free_pages = change.alive ? change.pages : 0;
  d.freeing_pages = 0;
  alive_ = 0;
  largest_pages_ = 0;
  for (const Device& each : devices_) {
    if (!each.alive) continue;
    ++alive_;
    largest_pages_ = std::max(largest_pages_, each.total_pages);
  }
  return lost;
}

ClusterState::OnDevice* ClusterState::find(Device& d, ModelId model) const {
  if (model.index() >= d.slot_of.size() || d.slot_of[model.index()] == no_slot) return nullptr;
  return &d.slots[d.slot_of[model.index()]];
}

ClusterState::OnDevice& ClusterState::get(Device& d, ModelId model) {
  if (OnDevice* found = find(d, model)) return *found;
  if (model.index() >= d.slot_of.size()) d.slot_of.resize(models_.size(), no_slot);
  d.slot_of[model.index()] = static_cast<std::uint32_t>(d.slots.size());
  Model& m = models_[model.index()];
  m.devices.push_back(static_cast<std::uint32_t>(&d - devices_.data()));
  return d.slots.emplace_back(
      OnDevice{.load = profile::RollingWindow(m.info.load), .exec = {}, .estimates = {}});
}

Residence ClusterState::residence(DeviceId id, ModelId model) const {
  if (models_[model.index()].info.pages == 0) return alive(id) ? Residence::loaded : Residence::absent;
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? Residence::absent : on->residence;
}

int ClusterState::pending_infers(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? 0 : on->pending_infers;
}

TimePoint ClusterState::ready_at(DeviceId id, ModelId model, TimePoint now) const {
  const Device& d = device(id);
  if (models_[model.index()].info.pages == 0) return d.alive ? now : TimePoint::max();
  const OnDevice* on = find(d, model);
  if (on == nullptr) return TimePoint::max();
  switch (on->residence) {
    case Residence::loaded:
      return now;
    case Residence::loading:
      return d.load.end_of(on->load_action, now);
    case Residence::absent:
    case Residence::unloading:
      return TimePoint::max();
  }
  return TimePoint::max();
}

bool ClusterState::load_overdue(DeviceId id, ModelId model, TimePoint now) const {
  const Device& d = device(id);
  const OnDevice* on = find(d, model);
  return on != nullptr && on->residence == Residence::loading && d.load.end_of(on->load_action, now) <= now;
}

Duration ClusterState::exec_estimate(DeviceId id, ModelId model, int batch_index) const {
  const auto index = static_cast<std::size_t>(batch_index);
  const OnDevice* on = find(device(id), model);
  return on == nullptr || on->estimates.empty() ? models_[model.index()].info.batches[index].exec
                                                : on->estimates[index];
}

std::span<const Duration> ClusterState::exec_estimates(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? std::span<const Duration>{} : on->estimates;
}

Duration ClusterState::load_estimate(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? models_[model.index()].info.load : on->load.estimate();
}

void ClusterState::use(Device& d, ModelId model, TimePoint now) {
  if (models_[model.index()].info.pages == 0) return;
  OnDevice& on = get(d, model);
  d.lru.erase({on.last_use, model});
  on.last_use = now;
  d.lru.insert({now, model});
}

void ClusterState::drop(Device& d, ModelId model) {
  OnDevice& on = get(d, model);
  d.lru.erase({on.last_use, model});
  on.residence = Residence::absent;
}

ActionId ClusterState::begin_load(DeviceId id, ModelId model, TimePoint earliest, Duration expected,
                                  TimePoint now) {
  Device& d = device(id);
  OnDevice& on = get(d, model);
  const std::uint64_t pages = models_[model.index()].info.pages;
  CARILLON_ASSERT(pages > 0 && d.alive && on.residence == Residence::absent && d.free_pages >= pages &&
                  earliest >= now);
  d.free_pages -= pages;
  on.residence = Residence::loading;
  on.load_action = next_action_;
  d.load.push(next_action_, model, earliest, expected);
  actions_.insert(next_action_, {.kind = ActionKind::load, .device = id, .model = model});
  return ActionId{next_action_.value++};
}

ActionId ClusterState::begin_unload(DeviceId id, ModelId model) {
  Device& d = device(id);
  OnDevice& on = get(d, model);
  CARILLON_ASSERT(d.alive && on.residence == Residence::loaded && on.pending_infers == 0);
  d.lru.erase({on.last_use, model});
  on.residence = Residence::unloading;
  on.load_action = next_action_;
  d.freeing_pages += models_[model.index()].info.pages;
  actions_.insert(next_action_, {.kind = ActionKind::unload, .device = id, .model = model});
  return ActionId{next_action_.value++};
}

ActionId ClusterState::begin_infer(DeviceId id, ModelId model, int batch_index,
                                   std::vector<RequestId> requests, TimePoint earliest, Duration expected,
                                   TimePoint now, Duration dispatch) {
  Device& d = device(id);
  OnDevice& on = get(d, model);
  const ModelInfo& info = models_[model.index()].info;
  const bool cold = info.pages > 0 && on.residence == Residence::loading;
  CARILLON_ASSERT(d.alive && (info.pages == 0 || cold || on.residence == Residence::loaded));
  CARILLON_ASSERT(earliest >= now);
  CARILLON_ASSERT(static_cast<int>(requests.size()) ==
                  info.batches[static_cast<std::size_t>(batch_index)].batch);
  ++on.pending_infers;
  if (!cold) use(d, model, now);
  const bool at_once = d.exec.idle() && !cold && earliest <= now;
  d.exec.push(next_action_, model, std::max(earliest, saturating_add(now, dispatch)), expected);
  actions_.insert(next_action_, {.kind = ActionKind::infer,
                                 .device = id,
                                 .model = model,
                                 .batch_index = batch_index,
                                 .requests = std::move(requests),
                                 .sent_cold = cold,
                                 .at_once = at_once,
                                 .sent = now,
                                 .expected = expected});
  return ActionId{next_action_.value++};
}

std::optional<FinishedAction> ClusterState::finish(const ActionDone& done, TimePoint now) {
  auto finished = actions_.erase(done.id);
  if (!finished) return finished;
  Device& d = device(finished->device);
  OnDevice& on = get(d, finished->model);
  Model& model = models_[finished->model.index()];
  const std::uint64_t pages = model.info.pages;
  const bool ran = done.status == ActionStatus::success || done.status == ActionStatus::failed;
  const TimePoint ended = ran ? std::min(done.end, now) : TimePoint::min();
  switch (finished->kind) {
    case ActionKind::load:
      d.load.remove(done.id, ended);
      if (done.status == ActionStatus::success) {
        on.residence = Residence::loaded;
        on.load.add(done.duration, now);
        model.shortest_load = std::min(model.shortest_load, on.load.estimate());
        on.last_use = now;
        d.lru.insert({now, finished->model});
      } else {
        on.residence = Residence::absent;
        d.free_pages += pages;
      }
      break;
    case ActionKind::unload:
      on.residence = Residence::absent;
      d.free_pages += pages;
      d.freeing_pages -= pages;
      break;
    case ActionKind::infer:
      d.exec.remove(done.id, ended);
      --on.pending_infers;
      if (done.status == ActionStatus::success)
        measured(on, model, static_cast<std::size_t>(finished->batch_index), done.duration, now);
      if (done.status == ActionStatus::not_loaded && on.residence == Residence::loaded &&
          !finished->sent_cold) {
        // The worker knows better. (One sent ahead of a LOAD that came late says nothing.)
        drop(d, finished->model);
        d.free_pages += pages;
      }
      break;
  }
  return finished;
}

void ClusterState::measured(OnDevice& on, Model& model, std::size_t index, Duration duration, TimePoint now) {
  const auto& batches = model.info.batches;
  if (on.estimates.empty())
    for (const BatchProfile& b : batches) on.estimates.push_back(b.exec);
  auto found =
      std::find_if(on.exec.begin(), on.exec.end(), [index](const auto& e) { return e.first == index; });
  if (found == on.exec.end())
    found = on.exec.emplace(on.exec.end(), index, profile::RollingWindow(batches[index].exec));
  found->second.add(duration, now);
  if (index == 0 && duration <= 2 * batches[0].exec) on.trials = 0;
  set_estimate(on, model, index, found->second.estimate());
  refresh_others(on, model, index, now);
  constexpr unsigned bounds_hold = 256;  // reports: what it takes to find them anew is shared by so many
  if (++model.reports >= bounds_hold) find_bounds(model);
}

// The same for batch sizes that a slow spell keeps from being chosen while others run: after a while they are
// taken to be as far from their seeds as the size that was just measured.
void ClusterState::refresh_others(OnDevice& on, Model& model, std::size_t measured, TimePoint now) {
  const auto& batches = model.info.batches;
  for (auto& [i, window] : on.exec) {
    if (i == measured) continue;
    const Duration age = now - window.newest_at();
    if (age < stale_after) continue;
    if (age >= renew_after) {
      const double speed = static_cast<double>(on.estimates[measured].count()) /
                           static_cast<double>(std::max<std::int64_t>(1, batches[measured].exec.count()));
      window.reset(from_ns(static_cast<double>(batches[i].exec.count()) * speed), now);
    } else {
      window.forget_outlier(now);
    }
    set_estimate(on, model, i, window.estimate());
  }
}

void ClusterState::set_estimate(OnDevice& on, Model& model, std::size_t index, Duration estimate) {
  if (on.estimates[index] == estimate) return;
  on.estimates[index] = estimate;
  model.longest[index] = std::max(model.longest[index], estimate);
  if (index > 0) return;
  model.shortest = std::min(model.shortest, estimate);
  ++model.version;
}

// O(batch sizes x devices where it was).
void ClusterState::find_bounds(Model& model) {
  const auto& batches = model.info.batches;
  model.longest.clear();
  for (const BatchProfile& b : batches) model.longest.push_back(b.exec);
  model.shortest = batches.front().exec;
  model.shortest_load = model.info.load;
  model.reports = 0;
  for (const std::uint32_t device : model.devices) {
    const OnDevice& on = *find(devices_[device], model.info.id);
    model.shortest_load = std::min(model.shortest_load, on.load.estimate());
    if (on.estimates.empty()) continue;
    for (std::size_t i = 0; i < batches.size(); ++i)
      model.longest[i] = std::max(model.longest[i], on.estimates[i]);
    model.shortest = std::min(model.shortest, on.estimates.front());
  }
}

bool ClusterState::doubt(ModelId id, Duration at_most, TimePoint now) {
  Model& model = models_[id.index()];
  const Duration seed = model.info.batches.front().exec;
  if (seed > at_most || model.longest.front() <= at_most) return false;
  bool any = false;
  for (const std::uint32_t device : model.devices) {
    Device& d = devices_[device];
    OnDevice& on = *find(d, id);
    if (on.estimates.empty() || on.estimates.front() <= at_most) continue;
    const auto window =
        std::find_if(on.exec.begin(), on.exec.end(), [](const auto& e) { return e.first == 0; });
    const Duration pause =
        d.exec.idle() ? std::min(stale_after, idle_stale_after * (1 << on.trials)) : stale_after;
    if (now - window->second.newest_at() < pause) continue;
    window->second.reset(seed, now);
    set_estimate(on, model, 0, seed);
    on.trials = std::min(on.trials + 1, 4);
    any = true;
  }
  return any;
}

}  // namespace carillon::schedule
