// The kernel that multiplies bytes, against sums of whole numbers one by one, with every set of instructions
// that the processor has.

#include "carillon/engine/cpu/byte_product.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"

namespace carillon::engine::cpu {
namespace {

using graph::DataType;
using Instructions = ByteProduct::Instructions;
using Made = ByteProduct::Made;

// few_large: most are small, as trained weights are, so that steps are merged, single, or left to extra ones.
// near_zero, of a source: near its zero point, but for a few, so that runs sort some steps either way.
enum class Numbers : std::uint8_t { any, largest, smallest, alternating, few_large, near_zero };

struct Case {
  std::int64_t rows, depth, columns;
  DataType source = DataType::u8, weights = DataType::i8;
  Numbers numbers = Numbers::any;
  int zeros = 0;  // of the weights: none, one, one a column
  std::int32_t x_zero = 0;
};

std::string to_text(const Case& c) {
  return std::to_string(c.rows) + " x " + std::to_string(c.depth) + " x " + std::to_string(c.columns) +
         (c.source == DataType::i8 ? ", source with a sign" : "") +
         (c.weights == DataType::u8 ? ", weights without" : "") + ", numbers " +
         std::to_string(static_cast<int>(c.numbers)) + ", zeros " + std::to_string(c.zeros) + ", x's zero " +
         std::to_string(c.x_zero);
}

std::int32_t number_at(const graph::Tensor& tensor, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  return tensor.type().type == DataType::i8 ? std::int32_t{tensor.as<std::int8_t>()[at]}
                                            : std::int32_t{tensor.as<std::uint8_t>()[at]};
}

graph::Tensor bytes_of(DataType type, const graph::Shape& shape, Numbers numbers, Random& random,
                       std::int32_t zero = 0) {
  graph::Tensor made({type, shape});
  const std::uint8_t largest = type == DataType::i8 ? 0x7f : 0xff, smallest = type == DataType::i8 ? 0x80 : 0;
  std::size_t i = 0;
  for (std::byte& value : made.bytes()) {
    const bool high = numbers == Numbers::largest || (numbers == Numbers::alternating && i % 3 != 0);
    if (numbers == Numbers::near_zero) {
      const std::int32_t least = type == DataType::i8 ? -128 : 0;
      const std::int32_t near = zero + static_cast<std::int32_t>(random.below(61)) - 30;
      value = static_cast<std::byte>(random.below(50) == 0 ? static_cast<std::int32_t>(random.below(256))
                                                           : std::clamp(near, least, least + 255));
      continue;
    }
    if (numbers == Numbers::few_large) {
      const bool large = random.below(30) == 0;
      const auto small = static_cast<std::uint8_t>(random.below(41) - 20);
      value = static_cast<std::byte>((large ? static_cast<std::uint8_t>(random.below(256)) : small) ^
                                     (type == DataType::i8 ? 0 : 0x80));
      ++i;
      continue;
    }
    value = static_cast<std::byte>(numbers == Numbers::any ? static_cast<std::uint8_t>(random.below(256))
                                   : high                  ? largest
                                                           : smallest);
    ++i;
  }
  return made;
}

struct Operands {
  graph::Tensor x, w;
  std::optional<graph::Tensor> zeros;
  std::vector<std::int32_t> sums;

  explicit Operands(const Case& c) : x({DataType::u8, {}}), w({DataType::u8, {}}) {
    Random random(17);
    x = bytes_of(c.source, {c.rows, c.depth}, c.numbers, random, c.x_zero);
    w = bytes_of(c.weights, {c.depth, c.columns}, c.numbers == Numbers::near_zero ? Numbers::any : c.numbers,
                 random);
    if (c.zeros > 0) zeros = bytes_of(c.weights, {c.zeros == 1 ? 1 : c.columns}, Numbers::any, random);
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t column = 0; column < c.columns; ++column) {
        std::int64_t sum = 0;
        const std::int32_t zero = zeros ? number_at(*zeros, c.zeros == 1 ? 0 : column) : 0;
        for (std::int64_t k = 0; k < c.depth; ++k)
          sum += static_cast<std::int64_t>(number_at(x, r * c.depth + k) - c.x_zero) *
                 (number_at(w, k * c.columns + column) - zero);
        sums.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(sum)));
      }
  }
};

