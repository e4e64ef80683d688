#pragma once

#include "carillon/base/time.h"

namespace carillon {

// Where a shell (worker, controller, frontend) reads the time; never used by what decides. Safe from any
// thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override {
    return TimePoint{
        std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
  }
};

// A clock for tests, set by hand. Not for use by several threads while it is being set.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void set(TimePoint t) { now_ = t; }
  void advance(Duration d) { now_ += d; }

 private:
  TimePoint now_{};
};

}  // namespace carillon
