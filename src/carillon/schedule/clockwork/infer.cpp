#include <algorithm>

#include "carillon/base/assert.h"
#include "carillon/schedule/clockwork/clockwork.h"

namespace carillon::schedule {

Duration Clockwork::span_of(Duration exec) const {
  return exec + exec * safety_permille_ / 1000 + options_.safety;
}

// Good until the next call.
std::span<const BatchCost> Clockwork::costs(DeviceId device, ModelId model, int rank) const {
  costs_.clear();
  const auto& batches = state_.model(model).batches;
  const std::span<const Duration> estimates = state_.exec_estimates(device, model);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Duration exec = estimates.empty() ? batches[i].exec : estimates[i];
    if (is_best_effort(rank) && i > 0 && exec > options_.best_effort_slice) break;
    costs_.push_back({batches[i].batch, span_of(exec)});
  }
  return costs_;
}

// When a request that is alone in its batch must start at the latest, as things are loaded now.
TimePoint Clockwork::last_start(ModelId model, TimePoint deadline) const {
  const Model& m = models_[model.index()];
  Duration least = Duration::max();
  for (const Place& p : m.places) least = std::min(least, span_of(state_.exec_estimate(p.device, model, 0)));
  if (m.places.empty()) {
    for (std::size_t i = 0; i < state_.device_count(); ++i) {
      const DeviceId device{static_cast<std::uint32_t>(i)};
      if (state_.alive(device))
        least = std::min(
            least, span_of(state_.exec_estimate(device, model, 0)) + state_.load_estimate(device, model));
    }
    if (least == Duration::max()) least = Duration{0};
  }
  return saturating_add(deadline, -least);
}

TimePoint Clockwork::would_finish_on(DeviceId device, ModelId model, TimePoint now) const {
  if (!state_.alive(device) || state_.total_pages(device) < state_.model(model).pages)
    return TimePoint::max();
  TimePoint ready = state_.ready_at(device, model, now);
  if (ready == TimePoint::max())
    ready = saturating_add(std::max(state_.load(device).free_at(now), models_[model.index()].load_not_before),
                           state_.load_estimate(device, model));
  const TimePoint start = std::max(ready, state_.exec(device).free_at(now));
  return saturating_add(start, span_of(state_.exec_estimate(device, model, 0)));
}

TimePoint Clockwork::would_finish(ModelId model, TimePoint now) const {
  TimePoint finish = TimePoint::max();
  for (std::size_t i = 0; i < state_.device_count(); ++i)
    finish = std::min(finish, would_finish_on(DeviceId{static_cast<std::uint32_t>(i)}, model, now));
  return finish;
}

bool Clockwork::waiting(ModelId model) const {
  const auto& lanes = models_[model.index()].lanes;
  return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return !lane.empty(); });
}

void Clockwork::update_lane(ModelId model, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  Model& m = models_[model.index()];
  const Lane& lane = m.lanes[r];
  if (has_deadline(rank)) {
    const TimePoint expiry = lane.empty() ? TimePoint::max() : last_start(model, lane.head().due);
    if (expiry != m.expiry[r]) {
      if (m.expiry[r] != TimePoint::max()) expiries_.erase({m.expiry[r], {model, rank}});
      if (expiry != TimePoint::max()) expiries_.insert({expiry, {model, rank}});
      m.expiry[r] = expiry;
    }
  } else if (!is_best_effort(rank)) {
    TimePoint since = TimePoint::max();
    for (const Lane* patient : {&m.lanes[1], &m.lanes[3]})
      if (!patient->empty() && m.places.empty()) since = std::min(since, patient->head().due);
    if (since != m.patient_since) {
      if (m.patient_since != TimePoint::max()) patient_.erase({m.patient_since, model});
      if (since != TimePoint::max()) patient_.insert({since, model});
      m.patient_since = since;
    }
  }
  for (Place& p : m.places) {
    const bool list = !lane.empty();
    const TimePoint bound = list ? lane.bound(costs(p.device, model, rank)) : TimePoint{};
    if (list == p.listed[r] && bound == p.bound[r]) continue;
    auto& ready = ports_[p.device.index()].ready[r];
    if (p.listed[r]) ready.erase({p.bound[r], model});
    if (list) ready.insert({bound, model});
    p.listed[r] = list;
    p.bound[r] = bound;
  }
}

