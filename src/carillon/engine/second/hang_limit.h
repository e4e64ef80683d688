#pragma once

#include <algorithm>

#include "carillon/base/time.h"
#include "carillon/engine/second/messages.h"

namespace carillon::engine::second {

// When a process that is waited for counts as one that hangs: after it could have worked for `limit`. The
// time in which its threads, or the waiting one, had no processor does not count.
//
// The rule alone; has no clock. Not thread-safe.
class HangLimit {
 public:
  explicit HangLimit(Duration limit) : left_(limit) {}

  // `passed` since the last look, of which one of the process's threads was without a processor for
  // `starved`. Looks are meant to lie look_every_ms apart: what they lie further apart the looking thread was
  // kept. False: it hangs.
  bool looked(Duration passed, Duration starved) {
    constexpr Duration longest = 2 * std::chrono::milliseconds{look_every_ms};
    left_ -= std::clamp(passed - starved, Duration{0}, longest);
    return left_ > Duration{0};
  }

 private:
  Duration left_;
};

}  // namespace carillon::engine::second
