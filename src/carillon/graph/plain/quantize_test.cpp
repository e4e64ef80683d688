#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>

#include "carillon/graph/plain/plain_test.h"
#include "carillon/graph/plain/quantised.h"

namespace carillon::graph::plain {
namespace {

using testing::ElementsAre;
using testing::FloatEq;
using Byte = std::uint8_t;
using Small = std::int8_t;
constexpr auto u8 = DataType::u8;
constexpr auto i8 = DataType::i8;
constexpr auto f32 = DataType::f32;
constexpr auto i32 = DataType::i32;

TEST(Quantize, RoundsTiesToEvenAndSaturates) {
  Case test("QuantizeLinear");
  test.f32({8}, {0, 1, 3, 5, -1, 1000, -1000, 2.2F}).f32({}, {2}).of<Byte>(u8, {}, {10}).out(u8, {8});
  EXPECT_THAT(test.result<Byte>(), ElementsAre(10, 10, 12, 12, 10, 255, 0, 11));
  Case with_sign("QuantizeLinear");
  with_sign.f32({4}, {127.5F, -128.5F, -129, 0.5F}).f32({}, {1}).of<Small>(i8, {}, {0}).out(i8, {4});
  EXPECT_THAT(with_sign.result<Small>(), ElementsAre(127, -128, -128, 0));
}

TEST(Quantize, WhatIsNotFiniteTakesAnEnd) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  Case test("QuantizeLinear");
  test.f32({3}, {inf, -inf, std::nanf("")}).f32({}, {0.5F}).absent().out(u8, {3});
  EXPECT_THAT(test.result<Byte>(), ElementsAre(255, 0, 0));
  Case by_zero("QuantizeLinear");
  by_zero.f32({2}, {1, 0}).f32({}, {0}).absent().out(u8, {2});
  EXPECT_THAT(by_zero.result<Byte>(), ElementsAre(255, 0));
}

// Loops over many elements against one by one: of every length, with ties, ends, and what is not finite.
template <typename To>
void expect_vectors_round_alike() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 60);
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (std::int64_t count = 0; count < 100; ++count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& value : x) value = std::round(2 * normal(random)) / 2;
    if (count > 40) x[3] = std::nanf(""), x[17] = inf, x[33] = -inf, x[34] = 1e30F, x[35] = -1e30F;
    for (const float scale : {1.0F, 0.3F, 1e-30F})
      for (const std::int32_t zero : {0, 5, -7, 120}) {
        std::vector<To> y(x.size() + 1, To{99});
        quantise_all(x.data(), y.data(), count, scale, zero);
        for (std::size_t i = 0; i < x.size(); ++i)
          ASSERT_EQ(y[i], quantised<To>(x[i] / scale, zero)) << i << " of " << count << ": " << x[i];
        ASSERT_EQ(y.back(), To{99});
      }
  }
}
TEST(Quantize, VectorsRoundAsElementsDo) {
  expect_vectors_round_alike<Byte>();
  expect_vectors_round_alike<Small>();
}

template <typename A, typename B>
void expect_vectors_combine_alike() {
  std::mt19937 random(8);
  for (std::int64_t count = 1; count < 100; ++count)
    for (const auto kind : {Arithmetic::add, Arithmetic::mul})
      for (const bool one : {false, true}) {
        const Combined how{
            .kind = kind, .a = {0.02F, 100}, .b = {0.5F, 3}, .inverse = 8, .zero = -20, .one = one};
        std::vector<A> a(static_cast<std::size_t>(count)), y(static_cast<std::size_t>(count) + 1, A{99});
        std::vector<B> b(static_cast<std::size_t>(count));
        for (auto& value : a) value = static_cast<A>(random());
        for (auto& value : b) value = static_cast<B>(static_cast<std::int8_t>(random()));
        combine_all(how, a.data(), b.data(), y.data(), count);
        for (std::size_t i = 0; i < a.size(); ++i) {
          const float left = static_cast<float>(a[i] - 100) * 0.02F;
          const B from = b[one ? 0 : i];
          const float right =
              std::is_same_v<B, float> ? static_cast<float>(from) : (static_cast<float>(from) - 3) * 0.5F;
          const float both = kind == Arithmetic::add ? left + right : left * right;
          ASSERT_EQ(y[i], quantised<A>(both * 8, -20)) << i << " of " << count;
        }
        ASSERT_EQ(y.back(), A{99});
      }
}
TEST(Quantize, VectorsCombineAsElementsDo) {
  expect_vectors_combine_alike<Byte, Byte>();
  expect_vectors_combine_alike<Small, Small>();
  expect_vectors_combine_alike<Byte, float>();
  expect_vectors_combine_alike<Small, float>();
}

