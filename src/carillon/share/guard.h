#pragma once

#include <atomic>
#include <cstdint>

#include <sys/types.h>

#include "carillon/base/descriptor.h"
#include "carillon/base/result.h"

namespace carillon::share {

// Lets go on whom a broker had stopped when it was killed. A process of its own, which does nothing but wait for the
// broker's end (its end of a pipe closes) and then sends SIGCONT to those that stand in a table that both map. It costs
// the broker a store for each process that is stopped or goes on.
//
// One thread.
class Guard {
 public:
  static constexpr std::uint32_t most = 65536;  // processes; what is stopped beyond is not guarded
  static constexpr std::uint32_t none = most;

  // Starts the process: early, as it shares the memory that there is by then. Errors: there can be none.
  static Result<Guard> start();
  Guard() = default;  // guards nobody
  ~Guard();  // whoever still stands in the table goes on; waits for the process
  Guard(Guard&& other) noexcept;
  Guard& operator=(Guard&& other) noexcept;

  // Before a process is stopped; `none` where there is no room.
  std::uint32_t watch(std::uint32_t pid);
  // After it goes on, or is gone.
  void forget(std::uint32_t place);
  pid_t process() const { return process_; }

 private:
  struct Table {
    std::atomic<std::uint32_t> pids[most];
  };
  Table* table_ = nullptr;
  Descriptor alive_;  // nothing is ever written
  pid_t process_ = -1;
  std::uint32_t next_ = 0;
};

}  // namespace carillon::share
