#include "carillon/simulate/testing/class_account.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace carillon::simulate::testing {
namespace {

using schedule::ActionStatus;
using Sent = DeviceAccount::Sent;

auto place_of(const Sent& action) {
  return std::tuple(action.window.earliest, action.id);
}

// By the last Preempt that is there.
std::optional<TimePoint> order_told(const Sent& action, TimePoint at) {
  std::optional<TimePoint> order;
  for (const Sent::Preempted& told : action.preempted)
    if (told.heard <= at) order = told.order;
  return order;
}

}  // namespace

void ClassAccount::problem(const std::string& kind, ActionId id, TimePoint at) {
  problems_.add(kind, "action " + std::to_string(id.value) + " on device " + std::to_string(id_.value), at);
}

// --- What is there, and what may begin

// Of what becomes ready at that very moment it is a matter of what was known first: that it would, with its
// message, or what else happens then.
bool ClassAccount::is_there(const Sent& action, TimePoint at) const {
  if (cold_(action, at)) return false;
  return action.ready < at || (action.ready == at && (action.heard == at || action.heard < planned_));
}

const Sent* ClassAccount::first_waiting(const Stream& stream, TimePoint at) const {
  const Sent* first = nullptr;
  for (const Sent& action : stream.waiting)
    if (is_there(action, at) && (first == nullptr || place_of(action) < place_of(*first))) first = &action;
  return first;
}

// The first that is not refused for its window, should its turn come then.
const Sent* ClassAccount::first_in_time(const Stream& stream, TimePoint at) const {
  const Sent* first = nullptr;
  for (const Sent& action : stream.waiting)
    if (is_there(action, at) && saturating_add(at, clock_) <= action.window.latest &&
        action.window.earliest <= action.window.latest &&
        (first == nullptr || place_of(action) < place_of(*first)))
      first = &action;
  return first;
}

std::tuple<TimePoint, ActionId> ClassAccount::place_of_run(const Run& run, TimePoint at) {
  return {order_told(run.action, at).value_or(run.order), run.action.id};
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

// Nothing runs there, and something begins then, or goes on, once all is refused that has to be.
bool ClassAccount::may_start(std::size_t rank, TimePoint at) const {
  const Stream& s = streams_[rank];
  if (s.running || blocked(rank, at)) return false;
  const Sent* first = first_in_time(s, at);
  if (first != nullptr && opens(*first) <= at) return true;
  return std::ranges::any_of(s.suspended, [&](const Run& run) {
    return first == nullptr || place_of_run(run, at) < place_of(*first);
  });
}

// Something that goes before it runs, or begins then.
bool ClassAccount::blocked(std::size_t rank, TimePoint at) const {
  for (std::size_t r = 0; r < rank; ++r)
    if (streams_[r].running || may_start(r, at)) return true;
  return false;
}

// --- Time passes

// When something comes to be there that the run has to make way for by a Preempt.
std::optional<TimePoint> ClassAccount::yields_at(const Stream& stream) const {
  const Run& run = *stream.running;
  if (run.action.preempted.empty()) return std::nullopt;
  std::optional<TimePoint> soonest;
  const auto look = [&](TimePoint at) {
    at = std::max(at, run.resumed);
    if (soonest && *soonest <= at) return;
    const auto order = order_told(run.action, at);
    if (!order) return;
    const std::tuple place(*order, run.action.id);
    if (std::ranges::any_of(stream.waiting,
                            [&](const Sent& each) {
                              return each.ready <= at && !cold_(each, at) && place_of(each) < place;
                            }) ||
        std::ranges::any_of(stream.suspended,
                            [&](const Run& each) { return place_of_run(each, at) < place; }))
      soonest = at;
  };
  for (const Sent::Preempted& told : run.action.preempted) look(told.heard);
  for (const Sent& each : stream.waiting) look(each.ready);
  return soonest;
}

void ClassAccount::cut(Run& run, TimePoint at) {
  if (run.stops_at) return;
  run.stops_at = at + latency_;
  ++run.cuts;
  run.cut = ++cuts_;
}

void ClassAccount::make_way(std::size_t rank, TimePoint at) {
  for (std::size_t r = rank + 1; r < streams_.size(); ++r)
    if (streams_[r].running) cut(*streams_[r].running, at);
}

// What was told to end has, and waits to go on.
void ClassAccount::suspend(Stream& stream, TimePoint at) {
  Run run = *stream.running;
  stream.running.reset();
  stream.free_at = at;
  planned_ = at - latency_;
  run.since = at;
  auto& told = run.action.preempted;
  const auto order = order_told(run.action, at);
  run.order = order.value_or(TimePoint::min());
  const std::tuple place(run.order, run.action.id);
  const Sent* next = first_waiting(stream, at);
  if ((next != nullptr && place_of(*next) < place) ||
      std::ranges::any_of(stream.suspended,
                          [&](const Run& other) { return place_of_run(other, at) < place; }))
    std::erase_if(told, [&](const Sent::Preempted& each) { return each.heard <= at; });
  stream.suspended.push_back(std::move(run));
}

// Who goes on, as nothing is in its way any more.
void ClassAccount::settle(TimePoint at) {
  for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
    Stream& s = streams_[rank];
    if (s.running || s.suspended.empty() || blocked(rank, at)) continue;
    const auto first =
        std::ranges::min_element(s.suspended, {}, [at](const Run& run) { return place_of_run(run, at); });
    const Sent* next = first_waiting(s, at);
    if (next != nullptr && place_of(*next) < place_of_run(*first, at)) continue;
    s.running = std::move(*first);
    s.suspended.erase(first);
    s.running->paused += at - s.running->since;
    s.running->resumed = at;
    s.running->stops_at.reset();
    make_way(rank, at);
  }
}

