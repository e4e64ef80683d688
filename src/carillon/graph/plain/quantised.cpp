#include "carillon/graph/plain/quantised.h"

#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Compilers make poor vector code of these loops, as they keep to the letter where comparisons meet NaN: here
// it is written out for AVX2, which serves processors with AVX-512 as well. The plain loops are for the rest
// of the elements, and for other processors.
namespace carillon::graph::plain {
namespace {

template <typename T>
[[gnu::always_inline]] inline float real(T value, const Scaled& s) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else
    return static_cast<float>(static_cast<std::int32_t>(value) - s.zero) * s.scale;
}

template <typename B, typename Y>
void combine_rest(const Combined& how, const Y* a, const B* b, Y* y, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = first; i < count; ++i) {
    const float left = real(a[i], how.a), right = real(b[how.one ? 0 : i], how.b);
    y[i] = quantised<Y>((how.kind == Arithmetic::add ? left + right : left * right) * how.inverse, how.zero);
  }
}

#if defined(__x86_64__)
#define CARILLON_AVX2 __attribute__((target("avx2")))

bool has_avx2() {
  static const bool found = __builtin_cpu_supports("avx2") != 0;
  return found;
}

constexpr std::int64_t eight = 8, step = 32;

// Whole numbers near these, NaN taken for the smallest: of two operands maxps gives the second then.
CARILLON_AVX2 inline __m256i rounded(__m256 value, __m256i zero) {
  const __m256 above = _mm256_max_ps(value, _mm256_set1_ps(-0x1p20F));
  return _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_min_ps(above, _mm256_set1_ps(0x1p20F))), zero);
}
// 32 bytes of 32 whole numbers, as near as bytes come.
template <typename To>
CARILLON_AVX2 inline void store_bytes(To* to, const __m256i (&whole)[4]) {
  const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
  const __m256i mixed = std::is_signed_v<To> ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
  // Packing goes by halves of vectors.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(mixed, order));
}
template <typename T>
CARILLON_AVX2 inline __m256 load_real(const T* from, __m256 scale, __m256i zero) {
  if constexpr (std::is_same_v<T, float>) {
    return _mm256_loadu_ps(from);
  } else {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const __m256i whole = std::is_signed_v<T> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(whole, zero)), scale);
  }
}

template <typename To>
CARILLON_AVX2 std::int64_t quantise_vectors(const float* x, To* y, std::int64_t count, float scale,
                                            std::int32_t zero) {
  const __m256 unit = _mm256_set1_ps(scale);
  const __m256i at_zero = _mm256_set1_epi32(zero);
  std::int64_t i = 0;
  for (; i + step <= count; i += step) {
    __m256i whole[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      whole[v] = rounded(_mm256_div_ps(_mm256_loadu_ps(x + i + v * eight), unit), at_zero);
    store_bytes(y + i, whole);
  }
  return i;
}

template <Arithmetic kind, typename B, typename Y>
CARILLON_AVX2 std::int64_t combine_vectors(const Combined& how, const Y* a, const B* b, Y* y,
                                           std::int64_t count) {
  const __m256 a_scale = _mm256_set1_ps(how.a.scale), b_scale = _mm256_set1_ps(how.b.scale),
               inverse = _mm256_set1_ps(how.inverse);
  const __m256i a_zero = _mm256_set1_epi32(how.a.zero), b_zero = _mm256_set1_epi32(how.b.zero),
                y_zero = _mm256_set1_epi32(how.zero);
  const bool one = how.one;
  const __m256 single = one ? _mm256_set1_ps(real(*b, how.b)) : _mm256_setzero_ps();
  std::int64_t i = 0;
  for (; i + step <= count; i += step) {
    __m256i whole[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256 left = load_real(a + i + v * eight, a_scale, a_zero);
      const __m256 right = one ? single : load_real(b + i + v * eight, b_scale, b_zero);
      const __m256 both = kind == Arithmetic::add ? _mm256_add_ps(left, right) : _mm256_mul_ps(left, right);
      whole[v] = rounded(_mm256_mul_ps(both, inverse), y_zero);
    }
    store_bytes(y + i, whole);
  }
  return i;
}
#undef CARILLON_AVX2
#else
bool has_avx2() {
  return false;
}
template <typename To>
std::int64_t quantise_vectors(const float*, To*, std::int64_t, float, std::int32_t) {
  return 0;
}
template <Arithmetic kind, typename B, typename Y>
std::int64_t combine_vectors(const Combined&, const Y*, const B*, Y*, std::int64_t) {
  return 0;
}
#endif

template <typename To>
void quantise(const float* x, To* y, std::int64_t count, float scale, std::int32_t zero) {
  for (std::int64_t i = has_avx2() ? quantise_vectors(x, y, count, scale, zero) : 0; i < count; ++i)
    y[i] = quantised<To>(x[i] / scale, zero);
}

template <typename B, typename Y>
void combine(const Combined& how, const Y* a, const B* b, Y* y, std::int64_t count) {
  std::int64_t first = 0;
  if (has_avx2() && count > 0)
    first = how.kind == Arithmetic::add ? combine_vectors<Arithmetic::add>(how, a, b, y, count)
                                        : combine_vectors<Arithmetic::mul>(how, a, b, y, count);
  combine_rest(how, a, b, y, first, count);
}

}  // namespace

void quantise_all(const float* x, std::uint8_t* y, std::int64_t count, float scale, std::int32_t zero) {
  quantise(x, y, count, scale, zero);
}
void quantise_all(const float* x, std::int8_t* y, std::int64_t count, float scale, std::int32_t zero) {
  quantise(x, y, count, scale, zero);
}

void combine_all(const Combined& how, const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* y,
                 std::int64_t count) {
  combine(how, a, b, y, count);
}
void combine_all(const Combined& how, const std::int8_t* a, const std::int8_t* b, std::int8_t* y,
                 std::int64_t count) {
  combine(how, a, b, y, count);
}
void combine_all(const Combined& how, const std::uint8_t* a, const float* b, std::uint8_t* y,
                 std::int64_t count) {
  combine(how, a, b, y, count);
}
void combine_all(const Combined& how, const std::int8_t* a, const float* b, std::int8_t* y,
                 std::int64_t count) {
  combine(how, a, b, y, count);
}

}  // namespace carillon::graph::plain
