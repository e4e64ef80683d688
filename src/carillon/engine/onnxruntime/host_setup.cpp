#include "carillon/engine/second/host_setup.h"

#include <malloc.h>

namespace carillon::engine::second {

// Sessions have no arena: what a run used is given back, and the next run asks for it again. The C library
// keeps some of it meanwhile.
void set_up_process() {
  constexpr int kept = 256 << 20;
  constexpr int from_the_heap = 32 << 20;  // the most that it takes
  ::mallopt(M_TRIM_THRESHOLD, kept);
  ::mallopt(M_MMAP_THRESHOLD, from_the_heap);
}

}  // namespace carillon::engine::second
