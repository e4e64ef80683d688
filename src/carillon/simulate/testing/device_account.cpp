#include "carillon/simulate/testing/device_account.h"

#include <algorithm>
#include <tuple>

#include "carillon/simulate/testing/class_account.h"

namespace carillon::simulate::testing {

using schedule::ActionKind;
using schedule::ActionStatus;

void DeviceAccount::problem(const std::string& kind, ActionId id, TimePoint at) {
  problems_.add(kind, "action " + std::to_string(id.value) + " on device " + std::to_string(id_.value), at);
}

DeviceAccount::Place& DeviceAccount::place(ModelId model) {
  if (places_.size() <= model.index()) places_.resize(model.index() + 1, Place::absent);
  return places_[model.index()];
}

DeviceAccount::DeviceAccount(DeviceId id, const Faults& faults, Problems& problems,
                             std::optional<Duration> stops_within)
    : id_(id), faults_(faults), problems_(problems) {
  if (stops_within) classes_ = std::make_unique<ClassAccount>(id, faults, *stops_within, problems);
}
DeviceAccount::DeviceAccount(DeviceAccount&&) noexcept = default;
DeviceAccount::~DeviceAccount() = default;

std::vector<std::pair<ActionId, DeviceAccount::Ended>> DeviceAccount::power(bool alive, Duration clock,
                                                                            std::uint64_t pages,
                                                                            TimePoint at) {
  std::vector<std::pair<ActionId, Ended>> ran;
  if (classes_) ran = classes().power(clock, at);
  resume(exec_, at);
  if (const auto& run = exec_.running) ran.push_back({run->action.id, {run->start, true, run->ran(at)}});
  for (const Running& run : exec_.suspended)
    ran.push_back({run.action.id, {run.start, true, run.ran(run.since)}});
  std::sort(ran.begin(), ran.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  alive_ = alive;
  clock_ = clock;
  pages_ = pages;
  used_ = 0;
  places_.clear();
  exec_ = {};
  load_ = {};
  unloads_.clear();
  at_input_.reset();
  return ran;
}

// Asked anew each time: the account may have been moved.
ClassAccount& DeviceAccount::classes() {
  classes_->waits_by([this](const Sent& action, TimePoint at) { return cold(action, at); });
  return *classes_;
}

void DeviceAccount::sent(const Sent& action) {
  if (!alive_) return;
  if (classes_ && action.kind == ActionKind::infer) return classes().sent(action);
  (action.kind == ActionKind::unload ? unloads_ : executor(action.kind).waiting).push_back(action);
}

void DeviceAccount::stop(ActionId id, TimePoint heard) {
  if (classes_) classes().stop(id, heard);
  const auto note = [&](Sent& action) {
    if (action.id == id) action.stopped = std::min(action.stopped, heard);
  };
  if (exec_.running) note(exec_.running->action);
  for (Running& run : exec_.suspended) note(run.action);
  for (Sent& action : exec_.waiting) note(action);
}

void DeviceAccount::preempt(ActionId id, TimePoint order, TimePoint heard) {
  if (classes_) return classes().preempt(id, order, heard);
  const auto note = [&](Sent& action) {
    if (action.id == id) action.preempted.push_back({order, heard});
  };
  if (exec_.running) note(exec_.running->action);
  for (Running& run : exec_.suspended) {
    note(run.action);
    if (run.action.id == id) run.order = order;
  }
  for (Sent& action : exec_.waiting) note(action);
}

// What waits to go on has gone on, where it was first in line when the executor became free.
void DeviceAccount::resume(Executor& executor, TimePoint at) {
  if (executor.running || executor.suspended.empty() || executor.free_at >= at) return;
  const auto first = std::min_element(
      executor.suspended.begin(), executor.suspended.end(), [](const Running& a, const Running& b) {
        return std::tie(a.order, a.action.id) < std::tie(b.order, b.action.id);
      });
  for (const Sent& other : executor.waiting)
    if (other.ready < executor.free_at && !cold(other, executor.free_at) &&
        std::tie(other.window.earliest, other.id) < std::tie(first->order, first->action.id))
      return;
  executor.running = *first;
  executor.suspended.erase(first);
  executor.running->paused += executor.free_at - executor.running->since;
  ++executor.running->parts;
}

// What runs ends before its next kernel, where it was told to and `action` comes first.
void DeviceAccount::make_way(Executor& executor, const Sent& action, TimePoint at) {
  Running& run = *executor.running;
  auto& told = run.action.preempted;
  const auto later = std::find_if(told.begin(), told.end(), [&](const auto& p) { return p.heard > at; });
  if (later == told.begin()) return;
  const TimePoint order = (later - 1)->order;
  if (std::tie(order, run.action.id) < std::tie(action.window.earliest, action.id)) return;
  const TimePoint from = std::max({told.front().heard, action.ready, run.start});
  if (const auto longest = most(run.action.time); longest && at - from > *longest / 100 + 1ns)
    problem("made way later than it could", run.action.id, at);
  run.order = order;
  run.since = at;
  told.erase(told.begin(), later);
  executor.suspended.push_back(run);
  executor.running.reset();
  executor.free_at = at;
}

// A kernel before its end, and longer, something was there that it was told to make way for.
bool DeviceAccount::should_have_made_way(const Executor& executor, const Running& run, TimePoint at) const {
  const auto longest = most(run.action.time);
  if (!longest || run.refusal) return false;
  const TimePoint since = at - (*longest / 100 + 1ns);
  if (run.start >= since) return false;
  const auto later =
      std::ranges::find_if(run.action.preempted, [&](const auto& p) { return p.heard >= since; });
  if (later == run.action.preempted.begin()) return false;
  const std::tuple place((later - 1)->order, run.action.id);
  return std::ranges::any_of(executor.waiting, [&](const Sent& other) {
    return other.ready < since && !cold(other, since) && std::tuple(other.window.earliest, other.id) < place;
  });
}

// An UNLOAD has come that waits for what runs.
bool DeviceAccount::unloading(ModelId model, TimePoint at) const {
  return std::any_of(unloads_.begin(), unloads_.end(),
                     [&](const Sent& unload) { return unload.model == model && unload.heard < at; });
}

// A LOAD of its model that came before it has not ended.
bool DeviceAccount::load_comes(const Sent& infer) const {
  const auto is = [&](const Sent& load) {
    return load.model == infer.model && std::tie(load.heard, load.id) < std::tie(infer.heard, infer.id);
  };
  return (load_.running && is(load_.running->action)) || std::ranges::any_of(load_.waiting, is);
}

// It waits for a LOAD, should its turn have come.
bool DeviceAccount::cold(const Sent& action, TimePoint at) const {
  if (action.kind != ActionKind::infer || action.pages == 0) return false;
  const std::size_t index = action.model.index();
  const bool there =
      index < places_.size() && places_[index] == Place::loaded && !unloading(action.model, at);
  return !there && load_comes(action);
}

TimePoint DeviceAccount::given_up(const Sent& action, Duration clock) {
  return std::max(action.ready, saturating_add(saturating_add(action.window.latest, 1ns), -clock));
}

// When the first in line starts, or is refused.
TimePoint DeviceAccount::due(const Executor& executor, const Sent& action) const {
  if (action.kind == ActionKind::infer && saturating_add(action.heard, clock_) > action.window.latest)
    return action.heard;  // not even its inputs are fetched
  if (action.window.latest < action.window.earliest) return std::max(executor.free_at, action.ready);
  const TimePoint open = action.window.earliest == TimePoint::min()
                             ? TimePoint::min()
                             : saturating_add(action.window.earliest, -clock_);
  return std::max({executor.free_at, action.ready, open});
}

std::optional<ActionStatus> DeviceAccount::refusal(const Sent& action, TimePoint start) {
  if (saturating_add(start, clock_) > action.window.latest || action.window.latest < action.window.earliest)
    return ActionStatus::too_late;
  if (action.pages == 0) return std::nullopt;
  const Place where = place(action.model);
  if (action.kind == ActionKind::infer)
    return where == Place::loaded && !unloading(action.model, start)
               ? std::nullopt
               : std::optional(ActionStatus::not_loaded);
  if (where != Place::absent) return ActionStatus::failed;
  return used_ + action.pages > pages_ ? std::optional(ActionStatus::no_memory) : std::nullopt;
}

void DeviceAccount::started(ActionId id, TimePoint at) {
  if (classes_ && classes().has(id))
    return classes().started(id, at,
                             [this](const Sent& action, TimePoint then) { return refusal(action, then); });
  Executor* executor = nullptr;
  std::vector<Sent>::iterator found;
  for (Executor* each : {&exec_, &load_}) {
    const auto in = std::find_if(each->waiting.begin(), each->waiting.end(),
                                 [id](const Sent& action) { return action.id == id; });
    if (in == each->waiting.end()) continue;
    executor = each;
    found = in;
  }
  if (executor == nullptr) return problem("started what was not sent", id, at);
  const Sent action = *found;
  executor->waiting.erase(found);
  resume(*executor, at);
  if (cold(action, at) && refusal(action, at) == ActionStatus::too_late && at == given_up(action, clock_)) {
    at_input_ = {.action = action, .start = at, .refusal = ActionStatus::too_late, .order = {}, .since = {}};
    return;
  }
  if (action.kind == ActionKind::infer && refusal(action, at) == ActionStatus::too_late &&
      at == action.heard) {
    at_input_ = {.action = action, .start = at, .refusal = ActionStatus::too_late, .order = {}, .since = {}};
    return;
  }
  if (action.kind == ActionKind::infer && faults_.lost_inputs > 0 && at == action.ready &&
      (executor->running || at != due(*executor, action))) {
    at_input_ = {.action = action, .start = at, .refusal = ActionStatus::no_memory, .order = {}, .since = {}};
    return;
  }
  if (executor->running) make_way(*executor, action, at);
  if (executor->running) {
    problem("two things at once", id, at);
    executor->running.reset();
  } else if (saturating_add(at, clock_) < action.window.earliest &&
             action.window.latest >= action.window.earliest) {
    problem("started before its window", id, at);
  } else if (const TimePoint then = due(*executor, action); at != then) {
    problem(at < then ? "started before it was there" : "started later than it could", id, at);
  }
  if (at > action.stopped) problem("started after it was stopped", id, at);
  for (const Sent& other : executor->waiting)
    if (other.ready < at && !cold(other, at) &&
        std::tie(other.window.earliest, other.id) < std::tie(action.window.earliest, action.id))
      problem("started out of turn", id, at);
  for (const Running& run : executor->suspended)
    if (std::tie(run.order, run.action.id) < std::tie(action.window.earliest, action.id))
      problem("started out of turn", id, at);
  const auto refused = refusal(action, at);
  if (!refused && action.kind == ActionKind::load && action.pages > 0) {
    place(action.model) = Place::loading;
    used_ += action.pages;
  }
  executor->running = {.action = action,
                       .start = at,
                       .refusal = refused,
                       .order = {},
                       .since = {},
                       .cold = cold(action, at - 1ns)};
}

Duration DeviceAccount::least(Duration time) const {
  if (faults_ == Faults{}) return time;
  return from_ns(static_cast<double>(time.count()) * faults_.speed * faults_.least_factor()) - Duration{1};
}

// None where a stall may come on top.
std::optional<Duration> DeviceAccount::most(Duration time) const {
  if (faults_ == Faults{}) return time;
  if (faults_.stalls_per_s > 0 || faults_.any_hangs()) return std::nullopt;
  double factor = faults_.speed * faults_.most_factor() *
                  (1 + 8 * faults_.noise);  // nobody draws a normal number beyond 8
  if (faults_.hiccups > 0) factor *= 10;
  if (faults_.slowdowns_per_s > 0) factor *= 4;
  for (const SlowSpell& spell : faults_.spells) factor *= std::max(1.0, spell.factor);
  return from_ns(static_cast<double>(time.count()) * factor) + Duration{1};
}

// Whether that is how it could end.
void DeviceAccount::judge(const Running& ran, ActionStatus status, TimePoint at) {
  const Sent& action = ran.action;
  const TimePoint start = ran.start;
  const auto& refusal = ran.refusal;
  const Duration took = ran.ran(at), rounded = (ran.parts - 1) * 100ns;  // a nanosecond a kernel
  // Before its next kernel, unless its last had begun.
  if (const auto longest = most(action.time); longest && at > action.stopped)
    if (at - action.stopped > *longest / 100 + 1ns) problem("went on after it was stopped", action.id, at);
  if (status == ActionStatus::stopped) {
    if (at < action.stopped) problem("stopped by nobody", action.id, at);
    return;
  }
  if (status == ActionStatus::no_memory && action.kind == ActionKind::infer && faults_.lost_inputs > 0 &&
      took == Duration{0} && start == action.ready)
    return;  // whatever it would have come to in its turn
  if (refusal) {
    if (status == ActionStatus::not_loaded && ran.cold)
      problem("did not wait for its weights", action.id, at);
    if (status == *refusal && took == Duration{0}) return;
    const bool late = *refusal == ActionStatus::too_late, cold = *refusal == ActionStatus::not_loaded,
               full = *refusal == ActionStatus::no_memory;
    return problem(late   ? "started after its window"
                   : cold ? "ran without its weights"
                   : full ? "more pages than there are"
                          : "loaded twice",
                   action.id, at);
  }
  switch (status) {
    case ActionStatus::too_late:
      return problem("refused within its window", action.id, at);
    case ActionStatus::not_loaded:
      return problem("refused for weights that are there", action.id, at);
    case ActionStatus::no_memory:
      if (action.kind != ActionKind::infer || faults_.lost_inputs == 0 || took > Duration{0})
        problem("refused for memory that is there", action.id, at);
      return;
    case ActionStatus::failed:
      if ((action.kind == ActionKind::infer ? faults_.infer_failures : faults_.load_failures) == 0)
        problem("failed without a cause", action.id, at);
      break;
    case ActionStatus::success:
    case ActionStatus::stopped:
      break;
  }
  if (took < least(action.time) - rounded) problem("took too little time", action.id, at);
  if (const auto longest = most(action.time); longest && took > *longest + rounded)
    problem("took too much time", action.id, at);
}

DeviceAccount::Ended DeviceAccount::unload(const Sent& action, ActionStatus status, TimePoint at) {
  if (status != ActionStatus::success) problem("failed without a cause", action.id, at);
  bool in_use = false, at_its_end = false;
  for (const Executor* executor : {&exec_, &load_}) {
    in_use = in_use || (executor->running && executor->running->action.model == action.model &&
                        !executor->running->refusal && executor->running->start < at);
    for (const Running& run : executor->suspended) in_use = in_use || run.action.model == action.model;
    at_its_end = at_its_end || (executor->last_model == action.model && executor->last_end == at &&
                                executor->last_start <= action.heard);
  }
  if (classes_) {
    in_use = in_use || classes().uses(action.model, at);
    at_its_end = at_its_end || classes().ended_then(action.model, action.heard, at);
  }
  if (in_use) problem("unloaded under a run", action.id, at);
  if (at != action.heard && !at_its_end) problem("not unloaded when it was told", action.id, at);
  if (action.pages == 0 || place(action.model) != Place::loaded) return {at, false};
  place(action.model) = Place::absent;
  used_ -= action.pages;
  return {at, true};
}

std::optional<DeviceAccount::Ended> DeviceAccount::ended(ActionId id, ActionStatus status, TimePoint at) {
  const auto take = [id](std::vector<Sent>& from) {
    const auto found = std::find_if(from.begin(), from.end(), [id](const Sent& a) { return a.id == id; });
    std::optional<Sent> taken;
    if (found != from.end()) {
      taken = *found;
      from.erase(found);
    }
    return taken;
  };
  if (const auto action = take(unloads_)) return unload(*action, status, at);
  if (classes_ && classes().has(id)) return classes().ended(id, status, at);
  if (at_input_ && at_input_->action.id == id) {
    const Running refused = *at_input_;
    at_input_.reset();
    judge(refused, status, at);
    return Ended{refused.start, false};
  }
  for (Executor* executor : {&exec_, &load_}) {
    resume(*executor, at);
    if (executor->running && executor->running->action.id == id) {
      const Running ran = *executor->running;
      if (ran.action.kind == ActionKind::load) {  // what waited for it is in line from now on
        const auto in_line = [&](Sent& other) {
          if (other.model == ran.action.model && cold(other, at)) other.ready = std::max(other.ready, at);
        };
        std::ranges::for_each(exec_.waiting, in_line);
        if (classes_) classes().visit_waiting(in_line);
      }
      executor->running.reset();
      executor->free_at = at;
      executor->last_model = ran.action.model;
      executor->last_start = ran.start;
      executor->last_end = at;
      if (should_have_made_way(*executor, ran, at)) problem("made no way", id, at);
      judge(ran, status, at);
      if (ran.action.kind == ActionKind::load && !ran.refusal && ran.action.pages > 0) {
        const bool loaded = status == ActionStatus::success;
        place(ran.action.model) = loaded ? Place::loaded : Place::absent;
        if (!loaded) used_ -= ran.action.pages;
      }
      return Ended{ran.start, !ran.refusal && status != ActionStatus::no_memory, ran.ran(at)};
    }
    const auto waits = std::find_if(executor->suspended.begin(), executor->suspended.end(),
                                    [id](const Running& run) { return run.action.id == id; });
    if (waits != executor->suspended.end()) {
      const Running run = *waits;
      executor->suspended.erase(waits);
      if (status != ActionStatus::stopped || at < run.action.stopped)
        problem("ended while it had made way", id, at);
      return Ended{run.start, true, run.ran(run.since)};
    }
    if (const auto action = take(executor->waiting)) {
      if (status != ActionStatus::stopped || at != std::max(action->stopped, std::min(action->ready, at)))
        problem("ended without a start", id, at);
      if (at >= action->ready) executor->free_at = std::max(executor->free_at, at);
      return Ended{at, false};
    }
  }
  problem("ended what does not run", id, at);
  return std::nullopt;
}

void DeviceAccount::finish(TimePoint now) {
  if (classes_) classes().finish(now);
  for (Executor* executor : {&exec_, &load_}) {
    resume(*executor, now);
    if (executor->running) {
      const auto longest = most(executor->running->action.time);
      if (longest && saturating_add(executor->running->start + executor->running->paused, *longest) < now)
        problem("never ended", executor->running->action.id, now);
      continue;
    }
    const Sent* first = nullptr;
    for (const Sent& action : executor->waiting)
      if (cold(action, now - 1ns)) {
        if (given_up(action, clock_) < now) problem("never started", action.id, now);
      } else if (action.heard < now && (first == nullptr || std::tie(action.window.earliest, action.id) <
                                                                std::tie(first->window.earliest, first->id)))
        first = &action;
    if (first != nullptr && due(*executor, *first) < now) problem("never started", first->id, now);
  }
  for (const Sent& unload : unloads_)
    if (unload.heard < now) problem("not unloaded when it was told", unload.id, now);
}

}  // namespace carillon::simulate::testing
