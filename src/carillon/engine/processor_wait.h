#pragma once

#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "carillon/base/time.h"

namespace carillon::engine {

// What the system has counted of a thread since it began.
struct ThreadTimes {
  Duration ran{0};        // on a processor
  Duration waited{0};     // for a processor; what waits still is not in it
  bool runnable = false;  // now: it runs, or would if it had a processor
};

// How long the thread was without a processor that it wanted, between two looks that lie `passed` apart. From
// 0 to `passed`. A thread that is runnable at the second look is taken to have been so since the first.
Duration wait_between(const ThreadTimes& before, const ThreadTimes& after, Duration passed);

// Of the texts of /proc/PID/task/TID/schedstat and stat. Without the first (kernels that do not count), by
// the ticks in the second. Nothing where the second is not what it should be.
std::optional<ThreadTimes> parse_times(std::string_view schedstat, std::string_view stat);

// Tells a thread that is slow because others have the processors from one that hangs. Reads /proc; where that
// cannot be read, nobody waits. Not thread-safe.
class ProcessorWait {
 public:
  // `process`: 0 for this one.
  explicit ProcessorWait(pid_t process = 0) : process_(process) {}

  // How long that one of `threads` was without a processor that lacked one for longest, since the last call.
  // A thread that the last call did not name has waited for nothing. `now` never goes back. About 20 us a
  // thread.
  Duration longest(std::span<const pid_t> threads, TimePoint now);
  // Of all threads that the process has.
  Duration longest_of_all(TimePoint now);

 private:
  pid_t process_;
  TimePoint looked_ = TimePoint::min();
  std::map<pid_t, ThreadTimes> seen_, seeing_;
};

}  // namespace carillon::engine
