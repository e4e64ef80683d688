#include "carillon/schedule/symphony/symphony.h"

#include <algorithm>
#include <cmath>

namespace carillon::schedule {
namespace {

// A request whose deadline is further away has none that anybody plans by.
constexpr Duration horizon = std::chrono::minutes{1};
// Models that are looked at when a batch is sent, those in the greatest hurry first: bounds the work.
constexpr std::size_t models_spared = 16;
// Stragglers, and devices for them, that are looked at: likewise. Where more wait, devices have no time to
// spare.
constexpr std::size_t stragglers_looked_at = 32, devices_looked_at = 8;

}  // namespace

Symphony::Symphony(const Environment& environment, const SymphonyOptions& options)
    : Central(environment, options.attempts),
      options_(options),
      rank_(environment.dispatch),
      plan_(options.rate_window, options.plan_every, options.exceeded),
      waits_(options.exceeded, options.wait_horizon, options.known_after) {
  prepare_at_ = TimePoint::min();
}

void Symphony::add_model(const ModelInfo& model) {
  symphony::ModelMachine machine(model, fleet_.environment());
  if (model.id.index() == machines_.size()) {
    machines_.push_back(std::move(machine));
    plan_.add_model();
    waits_.add_model();
    return;
  }
  machines_[model.id.index()] = std::move(machine);
  plan_.renew_model(model.id);
  set_plan(model.id);
}

bool Symphony::remove(RequestId id, ModelId model) {
  return !stragglers_.erase(id) && machines_[model.index()].remove(id);
}

void Symphony::take_all(ModelId model, std::vector<Request>& taken) {
  auto& machine = machines_[model.index()];
  taken.insert(taken.end(), machine.queue().begin(), machine.queue().end());
  machine.clear();
  for (const Request& request : stragglers_.take(model)) taken.push_back(request);
}

TimePoint Symphony::waiting_since(ModelId model) const {
  const auto& queue = machines_[model.index()].queue();
  return queue.empty() ? TimePoint::max() : queue.front().arrival;
}

bool Symphony::waits(ModelId model) const {
  return !machines_[model.index()].queue().empty() || stragglers_.of(model) > 0;
}

// What was planned with the old times holds no more.
void Symphony::times_changed(ModelId model, TimePoint) {
  take_times(model);
  for (const Request& request : stragglers_.take(model)) machines_[model.index()].enqueue(request);
  plan_.renew_model(model);
  set_plan(model);
}

void Symphony::take_times(ModelId model) {
  auto& machine = machines_[model.index()];
  for (int i = 0; i < machine.batch_count(); ++i) machine.set_exec(i, fleet_.exec(model, i));
}

void Symphony::asked(const Request& request, TimePoint now) {
  if (request.deadline != TimePoint::max()) last_in_time_ = now;
  plan_.arrived(request.model, std::min<Duration>(request.deadline - now, horizon));
}

void Symphony::look(ModelId model, TimePoint now, Actions& out) {
  auto& machine = machines_[model.index()];
  dropped_.clear();
  auto candidate = machine.update(now, TimePoint::min(), dropped_);
  refuse_dropped(now, out);
  if (!candidate) {
    refresh_.remove(model.value);
    const TimePoint device_at = rank_.device_at(now);
    waits_.lost(model, device_at == TimePoint::max() ? now : device_at, now);
  } else {
    refresh_.set(model.value, machine.refresh_at());
    candidate->exec_at = asks_at(model, *candidate, now);
    if (plan_.contention() >= 1)
      candidate->order = saturating_add(candidate->latest, put_back(model, candidate->size));
    waits_.asks(model, candidate->exec_at - fleet_.environment().dispatch, now);
  }
  const auto& queue = machine.queue();
  fleet_.set_waiting(model, {queue.empty() ? TimePoint::max() : queue.front().arrival, queue.size()});
  rank_.inform_candidate(model, candidate);
}

// From when on the candidate may take a device.
TimePoint Symphony::asks_at(ModelId model, const symphony::Candidate& candidate, TimePoint now) {
  const auto& machine = machines_[model.index()];
  const TimePoint soonest = now + fleet_.environment().dispatch;
  if (machine.queue().front().deadline == TimePoint::max() &&
      saturating_add(last_in_time_, options_.rate_window) <= now)
    return soonest;
  if (options_.timeout) {
    const bool full = candidate.size == machine.batch_size(machine.batch_count() - 1);
    if (full) return soonest;
    const Request& head = machine.queue().front();
    const auto slo = static_cast<double>((head.deadline - head.arrival).count());
    const Duration wait =
        std::min(from_ns(*options_.timeout * slo),
                 head.deadline == TimePoint::max() ? options_.longest_wait : Duration::max());
    return std::clamp(saturating_add(head.arrival, wait), soonest, std::max(soonest, candidate.latest));
  }
  if (fleet_.short_of_memory() || (leisurely() && 2 * rank_.free_count(now) >= fleet_.alive_count()) ||
      growing_is_useless(model, candidate.size))
    return soonest;
  return machine.asks_at(now, waits_.lead(model, plan_.wait(), now), options_.longest_wait);
}

// Device time that a batch of that size takes beyond what its requests would in batches of the planned size.
double Symphony::wasted(ModelId model, int size) const {
  const auto& machine = machines_[model.index()];
  const int planned = plan_.size(model);
  if (planned <= 0) return 0;
  const auto exec = [&](int batch) {
    return machine.exec(machine.index_for(static_cast<std::size_t>(batch)));
  };
  return std::max(0.0, to_seconds(exec(size)) - to_seconds(exec(planned)) * size / planned);
}

// Under overload, among those that may run.
Duration Symphony::put_back(ModelId model, int size) const {
  const auto& machine = machines_[model.index()];
  const double takes = to_seconds(machine.exec(machine.index_for(static_cast<std::size_t>(size))));
  return from_seconds(options_.waste * wasted(model, size) + options_.value * (takes - size * plan_.each()));
}

// The batch is almost as efficient as one of the planned size, and as one with one more request.
bool Symphony::growing_is_useless(ModelId model, int size) const {
  const auto& machine = machines_[model.index()];
  const int planned = plan_.size(model);
  if (planned <= 0) return false;
  const auto each = [&](int index) { return to_seconds(machine.exec(index)) / machine.batch_size(index); };
  const int index = machine.index_for(static_cast<std::size_t>(size));
  const int larger = std::min(std::max(machine.index_for(static_cast<std::size_t>(planned)), index + 1),
                              machine.batch_count() - 1);
  return each(index) <= (1 + options_.least_gain) * each(larger);
}

void Symphony::refuse_late(const Request& request, TimePoint now, Actions& out) {
  const Duration alone = fleet_.environment().dispatch + machines_[request.model.index()].span(0);
  if (refuse(request, alone, now, out)) take_times(request.model);
}

void Symphony::refuse_dropped(TimePoint now, Actions& out) {
  for (const Request& request : dropped_)
    if (const auto last_start = usually_in_time(request, now))
      stragglers_.insert({*last_start, next_sequence_++, request});
    else
      refuse_late(request, now, out);
  dropped_.clear();
}

void Symphony::update_device(DeviceId device, TimePoint now) {
  // What is overdue, or has a batch waiting behind the one that runs, is looked at again when it reports.
  const bool ready = fleet_.alive(device) && fleet_.pending(device) <= 1 && !fleet_.overdue(device, now);
  rank_.inform_device(device, ready ? fleet_.free_at(device, now) : TimePoint::max());
}

void Symphony::step(TimePoint now, Actions& out) {
  while (refresh_.top_at() <= now) look(ModelId{refresh_.top()}, now, out);
  while (auto grant = rank_.match(now, [this](DeviceId d, ModelId m) { return fleet_.loaded(d, m); })) {
    if (fleet_.overdue(grant->device, now)) {
      // It should be free by now and is not: nothing is known until it reports.
      rank_.inform_device(grant->device, TimePoint::max());
      look(grant->model, now, out);
      continue;
    }
    auto& machine = machines_[grant->model.index()];
    dropped_.clear();
    auto batch = machine.granted(now, fleet_.free_at(grant->device, now), dropped_,
                                 spare_others(grant->model, grant->device, now));
    refuse_dropped(now, out);
    waits_.answered(grant->model, batch ? static_cast<int>(batch->requests.size()) : 1, now);
    if (batch) {
      const Window window{std::max(now, batch->exec_at - fleet_.environment().dispatch), batch->latest};
      fleet_.send(grant->device, grant->model, batch->index, std::move(batch->requests), window, now, out);
    }
    update_device(grant->device, now);
    look(grant->model, now, out);
  }
  if (!stragglers_.empty()) run_stragglers(now, out);
}

TimePoint Symphony::wake_at(TimePoint) const {
  const TimePoint wake = std::min(rank_.wake_at(), refresh_.top_at());
  return stragglers_.empty() ? wake : std::min({wake, stragglers_.next_end(), rank_.next_free_at()});
}

// The last start with which the request is on time where all goes as usual. None where no device could start
// it by then: one that has its model and that nobody waits for, behind what it was sent and behind the other
// stragglers.
std::optional<TimePoint> Symphony::usually_in_time(const Request& request, TimePoint now) const {
  if (stragglers_.size() >= stragglers_looked_at || !leaves_room(now + Duration{1})) return std::nullopt;
  const ModelId model = request.model;
  const int size = fleet_.batch_index(model, stragglers_.of(model) + 1);
  std::optional<TimePoint> last;
  const auto look = [&](DeviceId device) {
    if (!fleet_.loaded(device, model) || fleet_.pending(device) > 1) return true;
    TimePoint start = std::max(fleet_.usual_free_at(device, now), now + fleet_.usual_dispatch(device));
    for (const auto& other : stragglers_)
      if (other.request.model != model) start += fleet_.usual_span(device, other.request.model, 0);
    const TimePoint end = start + fleet_.usual_span(device, model, size);
    if (end > request.deadline || !leaves_room(end)) return true;
    last = saturating_add(request.deadline, -fleet_.usual_span(device, model, 0));
    return false;
  };
  rank_.visit_free(devices_looked_at, look);
  for (std::uint32_t i = 0; !last && i < std::min(fleet_.device_count(), devices_looked_at); ++i)
    look(DeviceId{i});
  return last;
}

// There is a device for each candidate that may run before `end`, and one more: none of those that are
// deferred would wait for a straggler.
bool Symphony::leaves_room(TimePoint end) const {
  return rank_.candidates_before(end, devices_looked_at) <
         std::clamp<std::size_t>(rank_.unmatched(), 1, devices_looked_at);
}

// Gives them the devices that no candidate took, and refuses those that would be late even so.
void Symphony::run_stragglers(TimePoint now, Actions& out) {
  while (true) {
    std::vector<DeviceId> free;
    rank_.visit_free(devices_looked_at, [&](DeviceId device) {
      free.push_back(device);
      return true;
    });
    bool sent = false;
    for (const DeviceId device : free) sent = send_stragglers(device, now, out) || sent;
    if (!sent) break;
  }
  while (const auto late = stragglers_.expire(now)) refuse_late(late->request, now, out);
}

bool Symphony::send_stragglers(DeviceId device, TimePoint now, Actions& out) {
  if (fleet_.overdue(device, now)) return false;
  const TimePoint start = std::max(fleet_.usual_free_at(device, now), now + fleet_.usual_dispatch(device));
  auto batch = stragglers_.first_batch(
      start, stragglers_looked_at,
      [&](ModelId model) -> std::span<const BatchProfile> {
        if (!fleet_.loaded(device, model) || !leaves_room(start + fleet_.usual_span(device, model, 0)))
          return {};
        return fleet_.model(model).batches;
      },
      [&](ModelId model, int index) { return fleet_.usual_span(device, model, index); });
  if (!batch) return false;
  const Window window{std::max(now, start - fleet_.environment().dispatch), batch->latest};
  fleet_.send(device, batch->model, batch->index, std::move(batch->requests), window, now, out);
  update_device(device, now);
  return true;
}

// The batch that the device gets may make others late: how large it can be so that those are not which take
// less time each, and for which no other device comes in time. As in Clockwork (spared queues). 0 for any
// size.
int Symphony::spare_others(ModelId chosen, DeviceId device, TimePoint now) {
  const auto& machine = machines_[chosen.index()];
  if (plan_.contention() <= options_.exceeded || plan_.contention() >= options_.spare || !machine.candidate())
    return 0;
  const TimePoint start = std::max(now + fleet_.environment().dispatch, fleet_.free_at(device, now));
  const auto each = [](const symphony::ModelMachine& m, int index) {
    return to_seconds(m.span(index)) / m.batch_size(index);
  };
  const int whole = machine.index_for(static_cast<std::size_t>(machine.candidate()->size));
  int size = whole;
  taken_.assign(1, device);
  refresh_.visit_first(models_spared, saturating_add(start, machine.span(size)), [&](std::uint32_t key) {
    const ModelId model{key};
    const auto& other = machines_[model.index()];
    if (model == chosen || !other.candidate() || !fleet_.loaded(device, model)) return;
    const TimePoint latest = other.candidate()->latest;
    const auto harmed_by = [&](int index) { return start + machine.span(index) > latest; };
    const int index = other.index_for(static_cast<std::size_t>(other.candidate()->size));
    if (latest < start || !harmed_by(size) || each(other, index) >= each(machine, size) ||
        free_in_time(model, latest, now))
      return;
    int smaller = size - 1;
    while (smaller >= 0 && harmed_by(smaller)) --smaller;
    if (smaller < 0) return;  // nothing that this model sends would help
    const double marginal = to_seconds(machine.span(size) - machine.span(smaller)) /
                            (machine.batch_size(size) - machine.batch_size(smaller));
    if (marginal > each(other, index)) size = smaller;
  });
  return size == whole ? 0 : machine.batch_size(size);
}

// Some device that nobody was given yet could start the model's batch by then: takes it.
bool Symphony::free_in_time(ModelId model, TimePoint latest, TimePoint now) {
  const TimePoint soonest = now + fleet_.environment().dispatch;
  for (std::size_t i = 0; i < fleet_.device_count(); ++i) {
    const DeviceId id{static_cast<std::uint32_t>(i)};
    if (!fleet_.loaded(id, model) || fleet_.pending(id) > 1 || fleet_.overdue(id, now) ||
        std::max(soonest, fleet_.free_at(id, now)) > latest ||
        std::find(taken_.begin(), taken_.end(), id) != taken_.end())
      continue;
    taken_.push_back(id);
    return true;
  }
  return false;
}

void Symphony::reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint now) {
  if (done.status == ActionStatus::success) {
    auto& machine = machines_[flight.model.index()];
    if (!flight.outdated) machine.set_exec(flight.batch_index, fleet_.exec(flight.model, flight.batch_index));
    if (flight.estimates) take_times(flight.model);
  }
  if (leisurely()) ask_anew(now);
}