TEST(Quantize, EachIndexOfTheAxisHasItsScale) {
  Case test("QuantizeLinear");
  test.f32({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}).f32({2}, {1, 2}).of<Byte>(u8, {2}, {0, 100});
  test.with("axis", Attribute{std::int64_t{1}}).out(u8, {2, 2, 2});
  EXPECT_THAT(test.result<Byte>(), ElementsAre(1, 2, 102, 102, 5, 6, 104, 104));
}

TEST(Dequantize, BlocksShareAScale) {
  Case test("DequantizeLinear");
  test.of<Small>(i8, {3, 2}, {1, 2, 3, 4, 5, 6})
      .f32({2, 2}, {1, 10, 100, 1000})
      .of<Small>(i8, {2, 2}, {0, 0, 1, 0});
  test.with("axis", Attribute{std::int64_t{0}})
      .with("block_size", Attribute{std::int64_t{2}})
      .out(f32, {3, 2});
  EXPECT_THAT(test.floats(), ElementsAre(1, 20, 3, 40, 400, 6000));
}

TEST(Dequantize, WhatWasQuantisedComesBackWithinHalfAStep) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    const float scale =
        std::ldexp(1.0F + static_cast<float>(random() % 100) / 100, static_cast<int>(random() % 20) - 10);
    const auto zero = static_cast<Small>(random() % 256);
    std::vector<float> values(1 + random() % 300);
    for (float& v : values)
      v = scale * (static_cast<float>(random() % 2560) / 10 - 128 - static_cast<float>(zero));
    Case there("QuantizeLinear");
    const auto count = static_cast<std::int64_t>(values.size());
    there.inputs.emplace_back(Tensor::of_f32({count}, values));
    there.f32({}, {scale}).of<Small>(i8, {}, {zero}).out(i8, {count});
    const auto bytes = there.result<Small>();
    Case back("DequantizeLinear");
    Tensor tensor({i8, {count}});
    std::ranges::copy(bytes, tensor.as<Small>().begin());
    back.inputs.emplace_back(std::move(tensor));
    back.f32({}, {scale}).of<Small>(i8, {}, {zero}).out(f32, {count});
    const auto got = back.floats();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float top = scale * (127 - static_cast<float>(zero));
      EXPECT_NEAR(got[i], std::min(values[i], top), 0.5001F * scale) << "round " << round << " element " << i;
    }
  }
}

TEST(DynamicQuantize, TakesTheRangeWithZeroInIt) {
  Case test("DynamicQuantizeLinear");
  test.f32({4}, {1, 2, 3, 5.1F}).out(u8, {4}).out(f32, {}).out(u8, {});
  EXPECT_THAT(test.result<Byte>(), ElementsAre(50, 100, 150, 255));
  EXPECT_THAT(test.outputs[1].as<float>()[0], FloatEq(5.1F / 255));
  EXPECT_EQ(test.outputs[2].as<Byte>()[0], 0);
  Case below("DynamicQuantizeLinear");
  below.f32({2}, {-1, 0}).out(u8, {2}).out(f32, {}).out(u8, {});
  EXPECT_THAT(below.result<Byte>(), ElementsAre(0, 255));
  EXPECT_EQ(below.outputs[2].as<Byte>()[0], 255);
  Case nothing("DynamicQuantizeLinear");
  nothing.f32({2}, {0, 0}).out(u8, {2}).out(f32, {}).out(u8, {});
  EXPECT_THAT(nothing.result<Byte>(), ElementsAre(0, 0));
  EXPECT_EQ(nothing.outputs[1].as<float>()[0], 1);
}

