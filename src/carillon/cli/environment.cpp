#include "carillon/cli/environment.h"

#include <cstdlib>

#include <malloc.h>
#include <unistd.h>

namespace carillon::cli {

void prepare_environment(int /*argc*/, char** argv) {
  // Bodies and tensors come and go in bursts. glibc's own threshold grows with the first that is freed, and
  // from then on a burst stays in the arenas, between small blocks that outlive it; mapped, it goes back to
  // the system.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  // libgomp reads these once, before main. By default its threads spin for milliseconds after each parallel
  // region, on the cores that the network needs; with a short spin (measured: 1000) they still meet the next
  // kernel awake.
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "1000", 1);
  execv("/proc/self/exe", argv);  // where that fails, the default will do
}

}  // namespace carillon::cli
