#include "carillon/engine/cpu/byte_product.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/layout.h"
#include "carillon/engine/cpu/team.h"
#include "carillon/graph/plain/quantised.h"

namespace carillon::engine::cpu {
namespace {

using Instructions = ByteProduct::Instructions;

constexpr std::int64_t deep = 4;           // neighbours of the depth that a step takes
constexpr std::int64_t most_columns = 32;  // of a panel
constexpr std::int64_t most_rows = 8;      // of a tile
constexpr std::int64_t line = 64;          // of the cache, in bytes
// Of sorted steps: how many panels meet them, and how many tiles are sorted at once, whose panels then lie in
// the first cache.
constexpr std::size_t sorted_panels = 8, sorted_tiles = 4;

std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
// Two vectors of sums.
std::int64_t columns_of(Instructions with) {
  return with == Instructions::avx2 ? 16 : 32;
}
// As many as there are registers for their sums.
std::int64_t rows_of(Instructions with) {
  return with == Instructions::avx2 ? 4 : 8;
}
std::int64_t panels_of(std::int64_t columns, Instructions with) {
  return up_to(columns, columns_of(with)) / columns_of(with);
}

// Packed weights begin with this.
struct alignas(line) Head {
  std::uint32_t sorted = 0;  // whether runs sort the steps
  std::uint32_t steps = 0;   // of all panels, with what is behind them
};
// What a panel has, in this order. A step takes four neighbours of the depth.
struct alignas(line / 2) PanelHead {
  std::uint64_t weights = 0;  // where they begin, in bytes behind the first panel's
  std::uint32_t offsets = 0;  // where its steps begin among all
  std::uint32_t merged = 0;   // pairs of steps whose products may be added in 16 bits
  std::uint32_t single = 0;   // steps whose neighbours may, or that runs sort
  // Of each of the two vectors: steps for what had to be left out of others.
  std::array<std::uint32_t, 2> extra{};
};
static_assert(sizeof(Head) == line && sizeof(PanelHead) == line / 2);

// Places in packed weights, in bytes. Of each step: which byte of a row it begins with. Of each column: the
// sum of its weights, and its zero point. Then the weights.
struct Places {
  std::int64_t panels = line, offsets = 0, sums = 0, zeros = 0, weights = 0;

