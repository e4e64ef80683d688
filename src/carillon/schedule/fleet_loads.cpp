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
constexpr std::size_t loads_ahead = 2;
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

void Fleet::set_wanted(ModelId model, bool wanted) {
  Model& m = models_[model.index()];
  if (m.wanted == wanted) return;
  m.wanted = wanted;
  m.asked = 0;
  if (wanted)
    wanted_.push_back(model);
  else
    wanted_.erase(std::find(wanted_.begin(), wanted_.end(), model));
}

bool Fleet::room_for_another_load(DeviceId id) const {
  return loads(id) + devices_[id.index()].coming.size() < loads_ahead;
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
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const DeviceId id{static_cast<std::uint32_t>(i)};
    devices_[i].scarce = alive(id) && mirror_.total_pages(id) < all_pages_;
    scarce_ = scarce_ || devices_[i].scarce;
  }
  if (scarce_ == before) return;
  for (std::uint32_t m = 0; m < models_.size(); ++m)  // it is told anew when something happens to the model
    pressing_.add_demand(ModelId{m}, -pressing_.demand(ModelId{m}));
  for (std::uint32_t i = 0; i < devices_.size(); ++i)
    for (std::uint32_t m = 0; m < models_.size(); ++m) {
      const ModelId model{m};
      const DeviceId device{i};
      const Residence r = mirror_.residence(device, model);
      if (!has_weights(model) || (r != Residence::loaded && r != Residence::loading)) continue;
      const TimePoint now = mirror_.last_use(device, model);
      scarce_ ? placed(model, device, now) : removed(model, device, now);
    }
}

// Loads what fits, in the order of the models, where all fit. Where not, what is asked for most by copy
// first; as long as nothing was asked for, what has the fewest copies.
void Fleet::fill(DeviceId id, TimePoint now, Actions& out) {
  if (!devices_[id.index()].scarce) {
    for (std::uint32_t m = 0; m < models_.size(); ++m) {
      const ModelId model{m};
      if (served(model) && has_weights(model) && pages(model) <= mirror_.free_pages(id) &&
          may_load(id, model, now) &&
          models_[m].room_on != id)  // else it comes when room has been made, as that was begun
        load(id, model, now, out);
    }
    return;
  }
  while (room_for_another_load(id)) {
    std::optional<ModelId> best;
    double best_rate = 0;
    for (std::uint32_t i = 0; i < models_.size(); ++i) {
      const ModelId model{i};
      const std::uint64_t needs = pages(model);
      if (!served(model) || !has_weights(model) || needs > mirror_.free_pages(id) || needs > spare_pages(id))
        continue;
      if (!may_load(id, model, now)) continue;
      const auto places = static_cast<double>(mirror_.places(model));
      const double by_copy = placement_.rate(model, now) / (places + 1);
      if (!best || by_copy > best_rate ||
          (by_copy == best_rate && mirror_.places(model) < mirror_.places(*best))) {
        best = model;
        best_rate = by_copy;
      }
    }
    if (!best) return;
    load(id, *best, now, out);
  }
}

void Fleet::load(DeviceId id, ModelId model, TimePoint now, Actions& out) {
  const Duration expected = mirror_.load_estimate(model);
  const ActionId action = mirror_.begin_load(id, model, now, expected, now);
  if (scarce_) placed(model, id, now);
  set_wanted(model, false);
  out.emplace_back(Load{action, id, model, {now, TimePoint::max()}, expected});
}

// A copy is gone, or will be.
void Fleet::left(ModelId model, DeviceId device, TimePoint now) {
  if (scarce_) removed(model, device, now);
  if (!anywhere(model) && models_[model.index()].waiting_since != TimePoint::max()) {
    set_wanted(model, true);  // its turn comes again
    wake_ = std::min(wake_, saturating_add(now, Duration{1}));
  }
}

void Fleet::unload(DeviceId id, ModelId model, TimePoint now, Actions& out) {
  const ActionId action = mirror_.begin_unload(id, model);
  left(model, id, now);
  out.emplace_back(Unload{action, id, model});
}

