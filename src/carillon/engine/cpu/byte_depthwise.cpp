#include "carillon/engine/cpu/byte_depthwise.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/team.h"

namespace carillon::engine::cpu {
namespace {

constexpr std::int64_t channels_at_once = ByteDepthwise::block;

std::int64_t taps_of(const ByteProduct::Window& window) {
  return window.kernel[0] * window.kernel[1];
}
std::int64_t pairs_of(const ByteProduct::Window& window) {
  return (taps_of(window) + 1) / 2;
}
std::int64_t blocks_of(const ByteProduct::Window& window) {
  return (window.channels + channels_at_once - 1) / channels_at_once;
}
std::int64_t first_of(std::int64_t b, const ByteProduct::Window& window) {
  return std::min(b * channels_at_once, window.channels - channels_at_once);
}
// Packed: of each block, what its sums start from, 32 bits each; then for each pair of taps the channels'
// two weights, 16 bits each.
std::int64_t block_bytes(const ByteProduct::Window& window) {
  return channels_at_once * 4 * (1 + pairs_of(window));
}

#if defined(__x86_64__)
#define CARILLON_AVX2 __attribute__((target("avx2,fma")))
template <bool signed_source>
CARILLON_AVX2 inline __m256i in_words(__m128i bytes) {
  return signed_source ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}
// Whole results, as ByteProduct makes them of sums.
CARILLON_AVX2 inline __m256i rounded(__m256i sums, const float* factors, const float* biases) {
  const __m256 bias = biases == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(biases);
  return _mm256_cvtps_epi32(_mm256_min_ps(
      _mm256_set1_ps(0x1p20F), _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_loadu_ps(factors), bias)));
}
// One pixel: all its channels. `from`: a pixel for each tap, the last twice where they are odd.
template <bool signed_source, bool signed_result>
CARILLON_AVX2 void multiply_pixel(const ByteProduct::Window& window, const std::byte* const* from,
                                  const std::byte* packed, const float* factors, const float* biases,
                                  std::int32_t y_zero, std::byte* to) {
  const std::int64_t pairs = pairs_of(window), blocks = blocks_of(window);
  const __m256i zero = _mm256_set1_epi16(static_cast<std::int16_t>(y_zero));
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t c = first_of(b, window);
    const auto* weights = reinterpret_cast<const __m256i*>(packed + b * block_bytes(window));
    __m256i low = _mm256_loadu_si256(weights), high = _mm256_loadu_si256(weights + 1);
    for (std::int64_t p = 0; p < pairs; ++p) {
      weights += 2;
      const __m128i one = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[2 * p] + c)),
                    other = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[2 * p + 1] + c));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(in_words<signed_source>(_mm_unpacklo_epi8(one, other)),
                                                    _mm256_loadu_si256(weights)));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(in_words<signed_source>(_mm_unpackhi_epi8(one, other)),
                                                      _mm256_loadu_si256(weights + 1)));
    }
    const float *bias = biases == nullptr ? nullptr : biases + c,
                *more = biases == nullptr ? nullptr : biases + c + 8;
    const __m256i both =
        _mm256_packs_epi32(rounded(low, factors + c, bias), rounded(high, factors + c + 8, more));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_adds_epi16(both, zero), 0xd8);
    const __m128i left = _mm256_castsi256_si128(words), right = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + c),
                     signed_result ? _mm_packs_epi16(left, right) : _mm_packus_epi16(left, right));
  }
}
#undef CARILLON_AVX2
#else
template <bool signed_source, bool signed_result>
void multiply_pixel(const ByteProduct::Window&, const std::byte* const*, const std::byte*, const float*,
                    const float*, std::int32_t, std::byte*) {}
#endif

}  // namespace

