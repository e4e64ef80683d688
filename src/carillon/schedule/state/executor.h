#pragma once

#include <cstddef>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"

namespace carillon::schedule {

// The mirror of one of a worker's executors: what was sent to it and not yet reported, in the order in which
// it will run (by earliest start, then id), and when each is expected to end.
class Executor {
 public:
  struct Pending {
    ActionId id;
    ModelId model;
    TimePoint earliest;
    Duration expected;
    TimePoint end;  // expected, as seen when the queue last changed
  };

  const std::vector<Pending>& pending() const { return pending_; }
  bool idle() const { return pending_.empty(); }

  // Sends an action; earliest is not before the time of sending. O(pending).
  void push(ActionId id, ModelId model, TimePoint earliest, Duration expected);

  // An action was reported: what follows it moves up or back, and starts at `free` at the soonest.
  void remove(ActionId id, TimePoint free);
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

  // The latest `earliest` of what was sent: an action with a later one keeps its place in the order.
  TimePoint last_earliest() const { return pending_.empty() ? TimePoint::min() : pending_.back().earliest; }

 private:
  TimePoint end_of(std::size_t count, TimePoint now) const;
  void recompute();

  std::vector<Pending> pending_;
  TimePoint free_from_ = TimePoint::min();
};

}  // namespace carillon::schedule
