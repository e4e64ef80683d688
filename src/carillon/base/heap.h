#pragma once

namespace carillon {

// Gives freed memory back to the system, which the allocator would keep. Looks through the whole heap, which
// takes milliseconds where it is large. From any thread.
void trim_heap();
// From now on trim_heap() does nothing: the process is about to end, and gives back all it has.
void stop_trimming_heap();

}  // namespace carillon
