#include "carillon/schedule/cluster_state.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

constexpr Duration stale_after = 1s;   // outliers may go
constexpr Duration renew_after = 10s;  // nothing measured counts any more

}  // namespace

void ClusterState::add_model(const ModelInfo& model) {
  CARILLON_ASSERT(model.id.index() == models_.size());
  CARILLON_ASSERT(!model.batches.empty() && model.batches.front().batch == 1);
  for (std::size_t i = 1; i < model.batches.size(); ++i)
    CARILLON_ASSERT(model.batches[i - 1].batch < model.batches[i].batch);
  models_.push_back(model);
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
  return lost;
}

bool ClusterState::can_hold(ModelId model) const {
  const std::uint64_t pages = models_[model.index()].pages;
  return std::any_of(devices_.begin(), devices_.end(),
                     [pages](const Device& d) { return d.alive && d.total_pages >= pages; });
}

ClusterState::OnDevice* ClusterState::find(Device& d, ModelId model) const {
  if (model.index() >= d.slot_of.size() || d.slot_of[model.index()] == no_slot) return nullptr;
  return &d.slots[d.slot_of[model.index()]];
}

ClusterState::OnDevice& ClusterState::get(Device& d, ModelId model) {
  if (OnDevice* found = find(d, model)) return *found;
  if (model.index() >= d.slot_of.size()) d.slot_of.resize(models_.size(), no_slot);
  d.slot_of[model.index()] = static_cast<std::uint32_t>(d.slots.size());
  const ModelInfo& info = models_[model.index()];
  OnDevice on{.load = profile::RollingWindow(info.load), .exec = {}, .estimates = {}};
  on.exec.reserve(info.batches.size());
  for (const auto& b : info.batches) {
    on.exec.emplace_back(b.exec);
    on.estimates.push_back(b.exec);
  }
  return d.slots.emplace_back(std::move(on));
}

Residence ClusterState::residence(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? Residence::absent : on->residence;
}

int ClusterState::pending_infers(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? 0 : on->pending_infers;
}

TimePoint ClusterState::ready_at(DeviceId id, ModelId model, TimePoint now) const {
  const Device& d = device(id);
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
  return on == nullptr ? models_[model.index()].batches[index].exec : on->estimates[index];
}

std::span<const Duration> ClusterState::exec_estimates(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? std::span<const Duration>{} : on->estimates;
}

Duration ClusterState::load_estimate(DeviceId id, ModelId model) const {
  const OnDevice* on = find(device(id), model);
  return on == nullptr ? models_[model.index()].load : on->load.estimate();
}

void ClusterState::use(Device& d, ModelId model, TimePoint now) {
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
  const std::uint64_t pages = models_[model.index()].pages;
  CARILLON_ASSERT(d.alive && on.residence == Residence::absent && d.free_pages >= pages && earliest >= now);
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
  d.freeing_pages += models_[model.index()].pages;
  actions_.insert(next_action_, {.kind = ActionKind::unload, .device = id, .model = model});
  return ActionId{next_action_.value++};
}

ActionId ClusterState::begin_infer(DeviceId id, ModelId model, int batch_index,
                                   std::vector<RequestId> requests, TimePoint earliest, Duration expected,
                                   TimePoint now) {
  Device& d = device(id);
  OnDevice& on = get(d, model);
  CARILLON_ASSERT(on.residence == Residence::loaded || on.residence == Residence::loading);
  CARILLON_ASSERT(earliest >= now);
  CARILLON_ASSERT(static_cast<int>(requests.size()) ==
                  models_[model.index()].batches[static_cast<std::size_t>(batch_index)].batch);
  ++on.pending_infers;
  if (on.residence == Residence::loaded) use(d, model, now);
  d.exec.push(next_action_, model, earliest, expected);
  actions_.insert(next_action_, {.kind = ActionKind::infer,
                                 .device = id,
                                 .model = model,
                                 .batch_index = batch_index,
                                 .requests = std::move(requests),
                                 .sent_cold = on.residence == Residence::loading});
  return ActionId{next_action_.value++};
}

std::optional<FinishedAction> ClusterState::finish(const ActionDone& done, TimePoint now) {
  auto finished = actions_.erase(done.id);
  if (!finished) return finished;
  Device& d = device(finished->device);
  OnDevice& on = get(d, finished->model);
  const std::uint64_t pages = models_[finished->model.index()].pages;
  const bool ran = done.status == ActionStatus::success || done.status == ActionStatus::failed;
  const TimePoint ended = ran ? std::min(done.end, now) : TimePoint::min();
  switch (finished->kind) {
    case ActionKind::load:
      d.load.remove(done.id, ended);
      if (done.status == ActionStatus::success) {
        on.residence = Residence::loaded;
        on.load.add(done.duration, now);
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
      if (done.status == ActionStatus::success) {
        const auto index = static_cast<std::size_t>(finished->batch_index);
        on.exec[index].add(done.duration, now);
        on.estimates[index] = on.exec[index].estimate();
        refresh_others(on, models_[finished->model.index()], index, now);
      }
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

// The same for batch sizes that a slow spell keeps from being chosen while others run: after a while they are
// taken to be as far from their seeds as the size that was just measured.
void ClusterState::refresh_others(OnDevice& on, const ModelInfo& info, std::size_t measured, TimePoint now) {
  for (std::size_t i = 0; i < on.exec.size(); ++i) {
    profile::RollingWindow& window = on.exec[i];
    if (i == measured || window.newest_at() == TimePoint::min()) continue;
    const Duration age = now - window.newest_at();
    if (age >= renew_after) {
      const double speed =
          static_cast<double>(on.exec[measured].estimate().count()) /
          static_cast<double>(std::max<std::int64_t>(1, info.batches[measured].exec.count()));
      window.reset(from_ns(static_cast<double>(info.batches[i].exec.count()) * speed), now);
    } else if (age >= stale_after) {
      window.forget_outlier(now);
    }
    on.estimates[i] = window.estimate();
  }
}

void ClusterState::doubt(ModelId model, Duration at_most, TimePoint now) {
  const Duration seed = models_[model.index()].batches.front().exec;
  if (seed > at_most) return;
  for (Device& d : devices_) {
    OnDevice* on = find(d, model);
    if (on == nullptr || on->exec.front().estimate() <= at_most) continue;
    if (now - on->exec.front().newest_at() >= stale_after) {
      on->exec.front().reset(seed, now);
      on->estimates.front() = seed;
    }
  }
}

}  // namespace carillon::schedule