graph::Tensor ByteDepthwise::pack(const graph::Tensor& weights, const graph::Tensor* zeros,
                                  const Shape& shape) {
  const ByteProduct::Window& window = shape.window;
  const std::int64_t taps = taps_of(window), pairs = pairs_of(window), blocks = blocks_of(window);
  CARILLON_ASSERT(takes(window));
  graph::Tensor made({graph::DataType::u8, {blocks * block_bytes(window)}});
  const auto number = [](const graph::Tensor& tensor, std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    return tensor.type().type == graph::DataType::i8 ? std::int32_t{tensor.as<std::int8_t>()[at]}
                                                     : std::int32_t{tensor.as<std::uint8_t>()[at]};
  };
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::byte* const starts = made.bytes().data() + b * block_bytes(window);
    for (std::int64_t i = 0; i < block; ++i) {
      const std::int64_t c = first_of(b, window) + i;
      const std::int32_t zero = zeros == nullptr ? 0 : number(*zeros, zeros->type().elements() == 1 ? 0 : c);
      std::int32_t start = 0;
      for (std::int64_t tap = 0; tap < 2 * pairs; ++tap) {
        const auto weight =
            static_cast<std::int16_t>(tap < taps ? number(weights, c * taps + tap) - zero : 0);
        start -= weight * shape.x_zero;
        std::memcpy(starts + block * 4 * (1 + tap / 2) + i * 4 + tap % 2 * 2, &weight, sizeof weight);
      }
      std::memcpy(starts + i * 4, &start, sizeof start);
    }
  }
  return made;
}

std::unique_ptr<Kernel> ByteDepthwise::copy(graph::Faults&) const {
  return std::make_unique<ByteDepthwise>(shape_);
}

int ByteDepthwise::pieces() const {
  // A part is worth about 10 us.
  constexpr std::int64_t products = 1 << 18;
  const ByteProduct::Window& window = shape_.window;
  const std::int64_t lines = window.images * window.places(0),
                     all = lines * window.places(1) * window.channels * taps_of(window);
  return static_cast<int>(
      std::clamp<std::int64_t>(all / products, 1, std::min<std::int64_t>(lines, 1 << 20)));
}

void ByteDepthwise::run_lines(std::int64_t first, std::int64_t last) const {
  const ByteProduct::Window& window = shape_.window;
  const std::int64_t across = window.places(1), down = window.places(0);
  const auto kernel =
      shape_.signed_source
          ? (shape_.signed_result ? multiply_pixel<true, true> : multiply_pixel<true, false>)
          : (shape_.signed_result ? multiply_pixel<false, true> : multiply_pixel<false, false>);
  std::array<const std::byte*, most_taps + 1> from;
  std::byte* to = at_[y] + first * across * window.channels;
  for (std::int64_t line = first; line < last; ++line) {
    const std::byte* const image = at_[x] + line / down * window.height * window.width * window.channels;
    for (std::int64_t place = 0; place < across; ++place, to += window.channels) {
      std::size_t tap = 0;
      for (std::int64_t i = 0; i < window.kernel[0]; ++i) {
        const std::int64_t row = line % down * window.strides[0] + i * window.dilations[0] - window.before[0];
        for (std::int64_t j = 0; j < window.kernel[1]; ++j) {
          const std::int64_t column = place * window.strides[1] + j * window.dilations[1] - window.before[1];
          const bool inside = row >= 0 && row < window.height && column >= 0 && column < window.width;
          from[tap++] = inside ? image + (row * window.width + column) * window.channels : at_[room_at];
        }
      }
      from[tap] = from[tap - 1];
      kernel(window, from.data(), at_[w], reinterpret_cast<const float*>(at_[factors]),
             reinterpret_cast<const float*>(at_[biases]), shape_.y_zero, to);
    }
  }
}

Result<> ByteDepthwise::run(dnnl::stream&) {
  std::fill_n(at_[room_at], shape_.window.channels, static_cast<std::byte>(shape_.x_zero));  // padding
  const std::int64_t lines = shape_.window.images * shape_.window.places(0), parts = pieces();
  const auto part = [&](std::int64_t i) { run_lines(lines * i / parts, lines * (i + 1) / parts); };
  if (parts > 1)
    in_parts(parts, part);
  else
    part(0);
  return {};
}

}  // namespace carillon::engine::cpu
