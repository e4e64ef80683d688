#pragma once

#include <chrono>
#include <ctime>

#include "carillon/base/time.h"

namespace carillon {

// What a system clock shows, to measure how long work takes. Decisions get their time as an argument instead.
// 0 where the system has no such clock. Safe from any thread.
inline Duration read_clock(clockid_t clock) {
  timespec at{};
  if (clock_gettime(clock, &at) != 0) return Duration{0};
  return std::chrono::seconds{at.tv_sec} + Duration{at.tv_nsec};
}

// What the calling thread has computed so far: unlike a clock it stands still while others have the core.
inline Duration thread_cpu_time() {
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}
// The same of all threads of the process together.
inline Duration process_cpu_time() {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

}  // namespace carillon