// Runs the kernel, whose result has elements of T.
template <typename T>
std::vector<T> run(const Case& c, const Operands& operands, Instructions with, Made made, bool x_zero_read,
                   const std::vector<float>& factors = {}, const std::vector<float>& biases = {},
                   const std::vector<ByteProduct::After>& behind = {},
                   const std::vector<std::vector<float>>& more = {}, std::int32_t y_zero = 0) {
  const graph::Tensor* const zeros = operands.zeros ? &*operands.zeros : nullptr;
  ByteProduct::Shape shape{.rows = c.rows, .depth = c.depth, .columns = c.columns};
  shape.signed_source = c.source == DataType::i8;
  shape.shifted_weights = ByteProduct::shifts(operands.w, zeros);
  shape.made = made;
  shape.y_zero = y_zero;
  if (!x_zero_read) shape.x_zero = c.x_zero;
  const graph::Tensor packed = ByteProduct::pack(operands.w, zeros, with);
  shape.sorted = ByteProduct::is_sorted(packed);
  const ByteProduct original(shape, with, behind);
  graph::Faults faults;
  const auto kernel = original.copy(faults);
  std::vector<T> result(static_cast<std::size_t>(c.rows * c.columns), T{77});
  // Guards behind what the kernel may write.
  result.insert(result.end(), 64, T{55});
  std::vector<std::byte> room(ByteProduct::room(shape), std::byte{0xee});
  auto zero = static_cast<std::byte>(c.x_zero);
  float scale = 0.5F;
  std::vector<graph::Tensor> kept;
  const auto place = [&](int operand, const void* at) {
    kernel->place(operand, const_cast<std::byte*>(static_cast<const std::byte*>(at)));
  };
  place(ByteProduct::x, operands.x.bytes().data());
  place(ByteProduct::w, packed.bytes().data());
  place(ByteProduct::y, result.data());
  if (!room.empty()) place(ByteProduct::room_at, room.data());
  if (x_zero_read) place(ByteProduct::x_zero, &zero);
  const graph::Tensor by_column = ByteProduct::by_column(factors.empty() ? std::vector<float>{1} : factors,
                                                         c.columns, with),
                      biased = ByteProduct::by_column(biases.empty() ? std::vector<float>{0} : biases,
                                                      c.columns, with);
  if (made != Made::whole) {
    place(ByteProduct::factors, by_column.bytes().data());
    place(ByteProduct::x_scale, &scale);
    if (!biases.empty()) place(ByteProduct::biases, biased.bytes().data());
  }
  for (std::size_t i = 0; i < more.size(); ++i)
    if (!more[i].empty()) place(ByteProduct::after + static_cast<int>(i), more[i].data());
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  EXPECT_TRUE(kernel->run(stream).has_value());
  EXPECT_TRUE(std::all_of(result.end() - 64, result.end(), [](T value) { return value == T{55}; }));
  result.resize(result.size() - 64);
  return result;
}

std::vector<Instructions> all_instructions() {
  std::vector<Instructions> found;
  for (const auto with : {Instructions::avx2, Instructions::avx512, Instructions::vnni})
    if (with <= ByteProduct::of_this_processor()) found.push_back(with);
  return found;
}

