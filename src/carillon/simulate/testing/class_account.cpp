#include "carillon/simulate/testing/class_account.h"

#include <algorithm>
#include <tuple>

namespace carillon::simulate::testing {

using schedule::ActionStatus;

void ClassAccount::problem(const std::string& kind, ActionId id, TimePoint at) {
  problems_.add(kind, "action " + std::to_string(id.value) + " on device " + std::to_string(id_.value), at);
}

// Something that goes before it runs.
bool ClassAccount::blocked(std::size_t rank) const {
  return std::any_of(streams_.begin(), streams_.begin() + static_cast<std::ptrdiff_t>(rank),
                     [](const Stream& s) { return s.running && !s.running->refusal; });
}

// After each start and end: who makes way from now on, and who goes on. What was there when something ended
// begins at once, so that nobody goes on between the two. `planned`: since when it was known that what has
// ended would.
void ClassAccount::look(TimePoint at, const Sent* starts, TimePoint planned) {
  for (std::size_t rank = 1; rank < streams_.size(); ++rank) {
    if (!streams_[rank].running || streams_[rank].running->refusal) continue;
    Run& run = *streams_[rank].running;
    const bool now = blocked(rank);
    if (run.freed) {
      if (now && *run.freed == at && starts != nullptr && was_there(*starts, run)) {
        run.freed.reset();
      } else if (now || *run.freed < at) {
        run.paused += std::max(Duration{0}, *run.freed - run.stops_at);
        run.resumed = std::max(*run.freed, run.stops_at);
        run.freed.reset();
        run.blocked_since.reset();
      }
    }
    if (now && !run.blocked_since) {
      run.blocked_since = at;
      ++run.evicted;
      run.stopped_before = run.stops_at;
      if (run.stops_at <= at) run.stops_at = at + latency_;
    } else if (!now && run.blocked_since && !run.freed) {
      run.freed = at;
      run.freed_after = count_;
      run.freed_planned = planned;
    }
  }
}

// It was ready when the way of the run came free. Of what becomes ready at that very moment that is a matter
// of what was known first: that it would, with its message, or that what was in the way would end.
bool ClassAccount::was_there(const Sent& action, const Run& run) const {
  if (action.ready != *run.freed) return action.ready < *run.freed;
  if (action.ready == action.heard) return messages_.at(action.id) <= run.freed_after;
  return action.heard < run.freed_planned;
}

// What seemed to begin then had lost its inputs: nobody made way for it.
void ClassAccount::never_ran(TimePoint at) {
  for (std::size_t rank = 1; rank < streams_.size(); ++rank) {
    if (!streams_[rank].running || blocked(rank)) continue;
    Run& run = *streams_[rank].running;
    if (run.blocked_since != at || run.freed) continue;
    run.blocked_since.reset();
    run.stops_at = run.stopped_before;
    --run.evicted;
  }
}

// The time that it ran of that from its start.
Duration ClassAccount::busy(const Run& run, TimePoint at) const {
  const Duration waits =
      run.blocked_since ? std::max(Duration{0}, run.freed.value_or(at) - run.stops_at) : Duration{0};
  return at - run.start - run.paused - waits;
}

std::vector<std::pair<ActionId, ClassAccount::Ended>> ClassAccount::power(Duration clock, TimePoint at) {
  std::vector<std::pair<ActionId, Ended>> ran;
  for (const Stream& s : streams_)
    if (s.running) ran.push_back({s.running->action.id, {s.running->start, true, busy(*s.running, at)}});
  std::sort(ran.begin(), ran.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  clock_ = clock;
  streams_ = {};
  messages_.clear();
  return ran;
}

bool ClassAccount::has(ActionId id) const {
  return std::any_of(streams_.begin(), streams_.end(), [id](const Stream& s) {
    const auto is = [id](const auto& run) { return run.action.id == id; };
    return (s.running && is(*s.running)) || std::any_of(s.at_input.begin(), s.at_input.end(), is) ||
           std::any_of(s.waiting.begin(), s.waiting.end(), [id](const Sent& a) { return a.id == id; });
  });
}

void ClassAccount::stop(ActionId id, TimePoint heard) {
  for (Stream& s : streams_) {
    if (s.running && s.running->action.id == id) {
      Run& run = *s.running;
      run.action.stopped = std::min(run.action.stopped, heard);
    }
    for (Sent& action : s.waiting)
      if (action.id == id) action.stopped = std::min(action.stopped, heard);
  }
}

TimePoint ClassAccount::opens(const Sent& action) const {
  if (action.window.latest < action.window.earliest || action.window.earliest == TimePoint::min())
    return action.ready;
  return std::max(action.ready, saturating_add(action.window.earliest, -clock_));
}

// When the first in line starts, or is refused.
TimePoint ClassAccount::due(std::size_t rank, const Sent& action) const {
  if (saturating_add(action.heard, clock_) > action.window.latest) return action.heard;
  TimePoint at = opens(action);
  for (std::size_t r = 0; r <= rank; ++r) at = std::max(at, streams_[r].free_at);
  return at;
}

void ClassAccount::started(ActionId id, TimePoint at, const Refusal& refusal) {
  look(at);
  for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
    Stream& s = streams_[rank];
    const auto found =
        std::find_if(s.waiting.begin(), s.waiting.end(), [id](const Sent& a) { return a.id == id; });
    if (found == s.waiting.end()) continue;
    const Sent action = *found;
    s.waiting.erase(found);
    const auto refused = refusal(action, at);
    if (refused == ActionStatus::too_late && at == action.heard) {
      s.at_input.push_back(
          {.action = action, .start = at, .refusal = refused, .blocked_since = {}, .freed = {}});
      return;
    }
    if (faults_.lost_inputs > 0 && at == action.ready &&
        (s.running || blocked(rank) || at != due(rank, action))) {
      s.at_input.push_back(
          {.action = action, .start = at, .refusal = ActionStatus::no_memory, .blocked_since = {}, .freed = {}});
      return;
    }
    if (s.running) {
      problem("two things at once", id, at);
      s.running.reset();
    } else if (blocked(rank)) {
      problem("began in the way of what goes first", id, at);
    } else if (saturating_add(at, clock_) < action.window.earliest &&
               action.window.latest >= action.window.earliest) {
      problem("started before its window", id, at);
    } else if (const TimePoint then = due(rank, action); at != then) {
      problem(at < then ? "started before it was there" : "started later than it could", id, at);
    }
    if (at > action.stopped) problem("started after it was stopped", id, at);
    for (const Sent& other : s.waiting)
      if (other.ready < at &&
          std::tie(other.window.earliest, other.id) < std::tie(action.window.earliest, action.id))
        problem("started out of turn", id, at);
    for (std::size_t r = 0; r < rank; ++r)
      for (const Sent& other : streams_[r].waiting)
        if (!streams_[r].running && opens(other) < at)
          problem("began in the way of what goes first", id, at);
    s.running = {.action = action, .start = at, .refusal = refused, .blocked_since = {}, .freed = {}};
    return look(at, &action);
  }
  problem("started what was not sent", id, at);
}

Duration ClassAccount::least(Duration time) const {
  if (faults_ == Faults{}) return time;
  return from_ns(static_cast<double>(time.count()) * faults_.speed) - Duration{1};
}

// None where a stall may come on top.
std::optional<Duration> ClassAccount::most(Duration time) const {
  if (faults_ == Faults{}) return time;
  if (faults_.stalls_per_s > 0) return std::nullopt;
  double factor = faults_.speed * (1 + 8 * faults_.noise);
  if (faults_.hiccups > 0) factor *= 10;
  if (faults_.slowdowns_per_s > 0) factor *= 4;
  for (const SlowSpell& spell : faults_.spells) factor *= std::max(1.0, spell.factor);
  return from_ns(static_cast<double>(time.count()) * factor) + Duration{1};
}

// Whether that is how it could end.
void ClassAccount::judge(const Run& run, ActionStatus status, TimePoint at) {
  const Sent& action = run.action;
  const Duration took = busy(run, at);
  if (!run.refusal && at > action.stopped && at - action.stopped > latency_ && !faults_.stalls_per_s)
    problem("went on after it was stopped", action.id, at);
  if (run.blocked_since && !run.freed && at > run.stops_at && (status != ActionStatus::stopped || at != action.stopped))
    problem("ran in the way of what goes first", action.id, at);
  if (status == ActionStatus::stopped) {
    if (at < action.stopped) problem("stopped by nobody", action.id, at);
    return;
  }
  if (status == ActionStatus::no_memory && faults_.lost_inputs > 0 && took == Duration{0} &&
      run.start == action.ready)
    return;
  if (run.refusal) {
    if (status == *run.refusal && took == Duration{0}) return;
    return problem(*run.refusal == ActionStatus::too_late ? "started after its window"
                                                          : "ran without its weights",
                   action.id, at);
  }
  switch (status) {
    case ActionStatus::too_late:
      return problem("refused within its window", action.id, at);
    case ActionStatus::not_loaded:
      return problem("refused for weights that are there", action.id, at);
    case ActionStatus::no_memory:
      return problem("refused for memory that is there", action.id, at);
    case ActionStatus::failed:
      if (faults_.infer_failures == 0) problem("failed without a cause", action.id, at);
      break;
    case ActionStatus::success:
    case ActionStatus::stopped:
      break;
  }
  // What was killed of a kernel runs again, each time; kernels are equal but for rounding.
  const Duration rounded = run.evicted * 100ns;
  if (took < least(action.time) - rounded) problem("took too little time", action.id, at);
  if (const auto longest = most(action.time);
      longest && took > *longest + rounded + run.evicted * (latency_ + *longest / 100 + 1ns))
    problem("took too much time", action.id, at);
}

ClassAccount::Ended ClassAccount::ended(ActionId id, ActionStatus status, TimePoint at) {
  look(at);
  messages_.erase(id);
  for (Stream& s : streams_) {
    const auto at_input =
        std::find_if(s.at_input.begin(), s.at_input.end(), [id](const Run& r) { return r.action.id == id; });
    if (at_input != s.at_input.end()) {
      const Run run = *at_input;
      s.at_input.erase(at_input);
      judge(run, status, at);
      return {run.start, false, at - run.start};
    }
    if (s.running && s.running->action.id == id) {
      const Run run = *s.running;
      s.running.reset();
      s.free_at = at;
      s.last_model = run.action.model;
      s.last_start = run.start;
      s.last_end = at;
      judge(run, status, at);
      if (status == ActionStatus::no_memory && run.start == at) never_ran(at);
      look(at, nullptr,
           status == ActionStatus::stopped ? run.action.stopped : std::max(run.start, run.resumed));
      return {run.start, !run.refusal && status != ActionStatus::no_memory, busy(run, at)};
    }
    const auto found =
        std::find_if(s.waiting.begin(), s.waiting.end(), [id](const Sent& a) { return a.id == id; });
    if (found == s.waiting.end()) continue;
    const Sent action = *found;
    s.waiting.erase(found);
    if (status != ActionStatus::stopped || at != std::max(action.stopped, std::min(action.ready, at)))
      problem("ended without a start", id, at);
    if (at >= action.ready) s.free_at = std::max(s.free_at, at);
    return {at, false};
  }
  return {at, false};
}

bool ClassAccount::uses(ModelId model, TimePoint at) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const Stream& s) {
    return s.running && s.running->action.model == model && !s.running->refusal && s.running->start < at;
  });
}

bool ClassAccount::ended_then(ModelId model, TimePoint since, TimePoint at) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const Stream& s) {
    return s.last_model == model && s.last_end == at && s.last_start <= since;
  });
}

void ClassAccount::finish(TimePoint now) {
  for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
    const Stream& s = streams_[rank];
    if (s.running) {
      const auto longest = most(s.running->action.time);
      if (longest && !s.running->blocked_since &&
          busy(*s.running, now) > *longest + s.running->evicted * (latency_ + *longest / 100 + 101ns))
        problem("never ended", s.running->action.id, now);
      continue;
    }
    if (blocked(rank)) continue;
    const Sent* first = nullptr;
    for (const Sent& action : s.waiting)
      if (action.heard < now && (first == nullptr || std::tie(action.window.earliest, action.id) <
                                                         std::tie(first->window.earliest, first->id)))
        first = &action;
    if (first != nullptr && due(rank, *first) < now) problem("never started", first->id, now);
  }
}

}  // namespace carillon::simulate::testing
