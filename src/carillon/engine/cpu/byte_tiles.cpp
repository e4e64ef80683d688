#include "carillon/engine/cpu/byte_tiles.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace carillon::engine::cpu::panels {

#if defined(__x86_64__)
namespace {

#define CARILLON_AVX2 __attribute__((target("avx2,fma")))
#define CARILLON_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define CARILLON_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

inline std::int32_t four_bytes(const std::byte* from) {
  std::int32_t four = 0;
  std::memcpy(&four, from, sizeof four);
  return four;
}

// Asks for the weights of a step a page ahead, as the processor's own look-ahead ends with the page. (Steps
// of a decoder, whose weights come from memory, took 6 to 27% less time so, AVX2.)
template <std::int64_t bytes>
inline void ask_ahead(const std::byte* weights) {
  constexpr std::int64_t page = 4096;
  for (std::int64_t at = 0; at < bytes; at += line) _mm_prefetch(weights + page + at, _MM_HINT_T0);
}

// The vectors of a level, and what is done with them.
struct Avx2 {
  using Vector = __m256i;
  static constexpr std::int64_t bytes = 32;
  CARILLON_AVX2 static Vector zero() { return _mm256_setzero_si256(); }
  CARILLON_AVX2 static Vector ones() { return _mm256_set1_epi16(1); }
  CARILLON_AVX2 static Vector all(std::int32_t value) { return _mm256_set1_epi32(value); }
  CARILLON_AVX2 static Vector load(const std::byte* at) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  }
  CARILLON_AVX2 static Vector load_sums(const std::int32_t* at) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  }
  // Of each two bytes one, as 16 bits.
  CARILLON_AVX2 static Vector firsts(Vector bytes) {
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
  }
  CARILLON_AVX2 static Vector seconds(Vector bytes) { return _mm256_srai_epi16(bytes, 8); }
  CARILLON_AVX2 static void store(std::int32_t* at, Vector value) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(at), value);
  }
  CARILLON_AVX2 static Vector neighbours(Vector x, Vector w) { return _mm256_maddubs_epi16(x, w); }
  CARILLON_AVX2 static Vector pairs(Vector a, Vector b) { return _mm256_madd_epi16(a, b); }
  CARILLON_AVX2 static Vector add16(Vector a, Vector b) { return _mm256_add_epi16(a, b); }
  CARILLON_AVX2 static Vector add32(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
};
struct Avx512 {
  using Vector = __m512i;
  static constexpr std::int64_t bytes = 64;
  CARILLON_AVX512 static Vector zero() { return _mm512_setzero_si512(); }
  CARILLON_AVX512 static Vector ones() { return _mm512_set1_epi16(1); }
  CARILLON_AVX512 static Vector all(std::int32_t value) { return _mm512_set1_epi32(value); }
  CARILLON_AVX512 static Vector load(const std::byte* at) { return _mm512_load_si512(at); }
  CARILLON_AVX512 static Vector load_sums(const std::int32_t* at) { return _mm512_load_si512(at); }
  CARILLON_AVX512 static Vector firsts(Vector bytes) {
    return _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
  }
  CARILLON_AVX512 static Vector seconds(Vector bytes) { return _mm512_srai_epi16(bytes, 8); }
  CARILLON_AVX512 static void store(std::int32_t* at, Vector value) { _mm512_store_si512(at, value); }
  CARILLON_AVX512 static Vector neighbours(Vector x, Vector w) { return _mm512_maddubs_epi16(x, w); }
  CARILLON_AVX512 static Vector pairs(Vector a, Vector b) { return _mm512_madd_epi16(a, b); }
  CARILLON_AVX512 static Vector add16(Vector a, Vector b) { return _mm512_add_epi16(a, b); }
  CARILLON_AVX512 static Vector add32(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
};

// A body for a level's `V`, which a function with its instructions takes in whole.
#define CARILLON_MULTIPLY_NARROW                                                                             \
  using Vector = typename V::Vector;                                                                         \
  Vector sums[rows][2];                                                                                      \
  const std::byte* row[rows];                                                                                \
  _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                                   \
    sums[r][0] = sums[r][1] = V::zero();                                                                     \
    row[r] = tile.rows[static_cast<std::size_t>(r)];                                                         \
  }                                                                                                          \
  const Vector ones = V::ones();                                                                             \
  const std::byte* w = tile.weights;                                                                         \
  const std::uint32_t* offset = tile.offsets;                                                                \
  for (std::uint32_t s = tile.panel->merged; s > 0; --s, offset += 2, w += 4 * V::bytes) {                   \
    ask_ahead<4 * V::bytes>(w);                                                                              \
    const Vector w00 = V::load(w), w01 = V::load(w + V::bytes), w10 = V::load(w + 2 * V::bytes),             \
                 w11 = V::load(w + 3 * V::bytes);                                                            \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                                 \
      const Vector a = V::all(four_bytes(row[r] + offset[0])), b = V::all(four_bytes(row[r] + offset[1]));   \
      const Vector left = V::add16(V::neighbours(a, w00), V::neighbours(b, w10));                            \
      sums[r][0] = V::add32(sums[r][0], V::pairs(left, ones));                                               \
      const Vector right = V::add16(V::neighbours(a, w01), V::neighbours(b, w11));                           \
      sums[r][1] = V::add32(sums[r][1], V::pairs(right, ones));                                              \
    }                                                                                                        \
  }                                                                                                          \
  for (std::uint32_t s = tile.panel->single; s > 0; --s, ++offset, w += 2 * V::bytes) {                      \
    ask_ahead<2 * V::bytes>(w);                                                                              \
    const Vector left = V::load(w), right = V::load(w + V::bytes);                                           \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                                 \
      const Vector x = V::all(four_bytes(row[r] + *offset));                                                 \
      sums[r][0] = V::add32(sums[r][0], V::pairs(V::neighbours(x, left), ones));                             \
      sums[r][1] = V::add32(sums[r][1], V::pairs(V::neighbours(x, right), ones));                            \
    }                                                                                                        \
  }                                                                                                          \
  _Pragma("GCC unroll 2") for (int v = 0; v < 2;                                                             \
                               ++v) for (std::uint32_t s = tile.panel->extra[static_cast<std::size_t>(v)];   \
                                         s > 0; --s, ++offset, w += V::bytes) {                              \
    const Vector some = V::load(w);                                                                          \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                                 \
      const Vector x = V::all(four_bytes(row[r] + *offset));                                                 \
      sums[r][v] = V::add32(sums[r][v], V::pairs(V::neighbours(x, some), ones));                             \
    }                                                                                                        \
  }                                                                                                          \
  _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 2") for (int v = 0; v < 2; ++v) \
      V::store(tile.sums + r * (V::bytes / 2) + v * (V::bytes / 4), sums[r][v]);

