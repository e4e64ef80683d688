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

// Rounds count numbers x / scale to bytes, as quantised() does.
void quantise_all(const float* x, std::uint8_t* y, std::int64_t count, float scale, std::int32_t zero);
void quantise_all(const float* x, std::int8_t* y, std::int64_t count, float scale, std::int32_t zero);

// What bytes stand for: the real (x - zero) * scale.
struct Scaled {
  float scale = 1;
  std::int32_t zero = 0;
};
// Sums or products of reals that bytes stand for, as bytes again: (a + b) * inverse or a * b * inverse. The
// right operand is bytes, or real where T is float; with `one` it is a single element for all.
enum class Arithmetic : std::uint8_t { add, mul };
struct Combined {
  Arithmetic kind = Arithmetic::add;
  Scaled a, b;
  float inverse = 1;      // of the result's scale
  std::int32_t zero = 0;  // the result's
  bool one = false;
};
void combine_all(const Combined& how, const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* y,
                 std::int64_t count);
void combine_all(const Combined& how, const std::int8_t* a, const std::int8_t* b, std::int8_t* y,
                 std::int64_t count);
void combine_all(const Combined& how, const std::uint8_t* a, const float* b, std::uint8_t* y,
                 std::int64_t count);
void combine_all(const Combined& how, const std::int8_t* a, const float* b, std::int8_t* y,
                 std::int64_t count);

}  // namespace carillon::graph::plain
