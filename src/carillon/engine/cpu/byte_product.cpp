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
  std::uint32_t wide = 0;   // whether all steps are, or none
  std::uint32_t steps = 0;  // of all panels, with what is behind them
};
// What a panel has, in this order. A step takes four neighbours of the depth.
struct alignas(line / 2) PanelHead {
  std::uint64_t weights = 0;  // where they begin, in bytes behind the first panel's
  std::uint32_t offsets = 0;  // where its steps begin among all
  std::uint32_t merged = 0;   // pairs of steps whose products may be added in 16 bits
  std::uint32_t single = 0;   // steps whose neighbours may, or wide ones
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

#if defined(__x86_64__)
#define CARILLON_AVX2 __attribute__((target("avx2,fma")))
#define CARILLON_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define CARILLON_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

inline std::int32_t four_bytes(const std::byte* from) {
  std::int32_t four = 0;
  std::memcpy(&four, from, sizeof four);
  return four;
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
  CARILLON_AVX2 static Vector load_wide(const std::byte* at) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(at)));
  }
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
  CARILLON_AVX512 static Vector load_wide(const std::byte* at) {
    return _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)));
  }
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

// Wide steps: weights become 16 bits on the way, and the source has them.
#define CARILLON_MULTIPLY_WIDE                                                                               \
  using Vector = typename V::Vector;                                                                         \
  Vector sums[rows][2];                                                                                      \
  const std::byte* row[rows];                                                                                \
  _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                                   \
    sums[r][0] = sums[r][1] = V::zero();                                                                     \
    row[r] = tile.rows[static_cast<std::size_t>(r)];                                                         \
  }                                                                                                          \
  const std::byte* w = tile.weights;                                                                         \
  const std::uint32_t* offset = tile.offsets;                                                                \
  for (std::uint32_t s = tile.panel->single; s > 0; --s, ++offset)                                           \
    _Pragma("GCC unroll 2") for (int half = 0; half < 2; ++half, w += V::bytes) {                            \
      const Vector left = V::load_wide(w), right = V::load_wide(w + V::bytes / 2);                           \
      _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) {                                               \
        const Vector x = V::all(four_bytes(row[r] + 2 * *offset + 4 * half));                                \
        sums[r][0] = V::add32(sums[r][0], V::pairs(x, left));                                                \
        sums[r][1] = V::add32(sums[r][1], V::pairs(x, right));                                               \
      }                                                                                                      \
    }                                                                                                        \
  _Pragma("GCC unroll 8") for (int r = 0; r < rows; ++r) _Pragma("GCC unroll 2") for (int v = 0; v < 2; ++v) \
      V::store(tile.sums + r * (V::bytes / 2) + v * (V::bytes / 4), sums[r][v]);

template <typename V, int rows>
CARILLON_AVX2 void multiply_avx2(const Tile& tile) {
  CARILLON_MULTIPLY_NARROW
}
template <typename V, int rows>
CARILLON_AVX2 void multiply_wide_avx2(const Tile& tile) {
  CARILLON_MULTIPLY_WIDE
}
template <typename V, int rows>
CARILLON_AVX512 void multiply_avx512(const Tile& tile) {
  CARILLON_MULTIPLY_NARROW
}
template <typename V, int rows>
CARILLON_AVX512 void multiply_wide_avx512(const Tile& tile) {
  CARILLON_MULTIPLY_WIDE
}
#undef CARILLON_MULTIPLY_NARROW
#undef CARILLON_MULTIPLY_WIDE

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

