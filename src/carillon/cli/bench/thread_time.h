#pragma once

#include <chrono>
#include <ctime>

#include "carillon/base/time.h"

namespace carillon::cli {

// Of the calling thread, so far.
inline Duration thread_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds{t.tv_sec} + Duration{t.tv_nsec};
}

}  // namespace carillon::cli