TEST(ByteProduct, SumsAreExact) {
  std::vector<Case> cases;
  for (const auto numbers :
       {Numbers::any, Numbers::largest, Numbers::smallest, Numbers::alternating, Numbers::few_large})
    for (const auto source : {DataType::u8, DataType::i8})
      for (const auto weights : {DataType::i8, DataType::u8})
        for (const int zeros : {0, 1, 2}) {
          const std::int32_t x_zero = source == DataType::i8 ? -128 : 255;
          cases.push_back({3, 67, 33, source, weights, numbers, zeros, x_zero});
          cases.push_back({1, 64, 16, source, weights, numbers, zeros, 0});
        }
  for (const std::int64_t rows : {1, 2, 4, 5, 8, 9, 17, 300})
    for (const std::int64_t depth : {1, 3, 4, 130})
      for (const std::int64_t columns : {1, 15, 16, 31, 32, 100})
        for (const auto numbers : {Numbers::any, Numbers::few_large})
          cases.push_back({rows, depth, columns, DataType::u8, DataType::i8, numbers, 0, 7});
  // Steps that runs sort: more than are sorted at once, tiles that are not full, each kind of zero point.
  for (const std::int64_t rows : {1, 3, 4, 8, 13, 40})
    for (const std::int64_t depth : {4, 19, 20, 512, 700, 1100})
      for (const std::int64_t columns : {16, 33, 300})
        for (const std::int32_t zero : {0, 1, 40, 127})
          for (const auto source : {DataType::u8, DataType::i8})
            cases.push_back({rows, depth, columns, source, DataType::i8, Numbers::near_zero, 0,
                             source == DataType::i8 ? -zero : 2 * zero});
  cases.push_back({70, 130, 150, DataType::i8, DataType::u8, Numbers::near_zero, 2, -3});
  // Enough for several units of work, by rows and by columns.
  cases.push_back({600, 512, 40});
  cases.push_back({2, 1024, 700, DataType::i8, DataType::u8, Numbers::any, 2, -5});
  for (const Case& c : cases) {
    SCOPED_TRACE(to_text(c));
    const Operands operands(c);
    for (const auto with : all_instructions())
      for (const bool x_zero_read : {false, true})
        ASSERT_EQ(run<std::int32_t>(c, operands, with, Made::whole, x_zero_read), operands.sums)
            << "instructions " << static_cast<int>(with);
  }
}

TEST(ByteProduct, SortsStepsOnlyWhereManyWeightsDoNotFit) {
  const Operands few({1, 400, 64, DataType::u8, DataType::i8, Numbers::few_large}), any({1, 400, 64});
  for (const auto with : {Instructions::avx2, Instructions::avx512}) {
    EXPECT_FALSE(ByteProduct::is_sorted(ByteProduct::pack(few.w, nullptr, with)));
    EXPECT_TRUE(ByteProduct::is_sorted(ByteProduct::pack(any.w, nullptr, with)));
  }
  EXPECT_FALSE(ByteProduct::is_sorted(ByteProduct::pack(any.w, nullptr, Instructions::vnni)));
}

// The most that 16 bits bear, and one more: 255 * 128 in either direction.
TEST(ByteProduct, NeighboursAtTheEdgeOfSixteenBits) {
  const Case c{2, 8, 16};
  Operands operands(c);
  std::ranges::fill(operands.x.bytes(), std::byte{255});
  for (int a = -128; a < 128; ++a)
    for (int b = -128; b < 128; b += 3) {
      const auto w = operands.w.as<std::int8_t>();
      for (std::size_t k = 0; k < 8; ++k)
        for (std::size_t column = 0; column < 16; ++column)
          w[k * 16 + column] = static_cast<std::int8_t>(column != 1 || k >= 4 ? 1 : k % 2 == 0 ? a : b);
      for (std::size_t i = 0; i < operands.sums.size(); ++i)
        operands.sums[i] = 255 * (i % 16 != 1 ? 8 : 4 + 2 * (a + b));
      for (const auto with : all_instructions())
        ASSERT_EQ(run<std::int32_t>(c, operands, with, Made::whole, false), operands.sums)
            << a << " and " << b;
    }
}

// Likewise of the source, where runs sort the steps: neighbours that are 254 to 256 in sum less twice the
// base, with the largest weights of either sign.
TEST(ByteProduct, NeighboursOfTheSourceAtTheEdge) {
  for (const std::int32_t x_zero : {0, 1, 2, 100, 254, 255})
    for (const int weight : {-128, 127}) {
      const Case c{.rows = 5, .depth = 8, .columns = 16, .x_zero = x_zero};
      Operands operands(c);
      std::ranges::fill(operands.w.bytes(), static_cast<std::byte>(weight));
      ASSERT_TRUE(ByteProduct::is_sorted(ByteProduct::pack(operands.w, nullptr, Instructions::avx2)));
      for (int a = 0; a < 256; a += a == 2 ? 3 : 1)
        for (const int b : {0, 1, 127, 128, 254 - a, 255 - a, 256 - a, 255}) {
          if (b < 0 || b > 255) continue;
          std::ranges::fill(operands.x.bytes(), static_cast<std::byte>(x_zero));
          operands.x.bytes()[2] = static_cast<std::byte>(a);
          operands.x.bytes()[3] = static_cast<std::byte>(b);
          for (std::size_t i = 0; i < operands.sums.size(); ++i)
            operands.sums[i] = i < 16 ? (a + b - 2 * x_zero) * weight : 0;
          for (const auto with : all_instructions())
            ASSERT_EQ(run<std::int32_t>(c, operands, with, Made::whole, true), operands.sums)
                << a << " and " << b << " with " << weight << ", zero point " << x_zero;
        }
    }
}

