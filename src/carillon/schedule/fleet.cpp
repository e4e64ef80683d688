#include "carillon/schedule/fleet.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

constexpr int give_up_after = 5;  // LOADs of a model that fail in a row
constexpr Duration load_pause = 10ms;
constexpr Duration stale_after = 1s;

}  // namespace

void Fleet::add_model(const ModelInfo& model) {
  CARILLON_ASSERT(model.id.index() == models_.size() && !model.batches.empty());
  Model m{.info = model, .exec = {}, .load = profile::RollingWindow(model.load)};
  m.exec.reserve(model.batches.size());
  for (const BatchProfile& b : model.batches) m.exec.emplace_back(b.exec);
  models_.push_back(std::move(m));
}

bool Fleet::loaded(DeviceId id, ModelId model) const {
  if (!alive(id)) return false;
  if (models_[model.index()].info.pages == 0) return true;
  const Device& d = devices_[id.index()];
  return model.index() < d.residence.size() && d.residence[model.index()] == Residence::loaded;
}

bool Fleet::can_hold(ModelId model) const {
  const std::uint64_t pages = models_[model.index()].info.pages;
  if (pages == 0) return alive_ > 0;
  return std::any_of(devices_.begin(), devices_.end(),
                     [pages](const Device& d) { return d.alive && d.total_pages >= pages; });
}

void Fleet::prepare(Device& device) {
  if (device.residence.size() >= models_.size()) return;
  device.residence.resize(models_.size(), Residence::absent);
  device.pending_of.resize(models_.size(), 0);
  device.last_use.resize(models_.size(), TimePoint::min());
}

std::vector<Fleet::Flight> Fleet::device_changed(const DeviceChanged& change, TimePoint now, Actions& out) {
  const std::size_t index = change.device.index();
  while (devices_.size() <= index) {
    devices_.emplace_back();
    flights_of_.emplace_back();
  }
  Device& d = devices_[index];
  std::vector<Flight> lost;
  for (const ActionId id : flights_of_[index])
    if (auto flight = flights_.erase(id)) lost.push_back(std::move(*flight));
  flights_of_[index].clear();
  for (std::size_t m = 0; m < d.residence.size(); ++m)
    if (d.residence[m] == Residence::loaded || d.residence[m] == Residence::loading) --models_[m].places;
  if (d.alive) --alive_;
  if (change.alive) ++alive_;
  const std::uint64_t life = d.life + 1;
  d = Device{};
  d.life = life;
  d.alive = change.alive;
  d.total_pages = d.free_pages = change.alive ? change.pages : 0;
  d.free_at = now;
  if (d.alive) fill(change.device, now, out);
  return lost;
}

// Loads what fits, in the order of the models.
void Fleet::fill(DeviceId id, TimePoint now, Actions& out) {
  const Device& d = devices_[id.index()];
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const std::uint64_t pages = models_[m].info.pages;
    if (pages > 0 && pages <= d.free_pages) load(id, ModelId{static_cast<std::uint32_t>(m)}, now, out);
  }
}

void Fleet::load(DeviceId id, ModelId model, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  Model& m = models_[model.index()];
  prepare(d);
  CARILLON_ASSERT(d.residence[model.index()] == Residence::absent && d.free_pages >= m.info.pages);
  d.free_pages -= m.info.pages;
  d.residence[model.index()] = Residence::loading;
  ++m.places;
  moves_.insert(next_action_, {Kind::load, id, model, d.life});
  out.emplace_back(Load{next_action_, id, model, {now, TimePoint::max()}, m.load.estimate()});
  ++next_action_.value;
}

void Fleet::set_wanted(Model& model, bool wanted) {
  if (model.wanted == wanted) return;
  model.wanted = wanted;
  wanted ? ++wanted_ : --wanted_;
}

// wanted_ > 0.
ModelId Fleet::oldest_wanted() const {
  const Model* oldest = nullptr;
  for (const Model& m : models_)
    if (m.wanted && (oldest == nullptr || m.waiting_since < oldest->waiting_since)) oldest = &m;
  return oldest->info.id;
}