  Places(std::int64_t count, std::int64_t columns, std::int64_t steps) {
    constexpr std::int64_t word = 4;
    offsets = panels + up_to(count * line / 2, line);
    sums = offsets + up_to(steps * word, line);
    zeros = sums + up_to(count * columns * word, line);
    weights = zeros + up_to(count * columns * word, line);
  }
};

template <typename T>
const T* at_byte(const std::byte* data, std::int64_t place) {
  return reinterpret_cast<const T*>(data + place);
}

// Some rows times one panel.
struct Tile {
  std::array<const std::byte*, most_rows> rows{};
  const std::byte* weights = nullptr;
  const std::uint32_t* offsets = nullptr;
  const PanelHead* panel = nullptr;
  std::int32_t* sums = nullptr;  // [rows, columns of a panel]
};
using TileKernel = void (*)(const Tile&);

// Sorted steps of some rows, for a part of the depth. Each step has the place of its weights in the panel, in
// bytes, and the source's bytes that multiply them.
template <std::int64_t rows>
struct Sorted {
  static constexpr std::int64_t most = 128;
  static constexpr auto places = static_cast<std::size_t>(most);
  std::uint32_t narrow = 0, wide = 0;  // how many of either
  std::array<std::uint32_t, places> narrow_at, wide_at;
  alignas(line) std::array<std::byte, places * rows * deep> narrow_x;    // bytes: of each row four neighbours
  alignas(line) std::array<std::byte, places * rows * deep * 2> wide_x;  // 16 bits: of each the first and
                                                                         // third, then the others
};

template <std::int64_t most>
using SortedKernel = void (*)(const Sorted<most>&, bool first, const std::byte* weights, std::int32_t* sums);
// Where rows of the source lie, and how their bytes become those without a sign, less a base.
template <std::int64_t rows>
struct Unsorted {
  std::array<const std::byte*, static_cast<std::size_t>(rows)> row{};
  const std::uint32_t* offsets = nullptr;  // of steps, in each row
  std::uint32_t first_weights = 0;         // of the first step, in its panel
  std::uint8_t mask = 0, base = 0;
};

#if defined(__x86_64__)
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

// Appends `count` steps.
template <std::int64_t rows>
CARILLON_AVX2 void sort_steps(const Unsorted<rows>& from, std::int64_t count, std::int64_t step_bytes,
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
#undef CARILLON_AVX2
#undef CARILLON_AVX512
#undef CARILLON_VNNI
#else
// Never called: of_this_processor() is none.
TileKernel find_tile(Instructions, std::int64_t) {
  return nullptr;
}
template <std::int64_t most>
SortedKernel<most> find_sorted(const Sorted<most>&, std::int64_t) {
  return nullptr;
}
template <std::int64_t rows>
void sort_steps(const Unsorted<rows>&, std::int64_t, std::int64_t, Sorted<rows>&) {}
#endif

// What becomes of a tile's sums.
struct Finish {
  const std::int32_t* sums = nullptr;
  std::int64_t rows = 0, columns = 0;  // of the tile; columns are a multiple of 16
  const std::int32_t* less = nullptr;  // what is taken away of each column
  // Weights' zero points, and the sums of rows less `of_row` that they are multiplied by; nullptr: all 0.
  const std::int32_t* zeros = nullptr;
  const std::uint32_t* row_sums = nullptr;
  std::uint32_t of_row = 0;
  const float* units = nullptr;
  const float* biases = nullptr;
  std::int32_t y_zero = 0;
};

#if defined(__x86_64__)
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
// To: whole sums, real ones, or bytes. A row of the result is `step` elements behind the one before.
template <typename To>
CARILLON_AVX2 void finish(const Finish& f, To* to, std::int64_t step) {
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
#undef CARILLON_AVX2
#else
template <typename To>
void finish(const Finish&, To*, std::int64_t) {}
#endif

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

// Makes bytes without a sign, and gives their sum.
CARILLON_WIDE std::int32_t flip_and_sum(const std::byte* from, std::uint8_t* to, std::int64_t count,
                                        std::uint8_t mask) {
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::uint8_t>(static_cast<std::uint8_t>(from[i]) ^ mask);
    to[i] = value;
    sum += value;
  }
  return static_cast<std::int32_t>(sum);
}

// Pixels of `channels` bytes become pixels of whole steps; what fills them up meets weights of 0.
CARILLON_WIDE void fill_pixels(const std::byte* from, std::uint8_t* to, std::int64_t pixels,
                               std::int64_t channels, std::uint8_t mask, std::uint8_t fill) {
  const std::int64_t filled = up_to(channels, deep);
  if (filled == deep) {  // images
    for (std::int64_t p = 0; p < pixels; ++p, from += channels, to += deep)
      for (std::int64_t c = 0; c < deep; ++c)
        to[c] = c < channels ? static_cast<std::uint8_t>(static_cast<std::uint8_t>(from[c]) ^ mask) : fill;
    return;
  }
  for (std::int64_t p = 0; p < pixels; ++p, from += channels, to += filled) {
    for (std::int64_t c = 0; c < channels; ++c)
      to[c] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(from[c]) ^ mask);
    std::fill(to + channels, to + filled, fill);
  }
}

// A source that kernels cannot read as it is lies in the room: with a sign (where steps are not sorted, which
// takes it away), with rows that are no whole steps, or with padding. Behind that are the sums of rows, of
// products that are no convolutions.
bool is_copied(const ByteProduct::Shape& shape) {
  if ((shape.signed_source && !shape.sorted) || shape.shifted_weights) return true;
  if (!shape.window) return shape.depth % deep != 0;
  const ByteProduct::Window& w = *shape.window;
  return w.channels != w.filled() || w.padded_height() != w.height || w.padded_width() != w.width;
}
// Of the source as kernels read it, that a row brings.
std::int64_t row_bytes(const ByteProduct::Shape& shape) {
  if (shape.window) return shape.window->filled() * shape.window->strides[0] * shape.window->strides[1];
  return up_to(shape.depth, deep);
}
// Of a line of pixels.
std::int64_t line_bytes(const ByteProduct::Shape& shape) {
  return shape.window->padded_width() * shape.window->filled();
}
std::int64_t sums_at(const ByteProduct::Shape& shape) {
  return up_to(shape.rows * row_bytes(shape), line);
}

}  // namespace

Instructions ByteProduct::of_this_processor() {
#if defined(__x86_64__)
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [isa](dnnl::cpu_isa wanted) {
    const auto bits = static_cast<unsigned>(wanted);
    return (isa & bits) == bits;
  };
  if (has(dnnl::cpu_isa::avx512_core_vnni)) return Instructions::vnni;
  if (has(dnnl::cpu_isa::avx512_core)) return Instructions::avx512;
  if (has(dnnl::cpu_isa::avx2)) return Instructions::avx2;
#endif
  return Instructions::none;
}

namespace {

// The zero point of a column's weights, made bytes with a sign as these.
std::int32_t zero_of(const graph::Tensor& weights, const graph::Tensor* zeros, std::int64_t column) {
  const bool is_signed = weights.type().type == graph::DataType::i8;
  if (zeros == nullptr) return is_signed ? 0 : -128;
  const std::byte value =
      zeros->bytes()[zeros->type().elements() == 1 ? 0 : static_cast<std::size_t>(column)];
  return is_signed ? static_cast<std::int8_t>(value) : static_cast<std::int32_t>(value) - 128;
}

}  // namespace

bool ByteProduct::shifts(const graph::Tensor& weights, const graph::Tensor* zeros) {
  const std::byte middle{weights.type().type == graph::DataType::i8 ? std::uint8_t{0} : std::uint8_t{128}};
  if (zeros == nullptr) return middle != std::byte{0};
  return std::ranges::any_of(zeros->bytes(), [&](std::byte zero) { return zero != middle; });
}

namespace {

// Weights of one panel, [depth filled up to whole steps, columns of a panel], as bytes with a sign; and which
// of them can be added in 16 bits.
class Panel {
 public:
  Panel(const graph::Tensor& weights, std::int64_t first, std::int64_t width)
      : width_(width),
        depth_(up_to(weights.type().shape[0], deep)),
        numbers_(static_cast<std::size_t>(depth_ * width)),
        sums_(static_cast<std::size_t>(width)) {
    const std::int64_t columns = weights.type().shape[1], count = std::min(width, columns - first);
    const std::uint8_t mask = weights.type().type == graph::DataType::i8 ? 0 : 0x80;
    for (std::int64_t k = 0; k < weights.type().shape[0]; ++k) {
      const std::byte* const from = weights.bytes().data() + k * columns + first;
      for (std::int64_t c = 0; c < count; ++c) {
        const auto value = static_cast<std::int8_t>(static_cast<std::uint8_t>(from[c]) ^ mask);
        numbers_[static_cast<std::size_t>(k * width + c)] = value;
        sums_[static_cast<std::size_t>(c)] += value;
      }
    }
  }
  std::int64_t groups() const { return depth_ / deep; }
  std::int8_t at(std::int64_t k, std::int64_t c) const {
    return numbers_[static_cast<std::size_t>(k * width_ + c)];
  }
  std::int32_t sum(std::int64_t c) const { return sums_[static_cast<std::size_t>(c)]; }
  // Whether the products of these neighbours, each with a byte without a sign, fit 16 bits in sum: 255 * 128
  // does, 255 * 129 does not.
  bool fits(std::int64_t k, std::int64_t c) const { return is_small({at(k, c), at(k + 1, c), 0, 0}); }
  // Whether those of a group do, in [first, last) of the columns.
  bool fits(std::int64_t group, std::int64_t first, std::int64_t last) const {
    bool all = true;
    for (std::int64_t k = group * deep; k < (group + 1) * deep; k += 2)
      for (std::int64_t c = first; c < last; ++c) all = all && fits(k, c);
    return all;
  }
  // Whether those of two groups do, added up.
  bool fit(std::int64_t a, std::int64_t b) const {
    bool all = true;
    for (std::int64_t i = 0; i < deep; i += 2)
      for (std::int64_t c = 0; c < width_; ++c)
        all = all && is_small({at(a * deep + i, c), at(a * deep + i + 1, c), at(b * deep + i, c),
                               at(b * deep + i + 1, c)});
    return all;
  }