TileKernel find_tile(Instructions with, bool wide, std::int64_t rows) {
  static constexpr TileKernel avx2[2][4] = {
      {multiply_avx2<Avx2, 1>, multiply_avx2<Avx2, 2>, multiply_avx2<Avx2, 3>, multiply_avx2<Avx2, 4>},
      {multiply_wide_avx2<Avx2, 1>, multiply_wide_avx2<Avx2, 2>, multiply_wide_avx2<Avx2, 3>,
       multiply_wide_avx2<Avx2, 4>}};
  static constexpr TileKernel avx512[2][most_rows] = {
      {multiply_avx512<Avx512, 1>, multiply_avx512<Avx512, 2>, multiply_avx512<Avx512, 3>,
       multiply_avx512<Avx512, 4>, multiply_avx512<Avx512, 5>, multiply_avx512<Avx512, 6>,
       multiply_avx512<Avx512, 7>, multiply_avx512<Avx512, 8>},
      {multiply_wide_avx512<Avx512, 1>, multiply_wide_avx512<Avx512, 2>, multiply_wide_avx512<Avx512, 3>,
       multiply_wide_avx512<Avx512, 4>, multiply_wide_avx512<Avx512, 5>, multiply_wide_avx512<Avx512, 6>,
       multiply_wide_avx512<Avx512, 7>, multiply_wide_avx512<Avx512, 8>}};
  static constexpr TileKernel vnni[most_rows] = {multiply_vnni<1>, multiply_vnni<2>, multiply_vnni<3>,
                                                 multiply_vnni<4>, multiply_vnni<5>, multiply_vnni<6>,
                                                 multiply_vnni<7>, multiply_vnni<8>};
  const std::size_t form = wide ? 1 : 0;
  const auto* const table = with == Instructions::avx2     ? avx2[form]
                            : with == Instructions::avx512 ? avx512[form]
                                                           : vnni;
  return table[rows - 1];
}
#undef CARILLON_AVX2
#undef CARILLON_AVX512
#undef CARILLON_VNNI
#else
TileKernel find_tile(Instructions, bool, std::int64_t) {
  return nullptr;
}
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
CARILLON_AVX2 inline __m256i whole_at(const Finish& f, std::int64_t r, std::int64_t c) {
  const __m256i sum = _mm256_sub_epi32(eight_at(f.sums + r * f.columns + c), eight_at(f.less + c));
  if (f.zeros == nullptr) return sum;
  const __m256i of_row = _mm256_set1_epi32(static_cast<std::int32_t>(f.row_sums[r] - f.of_row));
  return _mm256_sub_epi32(sum, _mm256_mullo_epi32(of_row, eight_at(f.zeros + c)));
}
CARILLON_AVX2 inline __m256 real_at(const Finish& f, std::int64_t r, std::int64_t c) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole_at(f, r, c)), _mm256_load_ps(f.units + c),
                         _mm256_load_ps(f.biases + c));
}
// As bytes are made elsewhere (plain/quantised.cpp), NaN the smallest.
CARILLON_AVX2 inline __m256i rounded_at(const Finish& f, std::int64_t r, std::int64_t c) {
  const __m256 above = _mm256_max_ps(real_at(f, r, c), _mm256_set1_ps(-0x1p20F));
  return _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_min_ps(above, _mm256_set1_ps(0x1p20F))),
                          _mm256_set1_epi32(f.y_zero));
}
// To: whole sums, real ones, or bytes. A row of the result is `step` elements behind the one before.
template <typename To>
CARILLON_AVX2 void finish(const Finish& f, To* to, std::int64_t step) {
  for (std::int64_t r = 0; r < f.rows; ++r, to += step)
    for (std::int64_t c = 0; c < f.columns; c += 16) {
      if constexpr (std::is_same_v<To, std::int32_t>) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c), whole_at(f, r, c));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c + 8), whole_at(f, r, c + 8));
      } else if constexpr (std::is_same_v<To, float>) {
        _mm256_storeu_ps(to + c, real_at(f, r, c));
        _mm256_storeu_ps(to + c + 8, real_at(f, r, c + 8));
      } else {
        const __m256i both = _mm256_packs_epi32(rounded_at(f, r, c), rounded_at(f, r, c + 8));
        const __m256i ordered = _mm256_permute4x64_epi64(both, 0xd8);
        const __m128i low = _mm256_castsi256_si128(ordered), high = _mm256_extracti128_si256(ordered, 1);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + c),
                         std::is_signed_v<To> ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high));
      }
    }
}
#undef CARILLON_AVX2
#else
template <typename To>
void finish(const Finish&, To*, std::int64_t) {}
#endif