bool Fleet::want(ModelId model, TimePoint now, Actions& out) {
  Model& m = models_[model.index()];
  if (m.info.pages == 0) return alive_ > 0;
  if (m.places > 0) {
    set_wanted(m, false);
    return true;
  }
  if (!can_hold(model)) {
    set_wanted(m, false);
    return false;
  }
  if (now < m.load_not_before) {
    wake_ = std::min(wake_, m.load_not_before);
    return m.load_failures < give_up_after;
  }
  // In the order in which they began to wait, so that nobody takes the room that was made for another.
  if (wanted_ > 0 && oldest_wanted() != m.info.id &&
      models_[oldest_wanted().index()].waiting_since <= m.waiting_since) {
    set_wanted(m, true);
    wake_ = std::min(wake_, saturating_add(now, load_pause));
    return true;
  }
  // The device with the most room; evictions on their way count as room.
  Device* best = nullptr;
  std::size_t best_index = 0;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    Device& d = devices_[i];
    if (!d.alive || d.total_pages < m.info.pages) continue;
    if (best == nullptr || d.free_pages + d.freeing_pages > best->free_pages + best->freeing_pages) {
      best = &d;
      best_index = i;
    }
  }
  CARILLON_ASSERT(best != nullptr);
  const DeviceId id{static_cast<std::uint32_t>(best_index)};
  prepare(*best);
  if (best->free_pages >= m.info.pages && best->residence[model.index()] == Residence::absent) {
    set_wanted(m, false);
    load(id, model, now, out);
    return true;
  }
  set_wanted(m, true);
  while (best->free_pages + best->freeing_pages < m.info.pages) {
    const auto victim = std::find_if(best->lru.begin(), best->lru.end(), [&](const auto& entry) {
      return best->pending_of[entry.second.index()] == 0 &&
             models_[entry.second.index()].waiting_since > m.waiting_since;
    });
    if (victim == best->lru.end()) {  // all in use: when something is reported, or a little later
      wake_ = std::min(wake_, saturating_add(now, load_pause));
      return true;
    }
    const ModelId gone = victim->second;
    best->lru.erase(victim);
    best->residence[gone.index()] = Residence::unloading;
    best->freeing_pages += models_[gone.index()].info.pages;
    if (Model& other = models_[gone.index()];
        --other.places == 0 && other.waiting_since != TimePoint::max()) {
      set_wanted(other, true);  // its turn comes again
      wake_ = std::min(wake_, saturating_add(now, load_pause));
    }
    moves_.insert(next_action_, {Kind::unload, id, gone, best->life});
    out.emplace_back(Unload{next_action_, id, gone});
    ++next_action_.value;
  }
  return true;
}

Duration Fleet::span(ModelId model, int batch_index) const {
  const Duration time = exec(model, batch_index);
  return time + from_ns(static_cast<double>(time.count()) * environment_.overrun) + environment_.answer;
}

int Fleet::batch_index(ModelId model, std::size_t requests) const {
  const auto& batches = models_[model.index()].info.batches;
  // Often every size up to the largest has a plan.
  if (const std::size_t at = std::min(requests, batches.size()) - 1;
      static_cast<std::size_t>(batches[at].batch) == at + 1 &&
      (at + 1 == requests || at + 1 == batches.size()))
    return static_cast<int>(at);
  const auto above =
      std::upper_bound(batches.begin(), batches.end(), requests,
                       [](std::size_t n, const auto& b) { return n < static_cast<std::size_t>(b.batch); });
  CARILLON_ASSERT(above != batches.begin());
  return static_cast<int>(above - batches.begin()) - 1;
}

TimePoint Fleet::free_at(DeviceId id, TimePoint now) const {
  return alive(id) ? std::max(now, devices_[id.index()].free_at) : TimePoint::max();
}

void Fleet::touch(Device& device, ModelId model, TimePoint now) {
  device.lru.erase({device.last_use[model.index()], model});
  device.last_use[model.index()] = now;
  device.lru.insert({now, model});
}

ActionId Fleet::send(DeviceId id, ModelId model, int batch_index, std::vector<Request> requests,
                     Window window, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  CARILLON_ASSERT(loaded(id, model) && window.earliest >= now);
  const auto size = static_cast<std::size_t>(batch_size(model, batch_index));
  CARILLON_ASSERT(requests.size() >= size);
  requests.resize(size);
  if (models_[model.index()].info.pages > 0) {
    ++d.pending_of[model.index()];
    touch(d, model, now);
  }
  ++d.pending;
  const Duration expected = exec(model, batch_index);
  const TimePoint earliest = std::max(window.earliest, saturating_add(now, environment_.dispatch));
  const TimePoint start = std::max(d.free_at, earliest);
  d.free_at = start + expected;
  const ActionId action = next_action_;
  ++next_action_.value;
  std::vector<RequestId> ids;
  ids.reserve(size);
  for (const Request& r : requests) ids.push_back(r.id);
  out.emplace_back(Infer{action, id, model, std::move(ids), window, expected});
  flights_.insert(action, {action, id, model, batch_index, std::move(requests), earliest, start, d.free_at});
  flights_of_[id.index()].push_back(action);
  return action;
}

