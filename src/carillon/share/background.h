#pragma once

#include <cstdint>

namespace carillon::share {

// All threads of a process and of those that descend from it: at SCHED_IDLE, or as any other again. At SCHED_IDLE
// they have a processor only while no other thread wants it, and give it up at once to one that does: what goes before
// them does not wait until they are frozen. Threads and processes that they make later are as they are. What cannot be
// changed (it ended, or is another user's) is passed over. True where the process itself was.
bool set_background(std::uint32_t pid, bool background);

}  // namespace carillon::share