// A device has come to be free that nobody may need: those in the greatest hurry ask for it.
void Symphony::ask_anew(TimePoint now) {
  std::vector<ModelId> waiting;
  refresh_.visit_first(models_spared, TimePoint::max(),
                       [&](std::uint32_t key) { waiting.push_back(ModelId{key}); });
  for (const ModelId model : waiting) {
    auto candidate = machines_[model.index()].candidate();
    if (!candidate) continue;
    candidate->exec_at = asks_at(model, *candidate, now);
    rank_.inform_candidate(model, candidate);
  }
}

void Symphony::margins_changed() {
  rank_.set_dispatch(fleet_.environment().dispatch);
  for (auto& machine : machines_) machine.set_environment(fleet_.environment());
}

// By the plan.
void Symphony::set_plan(ModelId model) {
  auto& machine = machines_[model.index()];
  machine.set_fills(plan_.contention() >= 1 && options_.fill > 0 && options_.weigh > 0);
  machine.set_target(static_cast<int>(std::floor(options_.hold * plan_.size(model))));
  if (options_.weigh > 0)
    machine.set_outlook({.next_after = waits_.mean(model),
                         .rate = plan_.rate(model),
                         .size = plan_.size(model),
                         .contention = plan_.contention()});
  if (!options_.timeout && options_.limit > 0) machine.set_limit(plan_.limit(model));
}

void Symphony::prepare(TimePoint now, Actions& out) {
  prepare_at_ = saturating_add(now, options_.plan_every);
  plan_.plan(now, fleet_.alive_count(), symphony::all_times(machines_));
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    const ModelId model{static_cast<std::uint32_t>(i)};
    set_plan(model);
    if (!machines_[i].queue().empty()) look(model, now, out);
  }
}

}  // namespace carillon::schedule
