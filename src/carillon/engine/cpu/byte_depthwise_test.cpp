// The kernel for bytes whose channels have a kernel each, against sums of whole numbers one by one.

#include "carillon/engine/cpu/byte_depthwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/graph/faults.h"

namespace carillon::engine::cpu {
namespace {

using graph::DataType;

graph::Tensor any_bytes(DataType type, const graph::Shape& shape, bool largest, Random& random) {
  graph::Tensor made({type, shape});
  const std::uint8_t end = type == DataType::i8 ? 0x80 : 0xff;
  for (std::byte& value : made.bytes())
    value = static_cast<std::byte>(largest ? end : static_cast<std::uint8_t>(random.below(256)));
  return made;
}
std::int32_t number(const graph::Tensor& tensor, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  return tensor.type().type == DataType::i8 ? std::int32_t{tensor.as<std::int8_t>()[at]}
                                            : std::int32_t{tensor.as<std::uint8_t>()[at]};
}

TEST(ByteDepthwise, IsExact) {
  if (ByteProduct::of_this_processor() == ByteProduct::Instructions::none) GTEST_SKIP() << "no AVX2";
  using Window = ByteProduct::Window;
  const Window windows[] = {
      {.images = 2, .height = 5, .width = 7, .channels = 16},
      {.height = 9, .width = 6, .channels = 41, .kernel = {3, 3}, .before = {1, 1}, .behind = {1, 1}},
      {.height = 8, .width = 9, .channels = 32, .kernel = {3, 2}, .strides = {2, 1}, .behind = {1, 0}},
      {.height = 11, .width = 10, .channels = 17, .kernel = {2, 3}, .dilations = {3, 2}, .before = {0, 2}},
      {.width = 30, .channels = 31, .kernel = {1, 5}, .strides = {1, 2}, .before = {0, 4}, .behind = {0, 4}},
      {.images = 3,
       .height = 40,
       .width = 40,
       .channels = 48,
       .kernel = {7, 7},
       .before = {3, 3},
       .behind = {3, 3}},
  };
  Random random(11);
  for (const Window& window : windows)
    for (const bool largest : {false, true})
      for (const auto source : {DataType::u8, DataType::i8})
        for (const auto weights : {DataType::i8, DataType::u8})
          for (const bool signed_result : {false, true}) {
            const std::int64_t channels = window.channels, taps = window.kernel[0] * window.kernel[1];
            const ByteDepthwise::Shape shape{.window = window,
                                             .signed_source = source == DataType::i8,
                                             .signed_result = signed_result,
                                             .x_zero = source == DataType::i8 ? 127 : 3,
                                             .y_zero = signed_result ? -7 : 100};
            const auto x = any_bytes(source, {window.images, window.height, window.width, channels}, largest,
                                     random),
                       w = any_bytes(weights, {channels, 1, window.kernel[0], window.kernel[1]}, largest,
                                     random),
                       zeros = any_bytes(weights, {channels}, false, random);
            // Powers of two and whole biases, so that f32 rounds as these numbers do.
            const std::vector<float> factors(static_cast<std::size_t>(channels), 0x1p-11F),
                biases(factors.size(), 5);
            const graph::Tensor packed = ByteDepthwise::pack(w, &zeros, shape);
            graph::Faults faults;
            const auto kernel = ByteDepthwise(shape).copy(faults);
            const std::int64_t down = window.places(0), across = window.places(1);
            const auto count = static_cast<std::size_t>(window.images * down * across * channels);
            std::vector<std::byte> room(ByteDepthwise::room(shape)), y(count + 64, std::byte{77});
            const auto place = [&](int operand, const void* at) {
              kernel->place(operand, const_cast<std::byte*>(static_cast<const std::byte*>(at)));
            };
            place(ByteDepthwise::x, x.bytes().data());
            place(ByteDepthwise::w, packed.bytes().data());
            place(ByteDepthwise::factors, factors.data());
            place(ByteDepthwise::biases, biases.data());
            place(ByteDepthwise::y, y.data());
            place(ByteDepthwise::room_at, room.data());
            dnnl::engine engine(dnnl::engine::kind::cpu, 0);
            dnnl::stream stream(engine);
            ASSERT_TRUE(kernel->run(stream).has_value());
            std::size_t next = 0;
            for (std::int64_t n = 0; n < window.images; ++n)
              for (std::int64_t top = 0; top < down; ++top)
                for (std::int64_t left = 0; left < across; ++left)
                  for (std::int64_t c = 0; c < channels; ++c, ++next) {
                    std::int64_t sum = 0;
                    for (std::int64_t tap = 0; tap < taps; ++tap) {
                      const std::int64_t row = top * window.strides[0] +
                                               tap / window.kernel[1] * window.dilations[0] -
                                               window.before[0];
                      const std::int64_t column = left * window.strides[1] +
                                                  tap % window.kernel[1] * window.dilations[1] -
                                                  window.before[1];
                      if (row < 0 || row >= window.height || column < 0 || column >= window.width) continue;
                      const std::int64_t at =
                          ((n * window.height + row) * window.width + column) * channels + c;
                      sum += (number(x, at) - shape.x_zero) * (number(w, c * taps + tap) - number(zeros, c));
                    }
                    const double low = signed_result ? -128 : 0;
                    const double want =
                        std::clamp(std::nearbyint(static_cast<double>(sum) * 0x1p-11 + 5) + shape.y_zero, low,
                                   low + 255);
                    const double got = signed_result ? static_cast<double>(static_cast<std::int8_t>(y[next]))
                                                     : static_cast<double>(y[next]);
                    ASSERT_EQ(got, want)
                        << "element " << next << " of " << channels << " channels, " << taps << " taps";
                  }
            ASSERT_TRUE(std::all_of(y.begin() + static_cast<std::ptrdiff_t>(count), y.end(),
                                    [](std::byte value) { return value == std::byte{77}; }));
          }
}

}  // namespace
}  // namespace carillon::engine::cpu