 private:
  static bool is_small(const std::array<std::int32_t, 4>& weights) {
    std::int32_t up = 0, down = 0;
    for (const std::int32_t w : weights) {
      up += std::max(w, 0);
      down += std::min(w, 0);
    }
    return up <= 128 && down >= -128;
  }

  std::int64_t width_, depth_;
  std::vector<std::int8_t> numbers_;
  std::vector<std::int32_t> sums_;
};

// The steps of a panel, by groups of the depth.
struct Steps {
  std::vector<std::int64_t> merged, single;  // of merged two each
  std::array<std::vector<std::int64_t>, 2> extra;

  Steps(const Panel& panel, std::int64_t width, Instructions with) {
    std::int64_t waiting = -1;
    for (std::int64_t g = 0; g < panel.groups(); ++g) {
      if (with == Instructions::vnni) {
        single.push_back(g);
        continue;
      }
      bool whole = true;
      for (std::int64_t v = 0; v < 2; ++v)
        if (!panel.fits(g, v * width / 2, (v + 1) * width / 2)) {
          whole = false;
          extra[static_cast<std::size_t>(v)].push_back(g);
        }
      if (!whole) {
        single.push_back(g);
      } else if (waiting < 0) {
        waiting = g;
      } else if (panel.fit(waiting, g)) {
        merged.insert(merged.end(), {waiting, g});
        waiting = -1;
      } else {
        single.push_back(std::exchange(waiting, g));
      }
    }
    if (waiting >= 0) single.push_back(waiting);
  }
  std::size_t offsets() const { return merged.size() + single.size() + extra[0].size() + extra[1].size(); }
  // In halves of a step.
  std::size_t halves() const {
    return 2 * (merged.size() + single.size()) + extra[0].size() + extra[1].size();
  }
};

}  // namespace

graph::Tensor ByteProduct::pack(const graph::Tensor& weights, const graph::Tensor* zeros, Instructions with) {
  const auto& shape = weights.type().shape;
  CARILLON_ASSERT(with != Instructions::none && shape.size() == 2);
  const std::int64_t columns = shape[1], width = columns_of(with), panels = panels_of(columns, with),
                     half = width / 2;
  std::vector<Panel> all;
  std::vector<Steps> steps;
  std::size_t halves = 0, least = 0;
  for (std::int64_t p = 0; p < panels; ++p) {
    all.emplace_back(weights, p * width, width);
    steps.emplace_back(all.back(), width, with);
    halves += steps.back().halves();
    least += static_cast<std::size_t>(2 * all.back().groups());
  }
  const bool sorted = 2 * halves > 3 * least;
  if (sorted)
    for (std::size_t p = 0; p < steps.size(); ++p) {
      steps[p].merged.clear();
      steps[p].single.clear();
      steps[p].extra = {};
      for (std::int64_t g = 0; g < all[p].groups(); ++g) steps[p].single.push_back(g);
    }
  std::size_t count = 0;
  halves = 0;
  for (const Steps& s : steps) {
    count += s.offsets();
    halves += up_to(static_cast<std::int64_t>(s.halves()), 2);
  }

  const Places places(panels, width, static_cast<std::int64_t>(count));
  graph::Tensor made(
      {graph::DataType::u8, {places.weights + static_cast<std::int64_t>(halves) * half * deep}});
  std::byte* const to = made.bytes().data();
  const Head head{.sorted = sorted ? 1U : 0U, .steps = static_cast<std::uint32_t>(count)};
  std::memcpy(to, &head, sizeof head);
  std::int64_t step = 0, place = 0;
  for (std::int64_t p = 0; p < panels; ++p) {
    const Panel& panel = all[static_cast<std::size_t>(p)];
    const Steps& of = steps[static_cast<std::size_t>(p)];
    const PanelHead about{.weights = static_cast<std::uint64_t>(place),
                          .offsets = static_cast<std::uint32_t>(step),
                          .merged = static_cast<std::uint32_t>(of.merged.size() / 2),
                          .single = static_cast<std::uint32_t>(of.single.size()),
                          .extra = {static_cast<std::uint32_t>(of.extra[0].size()),
                                    static_cast<std::uint32_t>(of.extra[1].size())}};
    std::memcpy(to + places.panels + p * static_cast<std::int64_t>(sizeof about), &about, sizeof about);
    std::byte* next = to + places.weights + place;
    // Writes one vector's weights of a group. Without `left` these are the weights of the ordinary step. With
    // `left` they are those of the extra step: the second of each two neighbours whose sum does not fit 16
    // bits.
    const auto put = [&](std::int64_t group, std::int64_t v, bool left) {
      for (std::int64_t c = 0; c < half; ++c)
        for (std::int64_t i = 0; i < deep; ++i) {
          const std::int64_t k = group * deep + i, column = v * half + c;
          const bool later =
              with != Instructions::vnni && !sorted && i % 2 == 1 && !panel.fits(k - 1, column);
          if (later == left) next[c * deep + i] = static_cast<std::byte>(panel.at(k, column));
        }
      next += half * deep;
    };
    const auto offset = [&](std::int64_t group) {
      const auto at = static_cast<std::uint32_t>(group * deep);
      std::memcpy(to + places.offsets + step++ * 4, &at, sizeof at);
    };
    for (const auto* groups : {&of.merged, &of.single})
      for (const std::int64_t g : *groups) {
        offset(g);
        put(g, 0, false);
        put(g, 1, false);
      }
    for (std::int64_t v = 0; v < 2; ++v)
      for (const std::int64_t g : of.extra[static_cast<std::size_t>(v)]) {
        offset(g);
        put(g, v, true);
      }
    place += up_to(static_cast<std::int64_t>(of.halves()), 2) * half * deep;
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t column = p * width + c;
      const std::int32_t sum = panel.sum(c), zero = column < columns ? zero_of(weights, zeros, column) : 0;
      std::memcpy(to + places.sums + column * 4, &sum, sizeof sum);
      std::memcpy(to + places.zeros + column * 4, &zero, sizeof zero);
    }
  }
  return made;
}