// Sorted steps, whose products are added to the sums unless these are the first. A wide one has 16 bits of
// both, the weights' made on the way.
#define CARILLON_MULTIPLY_SORTED                                                                             \
  using Vector = typename V::Vector;                                                                         \
  constexpr std::int64_t stride = V::bytes == 64 ? 8 : 4;                                                    \
  Vector sums[rows][2];                                                                                      \
  _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 2") for (int v = 0; v < 2; ++v) \
      sums[r][v] = first ? V::zero() : V::load_sums(to + r * (V::bytes / 2) + v * (V::bytes / 4));           \
  const Vector ones = V::ones();                                                                             \
  const std::byte* x = steps.narrow_x.data();                                                                \
  for (std::uint32_t s = 0; s < steps.narrow; ++s, x += stride * deep) {                                     \
    const std::byte* const w = weights + steps.narrow_at[s];                                                 \
    ask_ahead<2 * V::bytes>(w);                                                                              \
    const Vector left = V::load(w), right = V::load(w + V::bytes);                                           \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                                 \
      const Vector each = V::all(four_bytes(x + deep * r));                                                  \
      sums[r][0] = V::add32(sums[r][0], V::pairs(V::neighbours(each, left), ones));                          \
      sums[r][1] = V::add32(sums[r][1], V::pairs(V::neighbours(each, right), ones));                         \
    }                                                                                                        \
  }                                                                                                          \
  x = steps.wide_x.data();                                                                                   \
  for (std::uint32_t s = 0; s < steps.wide; ++s, x += 2 * stride * deep) {                                   \
    const std::byte* const w = weights + steps.wide_at[s];                                                   \
    const Vector left = V::load(w), right = V::load(w + V::bytes);                                           \
    const Vector w00 = V::firsts(left), w10 = V::seconds(left), w01 = V::firsts(right),                      \
                 w11 = V::seconds(right);                                                                    \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                                 \
      const Vector a = V::all(four_bytes(x + 2 * deep * r)), b = V::all(four_bytes(x + 2 * deep * r + 4));   \
      sums[r][0] = V::add32(sums[r][0], V::pairs(a, w00));                                                   \
      sums[r][0] = V::add32(sums[r][0], V::pairs(b, w10));                                                   \
      sums[r][1] = V::add32(sums[r][1], V::pairs(a, w01));                                                   \
      sums[r][1] = V::add32(sums[r][1], V::pairs(b, w11));                                                   \
    }                                                                                                        \
  }                                                                                                          \
  _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 2") for (int v = 0; v < 2; ++v) \
      V::store(to + r * (V::bytes / 2) + v * (V::bytes / 4), sums[r][v]);