bool Fleet::want(ModelId wanted, TimePoint now, Actions& out) {
  const ModelId model = mirror_.home(wanted);
  Model& m = models_[model.index()];
  if (!mirror_.can_hold(model)) {
    set_wanted(model, false);
    return false;
  }
  if (pages(model) == 0) return true;
  if (anywhere(model)) {
    set_wanted(model, false);
    return true;
  }
  if (m.load_failed && mirror_.loads_fail_everywhere(model, give_up_after))
    if (const TimePoint next = mirror_.next_load_try(model); now < next) {
      wake_ = std::min(wake_, next);
      return false;
    }
  set_wanted(model, true);
  ++m.asked;
  load_wanted(model, now, out);
  return true;
}

// True where a LOAD was sent, or room is being made.
bool Fleet::load_wanted(ModelId model, TimePoint now, Actions& out) {
  Model& m = models_[model.index()];
  if (m.room_on != nowhere) return true;
  if (!served(model)) return false;
  std::optional<DeviceId> best;
  Room best_room, room_there;
  int tried = 0;
  const auto consider = [&](DeviceId id) {
    if (!alive(id) || mirror_.total_pages(id) < pages(model) || !room_for_another_load(id)) return;
    if (!absent(id, model)) return;
    if (const TimePoint due = mirror_.load_not_before(id, model); now < due) {
      wake_ = std::min(wake_, due);
      return;
    }
    ++tried;
    if (!room(id, model, now, room_there)) return;
    if (best && best_room.cost <= room_there.cost) return;
    best = id;
    std::swap(best_room, room_there);
  };
  placement_.visit_by_load([&](DeviceId id) {
    consider(id);
    return tried == devices_tried || (best && best_room.victims.empty());
  });
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
  const Model& m = models_[model.index()];
  const std::uint64_t needs = pages(model);
  found.victims.clear();
  found.cost = 0;
  std::uint64_t room = spare_pages(id);
  if (room >= needs) return true;
  struct Victim {
    double cost;
    TimePoint used;
    ModelId model;
    auto operator<=>(const Victim&) const = default;
  };
  std::vector<Victim> candidates;
  for (const auto& [used, other] : mirror_.lru(id)) {
    const Model& o = models_[other.index()];
    if (mirror_.pending_infers(id, other) > 0) continue;
    if (mirror_.places(other) == 1 && o.waiting_since <= m.waiting_since &&
        o.waiting_since != TimePoint::max())
      continue;
    candidates.push_back({placement_.cost_of_removal(other, id, now), used, other});
  }
  std::sort(candidates.begin(), candidates.end());
  for (const Victim& victim : candidates) {
    if (room >= needs) break;
    room += pages(victim.model);
    found.cost += victim.cost;
    found.victims.push_back(victim.model);
  }
  return room >= needs;
}

void Fleet::make_room(DeviceId id, ModelId model, const Room& room, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  if (room.victims.empty() && mirror_.free_pages(id) >= d.coming_pages + pages(model)) {
    load(id, model, now, out);
    return;
  }
  // Before its victims go, one of which may be wanted then.
  models_[model.index()].room_on = id;
  d.coming.push_back(model);
  d.coming_pages += pages(model);
  for (const ModelId victim : room.victims) unload(id, victim, now, out);
}

void Fleet::load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) {
  const ModelId model = mirror_.home(wanted.model);
  const DeviceId id = wanted.device;
  if (!alive(id) || !served(model) || !has_weights(model) || models_[model.index()].room_on != nowhere ||
      !may_load(id, model, now) || !room_for_another_load(id))
    return;
  std::uint64_t pages_then = spare_pages(id);
  Room room;
  for (const ModelId victim : wanted.instead) {
    if (pages_then >= pages(model)) break;
    if (!loaded(id, victim) || mirror_.pending_infers(id, victim) > 0) continue;
    pages_then += pages(victim);
    room.victims.push_back(mirror_.home(victim));
  }
  if (pages_then >= pages(model)) make_room(id, model, room, now, out);
}

