// What is loaded where: the part of the Fleet that decides LOADs and UNLOADs.
#include <algorithm>

#include "carillon/base/assert.h"
#include "carillon/schedule/fleet.h"

namespace carillon::schedule {
namespace {

constexpr int give_up_after = 5;  // LOADs of a model that fail in a row
constexpr Duration load_pause = 10ms;
// LOADs that are with a device at a time where memory is scarce: one runs, one waits, so that it never idles
// for the way, and what becomes urgent does not wait behind many.
constexpr int loads_ahead = 2;
// Devices that are looked at for a model that is wanted, the least asked for first, and wanted models that
// are looked at when the clock calls, the most asked for first: both bound the work.
constexpr int devices_tried = 16;
constexpr std::size_t wanted_tried = 16;
// For requests that wait, at every event: devices that are looked at, the least asked for first, and models
// on each that may have to go, the longest unused first.
constexpr std::size_t pressed_devices_tried = 4;
constexpr std::size_t victims_tried = 32;
constexpr std::size_t rooms_tried = 2;  // for models of ever fewer pages
// What was used within so many times the time that a LOAD of it takes is not taken away for requests that
// wait elsewhere, so that LOADs do not push out what is asked for next.
constexpr int loads_unused = 10;
// For so long what a device's models can wait counts as known, unless others come.
constexpr Duration patience_renewed = 100ms;
// Over about so many requests the time that they can wait is averaged: SLOs may differ.
constexpr int waits_averaged = 16;

}  // namespace

void Fleet::set_wanted(Model& model, bool wanted) {
  if (model.wanted == wanted) return;
  model.wanted = wanted;
  model.asked = 0;
  if (wanted)
    wanted_.push_back(model.info.id);
  else
    wanted_.erase(std::find(wanted_.begin(), wanted_.end(), model.info.id));
}

bool Fleet::room_for_another_load(const Device& d) const {
  return d.loads + static_cast<int>(d.coming.size()) < loads_ahead;
}

void Fleet::placed(ModelId model, DeviceId device, TimePoint now) {
  placement_.placed(model, device, now);
  pressing_.placed(model, device);
}

void Fleet::removed(ModelId model, DeviceId device, TimePoint now) {
  placement_.removed(model, device, now);
  pressing_.removed(model, device);
}

// Whether placement has to be kept; where it begins, it is told where everything is.
void Fleet::find_scarce() {
  const bool before = scarce_;
  scarce_ = false;
  for (Device& d : devices_) {
    d.scarce = d.alive && d.total_pages < all_pages_;
    scarce_ = scarce_ || d.scarce;
  }
  if (scarce_ == before) return;
  for (const Model& m : models_)  // it is told anew when something happens to the model
    pressing_.add_demand(m.info.id, -pressing_.demand(m.info.id));
  for (std::size_t i = 0; i < devices_.size(); ++i)
    for (std::size_t m = 0; m < devices_[i].residence.size(); ++m) {
      const Residence r = devices_[i].residence[m];
      if (r != Residence::loaded && r != Residence::loading) continue;
      const ModelId model{static_cast<std::uint32_t>(m)};
      const DeviceId device{static_cast<std::uint32_t>(i)};
      const TimePoint now = devices_[i].last_use[m];
      scarce_ ? placed(model, device, now) : removed(model, device, now);
    }
}

// Loads what fits, in the order of the models, where all fit. Where not, what is asked for most by copy
// first; as long as nothing was asked for, what has the fewest copies.
void Fleet::fill(DeviceId id, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  if (!d.scarce) {
    for (std::size_t m = 0; m < models_.size(); ++m) {
      const std::uint64_t pages = models_[m].info.pages;
      if (pages > 0 && pages <= d.free_pages &&
          (d.residence.size() <= m || d.residence[m] == Residence::absent))
        load(id, ModelId{static_cast<std::uint32_t>(m)}, now, out);
    }
    return;
  }
  prepare(d);
  while (room_for_another_load(d)) {
    const Model* best = nullptr;
    double best_rate = 0;
    for (const Model& m : models_) {
      if (m.info.pages == 0 || m.info.pages > d.free_pages || m.info.pages > spare_pages(d)) continue;
      if (d.residence[m.info.id.index()] != Residence::absent || now < m.load_not_before) continue;
      const double by_copy = placement_.rate(m.info.id, now) / (m.places + 1);
      if (best == nullptr || by_copy > best_rate || (by_copy == best_rate && m.places < best->places)) {
        best = &m;
        best_rate = by_copy;
      }
    }
    if (best == nullptr) return;
    load(id, best->info.id, now, out);
  }
}

void Fleet::load(DeviceId id, ModelId model, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  Model& m = models_[model.index()];
  prepare(d);
  CARILLON_ASSERT(d.residence[model.index()] == Residence::absent && d.free_pages >= m.info.pages);
  d.free_pages -= m.info.pages;
  d.residence[model.index()] = Residence::loading;
  d.last_use[model.index()] = now;
  ++d.loads;
  ++m.places;
  if (scarce_) placed(model, id, now);
  set_wanted(m, false);
  moves_.insert(next_action_, {ActionKind::load, id, model, d.life});
  out.emplace_back(Load{next_action_, id, model, {now, TimePoint::max()}, m.load.estimate()});
  ++next_action_.value;
}

// A copy is gone, or will be.
void Fleet::left(Model& m, ModelId id, DeviceId device, TimePoint now) {
  --m.places;
  if (scarce_) removed(id, device, now);
  if (m.places == 0 && m.waiting_since != TimePoint::max()) {
    set_wanted(m, true);  // its turn comes again
    wake_ = std::min(wake_, saturating_add(now, Duration{1}));
  }
}

void Fleet::unload(DeviceId id, ModelId model, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  Model& m = models_[model.index()];
  CARILLON_ASSERT(d.residence[model.index()] == Residence::loaded && d.pending_of[model.index()] == 0);
  d.lru.erase({d.last_use[model.index()], model});
  d.residence[model.index()] = Residence::unloading;
  d.freeing_pages += m.info.pages;
  left(m, model, id, now);
  moves_.insert(next_action_, {ActionKind::unload, id, model, d.life});
  out.emplace_back(Unload{next_action_, id, model});
  ++next_action_.value;
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
  if (m.load_failures >= give_up_after && now < m.load_not_before) {
    wake_ = std::min(wake_, m.load_not_before);
    return false;
  }
  set_wanted(m, true);
  ++m.asked;
  load_wanted(model, now, out);
  return true;
}

// True where a LOAD was sent, or room is being made.
bool Fleet::load_wanted(ModelId model, TimePoint now, Actions& out) {
  Model& m = models_[model.index()];
  if (m.room_on != nowhere) return true;
  if (now < m.load_not_before) {
    wake_ = std::min(wake_, m.load_not_before);
    return false;
  }
  std::optional<DeviceId> best;
  Room best_room, room_there;
  int tried = 0;
  const auto consider = [&](DeviceId id) {
    const Device& d = devices_[id.index()];
    if (!d.alive || d.total_pages < m.info.pages || !room_for_another_load(d)) return;
    if (d.residence.size() > model.index() && d.residence[model.index()] != Residence::absent) return;
    ++tried;
    if (!room(id, model, now, room_there)) return;
    if (best && best_room.cost <= room_there.cost) return;
    best = id;
    std::swap(best_room, room_there);
  };
  for (const auto& [load, id] : placement_.by_load()) {
    consider(id);
    if (tried == devices_tried || (best && best_room.victims.empty())) break;
  }
  if (!best) {  // all in use: when something is reported, or a little later
    wake_ = std::min(wake_, saturating_add(now, load_pause));
    return false;
  }
  make_room(*best, model, best_room, now, out);
  return true;
}

// What must go so that the model fits: first what costs least. False where that is not possible, as what is
// there is in use, or somebody has waited for it for longer.
bool Fleet::room(DeviceId id, ModelId model, TimePoint now, Room& found) const {
  const Device& d = devices_[id.index()];
  const Model& m = models_[model.index()];
  found.victims.clear();
  found.cost = 0;
  std::uint64_t pages = spare_pages(d);
  if (pages >= m.info.pages) return true;
  struct Victim {
    double cost;
    TimePoint used;
    ModelId model;
    auto operator<=>(const Victim&) const = default;
  };
  std::vector<Victim> candidates;
  for (const auto& [used, other] : d.lru) {
    const Model& o = models_[other.index()];
    if (d.pending_of[other.index()] > 0) continue;
    if (o.places == 1 && o.waiting_since <= m.waiting_since && o.waiting_since != TimePoint::max()) continue;
    candidates.push_back({placement_.cost_of_removal(other, id, now), used, other});
  }
  std::sort(candidates.begin(), candidates.end());
  for (const Victim& victim : candidates) {
    if (pages >= m.info.pages) break;
    pages += models_[victim.model.index()].info.pages;
    found.cost += victim.cost;
    found.victims.push_back(victim.model);
  }
  return pages >= m.info.pages;
}

void Fleet::make_room(DeviceId id, ModelId model, const Room& room, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  Model& m = models_[model.index()];
  prepare(d);
  if (room.victims.empty() && d.free_pages >= d.coming_pages + m.info.pages) {
    load(id, model, now, out);
    return;
  }
  // Before its victims go, one of which may be wanted then.
  m.room_on = id;
  d.coming.push_back(model);
  d.coming_pages += m.info.pages;
  for (const ModelId victim : room.victims) unload(id, victim, now, out);
}

void Fleet::arrived(const Request& request, TimePoint now, Actions& out) {
  const ModelId model = request.model;
  Model& m = models_[model.index()];
  if (m.info.pages == 0) return;
  // Without a deadline, or with one far away, it can wait for the time over which rates are averaged.
  const Duration wait =
      std::clamp(std::min(request.deadline, saturating_add(now, rate_window)) - now - span(model, 0),
                 exec(model, 0), std::max(exec(model, 0), rate_window));
  m.can_wait += m.can_wait == Duration{0} ? wait : (wait - m.can_wait) / waits_averaged;
  m.deadline =
      m.waiting_since == TimePoint::max() ? request.deadline : std::max(m.deadline, request.deadline);
  if (!scarce_ || !placement_.arrived(model, now)) return;
  // What is nowhere goes before what has a place.
  if (wanted_.empty() && m.places > 0) load_copy(model, now, out);
}

// Another copy, where that relieves more than it costs, on the device that is asked for least of those
// without one.
void Fleet::load_copy(ModelId model, TimePoint now, Actions& out) {
  const Model& m = models_[model.index()];
  if (m.room_on != nowhere || now < m.load_not_before || m.places == static_cast<int>(alive_)) return;
  for (const auto& [load, id] : placement_.by_load()) {
    const Device& d = devices_[id.index()];
    if (!d.alive || d.total_pages < m.info.pages || d.loads > 0 || !d.coming.empty()) continue;
    if (d.residence.size() > model.index() && d.residence[model.index()] != Residence::absent) continue;
    const double gain = placement_.gain_of_copy(model, id);
    Room there;
    if (gain > 0 && room(id, model, now, there) && there.cost < gain) make_room(id, model, there, now, out);
    return;
  }
}

// A request's demand is its work over the time that its model's latest requests could wait.
void Fleet::set_waiting(ModelId model, Waiting waiting) {
  Model& m = models_[model.index()];
  m.waiting_since = waiting.since;
  if (waiting.since == TimePoint::max()) set_wanted(m, false);
  if (!scarce_ || m.info.pages == 0) return;
  const Duration work = std::max(Duration{1}, exec(model, 0));
  const double each = to_seconds(work) / to_seconds(std::max(work, m.can_wait));
  const double demand = static_cast<double>(waiting.requests) * each * to_seconds(device_time);
  pressing_.add_demand(model, from_seconds(demand) - pressing_.demand(model));
}

// What must go so that so many pages are free: what was not used for longest, of what nobody waits for. False
// where that is not enough.
bool Fleet::unused_room(DeviceId id, std::uint64_t pages, TimePoint now, Room& found) const {
  const Device& d = devices_[id.index()];
  found.victims.clear();
  found.cost = 0;
  std::uint64_t room = spare_pages(d);
  std::size_t tried = 0;
  for (const auto& [used, other] : d.lru) {
    if (room >= pages || ++tried > victims_tried) break;
    const Model& o = models_[other.index()];
    if (d.pending_of[other.index()] > 0 || o.waiting_since != TimePoint::max() ||
        now - used < loads_unused * o.load.estimate())
      continue;
    room += o.info.pages;
    found.victims.push_back(other);
  }
  return room >= pages;
}

// How long the most hurried of the device's models can wait for it. Looked at when that may be another, as it
// costs O(models there).
Duration Fleet::patience(Device& device, TimePoint now) {
  if (now < device.patience_until) return device.patience;
  Duration least = Duration::max();
  for (auto at = device.lru.rbegin(); at != device.lru.rend(); ++at) {
    if (now - at->first > rate_window) break;  // nobody asks for the others
    const Duration wait = models_[at->second.index()].can_wait;
    if (wait > Duration{0}) least = std::min(least, wait);
  }
  device.patience_until = saturating_add(now, patience_renewed);
  return device.patience = least;
}

// Requests wait for devices that have more to do than they can in time: another copy of their model, on the
// device that has least, where it comes in time for them. It goes where others can wait for half a run of it,
// as who comes meanwhile has to on average: models in a hurry live on the devices that slow ones do not have.
void Fleet::load_pressing(TimePoint now, Actions& out) {
  std::vector<std::pair<double, DeviceId>> order;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const DeviceId id{static_cast<std::uint32_t>(i)};
    const Device& d = devices_[i];
    if (d.alive && d.scarce && d.loads == 0 && d.coming.empty())
      order.emplace_back(pressing_.device_load(id), id);
  }
  const auto last =
      order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), pressed_devices_tried));
  std::partial_sort(order.begin(), last, order.end());
  Room room;
  for (auto at = order.begin(); at != last; ++at) {
    const DeviceId id = at->second;
    Device& d = devices_[id.index()];
    const Duration others_wait = patience(d, now);
    std::size_t tried = 0, without_room = 0;
    std::uint64_t too_large = std::numeric_limits<std::uint64_t>::max();
    for (const auto& [priority, model] : pressing_.wanted()) {
      if (++tried > wanted_tried) break;
      const Model& m = models_[model.index()];
      if (m.room_on != nowhere || now < m.load_not_before || d.total_pages < m.info.pages ||
          (d.residence.size() > model.index() && d.residence[model.index()] != Residence::absent) ||
          exec(model, 0) / 2 > others_wait ||
          saturating_add(now, m.load.estimate() + span(model, 0)) > m.deadline)
        continue;
      if (m.info.pages >= too_large) continue;
      const bool fits = unused_room(id, m.info.pages, now, room);
      if (fits) make_room(id, model, room, now, out);
      if (fits || ++without_room == rooms_tried) break;
      too_large = m.info.pages;
    }
  }
}