CARILLON_WIDE void apply(const ByteProduct::After& after, const float* operand, float* to,
                         std::int64_t count) {
  using Kind = ByteProduct::After::Kind;
  switch (after.kind) {
    case Kind::add:
      if (after.column_step == 0) {
        for (std::int64_t c = 0; c < count; ++c) to[c] += *operand;
      } else {
        for (std::int64_t c = 0; c < count; ++c) to[c] += operand[c];
      }
      return;
    case Kind::mul:
      if (after.column_step == 0) {
        for (std::int64_t c = 0; c < count; ++c) to[c] *= *operand;
      } else {
        for (std::int64_t c = 0; c < count; ++c) to[c] *= operand[c];
      }
      return;
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

// Makes bytes without a sign, or 16 bits, and gives their sum.
template <typename To>
[[gnu::always_inline]] inline std::int32_t flip(const std::byte* from, To* to, std::int64_t count,
                                                std::uint8_t mask) {
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::uint8_t>(static_cast<std::uint8_t>(from[i]) ^ mask);
    to[i] = value;
    sum += value;
  }
  return static_cast<std::int32_t>(sum);
}
CARILLON_WIDE std::int32_t flip_and_sum(const std::byte* from, std::uint8_t* to, std::int64_t count,
                                        std::uint8_t mask) {
  return flip(from, to, count, mask);
}
CARILLON_WIDE std::int32_t flip_and_sum(const std::byte* from, std::uint16_t* to, std::int64_t count,
                                        std::uint8_t mask) {
  return flip(from, to, count, mask);
}

// A source that kernels cannot read as it is lies in the room: with a sign, for wide steps, with rows that
// are no whole steps, or with padding. Behind that are the sums of rows, of products that are no
// convolutions.
bool is_copied(const ByteProduct::Shape& shape) {
  if (shape.signed_source || shape.wide || shape.shifted_weights) return true;
  if (!shape.window) return shape.depth % deep != 0;
  const ByteProduct::Window& w = *shape.window;
  return w.channels != w.filled() || w.padded_height() != w.height || w.padded_width() != w.width;
}
std::int64_t element_bytes(const ByteProduct::Shape& shape) {
  return shape.wide ? 2 : 1;
}
// Of the source as kernels read it, that a row brings.
std::int64_t row_bytes(const ByteProduct::Shape& shape) {
  if (shape.window)
    return shape.window->filled() * shape.window->strides[0] * shape.window->strides[1] *
           element_bytes(shape);
  return up_to(shape.depth, deep) * element_bytes(shape);
}
// Of a line of pixels.
std::int64_t line_bytes(const ByteProduct::Shape& shape) {
  return shape.window->padded_width() * shape.window->filled() * element_bytes(shape);
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
  // A wide step takes half as long again: four instructions in place of three for as many products, and two
  // more for each pair of vectors of weights.
  const bool wide = 2 * halves > 3 * least;
  if (wide)
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
  const Head head{.wide = wide ? 1U : 0U, .steps = static_cast<std::uint32_t>(count)};
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
          const bool later = with != Instructions::vnni && i % 2 == 1 && !panel.fits(k - 1, column);
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
        if (!wide) {
          put(g, 0, false);
          put(g, 1, false);
          continue;
        }
        for (std::int64_t k = g * deep; k < (g + 1) * deep; k += 2)
          for (std::int64_t c = 0; c < width; ++c)
            for (std::int64_t i = 0; i < 2; ++i) *next++ = static_cast<std::byte>(panel.at(k + i, c));
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

bool ByteProduct::is_wide(const graph::Tensor& packed) {
  return at_byte<Head>(packed.bytes().data(), 0)->wide != 0;
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
  const std::int64_t tile = rows_of(with);
  rows_of_unit_ =
      std::min(up_to(shape.rows, tile), std::max(tile, most_bytes / row_bytes(shape) / tile * tile));
  const std::int64_t of_panel =
      std::min(rows_of_unit_, shape.rows) * up_to(shape.depth, deep) * columns_of(with);
  const std::int64_t panels = panels_of(shape.columns, with);
  panels_of_unit_ = std::clamp<std::int64_t>(least_products / of_panel, 1, panels);
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
  auto* const sums = reinterpret_cast<std::int32_t*>(at_[room_at] + sums_at(shape_));
  for (std::int64_t r = first; r < last; ++r) {
    std::byte* const to = at_[room_at] + r * bytes;
    const std::byte* const from = at_[x] + r * shape_.depth;
    const std::uint8_t mask = shape_.signed_source ? 0x80 : 0;
    if (shape_.wide)
      sums[r] = flip_and_sum(from, reinterpret_cast<std::uint16_t*>(to), shape_.depth, mask);
    else
      sums[r] = flip_and_sum(from, reinterpret_cast<std::uint8_t*>(to), shape_.depth, mask);
    std::fill(to + shape_.depth * (shape_.wide ? 2 : 1), to + bytes, std::byte{0});
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
  const auto fill = [&]<typename To>(To* to, To zero) {
    const std::int64_t filled = window.filled();
    for (std::int64_t l = first; l < last; ++l) {
      const std::int64_t image = l / window.padded_height(),
                         top = l % window.padded_height() - window.before[0];
      To* next = to + l * window.padded_width() * filled;
      if (top < 0 || top >= window.height) {
        std::fill_n(next, window.padded_width() * filled, zero);
        continue;
      }
      next = std::fill_n(next, window.before[1] * filled, zero);
      const std::byte* const from = at_[x] + (image * window.height + top) * window.width * window.channels;
      if (window.channels == filled) {
        flip_and_sum(from, next, window.width * filled, mask);
      } else {
        for (std::int64_t p = 0; p < window.width; ++p)
          for (std::int64_t c = 0; c < filled; ++c)
            next[p * filled + c] = c < window.channels
                                       ? static_cast<std::uint8_t>(
                                             static_cast<std::uint8_t>(from[p * window.channels + c]) ^ mask)
                                       : std::uint8_t{0};
      }
      std::fill_n(next + window.width * filled, window.behind[1] * filled, zero);
    }
  };
  const auto zero = static_cast<std::uint8_t>(zero_of_x());
  if (shape_.wide)
    fill(reinterpret_cast<std::uint16_t*>(at_[room_at]), std::uint16_t{zero});
  else
    fill(reinterpret_cast<std::uint8_t*>(at_[room_at]), zero);
}

namespace {

// Where the kernel reads the source's rows, one after the other.
class RowsOfSource {
 public:
  RowsOfSource(const ByteProduct::Shape& shape, const std::byte* source, std::int64_t bytes)
      : window_(shape.window ? &*shape.window : nullptr), source_(source), step_(bytes) {
    if (window_ == nullptr) return;
    across_ = window_->places(1);
    down_ = window_->places(0);
    line_ = line_bytes(shape);
    step_ = window_->strides[1] * window_->filled() * element_bytes(shape);
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

void ByteProduct::multiply(std::int64_t unit) const {
  const std::int64_t columns = columns_of(with_), panels = panels_of(shape_.columns, with_);
  const std::int64_t across = (panels + panels_of_unit_ - 1) / panels_of_unit_;
  const std::int64_t first_panel = unit % across * panels_of_unit_,
                     last_panel = std::min(panels, first_panel + panels_of_unit_);
  const std::int64_t first_row = unit / across * rows_of_unit_,
                     last_row = std::min(shape_.rows, first_row + rows_of_unit_);
  const bool copied = is_copied(shape_);
  RowsOfSource source(shape_, at_[copied ? room_at : x], copied ? row_bytes(shape_) : shape_.depth);
  const auto* const row_sums =
      at_byte<std::uint32_t>(at_[room_at], copied && !shape_.window ? sums_at(shape_) : 0);
  const std::int32_t zero = zero_of_x();
  const float scale = at_[x_scale] != nullptr ? *at_byte<float>(at_[x_scale], 0) : 1;
  const std::byte* const packed = at_[w];
  const Places places(panels, columns, at_byte<Head>(packed, 0)->steps);
  const auto* const heads = at_byte<PanelHead>(packed, places.panels);
  const auto* const offsets = at_[steps] != nullptr ? at_byte<std::uint32_t>(at_[steps], 0)
                                                    : at_byte<std::uint32_t>(packed, places.offsets);

  constexpr auto most = static_cast<std::size_t>(most_columns);
  constexpr std::size_t of_tile = static_cast<std::size_t>(most_rows) * most;
  alignas(line) std::array<std::int32_t, of_tile> sums;
  alignas(line) std::array<std::int32_t, most> less;
  alignas(line) std::array<float, most> units{}, none{};
  alignas(line) std::array<std::byte, of_tile * sizeof(float)> aside;
  Finish f{.sums = sums.data(), .columns = columns, .less = less.data()};
  f.units = units.data();
  f.biases = none.data();
  f.of_row = static_cast<std::uint32_t>(shape_.depth * zero);
  f.y_zero = shape_.y_zero;
  for (std::int64_t p = first_panel; p < last_panel; ++p) {
    Tile tile{.weights = packed + places.weights + heads[p].weights,
              .offsets = offsets + heads[p].offsets,
              .panel = &heads[p],
              .sums = sums.data()};
    const std::int64_t column = p * columns, left = std::min(columns, shape_.columns - column);
    const auto* const of_weights = at_byte<std::uint32_t>(packed, places.sums) + column;
    for (std::int64_t c = 0; c < columns; ++c)
      less[static_cast<std::size_t>(c)] =
          static_cast<std::int32_t>(static_cast<std::uint32_t>(zero) * of_weights[c]);
    if (shape_.shifted_weights) f.zeros = at_byte<std::int32_t>(packed, places.zeros) + column;
    if (at_[factors] != nullptr) {
      const float* const each = at_byte<float>(at_[factors], 0) + column;
      for (std::int64_t c = 0; c < columns; ++c) units[static_cast<std::size_t>(c)] = each[c] * scale;
    }
    if (at_[biases] != nullptr) f.biases = at_byte<float>(at_[biases], 0) + column;
    source.seek(first_row);
    std::int64_t first = first_row;
    // Results go straight to their place where a whole panel's are there.
    const auto put = [&]<typename To>(To* all) {
      To* const to = all + first * shape_.columns + column;
      if (left == columns) return finish(f, to, shape_.columns);
      auto* const made = reinterpret_cast<To*>(aside.data());
      finish(f, made, columns);
      for (std::int64_t r = 0; r < f.rows; ++r)
        std::copy_n(made + r * columns, left, to + r * shape_.columns);
    };
    for (; first < last_row; first += rows_of(with_)) {
      f.rows = std::min(rows_of(with_), last_row - first);
      if (f.zeros != nullptr) f.row_sums = row_sums + first;
      for (std::int64_t r = 0; r < f.rows; ++r) tile.rows[static_cast<std::size_t>(r)] = source.next();
      find_tile(with_, shape_.wide, f.rows)(tile);
      switch (shape_.made) {
        case Made::whole:
          put(reinterpret_cast<std::int32_t*>(at_[y]));
          break;
        case Made::real:
          put(reinterpret_cast<float*>(at_[y]));
          break;
        case Made::bytes:
          put(reinterpret_cast<std::uint8_t*>(at_[y]));
          break;
        case Made::signed_bytes:
          put(reinterpret_cast<std::int8_t*>(at_[y]));
          break;
      }
      for (std::size_t i = 0; i < behind_.size(); ++i)
        for (std::int64_t r = first; r < first + f.rows; ++r) {
          const float* operand = nullptr;
          if (const std::byte* const at = at_[after + i]; at != nullptr)
            operand = at_byte<float>(at, 0) + r * behind_[i].row_step + column * behind_[i].column_step;
          apply(behind_[i], operand, reinterpret_cast<float*>(at_[y]) + r * shape_.columns + column, left);
        }
    }
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