// Windows of every kind over images whose channels fill whole steps or not, with a source of either sign.
TEST(ByteProduct, ConvolutionsAreExact) {
  using Window = ByteProduct::Window;
  const Window windows[] = {
      {.images = 2, .height = 5, .width = 7, .channels = 8},
      {.images = 1,
       .height = 9,
       .width = 6,
       .channels = 3,
       .kernel = {3, 3},
       .before = {1, 1},
       .behind = {1, 1}},
      {.images = 3,
       .height = 8,
       .width = 9,
       .channels = 4,
       .kernel = {3, 2},
       .strides = {2, 1},
       .behind = {1, 0}},
      {.images = 1,
       .height = 11,
       .width = 10,
       .channels = 6,
       .kernel = {2, 3},
       .dilations = {3, 2},
       .before = {0, 2}},
      {.images = 2,
       .height = 1,
       .width = 30,
       .channels = 16,
       .kernel = {1, 5},
       .strides = {1, 2},
       .before = {0, 2},
       .behind = {0, 2}},
      {.images = 1,
       .height = 40,
       .width = 40,
       .channels = 64,
       .kernel = {3, 3},
       .before = {1, 1},
       .behind = {1, 1}},
  };
  constexpr std::int64_t columns = 37;
  for (const Window& window : windows)
    for (const auto source : {DataType::u8, DataType::i8})
      for (const auto weights : {DataType::i8, DataType::u8})
        for (const auto numbers : {Numbers::any, Numbers::few_large, Numbers::near_zero}) {
          Random random(23);
          const std::int32_t x_zero = source == DataType::i8 ? -9 : 131;
          const graph::Tensor x = bytes_of(
              source, {window.images, window.height, window.width, window.channels}, numbers, random, x_zero);
          const graph::Tensor w =
              bytes_of(weights, {columns, window.channels, window.kernel[0], window.kernel[1]},
                       numbers == Numbers::near_zero ? Numbers::any : numbers, random);
          graph::Tensor zero({weights, {}});
          if (weights == DataType::u8) zero.bytes()[0] = std::byte{128};
          const std::int32_t w_zero = weights == DataType::u8 ? 128 : 0;
          std::vector<std::int32_t> want;
          for (std::int64_t n = 0; n < window.images; ++n)
            for (std::int64_t top = 0; top < window.places(0); ++top)
              for (std::int64_t left = 0; left < window.places(1); ++left)
                for (std::int64_t o = 0; o < columns; ++o) {
                  std::int32_t sum = 0;
                  for (std::int64_t i = 0; i < window.kernel[0]; ++i)
                    for (std::int64_t j = 0; j < window.kernel[1]; ++j) {
                      const std::int64_t down =
                          top * window.strides[0] + i * window.dilations[0] - window.before[0];
                      const std::int64_t across =
                          left * window.strides[1] + j * window.dilations[1] - window.before[1];
                      if (down < 0 || down >= window.height || across < 0 || across >= window.width) continue;
                      for (std::int64_t c = 0; c < window.channels; ++c)
                        sum += (number_at(x, ((n * window.height + down) * window.width + across) *
                                                     window.channels +
                                                 c) -
                                x_zero) *
                               (number_at(
                                    w, ((o * window.channels + c) * window.kernel[0] + i) * window.kernel[1] +
                                           j) -
                                w_zero);
                    }
                  want.push_back(sum);
                }
          ASSERT_FALSE(ByteProduct::shifts(w, &zero));
          for (const auto with : all_instructions()) {
            const graph::Tensor packed = ByteProduct::pack(ByteProduct::by_depth(w, window), &zero, with);
            const graph::Tensor steps = ByteProduct::offsets(packed, window, columns, with);
            const ByteProduct::Shape shape{.rows = static_cast<std::int64_t>(want.size()) / columns,
                                           .depth = window.depth(),
                                           .columns = columns,
                                           .signed_source = source == DataType::i8,
                                           .sorted = ByteProduct::is_sorted(packed),
                                           .x_zero = x_zero,
                                           .window = window};
            graph::Faults faults;
            const auto kernel = ByteProduct(shape, with, {}).copy(faults);
            std::vector<std::int32_t> sums(want.size());
            std::vector<std::byte> room(ByteProduct::room(shape), std::byte{0xee});
            const auto place = [&](int operand, const void* at) {
              kernel->place(operand, const_cast<std::byte*>(static_cast<const std::byte*>(at)));
            };
            place(ByteProduct::x, x.bytes().data());
            place(ByteProduct::w, packed.bytes().data());
            place(ByteProduct::steps, steps.bytes().data());
            place(ByteProduct::y, sums.data());
            if (!room.empty()) place(ByteProduct::room_at, room.data());
            dnnl::engine engine(dnnl::engine::kind::cpu, 0);
            dnnl::stream stream(engine);
            ASSERT_TRUE(kernel->run(stream).has_value());
            ASSERT_EQ(sums, want) << window.kernel[0] << " x " << window.kernel[1] << " over "
                                  << window.channels << " channels, instructions " << static_cast<int>(with)
                                  << ", numbers " << static_cast<int>(numbers);
          }
        }
}