template <typename V, int rows>
CARILLON_AVX2 void multiply_avx2(const Tile& tile) {
  CARILLON_MULTIPLY_NARROW
}
template <typename V, int rows>
CARILLON_AVX2 void multiply_sorted_avx2(const Sorted<4>& steps, bool first, const std::byte* weights,
                                        std::int32_t* to) {
  CARILLON_MULTIPLY_SORTED
}
template <typename V, int rows>
CARILLON_AVX512 void multiply_avx512(const Tile& tile) {
  CARILLON_MULTIPLY_NARROW
}
template <typename V, int rows>
CARILLON_AVX512 void multiply_sorted_avx512(const Sorted<8>& steps, bool first, const std::byte* weights,
                                            std::int32_t* to) {
  CARILLON_MULTIPLY_SORTED
}
#undef CARILLON_MULTIPLY_NARROW
#undef CARILLON_MULTIPLY_SORTED

template <int rows>
CARILLON_VNNI void multiply_vnni(const Tile& tile) {
  __m512i sums[rows][2];
  const std::byte* row[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    row[r] = tile.rows[static_cast<std::size_t>(r)];
  }
  const std::byte* w = tile.weights;
  const std::uint32_t* offset = tile.offsets;
  for (std::uint32_t s = tile.panel->single; s > 0; --s, ++offset, w += 128) {
    ask_ahead<128>(w);
    const __m512i left = _mm512_load_si512(w), right = _mm512_load_si512(w + 64);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const __m512i x = _mm512_set1_epi32(four_bytes(row[r] + *offset));
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], x, left);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], x, right);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    _mm512_store_si512(tile.sums + r * 32, sums[r][0]);
    _mm512_store_si512(tile.sums + r * 32 + 16, sums[r][1]);
  }
}

// Four rows' bytes of one step, as they are and less the base. wide: not 0 where two neighbours are more than
// 255 in sum, as 255 * 128 fits 16 bits, or one is less than the base.
struct FourRows {
  __m128i bytes, less, wide;
};
CARILLON_AVX2 inline FourRows look_at(__m128i bytes, __m128i base) {
  const __m128i less = _mm_sub_epi8(bytes, base);
  const __m128i pairs = _mm_maddubs_epi16(less, _mm_set1_epi8(1));
  const __m128i below = _mm_subs_epu8(base, bytes);
  return {bytes, less, _mm_or_si128(_mm_cmpgt_epi16(pairs, _mm_set1_epi16(255)), below)};
}

