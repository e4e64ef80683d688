#include "carillon/engine/cpu/lstm_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "carillon/engine/cpu/layout.h"
#include "carillon/engine/cpu/team.h"

namespace carillon::engine::cpu {
namespace {

constexpr std::int64_t lanes = 16;  // floats of a vector: units of a panel
constexpr std::int64_t gates = 4;   // i, o, f, c, as ONNX has them
constexpr std::int64_t panel_row = lanes * gates;
constexpr std::int64_t most_rows = 3;  // that share each look at a weight: as there are registers for

std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
std::int64_t panels_of(std::int64_t hidden) { return up_to(hidden, lanes) / lanes; }

// Of one panel. In bytes four neighbours of the depth lie together, and behind them are, for each gate of
// each unit, the sum of its weights and their scale.
std::int64_t panel_bytes(LstmStep::Numbers numbers, std::int64_t depth) {
  constexpr auto of_float = static_cast<std::int64_t>(sizeof(float));
  if (numbers == LstmStep::Numbers::floats) return depth * panel_row * of_float;
  return up_to(depth, 4) * panel_row + 2 * panel_row * of_float;
}

// Places in a kernel's room, in bytes.
struct Room {
  std::int64_t units, input_depth, state_depth;  // a row's elements, filled up to whole vectors
  std::uint64_t h, c, products, x_bytes, x_ranges, h_bytes, h_ranges, size;