TEST(ByteProduct, WhatBecomesOfSums) {
  using After = ByteProduct::After;
  using Kind = After::Kind;
  Random random(3);
  for (const Case& c : {Case{5, 40, 21, DataType::u8, DataType::i8, Numbers::any, 2, 9}, Case{9, 12, 64}}) {
    const Operands operands(c);
    const auto some = [&](std::int64_t count) {
      std::vector<float> made(static_cast<std::size_t>(count));
      for (float& value : made) value = static_cast<float>(random.normal());
      return made;
    };
    const std::vector<float> factors = some(c.columns), biases = some(c.columns);
    const std::vector<After> behind{{.kind = Kind::add, .row_step = c.columns, .column_step = 1},
                                    {.kind = Kind::relu},
                                    {.kind = Kind::mul, .row_step = 1, .column_step = 0},
                                    {.kind = Kind::clip, .low = -20, .high = 30}};
    std::vector<std::vector<float>> more{some(c.rows * c.columns), {}, some(c.rows), {}};
    more[0][1] = std::numeric_limits<float>::quiet_NaN();
    for (const auto with : all_instructions()) {
      const auto real = run<float>(c, operands, with, Made::real, true, factors, biases, behind, more);
      const auto rounded =
          run<std::uint8_t>(c, operands, with, Made::bytes, true, factors, biases, {}, {}, 100);
      const auto with_sign =
          run<std::int8_t>(c, operands, with, Made::signed_bytes, true, factors, {}, {}, {}, -4);
      for (std::size_t i = 0; i < operands.sums.size(); ++i) {
        const std::size_t column = i % static_cast<std::size_t>(c.columns),
                          row = i / static_cast<std::size_t>(c.columns);
        const double plain =
            static_cast<double>(operands.sums[i]) * static_cast<double>(factors[column]) * 0.5;
        const double biased = plain + static_cast<double>(biases[column]);
        const double want = std::clamp(
            std::max(biased + static_cast<double>(more[0][i]), 0.0) * static_cast<double>(more[2][row]),
            -20.0, 30.0);
        if (i == 1)
          EXPECT_TRUE(std::isnan(real[i]));
        else
          EXPECT_NEAR(real[i], want, 1e-5 * std::abs(plain) + 1e-5);
        EXPECT_NEAR(rounded[i], std::clamp(biased + 100, 0.0, 255.0), 0.51);
        EXPECT_NEAR(with_sign[i], std::clamp(plain - 4, -128.0, 127.0), 0.51);
      }
    }
  }
}

