#include "carillon/share/lending.h"

#include <algorithm>

namespace carillon::share {
namespace {

std::int64_t ns(TimePoint at) { return std::max<std::int64_t>(at.time_since_epoch().count(), 0); }
TimePoint at(std::int64_t ns) { return TimePoint(Duration(ns)); }

}  // namespace

// Each side writes its own word, then reads the other's (sequentially consistent): so one of them sees both.
bool Lending::told(std::optional<TimePoint> free_until, TimePoint now) {
  if (!free_until) {
    if (free_since_.load(std::memory_order_relaxed) == wanted) return false;
    free_since_.store(wanted);
    return phase_.load() == Phase::lent;
  }
  free_until_.store(ns(*free_until));
  if (free_since_.load(std::memory_order_relaxed) != wanted) return false;
  free_since_.store(ns(now));
  return phase_.load() == Phase::busy;
}

Lending::Look Lending::look(bool anybody, TimePoint now) {
  const bool had = lent();
  if (!anybody) {
    phase_.store(Phase::quiet);
    return {.change = had ? Change::take_back : Change::none};
  }
  // Once more after each phase that is left to told(), as it may have said the opposite just before.
  for (;;) {
    const std::int64_t since = free_since_.load();
    if (since == wanted) {
      phase_.store(Phase::busy);
      if (free_since_.load() == wanted) return {.change = had ? Change::take_back : Change::none};
      continue;
    }
    if (had && lent()) return {.until = at(free_until_.load())};
    const TimePoint until = at(free_until_.load());
    const TimePoint due = saturating_add(at(since), rest_);
    if (now < due || until <= saturating_add(now, rest_)) {
      phase_.store(Phase::settling);
      return {.change = had ? Change::take_back : Change::none,
              .next = now < due ? due : saturating_add(std::max(until, now), rest_)};
    }
    phase_.store(Phase::lent);
    if (free_since_.load() == since) return {.change = had ? Change::none : Change::lend, .until = until};
  }
}

}  // namespace carillon::share
