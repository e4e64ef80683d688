#pragma once

#include <chrono>
#include <cstdint>

#include "carillon/base/time.h"

namespace carillon::frontend {

// Whole microseconds, rounded towards zero: as answers, spans and the access log tell times.
constexpr std::int64_t whole_us(Duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

}  // namespace carillon::frontend