// All that comes of itself before then; `through`: what has made way by then, too. What is ready, or told, at
// that very moment comes to something later: it may yet turn out that its inputs are lost.
void ClassAccount::advance(TimePoint to, bool through) {
  while (true) {
    Stream* next = nullptr;
    TimePoint soonest = to;
    bool suspends = false;
    for (Stream& s : streams_) {
      if (!s.running) continue;
      const Run& run = *s.running;
      if (run.stops_at) {
        if (run.action.stopped <= *run.stops_at) continue;  // it ends for good
        if (*run.stops_at > soonest || (*run.stops_at == soonest && !(through && next == nullptr))) continue;
        soonest = *run.stops_at;
        suspends = true;
        next = &s;
      } else {
        const auto yields = yields_at(s);
        const TimePoint at = std::min(yields.value_or(TimePoint::max()), run.action.stopped);
        if (at >= soonest) continue;
        soonest = at;
        suspends = false;
        next = &s;
      }
    }
    if (next == nullptr) return;
    if (!suspends) {
      cut(*next->running, soonest);
      continue;
    }
    suspend(*next, soonest);
    settle(soonest);
  }
}

// --- What is sent

void ClassAccount::sent(const Sent& action) {
  begin();
  stream(action.cls).waiting.push_back(action);
}

template <typename Visit>
void ClassAccount::visit(ActionId id, Visit&& visit) {
  for (Stream& s : streams_) {
    if (s.running && s.running->action.id == id) visit(s.running->action);
    for (Run& run : s.suspended)
      if (run.action.id == id) visit(run.action);
    for (Sent& action : s.waiting)
      if (action.id == id) visit(action);
  }
}

void ClassAccount::stop(ActionId id, TimePoint heard) {
  begin();
  visit(id, [heard](Sent& action) { action.stopped = std::min(action.stopped, heard); });
}

void ClassAccount::preempt(ActionId id, TimePoint order, TimePoint heard) {
  begin();
  visit(id, [&](Sent& action) { action.preempted.push_back({order, heard}); });
}

// --- What the device does

std::vector<std::pair<ActionId, ClassAccount::Ended>> ClassAccount::power(Duration clock, TimePoint at) {
  begin();
  advance(at, false);
  std::vector<std::pair<ActionId, Ended>> ran;
  for (const Stream& s : streams_) {
    if (s.running) ran.push_back({s.running->action.id, {s.running->start, true, busy(*s.running, at)}});
    for (const Run& run : s.suspended)
      ran.push_back({run.action.id, {run.start, true, busy(run, run.since)}});
  }
  std::sort(ran.begin(), ran.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  clock_ = clock;
  streams_ = {};
  return ran;
}

bool ClassAccount::has(ActionId id) const {
  if (start_ && start_->action.id == id) return true;
  return std::ranges::any_of(streams_, [id](const Stream& s) {
    return (s.running && s.running->action.id == id) ||
           std::ranges::any_of(s.suspended, [id](const Run& run) { return run.action.id == id; }) ||
           std::ranges::any_of(s.waiting, [id](const Sent& action) { return action.id == id; });
  });
}

void ClassAccount::started(ActionId id, TimePoint at, const Refusal& refusal) {
  begin();
  advance(at, true);
  for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
    auto& waiting = streams_[rank].waiting;
    const auto found = std::ranges::find(waiting, id, &Sent::id);
    if (found == waiting.end()) continue;
    start_ = {.rank = rank,
              .action = *found,
              .at = at,
              .refusal = refusal(*found, at),
              .cold = cold_(*found, at - 1ns)};
    waiting.erase(found);
    return;
  }
  problem("started what was not sent", id, at);
}

