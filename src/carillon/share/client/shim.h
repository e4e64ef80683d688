#pragma once

#include <cstdint>

#include "carillon/share/client/keeper.h"

// What Python calls (python/carillon/_shim.py) in the preloaded library. All but the first three are called by the
// thread that trains, and none while another of them runs.
extern "C" {

struct carillon_counters_t {
  std::uint64_t signals, boundaries, iterations, busy_ns;
  std::uint64_t holds, rescued, rescued_bytes;   // survivors that were copied out of the lane
  std::uint64_t lane_blocks, lane_bytes;         // allocations so far in the lane; its size
  std::uint64_t own_live, lane_live, ephemeral;  // bytes
  std::uint64_t asks, forks, attached, certain;
};

// Large blocks come from a heap that is counted, from now on. 0: done.
int carillon_prepare();
void carillon_counters(carillon_counters_t* out);
// A text for people about the last failure.
const char* carillon_why();

// Says hello. 0: done; the job must be held next. Else what `Answer` says.
int carillon_attach(const char* socket, const char* run, const char* name, std::uint32_t threads,
                    std::uint64_t persistent, std::uint64_t ephemeral, std::uint64_t remaining_ns, double weight,
                    double reattach_seconds);
// A signal of the script (share/client/chooser.h). An Answer.
int carillon_signal(std::uint32_t kind, std::uint64_t which);
// Out of the lane; to be called with the interpreter locked, so that nobody else starts to write into it.
void carillon_leave_lane();
// Waits for a grant; to be called with the interpreter free.
int carillon_wait();
// Whether the job is in its lane now, and that is memory of its keeper's device (keeper.h).
int carillon_in_lane();
void carillon_remaining(std::uint64_t nanoseconds);
void carillon_bye();
}

namespace carillon::share::client {

enum Answer : int {
  go_on = 0,
  hold = 1,         // call carillon_leave_lane() and carillon_wait()
  not_attached = 2,
  ended = 3,        // refused or evicted: carillon_why()
  interrupted = 4,  // a signal's handler ran, or may have before the wait began: call carillon_wait() again
  nobody = 5,       // no broker, or another version: carillon_why()
  follows = 6,      // another process of this run is its job
  alone = 7         // it goes on without a broker: carillon_why() says why, once
};

}  // namespace carillon::share::client
