#include <algorithm>

#include "carillon/base/assert.h"
#include "carillon/schedule/clockwork/clockwork.h"

namespace carillon::schedule {

// Gives LOAD executors work, the least loaded device first.
void Clockwork::run_loads(TimePoint now, Actions& out) {
  load_wake_ = TimePoint::max();
  const auto nothing_wanted = [this] {
    return needed_.wanted().empty() && patient_.empty() && missed_.empty();
  };
  if (nothing_wanted()) return;
  std::vector<std::pair<double, DeviceId>> order;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    if (state_.alive(device)) order.emplace_back(needed_.device_load(device), device);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [load, device] : order) {
    while (!nothing_wanted()) {
      const Executor& executor = state_.load(device);
      const TimePoint free = executor.free_at(now);
      if (free > saturating_add(now, ahead())) {
        if (!executor.overdue(now)) load_wake_ = std::min(load_wake_, saturating_add(free, -ahead()));
        break;
      }
      if (!load_patient(device, now, out) && !load_wanted(device, now, out) && !load_missed(device, now, out))
        break;
    }
  }
}

// A model that is nowhere, with a request without a deadline that ran out of patience.
bool Clockwork::load_patient(DeviceId device, TimePoint now, Actions& out) {
  Port& port = ports_[device.index()];
  if (patient_.empty()) return false;
  const auto [since, model] = *patient_.begin();
  const TimePoint due = std::max(saturating_add(since, options_.patience), port.patient_load_at);
  if (due > now) {
    load_wake_ = std::min(load_wake_, due);
    return false;
  }
  const ModelId home = state_.home(model);
  if (try_load(device, home, last_useful_load(device, home), now, out) != LoadAttempt::sent) return false;
  port.patient_load_at = saturating_add(
      now,
      from_ns(static_cast<double>(state_.load_estimate(device, model).count()) / options_.patient_share));
  return true;
}

bool Clockwork::load_wanted(DeviceId device, TimePoint now, Actions& out) {
  for (const auto& [_, model] : needed_.wanted()) {
    if (state_.residence(device, model) != Residence::absent || has_room_elsewhere(device, model)) continue;
    switch (try_load(device, model, last_useful_load(device, model), now, out)) {
      case LoadAttempt::sent:
        return true;
      case LoadAttempt::evicting:
        return false;
      case LoadAttempt::impossible:
        continue;
    }
  }
  return false;
}

// A request with a deadline is refused for want of time.
void Clockwork::missed(const Request& request, TimePoint now, Actions& out) {
  // What no idle device could do either is nobody's debt.
  const Duration alone = state_.margins().least().span(state_.model(request.model).batches.front().exec);
  const bool possible = request.deadline - request.arrival >= alone;
  if (possible) shares_.lost(request.model);
  load_for_missed(request, now, out);
}

// Another copy of its model might have served it: then one is loaded for those to come, where that takes
// nothing from anybody.
void Clockwork::load_for_missed(const Request& request, TimePoint now, Actions& out) {
  const ModelId home = state_.home(request.model);
  Model& m = models_[home.index()];
  const ModelInfo& info = state_.model(request.model);
  if (everywhere(request.model)) return;
  const TimePoint latest =
      saturating_add(request.deadline, -state_.margins().least().span(info.batches.front().exec));
  if (request.arrival > latest) return;
  if (m.places.empty()) {
    m.missed_at = now;
    if (m.missed_since == TimePoint::max()) set_missed(home, now);
    return;
  }
  // Loads that somebody waits for go first.
  if (!needed_.wanted().empty() || !missed_.empty()) return;
  std::optional<DeviceId> least;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    if (!state_.alive(device) || state_.residence(device, request.model) != Residence::absent ||
        state_.load_not_before(device, request.model) > now || state_.free_pages(device) < info.pages ||
        state_.load(device).free_at(now) > now ||
        state_.exec(device).free_at(now) - now > latest - request.arrival)
      continue;
    if (!least || needed_.device_load(device) < needed_.device_load(*least)) least = device;
  }
  if (least) try_load(*least, home, TimePoint::max(), now, out);
}