void Fleet::arrived(const Request& request, TimePoint now, Actions& out) {
  const ModelId model = mirror_.home(request.model);
  Model& m = models_[model.index()];
  if (pages(model) == 0) return;
  // Without a deadline, or with one far away, it can wait for the time over which rates are averaged.
  const Duration one = exec(request.model, 0);
  const Duration wait =
      std::clamp(std::min(request.deadline, saturating_add(now, rate_window)) - now - environment().span(one),
                 one, std::max(one, rate_window));
  m.can_wait += m.can_wait == Duration{0} ? wait : (wait - m.can_wait) / waits_averaged;
  m.deadline =
      m.waiting_since == TimePoint::max() ? request.deadline : std::max(m.deadline, request.deadline);
  if (!scarce_ || !placement_.arrived(model, now)) return;
  // What is nowhere goes before what has a place.
  if (wanted_.empty() && anywhere(model)) load_copy(model, now, out);
}

// Another copy, where that relieves more than it costs, on the device that is asked for least of those
// without one.
void Fleet::load_copy(ModelId model, TimePoint now, Actions& out) {
  const Model& m = models_[model.index()];
  if (m.room_on != nowhere || mirror_.places(model) == alive_count()) return;
  placement_.visit_by_load([&](DeviceId id) {
    if (!alive(id) || mirror_.total_pages(id) < pages(model) || loads(id) > 0 ||
        !devices_[id.index()].coming.empty() || !may_load(id, model, now))
      return false;
    const double gain = placement_.gain_of_copy(model, id);
    Room there;
    if (gain > 0 && room(id, model, now, there) && there.cost < gain) make_room(id, model, there, now, out);
    return true;
  });
}

// A request's demand is its work over the time that its model's latest requests could wait.
void Fleet::set_waiting(ModelId of, Waiting waiting) {
  models_[of.index()].own = waiting;
  const ModelId model = mirror_.home(of);
  Model& m = models_[model.index()];
  m.waiting_since = TimePoint::max();
  double demand = 0;
  for (const ModelId each : family(model)) {
    const Waiting& own = models_[each.index()].own;
    m.waiting_since = std::min(m.waiting_since, own.since);
    if (!scarce_ || pages(model) == 0) continue;
    const Duration work = std::max(Duration{1}, exec(each, 0));
    demand += static_cast<double>(own.requests) *
              (to_seconds(work) / to_seconds(std::max(work, m.can_wait))) * to_seconds(device_time);
  }
  if (m.waiting_since == TimePoint::max()) set_wanted(model, false);
  if (!scarce_ || pages(model) == 0) return;
  pressing_.add_demand(model, from_seconds(demand) - pressing_.demand(model));
}

// What must go so that so many pages are free: what was not used for longest, of what nobody waits for. False
// where that is not enough.
bool Fleet::unused_room(DeviceId id, std::uint64_t needs, TimePoint now, Room& found) const {
  found.victims.clear();
  found.cost = 0;
  std::uint64_t room = spare_pages(id);
  std::size_t tried = 0;
  for (const auto& [used, other] : mirror_.lru(id)) {
    if (room >= needs || ++tried > victims_tried) break;
    if (models_[other.index()].waiting_since != TimePoint::max() ||
        now - used < loads_unused * mirror_.load_estimate(other) || mirror_.pending_infers(id, other) > 0)
      continue;
    room += pages(other);
    found.victims.push_back(other);
  }
  return room >= needs;
}

// How long the most hurried of the device's models can wait for it. Looked at when that may be another, as it
// costs O(models there).
Duration Fleet::patience(DeviceId id, TimePoint now) {
  Device& device = devices_[id.index()];
  const auto& lru = mirror_.lru(id);
  if (now < device.patience_until) return device.patience;
  Duration least = Duration::max();
  for (auto at = lru.rbegin(); at != lru.rend(); ++at) {
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
    if (alive(id) && d.scarce && loads(id) == 0 && d.coming.empty())
      order.emplace_back(pressing_.device_load(id), id);
  }
  const auto last =
      order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), pressed_devices_tried));
  std::partial_sort(order.begin(), last, order.end());
  Room room;
  for (auto at = order.begin(); at != last; ++at) {
    const DeviceId id = at->second;
    const Duration others_wait = patience(id, now);
    const std::uint64_t total_pages = mirror_.total_pages(id);
    std::size_t tried = 0, without_room = 0;
    std::uint64_t too_large = std::numeric_limits<std::uint64_t>::max();
    for (const auto& [priority, model] : pressing_.wanted()) {
      if (++tried > wanted_tried) break;
      const Model& m = models_[model.index()];
      const std::uint64_t needs = pages(model);
      if (needs >= too_large || needs > total_pages || m.room_on != nowhere || !may_load(id, model, now) ||
          !served(model))
        continue;
      const Duration takes = exec(model, 0);
      if (takes / 2 > others_wait ||
          saturating_add(now, mirror_.load_estimate(model) + environment().span(takes)) > m.deadline)
        continue;
      const bool fits = unused_room(id, needs, now, room);
      if (fits) make_room(id, model, room, now, out);
      if (fits || ++without_room == rooms_tried) break;
      too_large = needs;
    }
  }
}