  explicit Room(const LstmStep::Shape& s)
      : units(up_to(s.hidden, lanes)), input_depth(up_to(s.width, lanes)), state_depth(units) {
    std::uint64_t next = 0;
    const auto take = [&](std::int64_t bytes) {
      return std::exchange(next, next + static_cast<std::uint64_t>(up_to(bytes, 64)));
    };
    const std::int64_t rows = s.directions * s.batch;
    constexpr auto of_float = static_cast<std::int64_t>(sizeof(float));
    h = take(2 * rows * units * of_float);
    c = take(rows * units * of_float);
    products = take(rows * s.steps * units * gates * of_float);
    const bool bytes = s.numbers == LstmStep::Numbers::bytes;
    x_bytes = take(bytes ? s.batch * s.steps * input_depth : 0);
    x_ranges = take(bytes ? s.batch * 2 * of_float : 0);
    h_bytes = take(bytes ? rows * state_depth : 0);
    h_ranges = take(bytes ? rows * 2 * of_float : 0);
    size = next;
  }
};

// What a row was rounded with.
struct ByteRange {
  float scale;
  std::int32_t zero;
};
static_assert(sizeof(ByteRange) == 2 * sizeof(float));

// Up to most_rows rows of a product, and what becomes of it.
struct Tile {
  std::array<const void*, most_rows> a;        // floats or bytes
  std::array<ByteRange, most_rows> range;      // of bytes
  std::array<const float*, most_rows> from;    // what is added
  std::array<float*, most_rows> to;            // where sums go: of input products
  std::array<float*, most_rows> c, h, y;       // of steps; y may be absent
  std::int64_t units = 0;                      // that y has
};
struct Panels {
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;  // of one
  std::int64_t depth = 0;
};
// Panels `panel` and, of some, the one behind it.
using TileKernel = void (*)(const Tile& tile, const Panels& panels, std::int64_t panel);

#if defined(__x86_64__)
#define CARILLON_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define CARILLON_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

CARILLON_AVX512 inline __m512 all(float value) { return _mm512_set1_ps(value); }
// e^x within 2 ulp, between the exponents that floats have. NaN stays, here and below: of two operands these
// minima and maxima give the second where one is NaN.
CARILLON_AVX512 inline __m512 exp_of(__m512 x) {
  x = _mm512_max_ps(all(-87.3365F), _mm512_min_ps(all(88.7228F), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, all(1.44269504F)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, all(0.693359375F), x);
  r = _mm512_fmadd_ps(n, all(2.12194440e-4F), r);
  __m512 p = all(1.9875691500e-4F);
  p = _mm512_fmadd_ps(p, r, all(1.3981999507e-3F));
  p = _mm512_fmadd_ps(p, r, all(8.3334519073e-3F));
  p = _mm512_fmadd_ps(p, r, all(4.1665795894e-2F));
  p = _mm512_fmadd_ps(p, r, all(1.6666665459e-1F));
  p = _mm512_fmadd_ps(p, r, all(5.0000001201e-1F));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, all(1)));
  return _mm512_scalef_ps(p, n);
}
CARILLON_AVX512 inline __m512 sigmoid_of(__m512 x) {
  const __m512 one = _mm512_set1_ps(1);
  return _mm512_div_ps(one, _mm512_add_ps(one, exp_of(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}
// The rational function of graph/plain's fast_tanh().
CARILLON_AVX512 inline __m512 tanh_of(__m512 x) {
  constexpr float most = 7.90531110763549805F;
  x = _mm512_max_ps(all(-most), _mm512_min_ps(all(most), x));
  const __m512 s = _mm512_mul_ps(x, x);
  __m512 p = all(-2.76076847742355e-16F);
  p = _mm512_fmadd_ps(p, s, all(2.00018790482477e-13F));
  p = _mm512_fmadd_ps(p, s, all(-8.60467152213735e-11F));
  p = _mm512_fmadd_ps(p, s, all(5.12229709037114e-08F));
  p = _mm512_fmadd_ps(p, s, all(1.48572235717979e-05F));
  p = _mm512_fmadd_ps(p, s, all(6.37261928875436e-04F));
  p = _mm512_fmadd_ps(p, s, all(4.89352455891786e-03F));
  __m512 q = all(1.19825839466702e-06F);
  q = _mm512_fmadd_ps(q, s, all(1.18534705686654e-04F));
  q = _mm512_fmadd_ps(q, s, all(2.26843463243900e-03F));
  q = _mm512_fmadd_ps(q, s, all(4.89352518554385e-03F));
  return _mm512_div_ps(_mm512_mul_ps(x, p), q);
}

// A row's units of one panel, whose gates have these sums.
CARILLON_AVX512 inline void apply_gates(const __m512 (&sums)[gates], const Tile& tile, int row,
                                        std::int64_t panel) {
  const auto at = static_cast<std::size_t>(row);
  const std::int64_t unit = panel * lanes;
  float* const c = tile.c[at] + unit;
  const __m512 i = sigmoid_of(sums[0]), o = sigmoid_of(sums[1]), f = sigmoid_of(sums[2]);
  const __m512 cell = _mm512_fmadd_ps(f, _mm512_loadu_ps(c), _mm512_mul_ps(i, tanh_of(sums[3])));
  const __m512 hidden = _mm512_mul_ps(o, tanh_of(cell));
  _mm512_storeu_ps(c, cell);
  _mm512_storeu_ps(tile.h[at] + unit, hidden);
  if (tile.y[at] == nullptr) return;
  const auto left = static_cast<unsigned>(std::min(lanes, tile.units - unit));
  _mm512_mask_storeu_ps(tile.y[at] + unit, static_cast<__mmask16>((1U << left) - 1), hidden);
}

// What a product's sums are for.
enum class For : std::uint8_t { inputs, step };

template <For use>
CARILLON_AVX512 inline void finish(const __m512 (&sums)[gates], const Tile& tile, int row,
                                   std::int64_t panel) {
  if constexpr (use == For::step) {
    apply_gates(sums, tile, row, panel);
  } else {
    float* const to = tile.to[static_cast<std::size_t>(row)] + panel * panel_row;
#pragma GCC unroll 4
    for (int g = 0; g < gates; ++g) _mm512_storeu_ps(to + g * lanes, sums[g]);
  }
}

template <For use, int panels, int rows>
CARILLON_AVX512 void multiply_floats(const Tile& tile, const Panels& weights, std::int64_t panel) {
  __m512 sums[rows][panels][gates];
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int p = 0; p < panels; ++p)
#pragma GCC unroll 4
      for (int g = 0; g < gates; ++g)
        sums[r][p][g] = _mm512_loadu_ps(tile.from[static_cast<std::size_t>(r)] + (panel + p) * panel_row +
                                        g * lanes);
  const float* a[rows];
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r) a[r] = static_cast<const float*>(tile.a[static_cast<std::size_t>(r)]);
  const auto* first = reinterpret_cast<const float*>(weights.data + panel * weights.bytes);
  const std::int64_t next = weights.bytes / static_cast<std::int64_t>(sizeof(float));
  for (std::int64_t k = 0; k < weights.depth; ++k, first += panel_row) {
    __m512 x[rows];
#pragma GCC unroll 3
    for (int r = 0; r < rows; ++r) x[r] = _mm512_set1_ps(a[r][k]);
#pragma GCC unroll 2
    for (int p = 0; p < panels; ++p)
#pragma GCC unroll 4
      for (int g = 0; g < gates; ++g) {
        const __m512 w = _mm512_loadu_ps(first + p * next + g * lanes);
#pragma GCC unroll 3
        for (int r = 0; r < rows; ++r) sums[r][p][g] = _mm512_fmadd_ps(x[r], w, sums[r][p][g]);
      }
  }
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int p = 0; p < panels; ++p) finish<use>(sums[r][p], tile, r, panel + p);
}

template <For use, int panels, int rows>
CARILLON_VNNI void multiply_bytes(const Tile& tile, const Panels& weights, std::int64_t panel) {
  __m512i sums[rows][panels][gates];
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int p = 0; p < panels; ++p)
#pragma GCC unroll 4
      for (int g = 0; g < gates; ++g) sums[r][p][g] = _mm512_setzero_si512();
  const std::byte* a[rows];
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r) a[r] = static_cast<const std::byte*>(tile.a[static_cast<std::size_t>(r)]);
  const std::byte* const first = weights.data + panel * weights.bytes;
  const std::int64_t deep = up_to(weights.depth, 4);
  for (std::int64_t k = 0; k < deep; k += 4) {
    __m512i x[rows];
#pragma GCC unroll 3
    for (int r = 0; r < rows; ++r) {
      std::int32_t four = 0;
      std::memcpy(&four, a[r] + k, sizeof four);
      x[r] = _mm512_set1_epi32(four);
    }
#pragma GCC unroll 2
    for (int p = 0; p < panels; ++p)
#pragma GCC unroll 4
      for (int g = 0; g < gates; ++g) {
        const __m512i w = _mm512_loadu_si512(first + p * weights.bytes + k * panel_row + g * lanes * 4);
#pragma GCC unroll 3
        for (int r = 0; r < rows; ++r) sums[r][p][g] = _mm512_dpbusd_epi32(sums[r][p][g], x[r], w);
      }
  }
