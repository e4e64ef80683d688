#pragma once

#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "carillon/device/class_streams.h"

namespace carillon::worker {

// Where one executor's thread runs.
struct Placement {
  int priority = 0;        // of SCHED_FIFO; 0: the normal scheduler
  std::vector<int> cores;  // empty: any
  bool idle = false;       // SCHED_IDLE: runs where nothing else wants the core, and makes way at once

  friend bool operator==(const Placement&, const Placement&) = default;
};

struct Placements {
  Placement load, input, exec, output;
  Placement urgent;                    // the stream of real-time runs
  std::vector<Placement> best_effort;  // by stream
  std::vector<std::string> notes;      // what was asked for and is not done, and why

  friend bool operator==(const Placements&, const Placements&) = default;
};

// Where the executors are to run on `cores` (those that the process may use, ascending, at least one), of
// which EXEC's kernels use `exec_threads` (>= 0; 0: all). Without `real_time` nothing is asked for.
//
// Clockwork pins each executor to a core of its own at real-time priority. That is safe only where cores are
// left over, for a real-time thread that computes keeps the network's threads off its core:
//  - INPUT and OUTPUT, microseconds each, are always real-time, above all else.
//  - EXEC is real-time, and pinned to the last `exec_threads` cores, only where that leaves a core; the other
//    executors are then pinned to the rest. Threads that EXEC's kernels start inherit both.
//  - LOAD copies for tens of milliseconds: it is real-time only where that leaves yet another core.
//
// Where there are streams by class, units are the last `exec_threads` cores, in their order. Best-effort runs
// are pinned to their unit, and idle where they are to make way (`classes` says how). Real-time ones are
// pinned only where they have fewer units than there are: else the system takes the core that is least in
// use.
Placements place_executors(std::span<const int> cores, int exec_threads, bool real_time,
                           const std::optional<device::ClassStreams>& classes = std::nullopt,
                           bool idle = true);

// The cores that the process may use, ascending.
std::vector<int> usable_cores();

// Puts the calling thread, `who` in notes, where `placement` says. What the system refuses is left as it is,
// and a note says so.
void apply(const Placement& placement, const std::string& who, std::vector<std::string>& notes);

// Of the calling thread, which is idle: to normal priority, and back where `placement` says so. False where
// the system refuses.
bool raise_priority();
// The same of another thread, which goes on.
bool raise_priority(std::thread::native_handle_type thread);
void lower_priority(const Placement& placement);

}  // namespace carillon::worker