// Its turn has come, by then and not before.
void ClassAccount::judge_turn(const Start& start) {
  const std::size_t rank = start.rank;
  const Sent& action = start.action;
  const TimePoint at = start.at;
  Stream& s = streams_[rank];
  const auto in_the_way = [&](const Stream& other) {
    const Sent* first = first_in_time(other, at - 1ns);
    return other.running || (first != nullptr && opens(*first) < at);
  };
  if (s.running) {
    problem("two things at once", action.id, at);
    s.running.reset();
  } else if (std::any_of(streams_.begin(), streams_.begin() + static_cast<std::ptrdiff_t>(rank),
                         in_the_way)) {
    problem("began in the way of what goes first", action.id, at);
  } else if (saturating_add(at, clock_) < action.window.earliest &&
             action.window.latest >= action.window.earliest) {
    problem("started before its window", action.id, at);
  } else if (const TimePoint then = due(rank, action); at != then) {
    problem(at < then ? "started before it was there" : "started later than it could", action.id, at);
  }
  if (at > action.stopped) problem("started after it was stopped", action.id, at);
  const Sent* first = first_waiting(s, at - 1ns);
  if ((first != nullptr && place_of(*first) < place_of(action)) ||
      std::ranges::any_of(s.suspended,
                          [&](const Run& run) { return place_of_run(run, at) < place_of(action); }))
    problem("started out of turn", action.id, at);
}

// What has started runs: it was not refused at that moment.
void ClassAccount::begin() {
  if (!start_) return;
  const Start start = *std::exchange(start_, std::nullopt);
  judge_turn(start);
  if (start.refusal)
    problem(*start.refusal == ActionStatus::too_late ? "started after its window" : "ran without its weights",
            start.action.id, start.at);
  streams_[start.rank].running = {
      .action = start.action, .start = start.at, .resumed = start.at, .stops_at = {}, .since = {}};
  make_way(start.rank, start.at);
}

void ClassAccount::judge_refusal(const Start& start, ActionStatus status) {
  const Sent& action = start.action;
  Stream& s = streams_[start.rank];
  if (status == ActionStatus::no_memory) {  // of inputs that were lost, whatever its turn would have brought
    if (faults_.lost_inputs == 0 || start.at != action.ready)
      problem("refused for memory that is there", action.id, start.at);
    return;
  }
  if (status == ActionStatus::not_loaded && start.cold)
    problem("did not wait for its weights", action.id, start.at);
  if (start.refusal != status)
    problem(
        status == ActionStatus::too_late ? "refused within its window" : "refused for weights that are there",
        action.id, start.at);
  if (status == ActionStatus::too_late && start.at == action.heard)
    return;  // not even its inputs are fetched
  if (status == ActionStatus::too_late && start.cold && start.at == DeviceAccount::given_up(action, clock_))
    return;
  judge_turn(start);
  s.free_at = std::max(s.free_at, start.at);
}

Duration ClassAccount::least(Duration time) const {
  if (faults_ == Faults{}) return time;
  return from_ns(static_cast<double>(time.count()) * faults_.speed * faults_.least_factor()) - Duration{1};
}

// None where a stall may come on top.
std::optional<Duration> ClassAccount::most(Duration time) const {
  if (faults_ == Faults{}) return time;
  if (faults_.stalls_per_s > 0 || faults_.any_hangs()) return std::nullopt;
  double factor = faults_.speed * faults_.most_factor() * (1 + 8 * faults_.noise);
  if (faults_.hiccups > 0) factor *= 10;
  if (faults_.slowdowns_per_s > 0) factor *= 4;
  for (const SlowSpell& spell : faults_.spells) factor *= std::max(1.0, spell.factor);
  return from_ns(static_cast<double>(time.count()) * factor) + Duration{1};
}

// What was killed of a kernel runs again, each time; kernels are equal but for rounding.
std::optional<Duration> ClassAccount::most(const Run& run) const {
  const auto longest = most(run.action.time);
  if (!longest) return longest;
  return *longest + run.cuts * (latency_ + *longest / 100 + 101ns);
}

