#pragma once

#include <chrono>
#include <thread>

#include "carillon/base/time.h"
#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// Waits until a stream's work is done, for `longest` at most: not_ready where it is not by then. Zero: as
// long as it takes. Nothing ends a kernel from outside: one whose blocks wait for each other runs for ever
// where it has too few processors, and waiting for it would, too.
inline Status wait_for(const Driver& driver, Stream stream, Duration longest) {
  if (longest <= Duration{0}) return driver.stream_synchronize(stream);
  const auto until = std::chrono::steady_clock::now() + longest;
  Status status = driver.stream_query(stream);
  while (status == not_ready && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
    status = driver.stream_query(stream);
  }
  return status;
}

}  // namespace carillon::engine::cuda