void Fleet::load_for_waiting(TimePoint now, Actions& out) {
  // What is nowhere goes before what has a place.
  if (scarce_ && wanted_.empty() && !pressing_.wanted().empty()) load_pressing(now, out);
}

void Fleet::wake(TimePoint now, Actions& out) {
  if (now < wake_) return;
  wake_ = TimePoint::max();
  std::vector<ModelId> order = wanted_;
  // What was asked for most first, as in Clockwork.
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), wanted_tried));
  std::partial_sort(order.begin(), last, order.end(), [this](ModelId a, ModelId b) {
    return std::pair(models_[a.index()].asked, b) > std::pair(models_[b.index()].asked, a);
  });
  order.erase(last, order.end());
  if (order.size() < wanted_.size()) wake_ = saturating_add(now, load_pause);
  for (const ModelId model : order)
    if (models_[model.index()].wanted) load_wanted(model, now, out);
}

// A device may have room for another LOAD.
void Fleet::load_next(DeviceId id, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  while (!d.coming.empty() && models_[d.coming.front().index()].info.pages <= d.free_pages) {
    const ModelId model = d.coming.front();
    d.coming.erase(d.coming.begin());
    Model& m = models_[model.index()];
    d.coming_pages -= m.info.pages;
    m.room_on = nowhere;
    load(id, model, now, out);
  }
  while (!wanted_.empty() && room_for_another_load(d)) {
    const auto next = std::max_element(wanted_.begin(), wanted_.end(), [this](ModelId a, ModelId b) {
      const Model &x = models_[a.index()], &y = models_[b.index()];
      return std::pair(x.room_on == nowhere, x.asked) < std::pair(y.room_on == nowhere, y.asked);
    });
    if (models_[next->index()].room_on != nowhere || !load_wanted(*next, now, out)) break;
  }
}

