#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "carillon/base/clock.h"

namespace carillon {

// Who does the work of a loop that has an inbox: the loop's thread, or a thread that brings work while
// nobody is at it. That thread need not wait until another one wakes. One thread has the turn at a time.
//
// All functions are called with the inbox's mutex. `clock` outlives this.
class Turns {
 public:
  explicit Turns(const Clock& clock) : clock_(clock) {}

  // False: another thread has the turn, and looks into the inbox once more when it is done.
  [[nodiscard]] bool take() { return !std::exchange(taken_, true); }
  // `more`: the inbox is not empty, or the loop is to end. `next`: when there is work without the inbox.
  void give_back(bool more = false, TimePoint next = TimePoint::max()) {
    taken_ = false;
    if (more || next < sleeps_until_) wake_.notify_one();
  }
  // For whoever leaves the work to the loop's thread.
  void nudge() {
    if (!taken_) wake_.notify_one();
  }
  // The loop's thread, without the turn: until then at most, or until it is woken.
  void sleep(std::unique_lock<std::mutex>& lock, TimePoint until = TimePoint::max()) {
    const TimePoint now = clock_.now();
    if (until <= now) return;
    sleeps_until_ = until;
    // At most a minute, so that no sum of times overflows.
    if (until == TimePoint::max())
      wake_.wait(lock);
    else
      wake_.wait_for(lock, std::min<Duration>(until - now, std::chrono::minutes{1}));
    sleeps_until_ = TimePoint::min();
  }

 private:
  const Clock& clock_;
  std::condition_variable wake_;
  bool taken_ = false;
  TimePoint sleeps_until_ = TimePoint::min();  // min: the loop's thread does not sleep
};

}  // namespace carillon