#pragma GCC unroll 2
  for (int p = 0; p < panels; ++p) {
    const std::byte* const behind = first + p * weights.bytes + deep * panel_row;
#pragma GCC unroll 3
    for (int r = 0; r < rows; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const __m512i zero = _mm512_set1_epi32(tile.range[at].zero);
      const __m512 scale = _mm512_set1_ps(tile.range[at].scale);
      __m512 real[gates];
#pragma GCC unroll 4
      for (int g = 0; g < gates; ++g) {
        const __m512i of_zero = _mm512_mullo_epi32(zero, _mm512_loadu_si512(behind + g * lanes * 4));
        const __m512 factor = _mm512_mul_ps(
            scale, _mm512_loadu_ps(reinterpret_cast<const float*>(behind + (panel_row + g * lanes) * 4)));
        real[g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums[r][p][g], of_zero)), factor,
                                  _mm512_loadu_ps(tile.from[at] + (panel + p) * panel_row + g * lanes));
      }
      finish<use>(real, tile, r, panel + p);
    }
  }
}

CARILLON_AVX512 inline __m512 some_of(const float* from, std::int64_t left) {
  const auto count = static_cast<unsigned>(std::min(lanes, left));
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), from);
}
struct Ends {
  float low = 0, high = 0;
};
CARILLON_AVX512 void widen(Ends& ends, const float* values, std::int64_t count) {
  __m512 low = _mm512_set1_ps(ends.low), high = _mm512_set1_ps(ends.high);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const __m512 some = some_of(values + i, count - i);
    low = _mm512_min_ps(some, low);
    high = _mm512_max_ps(some, high);
  }
  ends = {.low = _mm512_reduce_min_ps(low), .high = _mm512_reduce_max_ps(high)};
}
// As DynamicQuantizeLinear does it; NaN becomes the least. Writes whole vectors.
CARILLON_AVX512 void round_to_bytes(const float* values, std::int64_t count, const ByteRange& range,
                                    std::byte* to) {
  const __m512 scale = all(range.scale), most = all(0x1p20F), least = all(-0x1p20F);
  const __m512i zero = _mm512_set1_epi32(range.zero);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const __m512 units = _mm512_div_ps(some_of(values + i, count - i), scale);
    const __m512 bounded = _mm512_min_ps(_mm512_max_ps(units, least), most);
    const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(bounded), zero);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm512_cvtusepi32_epi8(_mm512_max_epi32(whole, _mm512_setzero_si512())));
  }
}

