#pragma once

#include <cstdint>
#include <limits>

#include "carillon/graph/plain/number.h"

// Numbers in bytes: rounding to them, for the kernels that share it.
namespace carillon::graph::plain {

using Bytes8 = Types<std::uint8_t, std::int8_t>;

// Loops over many elements, compiled for the processors that there are and chosen when the program starts:
// the rest of the program is built for any x86-64.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CARILLON_WIDE __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CARILLON_WIDE
#endif

// The nearest To to `value` + `zero`, ties to even. NaN is taken for the smallest.
template <typename To>
[[gnu::always_inline]] inline To quantised(float value, std::int32_t zero) {
  // Between these bounds adding and taking away the constant rounds, in vector code as well; any To lies well
  // inside, whatever the zero point.
  constexpr float bound = 0x1p20F;
  constexpr float round = 0x1.8p23F;
  const float above = value > -bound ? value : -bound;
  const float bounded = above < bound ? above : bound;
  const std::int32_t whole = static_cast<std::int32_t>((bounded + round) - round) + zero;
  constexpr std::int32_t low = std::numeric_limits<To>::min();
  constexpr std::int32_t high = std::numeric_limits<To>::max();
  return static_cast<To>(whole < low ? low : whole > high ? high : whole);
}

}  // namespace carillon::graph::plain
