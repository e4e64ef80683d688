#include "carillon/schedule/fleet.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {
namespace {

constexpr Duration stale_after = 1s;
constexpr Duration forgotten_after = 10s;  // nothing measured counts any more

}  // namespace

Fleet::Fleet(const Environment& environment)
    : margins_(environment), placement_(rate_window), pressing_(device_time) {}

void Fleet::add_model(const ModelInfo& model) {
  CARILLON_ASSERT(model.id.index() == models_.size() && !model.batches.empty());
  Model m{.info = model, .exec = {}, .load = profile::RollingWindow(model.load)};
  m.exec.reserve(model.batches.size());
  for (const BatchProfile& b : model.batches) m.exec.emplace_back(b.exec);
  models_.push_back(std::move(m));
  placement_.add_model(model.batches.front().exec);
  pressing_.add_model();
  all_pages_ += model.pages;
  find_scarce();
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
    placement_.add_device();
    pressing_.add_device();
  }
  Device& d = devices_[index];
  std::vector<Flight> lost;
  for (const ActionId id : flights_of_[index])
    if (auto flight = flights_.erase(id)) lost.push_back(std::move(*flight));
  flights_of_[index].clear();
  for (std::size_t m = 0; m < d.residence.size(); ++m)
    if (d.residence[m] == Residence::loaded || d.residence[m] == Residence::loading)
      left(models_[m], ModelId{static_cast<std::uint32_t>(m)}, change.device, now);
  for (const ModelId m : d.coming) models_[m.index()].room_on = nowhere;
  if (d.alive) --alive_;
  if (change.alive) ++alive_;
  pressing_.set_alive(alive_);
  const std::uint64_t life = d.life + 1;
  d = Device{};
  d.life = life;
  d.alive = change.alive;
  d.total_pages = d.free_pages = change.alive ? change.pages : 0;
  d.free_at = now;
  margins_.start(change.device, change.alive);
  find_scarce();
  if (d.alive) fill(change.device, now, out);
  return lost;
}

Duration Fleet::span(ModelId model, int batch_index) const {
  return environment().span(exec(model, batch_index));
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
  const TimePoint earliest = std::max(window.earliest, saturating_add(now, environment().dispatch));
  const TimePoint start = std::max(d.free_at, earliest);
  d.free_at = start + expected;
  const ActionId action = next_action_;
  ++next_action_.value;
  std::vector<RequestId> ids;
  ids.reserve(size);
  for (const Request& r : requests) ids.push_back(r.id);
  out.emplace_back(Infer{action, id, model, std::move(ids), window, expected});
  flights_.insert(action, {.id = action,
                           .device = id,
                           .model = model,
                           .batch_index = batch_index,
                           .requests = std::move(requests),
                           .earliest = earliest,
                           .start = start,
                           .end = d.free_at,
                           .sent = now,
                           .at_once = d.pending == 1 && window.earliest <= now});
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
        left(m, flight->model, flight->device, now);
      }
    }
    if (done.status == ActionStatus::success) {
      report.margins = margins_.observe(flight->device, {.decided = flight->sent,
                                                         .at_once = flight->at_once,
                                                         .estimate = flight->end - flight->start,
                                                         .start = done.start,
                                                         .end = done.end,
                                                         .took = done.duration,
                                                         .heard = now});
      m.exec[static_cast<std::size_t>(flight->batch_index)].add(done.duration, now);
      report.estimates = renew_others(m, static_cast<std::size_t>(flight->batch_index), now);
      if (scarce_ && m.info.pages > 0)
        placement_.served(flight->model, flight->requests.size(), done.duration, now);
    }
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
    if (!wanted_.empty()) load_next(report.flight->device, now, out);  // it may be evicted now
    return report;
  }
  const auto move = moves_.erase(done.id);
  if (!move || devices_[move->device.index()].life != move->life) return report;
  return moved(*move, done, now, out);
}

// Batch sizes that a slow spell keeps from being chosen are not measured either: what they took then counts
// for less as time goes by, and in the end they are taken to be as far from their seeds as the size that was
// just measured. Looked at once a second: O(batch sizes). True where one changed.
bool Fleet::renew_others(Model& m, std::size_t measured, TimePoint now) {
  if (m.renewed != TimePoint::min() && now - m.renewed < stale_after) return false;
  m.renewed = now;
  const double speed = static_cast<double>(m.exec[measured].estimate().count()) /
                       static_cast<double>(std::max<std::int64_t>(1, m.info.batches[measured].exec.count()));
  bool changed = false;
  for (std::size_t i = 0; i < m.exec.size(); ++i) {
    if (i == measured || m.exec[i].newest_at() == TimePoint::min()) continue;
    const Duration age = now - m.exec[i].newest_at();
    const Duration before = m.exec[i].estimate();
    if (age >= forgotten_after)
      m.exec[i].reset(from_ns(static_cast<double>(m.info.batches[i].exec.count()) * speed), now);
    else if (age >= stale_after)
      m.exec[i].forget_outlier(now);
    changed = changed || m.exec[i].estimate() != before;
  }
  return changed;
}

void Fleet::doubt(const Request& request, TimePoint now) {
  Model& m = models_[request.model.index()];
  doubted_ |= request.deadline > request.arrival &&
              margins_.doubt(request.deadline - request.arrival, exec(request.model, 0), now);
  for (std::size_t i = 0; i < m.exec.size(); ++i)
    if (m.exec[i].newest_at() != TimePoint::min() && now - m.exec[i].newest_at() >= stale_after)
      m.exec[i].reset(m.info.batches[i].exec, now);
}

}  // namespace carillon::schedule