template <For use>
TileKernel find_tile(LstmStep::Numbers numbers, bool two, std::int64_t rows) {
  static constexpr TileKernel floats[2][most_rows] = {
      {multiply_floats<use, 1, 1>, multiply_floats<use, 1, 2>, multiply_floats<use, 1, 3>},
      {multiply_floats<use, 2, 1>, multiply_floats<use, 2, 2>, multiply_floats<use, 2, 3>}};
  static constexpr TileKernel bytes[2][most_rows] = {
      {multiply_bytes<use, 1, 1>, multiply_bytes<use, 1, 2>, multiply_bytes<use, 1, 3>},
      {multiply_bytes<use, 2, 1>, multiply_bytes<use, 2, 2>, multiply_bytes<use, 2, 3>}};
  return (numbers == LstmStep::Numbers::floats ? floats : bytes)[two ? 1 : 0][rows - 1];
}
#undef CARILLON_AVX512
#undef CARILLON_VNNI
#else
enum class For : std::uint8_t { inputs, step };
struct Ends {
  float low = 0, high = 0;
};
void widen(Ends&, const float*, std::int64_t) {}
void round_to_bytes(const float*, std::int64_t, const ByteRange&, std::byte*) {}
template <For use>
TileKernel find_tile(LstmStep::Numbers, bool, std::int64_t) {
  return nullptr;
}
#endif

ByteRange range_between(const Ends& ends) {
  const float scale = ends.high == ends.low ? 1.0F : (ends.high - ends.low) / 255.0F;
  return {scale, static_cast<std::int32_t>(std::clamp(std::nearbyint(-ends.low / scale), 0.0F, 255.0F))};
}

}  // namespace

bool LstmStep::runs_on_this_processor([[maybe_unused]] Numbers numbers) {
#if defined(__x86_64__)
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wanted = static_cast<unsigned>(numbers == Numbers::bytes ? dnnl::cpu_isa::avx512_core_vnni
                                                                      : dnnl::cpu_isa::avx512_core);
  return (isa & wanted) == wanted;
#else
  return false;
#endif
}

std::uint64_t LstmStep::room(const Shape& shape) { return Room(shape).size; }

graph::Tensor LstmStep::pack(const graph::Tensor& weights) {
  const auto& shape = weights.type().shape;
  const std::int64_t directions = shape[0], hidden = shape[1] / gates, depth = shape[2];
  graph::Tensor made({graph::DataType::f32, {directions, panels_of(hidden), depth, gates, lanes}});
  const float* from = weights.as<float>().data();
  float* const to = made.as<float>().data();
  for (std::int64_t d = 0; d < directions; ++d)
    for (std::int64_t g = 0; g < gates; ++g)
      for (std::int64_t unit = 0; unit < hidden; ++unit, from += depth) {
        float* const panel = to + (d * panels_of(hidden) + unit / lanes) * depth * panel_row;
        for (std::int64_t k = 0; k < depth; ++k) panel[k * panel_row + g * lanes + unit % lanes] = from[k];
      }
  return made;
}

