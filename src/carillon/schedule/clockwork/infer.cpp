#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/schedule/clockwork/clockwork.h"

namespace carillon::schedule {
namespace {

// With the node that it has.
template <typename Entry>
void move_entry(std::set<Entry>& set, const std::type_identity_t<Entry>& from,
                const std::type_identity_t<Entry>& to) {
  auto node = set.extract(from);
  node.value() = to;
  set.insert(std::move(node));
}

}  // namespace

Duration Clockwork::span_of_one(DeviceId device, ModelId model) const {
  return state_.margins().at(device).span(state_.exec_estimate(device, model, 0));
}

TimePoint Clockwork::soonest_start(DeviceId device, TimePoint now) const {
  return std::max(state_.exec(device).free_at(now),
                  saturating_add(now, state_.margins().at(device).dispatch));
}

// Of the batch sizes that `waiting` requests can fill. Good until the next call.
std::span<const BatchCost> Clockwork::costs(DeviceId device, ModelId model, std::size_t waiting) const {
  costs_.clear();
  const auto& batches = state_.model(model).batches;
  const std::span<const Duration> estimates = state_.exec_estimates(device, model);
  for (std::size_t i = 0; i < batches.size() && static_cast<std::size_t>(batches[i].batch) <= waiting; ++i) {
    const Duration exec = estimates.empty() ? batches[i].exec : estimates[i];
    costs_.push_back({batches[i].batch, state_.margins().at(device).span(exec)});
  }
  return costs_;
}

// No device's are longer.
std::span<const BatchCost> Clockwork::longest_costs(ModelId model, std::size_t waiting) const {
  costs_.clear();
  const auto& batches = state_.model(model).batches;
  const std::span<const Duration> longest = state_.longest_execs(model);
  for (std::size_t i = 0; i < batches.size() && static_cast<std::size_t>(batches[i].batch) <= waiting; ++i)
    costs_.push_back({batches[i].batch, state_.margins().worst().span(longest[i])});
  return costs_;
}

// Calls visit(bound, model) for the queues that are listed for a device, or for all (which it need not have),
// in the order of their bounds, until it returns false.
template <typename Visit>
void Clockwork::visit_ready(DeviceId device, std::size_t rank, Visit&& visit) const {
  const auto& own = ports_[device.index()].ready[rank];
  const auto& wide = wide_[rank];
  auto a = own.begin();
  auto b = wide.begin();
  while (a != own.end() || b != wide.end()) {
    const auto& [bound, model] = b == wide.end() || (a != own.end() && *a < *b) ? *a++ : *b++;
    if (!visit(bound, model)) return;
  }
}

// Something waits that any device with room could be given.
bool Clockwork::wide_waiting() const {
  return !stragglers_.empty() || !nobody_waits(wide_);
}

// The shortest estimate for one row over the places of a model, which is somewhere.
Duration Clockwork::shortest_exec(ModelId model) const {
  const Model& m = models_[model.index()];
  const std::uint64_t version = state_.exec_version(model);
  if (m.wide && m.shortest_version == version) return m.shortest;
  Duration shortest = Duration::max();
  for (const Place& p : m.places) shortest = std::min(shortest, state_.exec_estimate(p.device, model, 0));
  if (everywhere(model))
    for (const auto& [end, device] : by_end_)
      shortest = std::min(shortest, state_.exec_estimate(device, model, 0));
  m.shortest = shortest;
  m.shortest_version = version;
  return shortest;
}

// What the model needs if it gathers the largest batches that its rate and deadlines allow together: b
// requests come within (b - 1) / rate.
double Clockwork::devices_for(ModelId model, double rate, Duration slo) const {
  const auto& batches = state_.model(model).batches;
  const std::span<const Duration> execs = state_.longest_execs(model);
  double least = to_seconds(execs.front());
  for (std::size_t i = 1; i < batches.size(); ++i) {
    if ((batches[i].batch - 1) / rate + to_seconds(state_.margins().worst().span(execs[i])) > to_seconds(slo))
      break;
    least = std::min(least, to_seconds(execs[i]) / batches[i].batch);
  }
  return rate * least;
}

// When a request that is alone in its batch must start at the latest, as things are loaded now.
TimePoint Clockwork::last_start(ModelId model, TimePoint deadline) const {
  if (!nowhere(model)) return saturating_add(deadline, -state_.margins().least().span(shortest_exec(model)));
  Duration least = Duration::max();
  if (state_.device_count() > few_places) {
    least = state_.margins().least().span(state_.shortest_exec(model)) + state_.shortest_load(model);
  } else {
    for (const auto& [end, device] : by_end_)
      least = std::min(least, span_of_one(device, model) + state_.load_estimate(device, model));
  }
  return saturating_add(deadline, by_end_.empty() ? Duration{0} : -least);
}

bool Clockwork::in_time(ModelId model, TimePoint deadline, TimePoint now) const {
  const Model& m = models_[model.index()];
  if (!m.wide)
    return std::any_of(m.places.begin(), m.places.end(),
                       [&](const Place& p) { return would_finish_on(p.device, model, now) <= deadline; });
  const Duration least = state_.margins().least().span(state_.shortest_exec(model));
  for (const auto& [end, device] : by_end_) {
    if (saturating_add(std::max(end, now), least) > deadline) return false;
    if (placed(device, model) && would_finish_on(device, model, now) <= deadline) return true;
  }
  return false;
}

TimePoint Clockwork::would_finish_on(DeviceId device, ModelId model, TimePoint now) const {
  if (!state_.alive(device) || state_.total_pages(device) < state_.model(model).pages)
    return TimePoint::max();
  TimePoint ready = state_.ready_at(device, model, now);
  if (ready == TimePoint::max())
    ready = saturating_add(std::max(state_.load(device).free_at(now), state_.load_not_before(device, model)),
                           state_.load_estimate(device, model));
  return saturating_add(std::max(ready, soonest_start(device, now)), span_of_one(device, model));
}

TimePoint Clockwork::would_finish(ModelId model, TimePoint now) const {
  const Model& m = models_[model.index()];
  TimePoint finish = TimePoint::max();
  if (!m.wide)
    for (const Place& p : m.places) finish = std::min(finish, would_finish_on(p.device, model, now));
  // The others would have to load it first.
  const TimePoint soonest = m.wide ? now : saturating_add(now, state_.shortest_load(model));
  const Duration least = state_.margins().least().span(state_.shortest_exec(model));
  for (const auto& [end, device] : by_end_) {
    if (saturating_add(std::max(end, soonest), least) >= finish) break;
    finish = std::min(finish, would_finish_on(device, model, now));
  }
  return finish;
}

bool Clockwork::waiting(ModelId model) const {
  const auto& queues = models_[model.index()].queues;
  return stragglers_.of(model) > 0 ||
         std::any_of(queues.begin(), queues.end(), [](const ModelQueue& queue) { return !queue.empty(); });
}

void Clockwork::add_demand(ModelId model, Duration work) {
  if (work != Duration{0}) needed_.add_demand(state_.home(model), work);
}

void Clockwork::update_queue(ModelId model, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  Model& m = models_[model.index()];
  const ModelQueue& queue = m.queues[r];
  if (rank == urgent_rank) {
    if (queue.empty())
      expiries_.remove(model.value);
    else
      expiries_.set(model.value, last_start(model, queue.head().due));
  } else {
    const TimePoint since = !queue.empty() && nowhere(model) ? queue.head().due : TimePoint::max();
    if (since != m.patient_since) {
      if (m.patient_since != TimePoint::max()) patient_.erase({m.patient_since, model});
      if (since != TimePoint::max()) patient_.insert({since, model});
      m.patient_since = since;
    }
  }
  const auto bound = [&queue](std::span<const BatchCost> costs) {
    return queue.empty() ? std::nullopt : std::optional(queue.bound(costs));
  };
  if (m.wide) {
    list(model, r, bound(longest_costs(model, queue.size())), m.bounds, wide_);
  } else {
    for (Place& p : m.places)
      list(model, r, bound(costs(p.device, model, queue.size())), p.bounds, ports_[p.device.index()].ready);
  }
}

// Estimates of the model on the device have changed.
void Clockwork::update_bounds(ModelId model, DeviceId device) {
  Model& m = models_[model.index()];
  if (m.wide) {
    for (std::size_t r = 0; r < ranks; ++r)
      if (m.bounds.listed[r])
        list(model, r, m.queues[r].bound(longest_costs(model, m.queues[r].size())), m.bounds, wide_);
    return;
  }
  for (Place& p : m.places) {
    if (p.device != device) continue;
    for (std::size_t r = 0; r < ranks; ++r)
      if (p.bounds.listed[r])
        list(model, r, m.queues[r].bound(costs(device, model, m.queues[r].size())), p.bounds,
             ports_[device.index()].ready);
  }
}

// Margins have changed. O(models), and what updating the queues of those that wait takes.
void Clockwork::update_queues() {
  for (std::size_t i = 0; i < models_.size(); ++i)
    for (std::size_t r = 0; r < ranks; ++r)
      if (!models_[i].queues[r].empty())
        update_queue(ModelId{static_cast<std::uint32_t>(i)}, static_cast<int>(r));
}

// Sees to it that the queue is listed with this bound, or, without one, not at all.
void Clockwork::list(ModelId model, std::size_t rank, std::optional<TimePoint> bound, Bounds& bounds,
                     Ready& ready) {
  if (bound.has_value() == bounds.listed[rank] && (!bound || *bound == bounds.bound[rank])) return;
  if (bounds.listed[rank] && bound) {
    move_entry(ready[rank], {bounds.bound[rank], model}, {*bound, model});
  } else {
    if (bounds.listed[rank]) ready[rank].erase({bounds.bound[rank], model});
    if (bound) ready[rank].insert({*bound, model});
  }
  bounds.listed[rank] = bound.has_value();
  if (bound) bounds.bound[rank] = *bound;
}

void Clockwork::unlist(ModelId model, Bounds& bounds, Ready& ready) {
  for (std::size_t r = 0; r < ranks; ++r) list(model, r, std::nullopt, bounds, ready);
}

void Clockwork::update_end(DeviceId device) {
  Port& port = ports_[device.index()];
  const auto end = state_.alive(device) ? std::optional(state_.exec(device).expected_end()) : std::nullopt;
  if (end == port.end) return;
  if (port.end && end) {
    move_entry(by_end_, {*port.end, device}, {*end, device});
  } else {
    if (port.end) by_end_.erase({*port.end, device});
    if (end) by_end_.insert({*end, device});
  }
  port.end = end;
}

void Clockwork::set_wake(DeviceId device, TimePoint at) {
  TimePoint& listed = ports_[device.index()].wake;
  if (listed == at) return;
  if (at == TimePoint::max())
    wakes_.remove(device.value);
  else
    wakes_.set(device.value, at);
  listed = at;
}

// Gives the device's EXEC executor work until it has enough, and sets its wake.
void Clockwork::fill(DeviceId device, TimePoint now, Actions& out) {
  set_wake(device, TimePoint::max());
  if (!state_.alive(device)) return;
  for (;;) {
    const Executor& exec = state_.exec(device);
    const TimePoint free = exec.free_at(now);
    if (free > saturating_add(now, ahead())) {
      if (overtake(device, now, out)) continue;
      // While it is overdue only its result can tell when there will be room; that comes as an event.
      const bool anything = !stragglers_.empty() || !nobody_waits(ports_[device.index()].ready);
      if (anything && !exec.overdue(now)) set_wake(device, saturating_add(free, -ahead()));
      return;
    }
    const auto choice = choose(device, free, now);
    if (choice)
      send_infer(device, *choice, now, out);
    else if (!send_stragglers(device, now, out))
      return;
  }
}

// Gives work to the devices that have come to have room: by their own wakes, and, where wide queues wait, by
// the expected ends of what they were sent.
void Clockwork::fill_due(TimePoint now, Actions& out) {
  const TimePoint room_until = saturating_add(now, ahead());
  const bool wide = wide_waiting();
  while (true) {
    const auto next = wide ? by_end_.upper_bound(room_seen_) : by_end_.end();
    const bool has_room = next != by_end_.end() && next->first <= room_until;
    const bool wakes = wakes_.top_at() <= now;
    if (!has_room && !wakes) break;
    if (wakes && (!has_room || wakes_.top_at() <= saturating_add(next->first, -ahead()))) {
      fill(DeviceId{wakes_.top()}, now, out);
    } else {
      room_seen_ = *next;
      fill(next->second, now, out);
    }
  }
  room_seen_ = {room_until, no_device};
}

// A model has something new to run: gives it to those of its devices that have room, the soonest free first.
void Clockwork::offer(ModelId model, TimePoint now, Actions& out) {
  const Model& m = models_[model.index()];
  if (m.wide) {
    offer_wide(model, now, out);
    return;
  }
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

// The same for a wide one. Devices without room are looked at when they come to have it (fill_due).
void Clockwork::offer_wide(ModelId model, TimePoint now, Actions& out) {
  const TimePoint room_until = saturating_add(now, ahead());
  std::vector<std::pair<TimePoint, DeviceId>> loading;
  std::pair<TimePoint, DeviceId> seen{TimePoint::min(), DeviceId{0}};
  for (auto next = by_end_.lower_bound(seen); next != by_end_.end() && next->first <= room_until;
       next = by_end_.upper_bound(seen)) {
    if (!waiting(model)) return;
    seen = *next;
    const DeviceId device = seen.second;
    switch (state_.residence(device, model)) {
      case Residence::loaded:
        fill(device, now, out);
        break;
      case Residence::loading:
        loading.emplace_back(std::max(state_.exec(device).free_at(now), state_.ready_at(device, model, now)),
                             device);
        break;
      case Residence::absent:
      case Residence::leaving:
      case Residence::unloading:
        break;
    }
  }
  std::sort(loading.begin(), loading.end());
  for (const auto& [start, device] : loading) {
    if (!waiting(model)) return;
    fill(device, now, out);
  }
  visit_busy(model, now, [&](DeviceId device) {
    while (waiting(model) && overtake(device, now, out)) continue;
    return waiting(model);
  });
}

// Calls visit(device) for devices that have the model and more to do than they are given ahead, until it
// returns false: for all of them, or, of a wide model, for a few that are free first.
template <typename Visit>
void Clockwork::visit_busy(ModelId model, TimePoint now, Visit&& visit) const {
  if (!preempts_) return;
  const auto has = [&](DeviceId device) {
    return state_.residence(device, model) == Residence::loaded &&
           state_.exec(device).free_at(now) > saturating_add(now, ahead());
  };
  if (!models_[model.index()].wide) {
    for (const Place& p : models_[model.index()].places)
      if (has(p.device) && !visit(p.device)) return;
    return;
  }
  std::array<DeviceId, few_places> few;  // as visit() may move them
  std::size_t count = 0;
  for (auto at = by_end_.upper_bound({saturating_add(now, ahead()), no_device});
       at != by_end_.end() && count < few.size(); ++at)
    if (has(at->second)) few[count++] = at->second;
  for (const DeviceId device : std::span(few).first(count))
    if (!visit(device)) return;
}

// How many of the batch sizes, ascending, may go before what the device was sent. They end in time for it,
// and take less time than is left of it; and each request takes no more than one of it does, unless the
// devices are enough for all: under overload the cheapest answers go first.
std::size_t Clockwork::overtaking_sizes(DeviceId device, std::span<const BatchCost> costs,
                                        const Overtaking& at) const {
  const SentAction& next = *state_.sent(state_.exec(device).pending()[at.place].id);
  const Duration answer = state_.margins().at(device).answer;
  std::size_t sizes = 0;
  for (; sizes < costs.size(); ++sizes) {
    const Duration takes = costs[sizes].span - answer;
    if (takes > at.left || saturating_add(at.start, takes) > at.until) break;
    if (takes / costs[sizes].batch > next.expected / next.batch && !shares_.enough()) break;
  }
  return sizes;
}

// A request that came could go before what some device was sent, and be on time.
bool Clockwork::could_overtake(const Request& request, TimePoint now) const {
  bool found = false;
  visit_busy(request.model, now, [&](DeviceId device) {
    for (std::size_t place = state_.exec(device).pending().size(); place-- > 0;) {
      const auto at = state_.overtaking(device, place, now);
      if (!at) continue;
      const auto one = costs(device, request.model, 1);
      found = found || (overtaking_sizes(device, one, *at) > 0 &&
                        saturating_add(at->start, one.front().span) <= request.deadline);
    }
    return !found;
  });
  return found;
}

// The device has enough to do: sends it one batch of those that would be late behind that, and that may go
// before it, as far behind as they are on time. False where there is none.
bool Clockwork::overtake(DeviceId device, TimePoint now, Actions& out) {
  if (!preempts_) return false;
  for (std::size_t place = state_.exec(device).pending().size(); place-- > 0;) {
    const auto at = state_.overtaking(device, place, now);
    const auto choice = at ? urgent(device, *at, now) : std::nullopt;
    if (!choice) continue;
    send_infer(device, *choice, now, out, &*at);
    return true;
  }
  return false;
}

// The batch, of the nearest required start, that is on time where it overtakes so, and else late on all
// devices.
std::optional<Clockwork::Choice> Clockwork::urgent(DeviceId device, const Overtaking& at, TimePoint now) {
  const TimePoint free = state_.exec(device).free_at(now);
  std::optional<Choice> found;
  int asked = 0;
  visit_ready(device, urgent_rank, [&](TimePoint bound, ModelId model) {
    if (bound >= free || asked++ == options_.queues_overtaking) return false;
    if (state_.residence(device, model) != Residence::loaded) return true;
    const ModelQueue& queue = models_[model.index()].queues[urgent_rank];
    const auto all = costs(device, model, queue.size());
    const auto strategy = queue.best(all.first(overtaking_sizes(device, all, at)), at.start);
    if (strategy && saturating_add(free, all.front().span) > strategy->first.due &&
        !in_time(model, strategy->first.due, now))
      found = Choice{model, urgent_rank, *strategy, at.start, now, true};
    return !found;
  });
  return found;
}

std::optional<Clockwork::Choice> Clockwork::choose(DeviceId device, TimePoint free, TimePoint now) {
  Port& port = ports_[device.index()];
  if (port.patient_exec_at <= now && runs_out_of_patience(device, now)) {
    if (const auto choice = best_of_rank(device, patient_rank, free, now)) {
      const Duration exec = state_.exec_estimate(device, choice->model, choice->strategy.batch_index);
      port.patient_exec_at =
          saturating_add(now, from_ns(static_cast<double>(exec.count()) / options_.patient_share));
      return choice;
    }
  }
  const auto choice = best_of_rank(device, urgent_rank, free, now);
  return choice ? choice : best_of_rank(device, patient_rank, free, now);
}

// Somebody without a deadline has waited for so long that it may go before those with one.
bool Clockwork::runs_out_of_patience(DeviceId device, TimePoint now) const {
  bool found = false;
  visit_ready(device, patient_rank, [&](TimePoint arrival, ModelId model) {
    if (saturating_add(arrival, options_.patience) > now) return false;
    found = placed(device, model);
    return !found;
  });
  return found;
}

// The strategy with the nearest required start among one rank's queues, by the rules of appendix B. Ties go
// to the smaller priority number, then to the earlier arrival.
std::optional<Clockwork::Choice> Clockwork::best_of_rank(DeviceId device, int rank, TimePoint free,
                                                         TimePoint now) {
  const auto r = static_cast<std::size_t>(rank);
  const auto key = [](const Strategy& s) { return std::tuple(s.start, s.first.priority, s.first.sequence); };
  const TimePoint soonest = saturating_add(now, state_.margins().at(device).dispatch);
  std::optional<Choice> best;
  visit_ready(device, r, [&](TimePoint bound, ModelId model) {
    if (best && best->strategy.start < bound) return false;
    if (!placed(device, model)) return true;
    const bool loaded = state_.residence(device, model) == Residence::loaded;
    const TimePoint ready = state_.ready_at(device, model, now);
    if (!loaded) {
      if (state_.load_overdue(device, model, now)) return true;
      if (ready > saturating_add(free, options_.cold_ahead)) {
        const TimePoint wake = saturating_add(ready, -options_.cold_ahead);
        if (wake < ports_[device.index()].wake) set_wake(device, wake);
        return true;
      }
    }
    const TimePoint start = std::max({free, ready, soonest});
    const ModelQueue& queue = models_[model.index()].queues[r];
    const auto strategy = queue.best(costs(device, model, queue.size()), start);
    if (strategy && (!best || key(*strategy) <= key(best->strategy)))
      best = Choice{model, rank, *strategy, start, ready, loaded};
    return true;
  });
  if (best && rank == urgent_rank) spare_others(device, *best, now);
  return best;
}

// When the soonest of the other devices could take a batch of the model, if that is before `until`; else
// max(). Each is counted on for one queue: taken_ has those that are spoken for.
TimePoint Clockwork::soonest_elsewhere(ModelId model, TimePoint until, TimePoint now) {
  const auto could = [&](DeviceId device) {
    return state_.residence(device, model) == Residence::loaded && !state_.exec(device).overdue(now) &&
           std::find(taken_.begin(), taken_.end(), device) == taken_.end();
  };
  std::optional<std::pair<TimePoint, DeviceId>> soonest;
  if (models_[model.index()].wide) {
    for (auto at = by_end_.begin(); !soonest && at != by_end_.end() && at->first < until; ++at)
      if (could(at->second)) soonest = {soonest_start(at->second, now), at->second};
  } else {
    for (const Place& p : models_[model.index()].places) {
      if (!could(p.device)) continue;
      const std::pair found{soonest_start(p.device, now), p.device};
      if (found.first < until && (!soonest || found < *soonest)) soonest = found;
    }
  }
  if (!soonest) return TimePoint::max();
  taken_.push_back(soonest->second);
  return soonest->first;
}

// Where the chosen batch would make another queue lose answers that take less time each than its own, and no
// other device comes in time for them, a smaller batch goes that leaves them enough time; and where none
// does, they go first, unless the chosen model is owed its turn. Only queues at risk are looked at, the
// nearest first. Without this, models with long batches starve cheap ones with near deadlines under overload:
// a long batch has the earlier required start. Without the other devices and what is owed, the long ones
// starve: in each moment some queue is at risk, and cheap ones use all the time that they are left, in small
// batches.
void Clockwork::spare_others(DeviceId device, Choice& choice, TimePoint now) {
  int asked = 0;
  const ModelQueue& chosen = models_[choice.model.index()].queues[urgent_rank];
  const std::span<const BatchCost> all = costs(device, choice.model, chosen.size());
  own_costs_.assign(all.begin(), all.end());
  taken_.assign(1, device);
  visit_ready(device, urgent_rank, [&](TimePoint bound, ModelId model) {
    const auto size = static_cast<std::size_t>(choice.strategy.batch_index);
    const BatchCost own = own_costs_[size];
    if (asked == options_.queues_spared || bound >= saturating_add(choice.start, own.span)) return false;
    if (model == choice.model || state_.residence(device, model) != Residence::loaded) return true;
    ++asked;
    const ModelQueue& other = models_[model.index()].queues[urgent_rank];
    const auto other_costs = costs(device, model, other.size());
    const auto first = other.best(other_costs, choice.start);
    if (!first) return true;
    const BatchCost& cost = other_costs[static_cast<std::size_t>(first->batch_index)];
    const TimePoint elsewhere = soonest_elsewhere(model, saturating_add(choice.start, own.span), now);
    const auto harmed_by = [&](Duration span) {
      const auto left = other.best(other_costs, std::min(elsewhere, saturating_add(choice.start, span)));
      return !left || left->batch_index < first->batch_index;
    };
    if (cost.span / cost.batch >= own.span / own.batch || !harmed_by(own.span)) return true;
    std::size_t smaller = size;
    while (smaller > 0 && harmed_by(own_costs_[smaller - 1].span)) --smaller;
    if (smaller == 0) {
      if (shares_.owed(choice.model, model)) return true;
      choice = {model, urgent_rank, *first, choice.start, choice.ready, true};
      return false;
    }
    const BatchCost& shorter = own_costs_[smaller - 1];
    if ((own.span - shorter.span) / (own.batch - shorter.batch) <= cost.span / cost.batch) return true;
    if (const auto strategy = chosen.best(std::span(own_costs_).first(smaller), choice.start))
      choice.strategy = *strategy;
    return true;
  });
}

void Clockwork::send_infer(DeviceId device, const Choice& choice, TimePoint now, Actions& out,
                           const Overtaking* at) {
  const auto [model, rank, strategy, start, ready, loaded] = choice;
  const int batch = state_.model(model).batches[static_cast<std::size_t>(strategy.batch_index)].batch;
  std::vector<RequestId> members;
  members.reserve(static_cast<std::size_t>(batch));
  models_[model.index()].queues[static_cast<std::size_t>(rank)].take(strategy.first, batch, members);
  Duration demand{0};
  for (const RequestId id : members) {
    OpenRequest* open = requests_.find(id);
    open->waiting = false;
    demand += open->demand;
  }
  add_demand(model, -demand);
  update_queue(model, rank);

  const TimePoint latest = rank == urgent_rank ? strategy.start : TimePoint::max();
  const Duration expected = state_.exec_estimate(device, model, strategy.batch_index);
  if (at != nullptr) {
    state_.overtake(*at, device, model, strategy.batch_index, std::move(members), expected, now, latest, out);
    update_end(device);
    return;
  }
  // Nothing that could run is held back until the device is expected to be free: it may be free before.
  // Actions of an executor keep the order in which they were chosen, as `earliest` never falls.
  TimePoint earliest = loaded ? now : ready;
  earliest = std::max(earliest, state_.exec(device).last_order());
  CARILLON_ASSERT(earliest <= latest);
  // Those without a deadline make way for others no longer than they have patience.
  const TimePoint in_time = rank == urgent_rank ? latest : saturating_add(earliest, options_.patience);
  const ActionId id = state_.begin_infer(device, model, strategy.batch_index, members, earliest, expected,
                                         now, state_.margins().at(device).dispatch, in_time);
  update_end(device);
  out.emplace_back(Infer{id, device, model, std::move(members), {earliest, latest}, expected});
}

}  // namespace carillon::schedule