template <std::int64_t rows>
CARILLON_AVX2 void sort_all(const Unsorted<rows>& from, std::int64_t count, std::int64_t step_bytes,
                            Sorted<rows>& to) {
  constexpr std::int64_t parts = rows / 4, of_step = rows * deep;
  const __m128i mask = _mm_set1_epi8(static_cast<char>(from.mask)),
                base = _mm_set1_epi8(static_cast<char>(from.base)), wide_base = _mm_set1_epi16(from.base),
                low = _mm_set1_epi16(255);
  auto at = from.first_weights;
  std::uint32_t narrow = 0, wide = 0;
  const auto put = [&](const FourRows* rows_of) __attribute__((target("avx2,fma"))) {
    __m128i is_wide = rows_of[0].wide;
    for (std::int64_t p = 1; p < parts; ++p) is_wide = _mm_or_si128(is_wide, rows_of[p].wide);
    for (std::int64_t p = 0; p < parts; ++p) {
      _mm_store_si128(reinterpret_cast<__m128i*>(to.narrow_x.data() + narrow * of_step + 16 * p),
                      rows_of[p].less);
      const __m128i firsts = _mm_sub_epi16(_mm_and_si128(rows_of[p].bytes, low), wide_base),
                    seconds = _mm_sub_epi16(_mm_srli_epi16(rows_of[p].bytes, 8), wide_base);
      auto* const both = reinterpret_cast<__m128i*>(to.wide_x.data() + wide * 2 * of_step + 32 * p);
      _mm_store_si128(both, _mm_unpacklo_epi32(firsts, seconds));
      _mm_store_si128(both + 1, _mm_unpackhi_epi32(firsts, seconds));
    }
    to.narrow_at[narrow] = to.wide_at[wide] = at;
    at += static_cast<std::uint32_t>(step_bytes);
    const bool fits = _mm_testz_si128(is_wide, is_wide) != 0;
    narrow += fits ? 1 : 0;
    wide += fits ? 0 : 1;
  };
  std::int64_t i = 0;
  while (i < count) {
    const std::uint32_t offset = from.offsets[i];
    FourRows found[4][parts];
    // Steps side by side, four at once: rows of steps become steps of rows.
    if (i + 4 <= count && from.offsets[i + 3] == offset + 3 * deep) {
      __m128i any_wide = _mm_setzero_si128();
      for (std::int64_t p = 0; p < parts; ++p) {
        const auto row = [&](std::size_t r) __attribute__((target("avx2,fma"))) {
          return _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(
                                   from.row[static_cast<std::size_t>(4 * p) + r] + offset)),
                               mask);
        };
        const __m128i a = row(0), b = row(1), c = row(2), d = row(3);
        const __m128i ab0 = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b),
                      cd0 = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);
        found[0][p] = look_at(_mm_unpacklo_epi64(ab0, cd0), base);
        found[1][p] = look_at(_mm_unpackhi_epi64(ab0, cd0), base);
        found[2][p] = look_at(_mm_unpacklo_epi64(ab1, cd1), base);
        found[3][p] = look_at(_mm_unpackhi_epi64(ab1, cd1), base);
        for (const auto& step : found) any_wide = _mm_or_si128(any_wide, step[p].wide);
      }
      if (_mm_testz_si128(any_wide, any_wide) != 0) {
        for (std::uint32_t s = 0; s < 4; ++s) {
          for (std::int64_t p = 0; p < parts; ++p)
            _mm_store_si128(reinterpret_cast<__m128i*>(to.narrow_x.data() + narrow * of_step + 16 * p),
                            found[s][p].less);
          to.narrow_at[narrow++] = at;
          at += static_cast<std::uint32_t>(step_bytes);
        }
      } else {
        for (const auto& step : found) put(step);
      }
      i += 4;
      continue;
    }
    for (std::int64_t p = 0; p < parts; ++p) {
      const auto four = [&](std::size_t r) {
        return four_bytes(from.row[static_cast<std::size_t>(4 * p) + r] + offset);
      };
      found[0][p] = look_at(_mm_xor_si128(_mm_setr_epi32(four(0), four(1), four(2), four(3)), mask), base);
    }
    put(found[0]);
    ++i;
  }
  to.narrow = narrow;
  to.wide = wide;
}

}  // namespace