graph::Tensor LstmStep::pack_bytes(const graph::Tensor& weights, std::span<const float> scales) {
  const auto none = [] { return graph::Tensor({graph::DataType::u8, {0}}); };
  const auto& shape = weights.type().shape;
  const std::int64_t directions = shape[0], columns = shape[1], depth = shape[2], hidden = columns / gates;
  const auto given = static_cast<std::int64_t>(scales.size());
  const bool fits = given == 1 || given == directions || given == directions * columns;
  if (depth > most_bytes || !fits) return none();
  const std::int64_t bytes = panel_bytes(Numbers::bytes, depth), deep = up_to(depth, 4);
  graph::Tensor made({graph::DataType::u8, {directions, panels_of(hidden), bytes}});
  std::byte* const to = made.bytes().data();
  const float* from = weights.as<float>().data();
  for (std::int64_t d = 0; d < directions; ++d)
    for (std::int64_t column = 0; column < columns; ++column, from += depth) {
      const std::int64_t g = column / hidden, unit = column % hidden, place = g * lanes + unit % lanes;
      const std::int64_t at = given == 1 ? 0 : given == directions ? d : d * columns + column;
      const float scale = scales[static_cast<std::size_t>(at)];
      if (!(std::abs(scale) < std::numeric_limits<float>::infinity()) || scale == 0) return none();
      std::byte* const panel = to + (d * panels_of(hidden) + unit / lanes) * bytes;
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        const float whole = std::nearbyint(from[k] / scale);
        if (!(std::abs(whole) <= 127) || whole * scale != from[k]) return none();
        sum += static_cast<std::int32_t>(whole);
        panel[(k / 4 * panel_row + place) * 4 + k % 4] =
            static_cast<std::byte>(static_cast<std::int8_t>(whole));
      }
      std::memcpy(panel + deep * panel_row + place * 4, &sum, sizeof sum);
      std::memcpy(panel + deep * panel_row + (panel_row + place) * 4, &scale, sizeof scale);
    }
  return made;
}

graph::Tensor LstmStep::pack_bias(const graph::Tensor* biases, std::int64_t directions, std::int64_t hidden) {
  graph::Tensor made({graph::DataType::f32, {directions, panels_of(hidden), gates, lanes}});
  if (biases == nullptr) return made;
  const float* from = biases->as<float>().data();
  float* const to = made.as<float>().data();
  for (std::int64_t d = 0; d < directions; ++d, from += 2 * gates * hidden)
    for (std::int64_t column = 0; column < gates * hidden; ++column) {
      const std::int64_t g = column / hidden, unit = column % hidden;
      to[(d * panels_of(hidden) + unit / lanes) * panel_row + g * lanes + unit % lanes] =
          from[column] + from[gates * hidden + column];
    }
  return made;
}

std::unique_ptr<Kernel> LstmStep::copy(graph::Faults&) const {
  return std::make_unique<LstmStep>(shape_, threads_);
}

int LstmStep::pieces() const {
  return static_cast<int>(std::min<std::int64_t>(shape_.steps, std::numeric_limits<int>::max()));
}

// Rows [first, last) of one direction, from the first step to the last. Other rows and the other direction
// share nothing with it that anybody writes.
class LstmStep::Sequence {
 public:
  struct Part {
    std::int64_t direction = 0, first = 0, last = 0;
    std::int64_t columns = 1;  // parts that the units are divided into at each step
  };
  Sequence(const LstmStep& kernel, const Part& part)
      : s_(kernel.shape_),
        at_(kernel.at_),
        place_(s_),
        part_(part),
        panels_(panels_of(s_.hidden)),
        w_(panels_at(LstmStep::w, s_.width)),
        r_(panels_at(LstmStep::r, s_.hidden)) {}

  void run() {
    begin();
    divided(false, [&](std::int64_t panel, bool two) { multiply_inputs(panel, two); });
    for (std::int64_t k = 0; k < s_.steps; ++k) {
      if (tbb::is_current_task_group_canceling()) return;  // the kernel runs again
      if (bytes()) round_states();
      // To and fro, so that a step finds in the cache what the one before it read last: R is often larger.
      divided(k % 2 != 0, [&](std::int64_t panel, bool two) { step(time(k), panel, two); });
      std::swap(before_, after_);
    }
    end();
  }

