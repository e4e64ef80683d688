#include "carillon/cli/environment.h"

#include <malloc.h>

namespace carillon::cli {

void prepare_environment() {
  // Bodies and tensors come and go in bursts. glibc's own threshold grows with the first that is freed, and
  // from then on a burst stays in the arenas, between small blocks that outlive it; mapped, it goes back to
  // the system.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

}  // namespace carillon::cli
