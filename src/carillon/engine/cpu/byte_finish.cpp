#include "carillon/engine/cpu/byte_finish.h"

#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "carillon/graph/plain/quantised.h"

namespace carillon::engine::cpu::panels {

#if defined(__x86_64__)
namespace {

#define CARILLON_AVX2 __attribute__((target("avx2,fma")))
CARILLON_AVX2 inline __m256i eight_at(const std::int32_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
CARILLON_AVX2 inline __m256i less_zeros(const Finish& f, __m256i sum, std::int64_t r, std::int64_t c) {
  const __m256i of_row = _mm256_set1_epi32(static_cast<std::int32_t>(f.row_sums[r] - f.of_row));
  return _mm256_sub_epi32(sum, _mm256_mullo_epi32(of_row, eight_at(f.zeros + c)));
}
CARILLON_AVX2 inline __m256i whole_at(const Finish& f, std::int64_t r, std::int64_t c) {
  const __m256i sum = _mm256_sub_epi32(eight_at(f.sums + r * f.columns + c), eight_at(f.less + c));
  return f.zeros == nullptr ? sum : less_zeros(f, sum, r, c);
}
CARILLON_AVX2 inline __m256 real_at(const Finish& f, std::int64_t r, std::int64_t c) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole_at(f, r, c)), _mm256_load_ps(f.units + c),
                         _mm256_load_ps(f.biases + c));
}
// What sixteen columns have in common.
struct Columns16 {
  __m256i less[2];
  __m256 units[2], biases[2];
};
// Sixteen columns of a row in 16 bits, in the order that packing leaves them. As bytes are made elsewhere
// (plain/quantised.cpp): what is beyond a byte becomes the nearest, NaN the smallest, as which it is
// converted.
CARILLON_AVX2 inline __m256i rounded_at(const Finish& f, const Columns16& columns, std::int64_t r,
                                        std::int64_t c) {
  __m256i made[2];
  for (std::int64_t v = 0; v < 2; ++v) {
    __m256i sum = _mm256_sub_epi32(eight_at(f.sums + r * f.columns + c + 8 * v), columns.less[v]);
    if (f.zeros != nullptr) sum = less_zeros(f, sum, r, c + 8 * v);
    const __m256 real = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), columns.units[v], columns.biases[v]);
    made[v] = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(0x1p20F), real));
  }
  return _mm256_adds_epi16(_mm256_packs_epi32(made[0], made[1]),
                           _mm256_set1_epi16(static_cast<std::int16_t>(f.y_zero)));
}
// Bytes, two rows at a time. `f` is a copy, as the bytes that are written might else be its own.
template <typename To>
CARILLON_AVX2 void finish_bytes(const Finish f, To* to, std::int64_t step) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (std::int64_t c = 0; c < f.columns; c += 16) {
    const Columns16 columns{{eight_at(f.less + c), eight_at(f.less + c + 8)},
                            {_mm256_load_ps(f.units + c), _mm256_load_ps(f.units + c + 8)},
                            {_mm256_load_ps(f.biases + c), _mm256_load_ps(f.biases + c + 8)}};
    for (std::int64_t r = 0; r < f.rows; r += 2) {
      const bool two = r + 1 < f.rows;
      const __m256i one = rounded_at(f, columns, r, c), other = two ? rounded_at(f, columns, r + 1, c) : one;
      const __m256i both = _mm256_permutevar8x32_epi32(
          std::is_signed_v<To> ? _mm256_packs_epi16(one, other) : _mm256_packus_epi16(one, other), order);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + r * step + c), _mm256_castsi256_si128(both));
      if (two)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (r + 1) * step + c),
                         _mm256_extracti128_si256(both, 1));
    }
  }
}

template <typename To>
CARILLON_AVX2 void finish_all(const Finish& f, To* to, std::int64_t step) {
  if constexpr (sizeof(To) == 1) {
    finish_bytes(f, to, step);
    return;
  }
  for (std::int64_t r = 0; r < f.rows; ++r, to += step)
    for (std::int64_t c = 0; c < f.columns; c += 16) {
      if constexpr (std::is_same_v<To, std::int32_t>) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c), whole_at(f, r, c));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c + 8), whole_at(f, r, c + 8));
      } else if constexpr (std::is_same_v<To, float>) {
        _mm256_storeu_ps(to + c, real_at(f, r, c));
        _mm256_storeu_ps(to + c + 8, real_at(f, r, c + 8));
      }
    }
}

}  // namespace
#else
namespace {

template <typename To>
void finish_all(const Finish&, To*, std::int64_t) {}

}  // namespace
#endif

void finish(const Finish& f, std::int32_t* to, std::int64_t step) {
  finish_all(f, to, step);
}
void finish(const Finish& f, float* to, std::int64_t step) {
  finish_all(f, to, step);
}
void finish(const Finish& f, std::uint8_t* to, std::int64_t step) {
  finish_all(f, to, step);
}
void finish(const Finish& f, std::int8_t* to, std::int64_t step) {
  finish_all(f, to, step);
}

namespace {

template <typename Op>
[[gnu::always_inline]] inline void with_operand(const ByteProduct::After& after, const float* operand,
                                                float* to, std::int64_t count, Op op) {
  if (after.column_step == 0) {
    const float all = *operand;
    for (std::int64_t c = 0; c < count; ++c) to[c] = op(to[c], all);
  } else {
    for (std::int64_t c = 0; c < count; ++c) to[c] = op(to[c], operand[c]);
  }
}

}  // namespace

CARILLON_WIDE void apply(const ByteProduct::After& after, const float* operand, float* to,
                         std::int64_t count) {
  using Kind = ByteProduct::After::Kind;
  switch (after.kind) {
    case Kind::add:
      return with_operand(after, operand, to, count, [](float a, float b) { return a + b; });
    case Kind::mul:
      return with_operand(after, operand, to, count, [](float a, float b) { return a * b; });
    case Kind::at_most:
      return with_operand(after, operand, to, count, [](float a, float b) { return a < b ? a : b; });
    case Kind::at_least:
      return with_operand(after, operand, to, count, [](float a, float b) { return a > b ? a : b; });
    // NaN stays, here and below.
    case Kind::relu:
      for (std::int64_t c = 0; c < count; ++c) to[c] = to[c] < 0 ? 0 : to[c];
      return;
    case Kind::clip:
      for (std::int64_t c = 0; c < count; ++c) {
        const float above = to[c] < after.low ? after.low : to[c];
        to[c] = above > after.high ? after.high : above;
      }
      return;
  }
}

}  // namespace carillon::engine::cpu::panels