TEST(ByteProduct, BoundsHideWhateverThereIs) {
  using After = ByteProduct::After;
  using Kind = After::Kind;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  infinity = std::numeric_limits<float>::infinity();
  const Case c{5, 40, 21, DataType::u8, DataType::i8, Numbers::any, 2, 9};
  const Operands operands(c);
  const std::vector<float> factors(static_cast<std::size_t>(c.columns), 1), none(factors.size(), 0);
  const std::vector<After> behind{{.kind = Kind::add, .row_step = c.columns, .column_step = 1},
                                  {.kind = Kind::at_most, .row_step = 0, .column_step = 1},
                                  {.kind = Kind::at_least, .row_step = 0, .column_step = 1}};
  std::vector<std::vector<float>> more{std::vector<float>(operands.sums.size(), 0), none, none};
  for (std::size_t i = 0; i < more[0].size(); i += 2)
    more[0][i] = i % 3 == 0 ? nan : i % 3 == 1 ? infinity : -infinity;
  for (std::size_t column = 0; column < factors.size(); ++column) {
    more[1][column] = column % 4 == 1 ? -1e38F : infinity;
    more[2][column] = column % 4 == 1 ? -1e38F : -infinity;
  }
  for (const auto with : all_instructions()) {
    const auto real = run<float>(c, operands, with, Made::real, true, factors, none, behind, more);
    for (std::size_t i = 0; i < operands.sums.size(); ++i) {
      if (i % factors.size() % 4 == 1)
        EXPECT_EQ(real[i], -1e38F) << i;
      else if (std::isnan(more[0][i]))
        EXPECT_EQ(real[i], infinity) << i;
      else if (more[0][i] == 0)
        EXPECT_LT(std::abs(real[i]), 1e9F) << i;
      else
        EXPECT_EQ(real[i], more[0][i]) << i;
    }
  }
}

// A product whose whole sums are what the model gives, in every form that the engine takes.
TEST(ByteProduct, IsWhatMatMulIntegerRunsOn) {
  if (ByteProduct::of_this_processor() == Instructions::none) GTEST_SKIP() << "no AVX2";
  const auto make = [](std::int64_t n) {
    testing::GraphMaker m;
    Random random(5);
    const auto x = m.input({n, 7, 50});
    const auto q = m.value({n, 7, 50}, DataType::u8), s = m.value({}), z = m.value({}, DataType::u8);
    m.g.nodes.push_back(
        {.name = "range", .op = "DynamicQuantizeLinear", .inputs = {x}, .outputs = {q, s, z}});
    const auto w =
        m.constant(std::make_shared<graph::Tensor>(bytes_of(DataType::u8, {50, 19}, Numbers::any, random)));
    const auto w_zero =
        m.constant(std::make_shared<graph::Tensor>(bytes_of(DataType::u8, {19}, Numbers::any, random)));
    const auto y = m.value({n, 7, 19}, DataType::i32);
    m.g.nodes.push_back(
        {.name = "product", .op = "MatMulInteger", .inputs = {q, w, z, w_zero}, .outputs = {y}});
    m.g.outputs = {y};
    return std::move(m.g);
  };
  const auto engine = make_cpu_engine({.threads = 2});
  const auto compiled = engine->compile(testing::MadeModel(make), {.batch_sizes = {1, 3}});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  for (const int batch : {1, 3}) {
    const graph::Graph g = make(batch);
    const Plan& plan = *(*compiled)->plan(batch);
    const auto inputs = testing::random_inputs(g, 7);
    const auto want = testing::reference(g, inputs);
    const auto team = engine->make_team({.threads = 2});
    const testing::Bound bound(**compiled, plan, inputs, team->get());
    ASSERT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}).has_value());
    EXPECT_TRUE(std::ranges::equal(bound.outputs()[0]->as<std::int32_t>(), want[0]->as<std::int32_t>()));
    bool own = false;
    for (int k = 0; k < plan.kernels(); ++k) {
      own = own || plan.kernel_name(k) == "product bytes";
      EXPECT_EQ(plan.kernel_name(k).find("plain:MatMulInteger"), std::string_view::npos);
    }
    EXPECT_TRUE(own);
  }
}

}  // namespace
}  // namespace carillon::engine::cpu