Fleet::Report Fleet::moved(const Move& move, const ActionDone& done, TimePoint now, Actions& out) {
  Report report;
  Device& d = devices_[move.device.index()];
  Model& m = models_[move.model.index()];
  if (move.kind == ActionKind::unload) {
    d.residence[move.model.index()] = Residence::absent;
    d.free_pages += m.info.pages;
    d.freeing_pages -= m.info.pages;
  } else if (done.status == ActionStatus::success) {
    --d.loads;
    d.residence[move.model.index()] = Residence::loaded;
    m.load.add(done.duration, now);
    m.load_failures = 0;
    d.last_use[move.model.index()] = now;
    d.lru.insert({now, move.model});
    d.patience_until = TimePoint::min();
    report.loaded = {move.device, move.model};
  } else {
    --d.loads;
    d.residence[move.model.index()] = Residence::absent;
    d.free_pages += m.info.pages;
    m.load_failures = std::min(m.load_failures + 1, 2 * give_up_after);
    m.load_not_before = saturating_add(now, load_pause * (1 << (m.load_failures - 1)));
    left(m, move.model, move.device, now);
    wake_ = std::min(wake_, m.load_not_before);
    if (m.places == 0 && m.load_failures >= give_up_after) report.unloadable = move.model;
  }
  load_next(move.device, now, out);
  if (wanted_.empty() && d.scarce && d.coming.empty()) fill(move.device, now, out);
  return report;
}

}  // namespace carillon::schedule