TileKernel find_tile(Instructions with, std::int64_t rows) {
  static constexpr TileKernel avx2[4] = {multiply_avx2<Avx2, 1>, multiply_avx2<Avx2, 2>,
                                         multiply_avx2<Avx2, 3>, multiply_avx2<Avx2, 4>};
  static constexpr TileKernel avx512[most_rows] = {multiply_avx512<Avx512, 1>, multiply_avx512<Avx512, 2>,
                                                   multiply_avx512<Avx512, 3>, multiply_avx512<Avx512, 4>,
                                                   multiply_avx512<Avx512, 5>, multiply_avx512<Avx512, 6>,
                                                   multiply_avx512<Avx512, 7>, multiply_avx512<Avx512, 8>};
  static constexpr TileKernel vnni[most_rows] = {multiply_vnni<1>, multiply_vnni<2>, multiply_vnni<3>,
                                                 multiply_vnni<4>, multiply_vnni<5>, multiply_vnni<6>,
                                                 multiply_vnni<7>, multiply_vnni<8>};
  const auto* const table = with == Instructions::avx2 ? avx2 : with == Instructions::avx512 ? avx512 : vnni;
  return table[rows - 1];
}

SortedKernel<4> find_sorted(const Sorted<4>&, std::int64_t rows) {
  static constexpr SortedKernel<4> table[4] = {multiply_sorted_avx2<Avx2, 1>, multiply_sorted_avx2<Avx2, 2>,
                                               multiply_sorted_avx2<Avx2, 3>, multiply_sorted_avx2<Avx2, 4>};
  return table[rows - 1];
}
SortedKernel<8> find_sorted(const Sorted<8>&, std::int64_t rows) {
  static constexpr SortedKernel<8> table[most_rows] = {
      multiply_sorted_avx512<Avx512, 1>, multiply_sorted_avx512<Avx512, 2>, multiply_sorted_avx512<Avx512, 3>,
      multiply_sorted_avx512<Avx512, 4>, multiply_sorted_avx512<Avx512, 5>, multiply_sorted_avx512<Avx512, 6>,
      multiply_sorted_avx512<Avx512, 7>, multiply_sorted_avx512<Avx512, 8>};
  return table[rows - 1];
}

#else
// Never called: of_this_processor() is none.
TileKernel find_tile(Instructions, std::int64_t) {
  return nullptr;
}
SortedKernel<4> find_sorted(const Sorted<4>&, std::int64_t) {
  return nullptr;
}
SortedKernel<8> find_sorted(const Sorted<8>&, std::int64_t) {
  return nullptr;
}
namespace {

template <std::int64_t rows>
void sort_all(const Unsorted<rows>&, std::int64_t, std::int64_t, Sorted<rows>&) {}

}  // namespace
#endif

void sort_steps(const Unsorted<4>& from, std::int64_t count, std::int64_t step_bytes, Sorted<4>& to) {
  sort_all(from, count, step_bytes, to);
}
void sort_steps(const Unsorted<8>& from, std::int64_t count, std::int64_t step_bytes, Sorted<8>& to) {
  sort_all(from, count, step_bytes, to);
}

}  // namespace carillon::engine::cpu::panels