void Clockwork::update_bounds(ModelId model, Place& place) {
  const Model& m = models_[model.index()];
  for (std::size_t r = 0; r < ranks; ++r) {
    if (!place.listed[r]) continue;
    const TimePoint bound = m.lanes[r].bound(costs(place.device, model, static_cast<int>(r)));
    if (bound == place.bound[r]) continue;
    auto& ready = ports_[place.device.index()].ready[r];
    ready.erase({place.bound[r], model});
    ready.insert({bound, model});
    place.bound[r] = bound;
  }
}

void Clockwork::unlist(ModelId model, Place& place) {
  for (std::size_t r = 0; r < ranks; ++r)
    if (place.listed[r]) {
      ports_[place.device.index()].ready[r].erase({place.bound[r], model});
      place.listed[r] = false;
    }
}

void Clockwork::set_wake(DeviceId device, TimePoint at) {
  TimePoint& listed = ports_[device.index()].wake;
  if (listed == at) return;
  if (listed != TimePoint::max()) wakes_.erase({listed, device});
  if (at != TimePoint::max()) wakes_.insert({at, device});
  listed = at;
}

// Gives the device's EXEC executor work until it has enough, and sets its wake.
void Clockwork::fill(DeviceId device, TimePoint now, Actions& out) {
  set_wake(device, TimePoint::max());
  if (!state_.alive(device)) return;
  for (;;) {
    const Executor& exec = state_.exec(device);
    const TimePoint free = exec.free_at(now);
    if (free > saturating_add(now, options_.ahead)) {
      // While it is overdue only its result can tell when there will be room; that comes as an event.
      const auto& ready = ports_[device.index()].ready;
      const bool anything =
          !std::all_of(ready.begin(), ready.begin() + 4, [](const auto& s) { return s.empty(); });
      if (anything && !exec.overdue(now)) set_wake(device, saturating_add(free, -options_.ahead));
      return;
    }
    const auto choice = choose(device, free, now);
    if (!choice) return;
    send_infer(device, *choice, now, out);
  }
}

// A model has something new to run: gives it to those of its devices that have room, the soonest free first.
void Clockwork::offer(ModelId model, TimePoint now, Actions& out) {
  const Model& m = models_[model.index()];
  if (m.places.size() == 1) {
    fill(m.places.front().device, now, out);
    return;
  }
  std::vector<std::pair<TimePoint, DeviceId>> order;
  for (const Place& p : m.places)
    order.emplace_back(std::max(state_.exec(p.device).free_at(now), state_.ready_at(p.device, model, now)),
                       p.device);
  std::sort(order.begin(), order.end());
  for (const auto& [start, device] : order) {
    if (!waiting(model)) return;
    fill(device, now, out);
  }
}

std::optional<Clockwork::Choice> Clockwork::choose(DeviceId device, TimePoint free, TimePoint now) {
  Port& port = ports_[device.index()];
  for (int rank = 0; rank < ranks; ++rank) {
    if (is_best_effort(rank) && !state_.exec(device).idle()) break;
    if (rank == 2 && port.patient_exec_at <= now && !port.ready[patient_rank].empty() &&
        saturating_add(port.ready[patient_rank].begin()->first, options_.patience) <= now) {
      if (const auto choice = best_of_rank(device, patient_rank, free, now)) {
        const Duration exec = state_.exec_estimate(device, choice->model, choice->strategy.batch_index);
        port.patient_exec_at =
            saturating_add(now, from_ns(static_cast<double>(exec.count()) / options_.patient_share));
        return choice;
      }
    }
    if (const auto choice = best_of_rank(device, rank, free, now)) return choice;
  }
  return std::nullopt;
}

// The strategy with the nearest required start among one rank's lanes, by the rules of appendix B. Ties go to
// the smaller priority number, then to the earlier arrival.
std::optional<Clockwork::Choice> Clockwork::best_of_rank(DeviceId device, int rank, TimePoint free,
                                                         TimePoint now) {
  const auto r = static_cast<std::size_t>(rank);
  const auto key = [](const Strategy& s) { return std::tuple(s.start, s.first.priority, s.first.sequence); };
  std::optional<Choice> best;
  for (const auto& [bound, model] : ports_[device.index()].ready[r]) {
    if (best && best->strategy.start < bound) break;
    const bool loaded = state_.residence(device, model) == Residence::loaded;
    const TimePoint ready = state_.ready_at(device, model, now);
    if (!loaded) {
      if (is_best_effort(rank) || state_.load_overdue(device, model, now)) continue;
      if (ready > saturating_add(free, options_.cold_ahead)) {
        const TimePoint wake = saturating_add(ready, -options_.cold_ahead);
        if (wake < ports_[device.index()].wake) set_wake(device, wake);
        continue;
      }
    }
    const TimePoint start = std::max(free, ready);
    const auto strategy = models_[model.index()].lanes[r].best(costs(device, model, rank), start);
    if (!strategy || (best && key(best->strategy) < key(*strategy))) continue;
    best = Choice{model, rank, *strategy, start, ready, loaded};
  }
  if (best && has_deadline(rank)) spare_others(device, *best);
  return best;
}

