#pragma once

#include <cstddef>

// What stands in for libc's allocator: large blocks come from two heaps, `own`, private memory, and `lane`,
// the memfd that jobs of a lane use in turn. Which of the two: blocks that the training thread takes within
// an iteration, and that are not expected to outlive it, come from the lane.
#pragma GCC visibility push(hidden)
namespace carillon::share::client {

// Large blocks come from the heaps from now on. False: no range of addresses is free. Under me.lock.
bool start_heaps();

}  // namespace carillon::share::client
#pragma GCC visibility pop