// A model that is nowhere, and whose LOAD comes too late for every request that asks for it. It takes free
// memory, or the place of one that was not used for as long as such requests are remembered: else two of them
// could take each other's place for ever.
bool Clockwork::load_missed(DeviceId device, TimePoint now, Actions& out) {
  const Executor& executor = state_.load(device);
  const TimePoint free = executor.free_at(now);
  if (!missed_.empty() && free > now) {
    if (!executor.overdue(now)) load_wake_ = std::min(load_wake_, free);
    return false;
  }
  for (auto next = missed_.begin(); next != missed_.end();) {
    const ModelId model = next->second;
    ++next;
    const Model& m = models_[model.index()];
    if (saturating_add(m.missed_at, options_.missed_for) < now) {
      set_missed(model, TimePoint::max());
      continue;
    }
    if (has_room_elsewhere(device, model)) continue;
    switch (try_load(device, model, TimePoint::max(), now, out, options_.missed_for)) {
      case LoadAttempt::sent:
        return true;
      case LoadAttempt::evicting:
        return false;
      case LoadAttempt::impossible:
        // Where the first finds no room, the others would hardly: not all of them are tried at every event.
        if (state_.free_pages(device) < state_.model(model).pages) return false;
        continue;
    }
  }
  return false;
}

// Another device has been emptied for the model, or is being: one is enough.
bool Clockwork::has_room_elsewhere(DeviceId device, ModelId model) const {
  const DeviceId other = models_[model.index()].room_on;
  return other != no_device && other != device && state_.alive(other) &&
         state_.residence(other, model) == Residence::absent &&
         state_.free_pages(other) + state_.freeing_pages(other) >= state_.model(model).pages;
}

void Clockwork::set_missed(ModelId model, TimePoint since) {
  TimePoint& listed = models_[model.index()].missed_since;
  if (listed != TimePoint::max()) missed_.erase({listed, model});
  if (since != TimePoint::max()) missed_.insert({since, model});
  listed = since;
}

// `latest`: the LOAD is of no use if it starts later. `unused_for`: it may evict only what was not used for
// that long, and nothing that anybody waits for.
Clockwork::LoadAttempt Clockwork::try_load(DeviceId device, ModelId model, TimePoint latest, TimePoint now,
                                           Actions& out, std::optional<Duration> unused_for) {
  const std::uint64_t pages = state_.model(model).pages;
  if (state_.residence(device, model) != Residence::absent || pages > state_.total_pages(device) ||
      !state_.served(model))
    return LoadAttempt::impossible;
  if (const TimePoint due = state_.load_not_before(device, model); due > now) {
    load_wake_ = std::min(load_wake_, due);
    return LoadAttempt::impossible;
  }
  // The paper takes requests that a LOAD cannot help any more out of the demand; here such a LOAD is skipped.
  if (latest < state_.load(device).free_at(now)) return LoadAttempt::impossible;
  if (state_.free_pages(device) < pages)
    return make_room(device, model, now, out, unused_for) ? LoadAttempt::evicting : LoadAttempt::impossible;

  const Duration expected = state_.load_estimate(device, model);
  const TimePoint earliest = std::max(now, state_.load(device).last_order());
  const ActionId id = state_.begin_load(device, model, earliest, expected, now);
  out.emplace_back(Load{id, device, model, {earliest, latest}, expected});
  place(model, device);
  fill(device, now, out);  // sets the wake for the INFER that is to follow
  return LoadAttempt::sent;
}

// Sends the UNLOADs after which the model will fit; the LOAD follows when they are reported. False where too
// much is in use. Models that nobody waits for go first. One with waiting requests goes only to a model that
// wants more, after it had a fair time; or to one whose requests ran out of patience.
bool Clockwork::make_room(DeviceId device, ModelId model, TimePoint now, Actions& out,
                          std::optional<Duration> unused_for) {
  const std::uint64_t pages = state_.model(model).pages;
  std::uint64_t room = state_.free_pages(device) + state_.freeing_pages(device);
  if (room >= pages) return true;
  TimePoint since = TimePoint::max();
  for (const ModelId each : state_.family(model))
    since = std::min(since, models_[each.index()].patient_since);
  const bool impatient = since != TimePoint::max() && saturating_add(since, options_.patience) <= now;
  std::vector<ModelId> victims;
  const auto collect = [&](auto&& may_go) {
    state_.visit_lru(device, [&](ModelId candidate, TimePoint used) {
      if (room >= pages) return false;
      if (may_go(candidate, used) && std::find(victims.begin(), victims.end(), candidate) == victims.end()) {
        victims.push_back(candidate);
        room += state_.model(candidate).pages;
      }
      return room < pages;
    });
  };
  collect([&](ModelId candidate, TimePoint used) {
    if (needed_.demand(candidate) > Duration{0}) return false;
    if (!unused_for) return true;
    const TimePoint unused_from = saturating_add(used, *unused_for);
    if (unused_from <= now) return true;
    load_wake_ = std::min(load_wake_, unused_from);
    return false;
  });
  if (room < pages && !unused_for)
    collect([&](ModelId candidate, TimePoint used) {
      const bool had_its_time = now - used >= 10 * state_.load_estimate(device, candidate);
      const auto demand = static_cast<double>(needed_.demand(candidate).count());
      return impatient || (had_its_time && demand < needed_.priority(model));
    });
  if (room < pages) return false;
  models_[model.index()].room_on = device;
  for (const ModelId victim : victims) {
    displace(victim, device, now);
    out.emplace_back(Unload{state_.begin_unload(device, victim), device, victim});
  }
  return true;
}