bool ByteProduct::is_sorted(const graph::Tensor& packed) {
  return at_byte<Head>(packed.bytes().data(), 0)->sorted != 0;
}

graph::Tensor ByteProduct::by_depth(const graph::Tensor& weights, const Window& window) {
  const std::int64_t columns = weights.type().shape[0], taps = window.kernel[0] * window.kernel[1],
                     filled = window.filled();
  graph::Tensor made({weights.type().type, {window.depth(), columns}});
  if (weights.type().type == graph::DataType::u8)
    std::ranges::fill(made.bytes(), std::byte{128});  // stands for 0
  const std::byte* from = weights.bytes().data();
  for (std::int64_t o = 0; o < columns; ++o)
    for (std::int64_t c = 0; c < window.channels; ++c)
      for (std::int64_t tap = 0; tap < taps; ++tap)
        made.bytes()[static_cast<std::size_t>((tap * filled + c) * columns + o)] = *from++;
  return made;
}

graph::Tensor ByteProduct::offsets(const graph::Tensor& packed, const Window& window, std::int64_t columns,
                                   Instructions with) {
  const std::int64_t count = at_byte<Head>(packed.bytes().data(), 0)->steps, filled = window.filled();
  const Places places(panels_of(columns, with), columns_of(with), count);
  const auto* const from = at_byte<std::uint32_t>(packed.bytes().data(), places.offsets);
  graph::Tensor made({graph::DataType::i32, {count}});
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t tap = from[i] / filled, y = tap / window.kernel[1] * window.dilations[0],
                       x = tap % window.kernel[1] * window.dilations[1];
    made.as<std::int32_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>((y * window.padded_width() + x) * filled + from[i] % filled);
  }
  return made;
}