void Fleet::stop(ActionId id, Actions& out) {
  if (const Flight* flight = flights_.find(id)) out.emplace_back(Stop{id, flight->device});
}

void Fleet::forget(RequestId request, ModelId model) {
  for (const auto& order : flights_of_)
    for (const ActionId id : order)
      if (Flight& flight = *flights_.find(id); flight.model == model)
        std::erase_if(flight.requests, [request](const Request& r) { return r.id == request; });
}

Fleet::Report Fleet::finish(const ActionDone& done, TimePoint now, Actions& out) {
  Report report;
  const bool scarce = wanted_ > 0;
  const bool ran = done.status == ActionStatus::success || done.status == ActionStatus::failed ||
                   done.status == ActionStatus::stopped;
  if (auto flight = flights_.erase(done.id)) {
    Device& d = devices_[flight->device.index()];
    auto& order = flights_of_[flight->device.index()];
    order.erase(std::find(order.begin(), order.end(), done.id));
    --d.pending;
    Model& m = models_[flight->model.index()];
    if (m.info.pages > 0) {
      --d.pending_of[flight->model.index()];
      if (done.status == ActionStatus::not_loaded &&
          d.residence[flight->model.index()] == Residence::loaded) {  // the worker knows better
        d.lru.erase({d.last_use[flight->model.index()], flight->model});
        d.residence[flight->model.index()] = Residence::absent;
        d.free_pages += m.info.pages;
        --m.places;
      }
    }
    if (done.status == ActionStatus::success)
      m.exec[static_cast<std::size_t>(flight->batch_index)].add(done.duration, now);
    // What was sent behind it moves up or back.
    TimePoint free = ran ? std::min(done.end, now) : now;
    for (const ActionId behind : order) {
      Flight& next = *flights_.find(behind);
      const Duration expected = next.end - next.start;
      next.start = std::max(free, next.earliest);
      next.end = next.start + expected;
      free = next.end;
    }
    d.free_at = free;
    report.flight = std::move(flight);
    if (scarce) wake_ = std::min(wake_, saturating_add(now, Duration{1}));  // it may be evicted now
    return report;
  }
  const auto move = moves_.erase(done.id);
  if (!move || devices_[move->device.index()].life != move->life) return report;
  Device& d = devices_[move->device.index()];
  Model& m = models_[move->model.index()];
  if (move->kind == Kind::unload) {
    d.residence[move->model.index()] = Residence::absent;
    d.free_pages += m.info.pages;
    d.freeing_pages -= m.info.pages;
  } else if (done.status == ActionStatus::success) {
    d.residence[move->model.index()] = Residence::loaded;
    m.load.add(done.duration, now);
    m.load_failures = 0;
    d.last_use[move->model.index()] = now;
    d.lru.insert({now, move->model});
    report.loaded = {move->device, move->model};
  } else {
    d.residence[move->model.index()] = Residence::absent;
    d.free_pages += m.info.pages;
    --m.places;
    m.load_failures = std::min(m.load_failures + 1, 2 * give_up_after);
    m.load_not_before = saturating_add(now, load_pause * (1 << (m.load_failures - 1)));
    wake_ = std::min(wake_, m.load_not_before);
    if (m.places == 0 && m.load_failures >= give_up_after) report.unloadable = move->model;
  }
  // Room was made: for those who wait for it, one after the other, until one still has to wait.
  while (wanted_ > 0) {
    const ModelId next = oldest_wanted();
    want(next, now, out);
    if (models_[next.index()].wanted) break;
  }
  return report;
}

void Fleet::doubt(ModelId model, TimePoint now) {
  Model& m = models_[model.index()];
  for (std::size_t i = 0; i < m.exec.size(); ++i)
    if (m.exec[i].newest_at() != TimePoint::min() && now - m.exec[i].newest_at() >= stale_after)
      m.exec[i].reset(m.info.batches[i].exec, now);
}

}  // namespace carillon::schedule