void Fleet::load_for_waiting(TimePoint now, Actions& out) {
  // What is nowhere goes before what has a place.
  if (scarce_ && wanted_.empty() && !pressing_.wanted().empty()) load_pressing(now, out);
  mirror_.unload_leaving(out);
}

void Fleet::wake(TimePoint now, Actions& out) {
  if (now < wake_) return;
  wake_ = TimePoint::max();
  fill_again(now, out);
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

// Devices where memory is not scarce hold all models: those whose LOADs failed are tried again.
void Fleet::fill_again(TimePoint now, Actions& out) {
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    TimePoint& due = devices_[i].fill_at;
    if (due <= now) {
      due = TimePoint::max();
      if (const DeviceId id{i}; alive(id) && !devices_[i].scarce) {
        fill(id, now, out);
        for (std::uint32_t m = 0; m < models_.size(); ++m)
          if (const ModelId model{m}; served(model) && has_weights(model) && absent(id, model))
            if (const TimePoint next = mirror_.load_not_before(id, model); next > now)
              due = std::min(due, next);
      }
    }
    wake_ = std::min(wake_, due);
  }
}

// A device may have room for another LOAD.
void Fleet::load_next(DeviceId id, TimePoint now, Actions& out) {
  Device& d = devices_[id.index()];
  while (!d.coming.empty() && pages(d.coming.front()) <= mirror_.free_pages(id)) {
    const ModelId model = d.coming.front();
    d.coming.erase(d.coming.begin());
    d.coming_pages -= pages(model);
    models_[model.index()].room_on = nowhere;
    // It may have come some other way since, or be of no pages in its present version.
    if (served(model) && has_weights(model) && absent(id, model)) load(id, model, now, out);
  }
  while (!wanted_.empty() && room_for_another_load(id)) {
    const auto next = std::max_element(wanted_.begin(), wanted_.end(), [this](ModelId a, ModelId b) {
      const Model &x = models_[a.index()], &y = models_[b.index()];
      return std::pair(x.room_on == nowhere, x.asked) < std::pair(y.room_on == nowhere, y.asked);
    });
    if (models_[next->index()].room_on != nowhere || !load_wanted(*next, now, out)) break;
  }
}

Fleet::Report Fleet::moved(const SentAction& move, const ActionDone& done, TimePoint now, Actions& out) {
  Report report;
  Device& d = devices_[move.device.index()];
  Model& m = models_[move.model.index()];
  const bool load_ended = move.kind == ActionKind::load && !move.outdated;
  if (load_ended && done.status == ActionStatus::success) {
    m.load_failed = false;
    d.patience_until = TimePoint::min();
    report.loaded = {move.device, move.model};
  } else if (load_ended) {
    m.load_failed = true;
    mirror_.load_failed(move.device, move.model, load_pause, 2 * give_up_after, now);
    left(move.model, move.device, now);
    d.fill_at = std::min(d.fill_at, mirror_.load_not_before(move.device, move.model));
    wake_ = std::min(wake_, d.fill_at);
    if (!anywhere(move.model) && mirror_.loads_fail_everywhere(move.model, give_up_after))
      report.unloadable = move.model;
  }
  load_next(move.device, now, out);
  // Where memory is not scarce nothing is unloaded but what left, and its new version comes in its place.
  if (wanted_.empty() && d.coming.empty() && (d.scarce || move.kind == ActionKind::unload))
    fill(move.device, now, out);
  return report;
}

}  // namespace carillon::schedule