graph::Tensor ByteProduct::by_column(std::span<const float> values, std::int64_t columns, Instructions with) {
  graph::Tensor made({graph::DataType::f32, {panels_of(columns, with) * columns_of(with)}});
  const auto to = made.as<float>();
  for (std::int64_t c = 0; c < columns; ++c)
    to[static_cast<std::size_t>(c)] = values[values.size() == 1 ? 0 : static_cast<std::size_t>(c)];
  return made;
}

std::uint64_t ByteProduct::room(const Shape& shape) {
  if (!is_copied(shape)) return 0;
  if (shape.window)
    return static_cast<std::uint64_t>(shape.window->images * shape.window->padded_height() *
                                      line_bytes(shape));
  return static_cast<std::uint64_t>(sums_at(shape) + shape.rows * 4);
}

ByteProduct::ByteProduct(const Shape& shape, Instructions with, std::vector<After> behind)
    : shape_(shape), with_(with), behind_(std::move(behind)) {
  CARILLON_ASSERT(with != Instructions::none && behind_.size() <= most_after);
  CARILLON_ASSERT(!shape.window || (!shape.shifted_weights && shape.depth == shape.window->depth()));
  // A unit's rows stay in the second cache while its panels go by; a unit's work is worth a part of its own.
  constexpr std::int64_t most_bytes = 256 << 10, least_products = 1 << 17;
  const std::int64_t panels = panels_of(shape.columns, with),
                     of_row = up_to(shape.depth, deep) * columns_of(with);
  if (shape.sorted) {
    // As many panels as meet a step once it is sorted, so more products.
    const std::int64_t at_once = rows_of(with) * static_cast<std::int64_t>(sorted_tiles);
    panels_of_unit_ = std::min(panels, static_cast<std::int64_t>(sorted_panels));
    rows_of_unit_ = std::min(up_to(shape.rows, at_once),
                             up_to(8 * least_products / (panels_of_unit_ * of_row), at_once) + at_once);
  } else {
    const std::int64_t tile = rows_of(with);
    rows_of_unit_ =
        std::min(up_to(shape.rows, tile), std::max(tile, most_bytes / row_bytes(shape) / tile * tile));
    panels_of_unit_ =
        std::clamp<std::int64_t>(least_products / (std::min(rows_of_unit_, shape.rows) * of_row), 1, panels);
  }
  units_ =
      (panels + panels_of_unit_ - 1) / panels_of_unit_ * ((shape.rows + rows_of_unit_ - 1) / rows_of_unit_);
}

std::unique_ptr<Kernel> ByteProduct::copy(graph::Faults&) const {
  return std::make_unique<ByteProduct>(shape_, with_, behind_);
}

int ByteProduct::pieces() const {
  return static_cast<int>(std::min<std::int64_t>(units_, std::numeric_limits<int>::max()));
}

bool ByteProduct::may_lack(int operand) const {
  switch (operand) {
    case x:
    case w:
    case y:
      return false;
    case factors:
      return shape_.made == Made::whole;
    case steps:
      return !shape_.window;
    case room_at:
      return !is_copied(shape_);
    default:
      break;
  }
  if (operand < after) return true;
  const auto i = static_cast<std::size_t>(operand - after);
  return i >= behind_.size() || behind_[i].kind == After::Kind::relu || behind_[i].kind == After::Kind::clip;
}

void ByteProduct::prepare(std::int64_t first, std::int64_t last) const {
  const std::int64_t bytes = row_bytes(shape_);
  const auto fill = static_cast<std::byte>(zero_of_x());  // times 0, and a narrow step where others are
  auto* const sums = reinterpret_cast<std::int32_t*>(at_[room_at] + sums_at(shape_));
  for (std::int64_t r = first; r < last; ++r) {
    std::byte* const to = at_[room_at] + r * bytes;
    const std::byte* const from = at_[x] + r * shape_.depth;
    const std::uint8_t mask = shape_.signed_source ? 0x80 : 0;
    sums[r] = flip_and_sum(from, reinterpret_cast<std::uint8_t*>(to), shape_.depth, mask);
    std::fill(to + shape_.depth, to + bytes, fill);
  }
}