// The LOAD does not follow by itself where it needs room first: it is to be asked for again.
bool Clockwork::load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) {
  const DeviceId device = wanted.device;
  const ModelId model = state_.home(wanted.model);
  const std::uint64_t pages = state_.model(model).pages;
  if (!state_.alive(device) || everywhere(model) || state_.load(device).free_at(now) > now ||
      state_.residence(device, model) != Residence::absent)
    return true;
  if (state_.free_pages(device) >= pages) {
    (void)try_load(device, model, TimePoint::max(), now, out);
    return true;
  }
  const auto victims = state_.room_ahead(wanted);
  if (!victims) return true;
  models_[model.index()].room_on = device;
  for (const ModelId victim : *victims) {
    displace(victim, device, now);
    out.emplace_back(Unload{state_.begin_unload(device, victim), device, victim});
  }
  return true;
}

// When the LOAD must start at the latest so that some waiting request is still in time.
TimePoint Clockwork::last_useful_load(DeviceId device, ModelId model) const {
  TimePoint latest = TimePoint::min();
  for (const ModelId each : state_.family(model)) {
    const Duration needed = state_.load_estimate(device, model) + span_of_one(device, each);
    for (const ModelQueue& queue : models_[each.index()].queues)
      if (!queue.empty())
        latest = std::max(latest,
                          queue.deadlines() ? saturating_add(queue.tail().due, -needed) : TimePoint::max());
  }
  return latest;
}

// A copy of the model's weights comes, or is gone: so it is of all that run with them.
void Clockwork::place(ModelId model, DeviceId device) {
  const ModelId home = state_.home(model);
  models_[home.index()].room_on = no_device;
  set_missed(home, TimePoint::max());
  needed_.placed(home, device);
  for (const ModelId each : state_.family(home)) give_place(each, device);
}

void Clockwork::displace(ModelId model, DeviceId device, TimePoint now) {
  const ModelId home = state_.home(model);
  if (!has_place(home, device)) return;
  needed_.removed(home, device);
  for (const ModelId each : state_.family(home)) take_place(each, device, now);
}

bool Clockwork::has_place(ModelId model, DeviceId device) const {
  return std::ranges::find(models_[model.index()].places, device, &Place::device) !=
         models_[model.index()].places.end();
}

// It runs with another's weights, and has come where that has places.
void Clockwork::adopt_places(ModelId model) {
  const ModelId home = state_.home(model);
  if (home == model) return;
  for (const Place& p : models_[home.index()].places) give_place(model, p.device);
}

void Clockwork::give_place(ModelId model, DeviceId device) {
  Model& m = models_[model.index()];
  m.places.push_back({.device = device, .bounds = {}});
  m.shortest_version = unknown_version;
  set_wide(model, m.wide || m.places.size() > few_places);
  for (int rank = 0; rank < ranks; ++rank) update_queue(model, rank);
}

void Clockwork::take_place(ModelId model, DeviceId device, TimePoint now) {
  Model& m = models_[model.index()];
  const auto found =
      std::find_if(m.places.begin(), m.places.end(), [device](const Place& p) { return p.device == device; });
  if (found == m.places.end()) return;
  unlist(model, found->bounds, ports_[device.index()].ready);
  m.places.erase(found);
  m.shortest_version = unknown_version;
  if (m.wide && m.places.size() <= few_places / 2) {  // not for each that comes and goes at the limit
    set_wide(model, false);
    // From now on these devices' own wakes say when they have room for it.
    for (const Place& p : m.places) {
      const Executor& exec = state_.exec(p.device);
      const TimePoint room = std::max(saturating_add(exec.free_at(now), -ahead()), now + Duration{1});
      if (!exec.overdue(now)) set_wake(p.device, std::min(room, ports_[p.device.index()].wake));
    }
  }
  for (int rank = 0; rank < ranks; ++rank) update_queue(model, rank);
}

// For a model with pages. Its queues are to be updated afterwards.
void Clockwork::set_wide(ModelId model, bool wide) {
  Model& m = models_[model.index()];
  if (wide == m.wide) return;
  m.wide = wide;
  unlist(model, m.bounds, wide_);
  for (Place& p : m.places) unlist(model, p.bounds, ports_[p.device.index()].ready);
}

}  // namespace carillon::schedule