  // Brings row n of x to bytes.
  static void round_input(const LstmStep& kernel, std::int64_t n) {
    const Sequence row(kernel, {.first = n, .last = n + 1});
    Ends ends;
    for (std::int64_t t = 0; t < row.s_.steps; ++t) widen(ends, row.x(n, t), row.s_.width);
    ByteRange& range = row.x_range(n);
    range = range_between(ends);
    for (std::int64_t t = 0; t < row.s_.steps; ++t)
      round_to_bytes(row.x(n, t), row.s_.width, range, row.x_bytes(n, t));
  }

 private:
  bool bytes() const { return s_.numbers == Numbers::bytes; }
  Panels panels_at(Operand operand, std::int64_t depth) const {
    const std::int64_t size = panel_bytes(s_.numbers, depth);
    return {.data = at_[operand] + part_.direction * panels_ * size, .bytes = size, .depth = depth};
  }
  template <typename T>
  T* room(std::uint64_t place) const {
    return reinterpret_cast<T*>(at_[room_at] + place);
  }
  std::int64_t row(std::int64_t n) const { return part_.direction * s_.batch + n; }
  float* h(int which, std::int64_t n) const {
    return room<float>(place_.h) + (which * s_.directions * s_.batch + row(n)) * place_.units;
  }
  float* c(std::int64_t n) const { return room<float>(place_.c) + row(n) * place_.units; }
  float* products(std::int64_t n, std::int64_t t) const {
    return room<float>(place_.products) + (row(n) * s_.steps + t) * panels_ * panel_row;
  }
  const float* x(std::int64_t n, std::int64_t t) const {
    return reinterpret_cast<const float*>(at_[LstmStep::x]) +
           (s_.batch_first ? n * s_.steps + t : t * s_.batch + n) * s_.width;
  }
  std::byte* x_bytes(std::int64_t n, std::int64_t t) const {
    return room<std::byte>(place_.x_bytes) + (n * s_.steps + t) * place_.input_depth;
  }
  ByteRange& x_range(std::int64_t n) const { return room<ByteRange>(place_.x_ranges)[n]; }
  std::byte* h_bytes(std::int64_t n) const {
    return room<std::byte>(place_.h_bytes) + row(n) * place_.state_depth;
  }
  ByteRange& h_range(std::int64_t n) const { return room<ByteRange>(place_.h_ranges)[row(n)]; }
  float* y(std::int64_t n, std::int64_t t) const {
    if (at_[LstmStep::y] == nullptr) return nullptr;
    return reinterpret_cast<float*>(at_[LstmStep::y]) +
           ((t * s_.batch + n) * s_.directions + part_.direction) * s_.hidden;
  }
  std::int64_t time(std::int64_t k) const {
    return s_.reverse || part_.direction == 1 ? s_.steps - 1 - k : k;
  }