// By the definition, element by element.
TEST(MatMulInteger, AgreesWithTheDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const auto extent = [&](int most) {
      return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
    };
    const std::int64_t batch = extent(3), m = extent(9), k = extent(40), n = extent(90);
    const bool by_row = random() % 2 != 0, by_column = random() % 2 != 0;
    Tensor a({u8, {batch, m, k}}), b({i8, {k, n}}), az({u8, by_row ? Shape{m} : Shape{}}),
        bz({i8, by_column ? Shape{n} : Shape{}});
    for (Tensor* tensor : {&a, &b, &az, &bz})
      for (auto& byte : tensor->bytes()) byte = static_cast<std::byte>(random());
    std::vector<std::int32_t> want;
    for (std::int64_t i = 0; i < batch * m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        std::int32_t sum = 0;
        for (std::int64_t t = 0; t < k; ++t)
          sum += (a.as<Byte>()[static_cast<std::size_t>(i * k + t)] -
                  az.as<Byte>()[static_cast<std::size_t>(by_row ? i % m : 0)]) *
                 (b.as<Small>()[static_cast<std::size_t>(t * n + j)] -
                  bz.as<Small>()[static_cast<std::size_t>(by_column ? j : 0)]);
        want.push_back(sum);
      }
    Case test("MatMulInteger");
    for (Tensor* tensor : {&a, &b, &az, &bz}) test.inputs.emplace_back(std::move(*tensor));
    EXPECT_EQ(test.out(i32, {batch, m, n}).result<std::int32_t>(), want) << "round " << round;
  }
}

TEST(ConvInteger, PadsWithTheZeroPoint) {
  Case test("ConvInteger");
  test.of<Byte>(u8, {1, 1, 3, 3}, {2, 3, 4, 5, 6, 7, 8, 9, 10})
      .of<Byte>(u8, {1, 1, 2, 2}, {1, 1, 1, 1})
      .of<Byte>(u8, {}, {1});
  test.with("pads", Attribute{std::vector<std::int64_t>{1, 1, 1, 1}}).out(i32, {1, 1, 4, 4});
  EXPECT_THAT(test.result<std::int32_t>(),
              ElementsAre(1, 3, 5, 3, 5, 12, 16, 9, 11, 24, 28, 15, 7, 15, 17, 9));
}

TEST(QLinearConv, EachChannelHasItsScaleAndBias) {
  Case test("QLinearConv");
  test.of<Byte>(u8, {1, 1, 1, 2}, {12, 14}).f32({}, {0.5F}).of<Byte>(u8, {}, {10});
  test.of<Small>(i8, {2, 1, 1, 1}, {3, -2}).f32({2}, {1, 2}).of<Small>(i8, {2}, {0, 0});
  test.f32({}, {0.25F}).of<Byte>(u8, {}, {100}).of<std::int32_t>(i32, {2}, {1, -1}).out(u8, {1, 2, 1, 2});
  // (2 * 3 + 1) * 0.5 / 0.25 + 100; (2 * -2 - 1) * 1 / 0.25 + 100
  EXPECT_THAT(test.result<Byte>(), ElementsAre(114, 126, 80, 64));
}

TEST(QLinearMatMul, ScalesAndSaturates) {
  Case test("QLinearMatMul");
  test.of<Small>(i8, {1, 2}, {10, 20}).f32({}, {0.1F}).of<Small>(i8, {}, {0});
  test.of<Small>(i8, {2, 2}, {1, 100, 2, 100}).f32({2}, {1, 1}).of<Small>(i8, {2}, {0, 0});
  test.f32({}, {1}).of<Small>(i8, {}, {5}).out(i8, {1, 2});
  EXPECT_THAT(test.result<Small>(), ElementsAre(10, 127));
}

TEST(Quantize, OperandsThatDoNotFitAreRefused) {
  EXPECT_FALSE(Case("QuantizeLinear").f32({4}, {1, 2, 3, 4}).f32({3}, {1, 1, 1}).absent().out(u8, {4}).run());
  EXPECT_FALSE(Case("MatMulInteger")
                   .of<Byte>(u8, {1, 2}, {1, 1})
                   .of<Byte>(u8, {3, 1}, {1, 1, 1})
                   .out(i32, {1, 1})
                   .run());
  EXPECT_EQ(Case("MatMulInteger").f32({1, 1}, {1}).of<Byte>(u8, {1, 1}, {1}).out(i32, {1, 1}).find(),
            nullptr);
  EXPECT_EQ(Case("QuantizeLinear").i64({1}, {1}).f32({}, {1}).absent().out(u8, {1}).find(), nullptr);
}

}  // namespace
}  // namespace carillon::graph::plain