// Whether that is how it could end.
void ClassAccount::judge(const Run& run, ActionStatus status, TimePoint at) {
  const Sent& action = run.action;
  if (at > action.stopped && at - action.stopped > latency_)
    problem("went on after it was stopped", action.id, at);
  switch (status) {
    case ActionStatus::stopped:
      if (at < action.stopped) problem("stopped by nobody", action.id, at);
      return;
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
      break;
  }
  const Duration took = busy(run, at);
  if (took < least(action.time) - run.cuts * 100ns) problem("took too little time", action.id, at);
  if (const auto longest = most(run); longest && took > *longest)
    problem("took too much time", action.id, at);
}

ClassAccount::Ended ClassAccount::ended(ActionId id, ActionStatus status, TimePoint at) {
  if (start_ && start_->action.id == id && start_->at == at &&
      (status == ActionStatus::too_late || status == ActionStatus::not_loaded ||
       status == ActionStatus::no_memory)) {
    judge_refusal(*std::exchange(start_, std::nullopt), status);
    settle(at);
    return {at, false};
  }
  begin();
  advance(at, false);
  for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
    Stream& s = streams_[rank];
    if (s.running && s.running->action.id == id) {
      const Run run = *s.running;
      // Of two that end at the same moment, the one that was told first does first.
      if (status == ActionStatus::stopped && run.stops_at == at)
        for (Stream& other : streams_)
          if (other.running && other.running->stops_at == at && other.running->cut < run.cut &&
              other.running->action.stopped > at)
            suspend(other, at);
      s.running.reset();
      s.free_at = at;
      s.last_model = run.action.model;
      s.last_start = run.start;
      s.last_end = at;
      judge(run, status, at);
      planned_ = status == ActionStatus::stopped && run.stops_at ? *run.stops_at - latency_ : run.resumed;
      settle(at);
      return {run.start, true, busy(run, at)};
    }
    const auto suspended =
        std::ranges::find_if(s.suspended, [id](const Run& run) { return run.action.id == id; });
    if (suspended != s.suspended.end()) {
      const Run run = std::move(*suspended);
      s.suspended.erase(suspended);
      s.last_model = run.action.model;
      s.last_start = run.start;
      s.last_end = at;
      if (status != ActionStatus::stopped || at != std::max(run.action.stopped, run.since))
        problem(blocked(rank, at) ? "ran in the way of what goes first" : "ended while it had made way", id,
                at);
      return {run.start, true, busy(run, run.since)};
    }
    const auto waiting = std::ranges::find(s.waiting, id, &Sent::id);
    if (waiting == s.waiting.end()) continue;
    const Sent action = *waiting;
    s.waiting.erase(waiting);
    if (status != ActionStatus::stopped || at != std::max(action.stopped, std::min(action.ready, at)))
      problem("ended without a start", id, at);
    if (at >= action.ready) s.free_at = std::max(s.free_at, at);
    settle(at);
    return {at, false};
  }
  return {at, false};
}

bool ClassAccount::uses(ModelId model, TimePoint at) const {
  const auto is = [&](const Sent& action, TimePoint start) { return action.model == model && start < at; };
  if (start_ && !start_->refusal && is(start_->action, start_->at)) return true;
  return std::ranges::any_of(streams_, [&](const Stream& s) {
    return (s.running && is(s.running->action, s.running->start)) ||
           std::ranges::any_of(s.suspended, [&](const Run& run) { return is(run.action, run.start); });
  });
}

bool ClassAccount::ended_then(ModelId model, TimePoint since, TimePoint at) const {
  return std::ranges::any_of(streams_, [&](const Stream& s) {
    return s.last_model == model && s.last_end == at && s.last_start <= since;
  });
}

void ClassAccount::finish(TimePoint now) {
  begin();
  advance(now, false);
  for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
    const Stream& s = streams_[rank];
    for (const Sent& action : s.waiting)
      if (cold_(action, now - 1ns) && DeviceAccount::given_up(action, clock_) < now)
        problem("never started", action.id, now);
    if (s.running) {
      const auto longest = most(*s.running);
      if (longest && busy(*s.running, now) > *longest) problem("never ended", s.running->action.id, now);
      continue;
    }
    if (blocked(rank, now)) continue;
    const Sent* first = first_waiting(s, now - 1ns);
    if (first != nullptr && due(rank, *first) < now) problem("never started", first->id, now);
  }
}

}  // namespace carillon::simulate::testing