// As the zero point of bytes without a sign.
std::int32_t ByteProduct::zero_of_x() const {
  std::int32_t zero = shape_.x_zero;
  if (at_[Operand::x_zero] != nullptr)
    zero = shape_.signed_source ? *at_byte<std::int8_t>(at_[Operand::x_zero], 0)
                                : *at_byte<std::uint8_t>(at_[Operand::x_zero], 0);
  return shape_.signed_source ? zero + 128 : zero;
}

// Lines of pixels with their padding, which is the zero point.
void ByteProduct::prepare_lines(std::int64_t first, std::int64_t last) const {
  const Window& window = *shape_.window;
  const std::uint8_t mask = shape_.signed_source ? 0x80 : 0;
  const std::int64_t filled = window.filled();
  const auto zero = static_cast<std::uint8_t>(zero_of_x());
  auto* const to = reinterpret_cast<std::uint8_t*>(at_[room_at]);
  for (std::int64_t l = first; l < last; ++l) {
    const std::int64_t image = l / window.padded_height(),
                       top = l % window.padded_height() - window.before[0];
    std::uint8_t* next = to + l * window.padded_width() * filled;
    if (top < 0 || top >= window.height) {
      std::fill_n(next, window.padded_width() * filled, zero);
      continue;
    }
    next = std::fill_n(next, window.before[1] * filled, zero);
    const std::byte* const from = at_[x] + (image * window.height + top) * window.width * window.channels;
    if (window.channels == filled)
      flip_and_sum(from, next, window.width * filled, mask);
    else
      fill_pixels(from, next, window.width, window.channels, mask, zero);
    std::fill_n(next + window.width * filled, window.behind[1] * filled, zero);
  }
}

namespace {

// What is taken from bytes before they are multiplied. A step is narrow if no byte is below this base and no
// pair, less the base, is above 255 in sum. Half the zero point suffices for the second where all bytes are
// zero points. A tenth less makes wide steps rarest for bell-shaped bytes about the middle: 2% of pairs, with
// half 4%.
std::uint8_t base_of(std::int32_t zero) {
  return static_cast<std::uint8_t>((zero + 1) / 2 - std::min(zero, 255 - zero) / 10);
}

// Where the kernel reads the source's rows, one after the other.
class RowsOfSource {
 public:
  RowsOfSource(const ByteProduct::Shape& shape, const std::byte* source, std::int64_t bytes)
      : window_(shape.window ? &*shape.window : nullptr), source_(source), step_(bytes) {
    if (window_ == nullptr) return;
    across_ = window_->places(1);
    down_ = window_->places(0);
    line_ = line_bytes(shape);
    step_ = window_->strides[1] * window_->filled();
  }
  void seek(std::int64_t row) {
    if (window_ == nullptr) {
      next_ = source_ + row * step_;
      return;
    }
    left_ = across_ - row % across_;
    image_ = row / across_ / down_;
    y_ = row / across_ % down_;
    next_ = begin() + row % across_ * step_;
  }
  const std::byte* next() {
    const std::byte* const now = next_;
    next_ += step_;
    if (window_ == nullptr || --left_ > 0) return now;
    left_ = across_;
    if (++y_ == down_) {
      y_ = 0;
      ++image_;
    }
    next_ = begin();
    return now;
  }

 private:
  const std::byte* begin() const {
    return source_ + (image_ * window_->padded_height() + y_ * window_->strides[0]) * line_;
  }

  const ByteProduct::Window* window_;
  const std::byte* source_;
  const std::byte* next_ = nullptr;
  std::int64_t step_, line_ = 0, across_ = 1, down_ = 1, left_ = 0, image_ = 0, y_ = 0;
};

}  // namespace

// What a panel's sums need to become results.
struct ByteProduct::Columns {
  static constexpr auto most = static_cast<std::size_t>(most_columns);
  alignas(line) std::array<std::int32_t, most> less;
  alignas(line) std::array<float, most> units{}, none{};
  std::int64_t column = 0, left = 0;  // its first column, and how many the result has
  const std::int32_t* zeros = nullptr;
  const float* biases = nullptr;
};

