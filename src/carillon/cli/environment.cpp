#include "carillon/cli/environment.h"

#include <cstdlib>

#include <malloc.h>

namespace carillon::cli {

void prepare_environment() {
  // Bodies and tensors come and go in bursts. glibc's own threshold grows with the first that is freed, and
  // from then on a burst stays in the arenas, between small blocks that outlive it; mapped, it goes back to
  // the system.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

Result<cluster::Protocols> protocols_of_environment() {
  const char* const text = std::getenv("CARILLON_PROTOCOLS");
  if (text == nullptr || *text == '\0') return cluster::own_protocols;
  auto protocols = cluster::parse_protocols(text);
  if (!protocols) return in_context("CARILLON_PROTOCOLS", std::move(protocols.error()));
  // A datagram has a byte for it.
  if (protocols->newest > 255) return invalid("CARILLON_PROTOCOLS: 255 is the last");
  return protocols;
}

}  // namespace carillon::cli
