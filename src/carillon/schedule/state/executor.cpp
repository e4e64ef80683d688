#include "carillon/schedule/state/executor.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {

void Executor::push(ActionId id, ModelId model, TimePoint earliest, Duration expected, TimePoint due,
                    std::optional<TimePoint> order) {
  const TimePoint told = order.value_or(earliest);
  auto place = pending_.end();
  while (place != pending_.begin() && (place - 1)->order > told) --place;
  pending_.insert(place, Pending{.id = id,
                                 .model = model,
                                 .earliest = earliest,
                                 .order = told,
                                 .expected = expected,
                                 .end = {},
                                 .due = due,
                                 .soonest = earliest});
  recompute();
}

std::optional<Overtaking> Executor::overtaking(std::size_t place, TimePoint soonest, Duration kernel,
                                               TimePoint now) const {
  if (place >= pending_.size() || (place == 0 && overdue(now))) return std::nullopt;
  const Pending& next = pending_[place];
  const TimePoint ends = end_of(place + 1, now), begins = ends - next.expected;
  Overtaking at{.place = place, .start = soonest, .until = TimePoint::max(), .begins = begins};
  at.evicts = begins < soonest;
  if (at.evicts) at.start = saturating_add(soonest, kernel);
  if (place == 0) {
    at.order = saturating_add(now, -any_clock);
    if (pending_.size() > 1) at.order = std::min(at.order, saturating_add(pending_[1].order, -2ns));
  } else {
    at.start = std::max(at.start, end_of(place, now));
    at.order = saturating_add(next.order, -1ns);
    // It would go before that one, too, unless that runs.
    const Pending& before = pending_[place - 1];
    const bool runs = place == 1 && !before.made_way && before.end - before.expected <= now;
    if (at.order < before.order && !runs) return std::nullopt;
  }
  // When the next begins, or goes on, as if nothing had been.
  const TimePoint otherwise = std::max(at.start, begins);
  at.left = ends - otherwise;
  if (at.left <= Duration{0}) return std::nullopt;
  for (std::size_t i = place; i < pending_.size(); ++i)
    if (pending_[i].due < TimePoint::max())
      at.until = std::min(at.until, pending_[i].due - (end_of(i + 1, now) - otherwise));
  return at;
}

void Executor::overtake(const Overtaking& at, ActionId id, ModelId model, Duration expected, TimePoint due) {
  CARILLON_ASSERT(at.place < pending_.size());
  Pending& next = pending_[at.place];
  if (at.evicts) {
    next.earliest = next.order = at.order + 1ns;
    next.made_way = true;
    if (!next.waits_for) {  // else it does not run before that one
      next.waits_for = id;
      next.from = at.begins;
      next.whole = next.expected;
      next.expected = at.left;
      next.soonest = at.start;
    }
  }
  pending_.insert(pending_.begin() + static_cast<std::ptrdiff_t>(at.place), Pending{.id = id,
                                                                                    .model = model,
                                                                                    .earliest = at.order,
                                                                                    .order = at.order,
                                                                                    .expected = expected,
                                                                                    .end = {},
                                                                                    .due = due,
                                                                                    .soonest = at.start});
  recompute();
}

void Executor::remove(ActionId id, TimePoint free, std::optional<TimePoint> began) {
  auto found = std::find_if(pending_.begin(), pending_.end(), [id](const Pending& p) { return p.id == id; });
  CARILLON_ASSERT(found != pending_.end());
  found = pending_.erase(found);
  // What made way for it did so when it began.
  const auto run = std::find_if(found, pending_.end(), [id](const Pending& p) { return p.waits_for == id; });
  if (run != pending_.end()) {
    run->waits_for.reset();
    if (began) {
      const Duration ran = *began - std::max(run->from, free_from_);
      run->expected = std::clamp(run->whole - ran, Duration{0}, run->whole);
      run->soonest = free;
    }
  }
  free_from_ = free;
  recompute();
}

void Executor::recompute() {
  TimePoint t = free_from_;
  for (Pending& p : pending_) {
    t = saturating_add(std::max(t, p.soonest), p.expected);
    p.end = t;
  }
}

TimePoint Executor::end_of(std::size_t count, TimePoint now) const {
  if (count == 0) return now;
  if (pending_.front().end >= now) return pending_[count - 1].end;
  TimePoint t = now;
  for (std::size_t i = 1; i < count; ++i)
    t = saturating_add(std::max(t, pending_[i].soonest), pending_[i].expected);
  return t;
}

TimePoint Executor::end_of(ActionId id, TimePoint now) const {
  for (std::size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].id == id) return end_of(i + 1, now);
  CARILLON_ASSERT(!"an action that is not pending");
}

}  // namespace carillon::schedule