  // Calls each(panel, whether the one behind it is meant, too) for all panels, two at a time.
  template <typename Each>
  void divided(bool backwards, const Each& each) const {
    const std::int64_t pairs = (panels_ + 1) / 2;
    const auto stretch = [&](std::int64_t part) {
      const std::int64_t first = pairs * part / part_.columns, last = pairs * (part + 1) / part_.columns;
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t panel = 2 * (backwards ? first + last - 1 - i : i);
        each(panel, panel + 1 < panels_);
      }
    };
    if (part_.columns > 1)
      in_parts(part_.columns, stretch);
    else
      stretch(0);
  }

  void begin() {
    const auto set = [&](float* to, Operand operand, std::int64_t n) {
      std::fill_n(to, place_.units, 0.0F);
      if (at_[operand] == nullptr) return;
      const float* const from = reinterpret_cast<const float*>(at_[operand]) + row(n) * s_.hidden;
      std::copy_n(from, s_.hidden, to);
    };
    for (std::int64_t n = part_.first; n < part_.last; ++n) {
      set(h(before_, n), LstmStep::h, n);
      set(c(n), LstmStep::c, n);
    }
  }
  void end() {
    for (std::int64_t n = part_.first; n < part_.last; ++n) {
      if (at_[y_h] != nullptr)
        std::copy_n(h(before_, n), s_.hidden, reinterpret_cast<float*>(at_[y_h]) + row(n) * s_.hidden);
      if (at_[y_c] != nullptr)
        std::copy_n(c(n), s_.hidden, reinterpret_cast<float*>(at_[y_c]) + row(n) * s_.hidden);
    }
  }

  void multiply_inputs(std::int64_t panel, bool two) const {
    const std::int64_t all = (part_.last - part_.first) * s_.steps;
    const float* const bias = reinterpret_cast<const float*>(at_[b]) + part_.direction * panels_ * panel_row;
    Tile tile{};
    for (std::int64_t i = 0; i < all; i += most_rows) {
      const std::int64_t rows = std::min(most_rows, all - i);
      for (std::int64_t j = 0; j < rows; ++j) {
        const std::int64_t n = part_.first + (i + j) / s_.steps, t = (i + j) % s_.steps;
        const auto at = static_cast<std::size_t>(j);
        tile.a[at] = bytes() ? static_cast<const void*>(x_bytes(n, t)) : x(n, t);
        if (bytes()) tile.range[at] = x_range(n);
        tile.from[at] = bias;
        tile.to[at] = products(n, t);
      }
      find_tile<For::inputs>(s_.numbers, two, rows)(tile, w_, panel);
    }
  }

  void round_states() const {
    for (std::int64_t n = part_.first; n < part_.last; ++n) {
      Ends ends;
      widen(ends, h(before_, n), s_.hidden);
      h_range(n) = range_between(ends);
      round_to_bytes(h(before_, n), s_.hidden, h_range(n), h_bytes(n));
    }
  }

  void step(std::int64_t t, std::int64_t panel, bool two) const {
    Tile tile{};
    tile.units = s_.hidden;
    for (std::int64_t i = part_.first; i < part_.last; i += most_rows) {
      const std::int64_t rows = std::min(most_rows, part_.last - i);
      for (std::int64_t j = 0; j < rows; ++j) {
        const std::int64_t n = i + j;
        const auto at = static_cast<std::size_t>(j);
        tile.a[at] = bytes() ? static_cast<const void*>(h_bytes(n)) : h(before_, n);
        if (bytes()) tile.range[at] = h_range(n);
        tile.from[at] = products(n, t);
        tile.c[at] = c(n);
        tile.h[at] = h(after_, n);
        tile.y[at] = y(n, t);
      }
      find_tile<For::step>(s_.numbers, two, rows)(tile, r_, panel);
    }
  }

  const Shape& s_;
  const std::array<std::byte*, operands>& at_;
  Room place_;
  Part part_;
  std::int64_t panels_;
  Panels w_, r_;
  int before_ = 0, after_ = 1;  // which of the two hidden states
};

Result<> LstmStep::run(dnnl::stream&) {
  const Shape& s = shape_;
  // Sequences first, as they never wait for each other. Then the units of one, which do at each step: not
  // where that would take longer than what is shared.
  constexpr std::int64_t least_bytes = 256 << 10;
  const std::int64_t groups = std::clamp<std::int64_t>((threads_ + s.directions - 1) / s.directions, 1,
                                                       (s.batch + most_rows - 1) / most_rows);
  const std::int64_t read = panels_of(s.hidden) * panel_bytes(s.numbers, s.hidden) *
                            ((s.batch + groups - 1) / groups + most_rows - 1) / most_rows;
  const std::int64_t columns = std::clamp<std::int64_t>(
      std::min(threads_ / (groups * s.directions), read / least_bytes), 1, (panels_of(s.hidden) + 1) / 2);
  const auto share = [](std::int64_t count, const auto& body) {
    if (count > 1)
      in_parts(count, body);
    else
      body(std::int64_t{0});
  };
  if (s.numbers == Numbers::bytes) share(s.batch, [&](std::int64_t n) { Sequence::round_input(*this, n); });
  share(groups * s.directions, [&](std::int64_t i) {
    const std::int64_t group = i / s.directions;
    Sequence(*this, {.direction = i % s.directions,
                     .first = s.batch * group / groups,
                     .last = s.batch * (group + 1) / groups,
                     .columns = columns})
        .run();
  });
  return {};
}

}  // namespace carillon::engine::cpu
