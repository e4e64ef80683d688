#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::schedule {

// What goes first has its window open by the device's clock, too, however much that may be behind.
inline constexpr Duration any_clock = 1s;

// How an action that is sent now may go before some that were sent already.
struct Overtaking {
  std::size_t place = 0;  // its place among them
  TimePoint start;        // when it can start
  TimePoint until;        // when it has to have ended, so that none of them comes to be late
  TimePoint order;        // its `earliest`. The next, where that makes way, has the next nanosecond
  TimePoint begins;       // the next, or did, were it not for this one
  Duration left{0};       // of the next, when it starts
  bool evicts = false;    // the next runs then, and makes way
};

// The mirror of one of a worker's executors: what was sent to it and not yet reported, in the order in which
// it will run (by the earliest start that the device was told, then id), and when each is expected to end.
class Executor {
 public:
  struct Pending {
    ActionId id;
    ModelId model;
    TimePoint earliest;
    TimePoint order;    // the `earliest` that the device was told: it knows no way there
    Duration expected;  // of what is left of it
    TimePoint end;      // expected, as seen when the queue last changed
    TimePoint due;      // when it has to have ended
    TimePoint soonest;  // it starts, or goes on
    bool made_way = false;
    // It makes way for that one, whose report tells how much of `whole` was left then: it ran from `from` on.
    std::optional<ActionId> waits_for;
    TimePoint from;
    Duration whole{0};
  };

  const std::vector<Pending>& pending() const { return pending_; }
  bool idle() const { return pending_.empty(); }

  // Sends an action; earliest is not before the time of sending, nor before what the device is told, `order`
  // (none: the same). O(pending).
  void push(ActionId id, ModelId model, TimePoint earliest, Duration expected,
            TimePoint due = TimePoint::max(), std::optional<TimePoint> order = std::nullopt);

  // Whether one that is there at `soonest` may go before all from `place` on, the next of which makes way
  // within `kernel` where it runs then. None where there is no such place, where the next is overdue, or has
  // ended by then, or where there is no order between it and the one before. O(pending^2).
  std::optional<Overtaking> overtaking(std::size_t place, TimePoint soonest, Duration kernel,
                                       TimePoint now) const;
  // Sends an action so. O(pending).
  void overtake(const Overtaking& at, ActionId id, ModelId model, Duration expected, TimePoint due);

  // An action was reported: what follows it moves up or back, and starts at `free` at the soonest. Where it
  // ran, it did from `began` on.
  void remove(ActionId id, TimePoint free, std::optional<TimePoint> began = std::nullopt);
  // That of the last one that was reported; TimePoint::min() before the first.
  TimePoint free_from() const { return free_from_; }

  // When everything sent so far is expected to have ended, seen at `now`: at least `now`. An action that is
  // overdue is taken to end now.
  TimePoint free_at(TimePoint now) const { return end_of(pending_.size(), now); }

  // The same as it looked when the queue last changed: not later than free_at() at any time since, and the
  // same unless something is overdue. TimePoint::min() where it is idle.
  TimePoint expected_end() const { return pending_.empty() ? TimePoint::min() : pending_.back().end; }

  // When `id` is expected to have ended, seen at `now`; it must be pending.
  TimePoint end_of(ActionId id, TimePoint now) const;

  // The first action should have ended before `now`: only its result will tell more.
  bool overdue(TimePoint now) const { return !pending_.empty() && pending_.front().end < now; }

  // The latest `order` of what was sent. An action that is sent with this order, or a later one, runs last.
  TimePoint last_order() const { return pending_.empty() ? TimePoint::min() : pending_.back().order; }

 private:
  TimePoint end_of(std::size_t count, TimePoint now) const;
  void recompute();

  std::vector<Pending> pending_;
  TimePoint free_from_ = TimePoint::min();
};

}  // namespace carillon::schedule