// base: what the source's bytes were less by when they were multiplied.
void ByteProduct::open(std::int64_t p, std::int32_t base, Columns& panel) const {
  const std::int64_t columns = columns_of(with_);
  const std::byte* const packed = at_[w];
  const Places places(panels_of(shape_.columns, with_), columns, at_byte<Head>(packed, 0)->steps);
  const std::int32_t zero = zero_of_x() - base;
  const float scale = at_[x_scale] != nullptr ? *at_byte<float>(at_[x_scale], 0) : 1;
  panel.column = p * columns;
  panel.left = std::min(columns, shape_.columns - panel.column);
  const auto* const of_weights = at_byte<std::uint32_t>(packed, places.sums) + panel.column;
  for (std::int64_t c = 0; c < columns; ++c)
    panel.less[static_cast<std::size_t>(c)] =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(zero) * of_weights[c]);
  panel.zeros = shape_.shifted_weights ? at_byte<std::int32_t>(packed, places.zeros) + panel.column : nullptr;
  panel.biases = at_[biases] != nullptr ? at_byte<float>(at_[biases], 0) + panel.column : panel.none.data();
  if (at_[factors] == nullptr) return;
  const float* const each = at_byte<float>(at_[factors], 0) + panel.column;
  for (std::int64_t c = 0; c < columns; ++c) panel.units[static_cast<std::size_t>(c)] = each[c] * scale;
}

void ByteProduct::put(const Columns& panel, std::int64_t first, std::int64_t rows,
                      const std::int32_t* sums) const {
  const std::int64_t columns = columns_of(with_);
  Finish f{.sums = sums, .rows = rows, .columns = columns, .less = panel.less.data()};
  f.units = panel.units.data();
  f.biases = panel.biases;
  f.zeros = panel.zeros;
  f.of_row = static_cast<std::uint32_t>(shape_.depth * zero_of_x());
  f.y_zero = shape_.y_zero;
  if (f.zeros != nullptr) f.row_sums = at_byte<std::uint32_t>(at_[room_at], sums_at(shape_)) + first;
  // Results go straight to their place where a whole panel's are there.
  const auto into = [&]<typename To>(To* all) {
    To* const to = all + first * shape_.columns + panel.column;
    if (panel.left == columns) return finish(f, to, shape_.columns);
    constexpr auto of_tile = static_cast<std::size_t>(most_rows * most_columns);
    alignas(line) std::array<To, of_tile> made;
    finish(f, made.data(), columns);
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy_n(made.data() + r * columns, panel.left, to + r * shape_.columns);
  };
  switch (shape_.made) {
    case Made::whole:
      into(reinterpret_cast<std::int32_t*>(at_[y]));
      break;
    case Made::real:
      into(reinterpret_cast<float*>(at_[y]));
      break;
    case Made::bytes:
      into(reinterpret_cast<std::uint8_t*>(at_[y]));
      break;
    case Made::signed_bytes:
      into(reinterpret_cast<std::int8_t*>(at_[y]));
      break;
  }
  for (std::size_t i = 0; i < behind_.size(); ++i)
    for (std::int64_t r = first; r < first + rows; ++r) {
      const float* operand = nullptr;
      if (const std::byte* const at = at_[after + i]; at != nullptr)
        operand = at_byte<float>(at, 0) + r * behind_[i].row_step + panel.column * behind_[i].column_step;
      apply(behind_[i], operand, reinterpret_cast<float*>(at_[y]) + r * shape_.columns + panel.column,
            panel.left);
    }
}

void ByteProduct::multiply(std::int64_t unit) const {
  const std::int64_t panels = panels_of(shape_.columns, with_);
  const std::int64_t across = (panels + panels_of_unit_ - 1) / panels_of_unit_;
  const std::int64_t first_panel = unit % across * panels_of_unit_,
                     last_panel = std::min(panels, first_panel + panels_of_unit_);
  const std::int64_t first_row = unit / across * rows_of_unit_,
                     last_row = std::min(shape_.rows, first_row + rows_of_unit_);
  if (shape_.sorted) {
    if (with_ == Instructions::avx2)
      multiply_sorted<4>(first_panel, last_panel, first_row, last_row);
    else
      multiply_sorted<8>(first_panel, last_panel, first_row, last_row);
    return;
  }
  const bool copied = is_copied(shape_);
  RowsOfSource source(shape_, at_[copied ? room_at : x], copied ? row_bytes(shape_) : shape_.depth);
  const std::byte* const packed = at_[w];
  const Places places(panels, columns_of(with_), at_byte<Head>(packed, 0)->steps);
  const auto* const heads = at_byte<PanelHead>(packed, places.panels);
  const auto* const offsets = at_[steps] != nullptr ? at_byte<std::uint32_t>(at_[steps], 0)
                                                    : at_byte<std::uint32_t>(packed, places.offsets);

  alignas(line) std::array<std::int32_t, static_cast<std::size_t>(most_rows * most_columns)> sums;
  Columns panel;
  for (std::int64_t p = first_panel; p < last_panel; ++p) {
    Tile tile{.weights = packed + places.weights + heads[p].weights,
              .offsets = offsets + heads[p].offsets,
              .panel = &heads[p],
              .sums = sums.data()};
    open(p, 0, panel);
    source.seek(first_row);
    for (std::int64_t first = first_row; first < last_row; first += rows_of(with_)) {
      const std::int64_t rows = std::min(rows_of(with_), last_row - first);
      for (std::int64_t r = 0; r < rows; ++r) tile.rows[static_cast<std::size_t>(r)] = source.next();
      find_tile(with_, rows)(tile);
      put(panel, first, rows, sums.data());
    }
  }
}