// Where the chosen batch would make another lane lose answers that take less time each than its own, a
// smaller batch goes that leaves them enough time; and where none does, they go first. Only lanes at risk are
// looked at, the nearest first. Without this, models with long batches starve cheap ones with near deadlines
// under overload: a long batch has the earlier required start.
void Clockwork::spare_others(DeviceId device, Choice& choice) {
  const auto r = static_cast<std::size_t>(choice.rank);
  int asked = 0;
  for (const auto& [bound, model] : ports_[device.index()].ready[r]) {
    const auto size = static_cast<std::size_t>(choice.strategy.batch_index);
    const std::span<const BatchCost> all = costs(device, choice.model, choice.rank);
    own_costs_.assign(all.begin(), all.end());
    const BatchCost own = own_costs_[size];
    if (asked == options_.lanes_spared || bound >= saturating_add(choice.start, own.span)) return;
    if (model == choice.model || state_.residence(device, model) != Residence::loaded) continue;
    ++asked;
    const Lane& other = models_[model.index()].lanes[r];
    const auto other_costs = costs(device, model, choice.rank);
    const auto first = other.best(other_costs, choice.start);
    if (!first) continue;
    const BatchCost& cost = other_costs[static_cast<std::size_t>(first->batch_index)];
    const auto harmed_by = [&](Duration span) {
      const auto left = other.best(other_costs, saturating_add(choice.start, span));
      return !left || left->batch_index < first->batch_index;
    };
    if (cost.span / cost.batch >= own.span / own.batch || !harmed_by(own.span)) continue;
    std::size_t smaller = size;
    while (smaller > 0 && harmed_by(own_costs_[smaller - 1].span)) --smaller;
    if (smaller == 0) {
      choice = {model, choice.rank, *first, choice.start, choice.ready, true};
      return;
    }
    const BatchCost& shorter = own_costs_[smaller - 1];
    if ((own.span - shorter.span) / (own.batch - shorter.batch) <= cost.span / cost.batch) continue;
    const auto strategy =
        models_[choice.model.index()].lanes[r].best(std::span(own_costs_).first(smaller), choice.start);
    if (strategy) choice.strategy = *strategy;
  }
}

void Clockwork::send_infer(DeviceId device, const Choice& choice, TimePoint now, Actions& out) {
  const auto [model, rank, strategy, start, ready, loaded] = choice;
  const int batch = state_.model(model).batches[static_cast<std::size_t>(strategy.batch_index)].batch;
  std::vector<RequestId> members;
  members.reserve(static_cast<std::size_t>(batch));
  models_[model.index()].lanes[static_cast<std::size_t>(rank)].take(strategy.first, batch, members);
  Duration demand{0};
  for (const RequestId id : members) {
    OpenRequest* open = requests_.find(id);
    open->waiting = false;
    demand += open->demand;
  }
  priority_of(rank).add_demand(model, -demand);
  update_lane(model, rank);

  // Actions of an executor keep the order in which they were chosen: `earliest` never falls.
  TimePoint earliest = loaded ? std::max(now, saturating_add(start, -options_.early_start)) : ready;
  earliest = std::max(earliest, state_.exec(device).last_earliest());
  const TimePoint latest = has_deadline(rank) ? strategy.start : TimePoint::max();
  CARILLON_ASSERT(earliest <= latest);
  const Duration expected = state_.exec_estimate(device, model, strategy.batch_index);
  const ActionId id =
      state_.begin_infer(device, model, strategy.batch_index, members, earliest, expected, now);
  out.emplace_back(Infer{id, device, model, std::move(members), {earliest, latest}, expected});
}

}  // namespace carillon::schedule
