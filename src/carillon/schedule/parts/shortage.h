#pragma once

#include <cstddef>

#include "carillon/schedule/parts/backlog.h"
#include "carillon/schedule/parts/plan.h"

namespace carillon::schedule::parts {

// Whether devices are short: the rates ask for more than all devices have, or more work waits than fits into
// the time that it has left. O(1). Not thread-safe.
class Shortage {
 public:
  explicit Shortage(const Plan& plan) : plan_(plan) {}

  // See Backlog::set(). Without such calls only the rates count.
  void waits(std::size_t line, std::size_t rows, double work, TimePoint deadline, TimePoint now) {
    backlog_.set(line, rows, work, deadline, now);
  }
  // Looks whether devices are short. They are taken to be so until the next call.
  void find(std::size_t devices, TimePoint now) {
    pressed_ = plan_.contention() >= 1 || backlog_.pressed(devices, now);
  }
  bool pressed() const { return pressed_; }
  // The chance that a batch finds all devices busy.
  double contention() const { return pressed_ ? 1 : plan_.contention(); }
  // Device time of a request, seconds on average: of all by the rates, or of those that wait where only these
  // are too many.
  double each() const { return plan_.contention() >= 1 || !pressed_ ? plan_.each() : backlog_.each(); }
  const Backlog& backlog() const { return backlog_; }

 private:
  const Plan& plan_;
  Backlog backlog_;
  bool pressed_ = false;
};

}  // namespace carillon::schedule::parts