// Some tiles at a time: their steps of part of the depth are sorted, then multiplied by each panel.
template <std::int64_t rows>
void ByteProduct::multiply_sorted(std::int64_t first_panel, std::int64_t last_panel, std::int64_t first_row,
                                  std::int64_t last_row) const {
  constexpr std::int64_t columns = 4 * rows, of_tile = rows * columns;
  constexpr std::int64_t step_bytes = columns * deep;
  const bool copied = is_copied(shape_);
  RowsOfSource source(shape_, at_[copied ? room_at : x], copied ? row_bytes(shape_) : shape_.depth);
  const std::byte* const packed = at_[w];
  const Places places(panels_of(shape_.columns, with_), columns, at_byte<Head>(packed, 0)->steps);
  const auto* const heads = at_byte<PanelHead>(packed, places.panels);
  // The panels' steps are alike.
  const auto* const offsets = at_[steps] != nullptr ? at_byte<std::uint32_t>(at_[steps], 0)
                                                    : at_byte<std::uint32_t>(packed, places.offsets);
  const std::int64_t depth = heads[0].single;

  Unsorted<rows> from;
  from.mask = !copied && shape_.signed_source ? 0x80 : 0;
  from.base = base_of(zero_of_x());
  std::array<Columns, sorted_panels> panels;
  for (std::int64_t p = first_panel; p < last_panel; ++p)
    open(p, from.base, panels[static_cast<std::size_t>(p - first_panel)]);
  std::array<Sorted<rows>, sorted_tiles> sorted;
  alignas(line) std::array<std::int32_t, sorted_panels * sorted_tiles* static_cast<std::size_t>(of_tile)>
      sums;
  const auto sums_of = [&](std::int64_t p, std::int64_t t) {
    return sums.data() + ((p - first_panel) * static_cast<std::int64_t>(sorted_tiles) + t) * of_tile;
  };

  constexpr std::int64_t at_once = static_cast<std::int64_t>(sorted_tiles) * rows;
  for (std::int64_t first = first_row; first < last_row; first += at_once) {
    const std::int64_t count = std::min(at_once, last_row - first), tiles = (count + rows - 1) / rows;
    std::array<const std::byte*, static_cast<std::size_t>(at_once)> lines;
    source.seek(first);
    // A tile that is not full has its last row more than once.
    for (std::int64_t r = 0; r < tiles * rows; ++r)
      lines[static_cast<std::size_t>(r)] = r < count ? source.next() : lines[static_cast<std::size_t>(r - 1)];
    for (std::int64_t step = 0; step < depth; step += Sorted<rows>::most) {
      const std::int64_t of_part = std::min(Sorted<rows>::most, depth - step);
      from.offsets = offsets + step;
      from.first_weights = static_cast<std::uint32_t>(step * step_bytes);
      for (std::int64_t t = 0; t < tiles; ++t) {
        std::copy_n(lines.begin() + t * rows, rows, from.row.begin());
        sort_steps(from, of_part, step_bytes, sorted[static_cast<std::size_t>(t)]);
      }
      for (std::int64_t p = first_panel; p < last_panel; ++p)
        for (std::int64_t t = 0; t < tiles; ++t)
          find_sorted(sorted[static_cast<std::size_t>(t)], std::min(rows, count - t * rows))(
              sorted[static_cast<std::size_t>(t)], step == 0, packed + places.weights + heads[p].weights,
              sums_of(p, t));
    }
    for (std::int64_t p = first_panel; p < last_panel; ++p)
      for (std::int64_t t = 0; t < tiles; ++t)
        put(panels[static_cast<std::size_t>(p - first_panel)], first + t * rows,
            std::min(rows, count - t * rows), sums_of(p, t));
  }
}

Result<> ByteProduct::run(dnnl::stream&) {
  const auto share = [](std::int64_t count, const auto& body) {
    if (count > 1)
      in_parts(count, body);
    else
      body(std::int64_t{0});
  };
  if (is_copied(shape_)) {
    constexpr std::int64_t least_bytes = 64 << 10;
    const std::int64_t lines =
        shape_.window ? shape_.window->images * shape_.window->padded_height() : shape_.rows;
    const std::int64_t all = lines * (shape_.window ? line_bytes(shape_) : shape_.depth);
    const std::int64_t parts = std::clamp<std::int64_t>(all / least_bytes, 1, lines);
    share(parts, [&](std::int64_t i) {
      if (shape_.window)
        prepare_lines(lines * i / parts, lines * (i + 1) / parts);
      else
        prepare(lines * i / parts, lines * (i + 1) / parts);
    });
    if (parts > 1 && tbb::is_current_task_group_canceling()) return {};  // the kernel runs again
  }
  share(units_, [&](std::int64_t unit) { multiply(unit); });
  return {};
}

}  // namespace carillon::engine::cpu
