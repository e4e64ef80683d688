#pragma once

#include <chrono>
#include <cstddef>

#include "carillon/base/time.h"

namespace carillon::frontend {

// How long a client may need to take an answer of `bytes` bytes: `base`, and a second for each 256 KiB.
inline Duration transfer_time(Duration base, std::size_t bytes) {
  return base + std::chrono::seconds(bytes >> 18);
}

}  // namespace carillon::frontend
