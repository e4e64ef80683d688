#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "carillon/graph/plain/number.h"
#include "carillon/graph/plain/plain_test.h"

namespace carillon::graph::plain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Number, HalvesGoToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_half(value))));
    } else {
      EXPECT_EQ(to_half(value).bits, half.bits) << value;
    }
  }
}

TEST(Number, HalvesRoundToEven) {
  EXPECT_EQ(to_float(to_half(2049.0F)), 2048.0F);
  EXPECT_EQ(to_float(to_half(2051.0F)), 2052.0F);
  EXPECT_EQ(to_float(to_half(65519.0F)), 65504.0F);
  EXPECT_TRUE(std::isinf(to_float(to_half(65520.0F))));
  EXPECT_EQ(to_float(to_half(0x1p-25F)), 0.0F);
  EXPECT_EQ(to_float(to_half(0x1.8p-25F)), 0x1p-24F);
  EXPECT_EQ(to_float(to_bfloat16(1.0F + 0x1p-8F)), 1.0F);
  EXPECT_EQ(to_float(to_bfloat16(1.0F + 0x3p-8F)), 1.0F + 0x4p-8F);
}

TEST(Number, CastsAreDefinedForEveryValue) {
  EXPECT_EQ((number_cast<std::int32_t>(1e20F)), std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ((number_cast<std::int64_t>(-1e30)), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ((number_cast<std::uint8_t>(-3.0F)), 0);
  EXPECT_EQ((number_cast<std::int8_t>(std::nanf(""))), 0);
  EXPECT_EQ((number_cast<std::int32_t>(-2.9F)), -2);
}

TEST(Number, FastExponentialAndErrorFunctionAreNearTheExactOnes) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = static_cast<float>(static_cast<double>(random()) / 0x1p32 * 174.0 - 87.0);
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_LE(std::abs(fast_exp(x) - exact), 2.5e-7 * exact) << x;
    const float z = x / 20.0F;
    const double erf = std::erf(static_cast<double>(z));
    EXPECT_LE(std::abs(fast_erf(z) - erf), 1e-6 * std::abs(erf)) << z;
  }
  EXPECT_EQ(fast_exp(0.0F), 1.0F);
  EXPECT_EQ(fast_exp(-1000.0F), 0.0F);
  EXPECT_TRUE(std::isinf(fast_exp(1000.0F)));
  EXPECT_TRUE(std::isnan(fast_exp(std::nanf(""))));
  EXPECT_TRUE(std::isnan(fast_erf(std::nanf(""))));
}

TEST(Binary, BroadcastsEveryWay) {
  EXPECT_THAT(
      Case("Add").f32({2, 3}, {0, 1, 2, 3, 4, 5}).f32({3}, {10, 20, 30}).out(DataType::f32, {2, 3}).floats(),
      ElementsAre(10, 21, 32, 13, 24, 35));
  EXPECT_THAT(Case("Sub").f32({2, 1}, {1, 2}).f32({1, 3}, {10, 20, 30}).out(DataType::f32, {2, 3}).floats(),
              ElementsAre(-9, -19, -29, -8, -18, -28));
  EXPECT_THAT(Case("Mul").f32({}, {3}).f32({2, 2}, {1, 2, 3, 4}).out(DataType::f32, {2, 2}).floats(),
              ElementsAre(3, 6, 9, 12));
  EXPECT_THAT(
      Case("Div").f32({2, 1, 2}, {2, 4, 6, 8}).f32({3, 1}, {1, 2, 4}).out(DataType::f32, {2, 3, 2}).floats(),
      ElementsAre(2, 4, 1, 2, 0.5, 1, 6, 8, 3, 4, 1.5, 2));
}

TEST(Binary, BroadcastOfRandomShapesAgreesWithIndexArithmetic) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t rank = random() % 5;
    Shape out(rank);
    for (auto& extent : out) extent = 1 + static_cast<std::int64_t>(random() % 4);
    const auto operand = [&] {
      Shape shape(out.end() - static_cast<std::ptrdiff_t>(rank == 0 ? 0 : random() % (rank + 1)), out.end());
      for (auto& extent : shape) {
        if (random() % 3 == 0) extent = 1;
      }
      Tensor tensor({DataType::f32, shape});
      for (float& value : tensor.as<float>()) value = static_cast<float>(random() % 100);
      return tensor;
    };
    Case test("Sub");
    test.inputs.push_back(operand());
    test.inputs.push_back(operand());
    test.out(DataType::f32, out);
    const auto got = test.floats();
    const auto at = [&](const Tensor& tensor, std::int64_t flat) {
      const Shape& shape = tensor.type().shape;
      std::int64_t place = 0;
      std::int64_t step = 1;
      for (std::size_t d = 0; d < rank; ++d) {
        const std::int64_t index = flat % out[rank - 1 - d];
        flat /= out[rank - 1 - d];
        if (d < shape.size()) {
          const std::int64_t extent = shape[shape.size() - 1 - d];
          if (extent != 1) place += index * step;
          step *= extent;
        }
      }
      return tensor.as<float>()[static_cast<std::size_t>(place)];
    };
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], at(*test.inputs[0], static_cast<std::int64_t>(i)) -
                            at(*test.inputs[1], static_cast<std::int64_t>(i)))
          << "round " << round;
    }
  }
}

TEST(Binary, ShapesThatDoNotFitAreAnErrorThatNamesTheNode) {
  const auto ran = Case("Add").f32({2}, {1, 2}).f32({3}, {1, 2, 3}).out(DataType::f32, {3}).run();
  ASSERT_FALSE(ran);
  EXPECT_THAT(ran.error().message, HasSubstr("node 'n' (Add)"));
}

TEST(Binary, IntegersWrapAndDoNotDivideByZero) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  EXPECT_THAT(Case("Div").i64({3}, {-7, least, 9}).i64({3}, {2, -1, 3}).out(DataType::i64, {3}).integers(),
              ElementsAre(-3, least, 3));
  EXPECT_THAT(Case("Mod").i64({3}, {-7, 7, least}).i64({3}, {3, -3, -1}).out(DataType::i64, {3}).integers(),
              ElementsAre(2, -2, 0));
  EXPECT_THAT(Case("Add")
                  .i64({1}, {std::numeric_limits<std::int64_t>::max()})
                  .i64({1}, {1})
                  .out(DataType::i64, {1})
                  .integers(),
              ElementsAre(least));
  for (const char* op : {"Div", "Mod"}) {
    const auto ran = Case(op).i64({2}, {1, 2}).i64({2}, {1, 0}).out(DataType::i64, {2}).run();
    ASSERT_FALSE(ran);
    EXPECT_THAT(ran.error().message, HasSubstr("by zero"));
  }
}

TEST(Binary, PowTakesTheBasesType) {
  EXPECT_THAT(Case("Pow").f32({3}, {1, 2, 3}).f32({}, {2}).out(DataType::f32, {3}).floats(),
              ElementsAre(1, 4, 9));
  EXPECT_THAT(Case("Pow").i64({3}, {2, -1, 3}).i64({3}, {10, -3, -1}).out(DataType::i64, {3}).integers(),
              ElementsAre(1024, -1, 0));
  EXPECT_THAT(Case("Pow").f32({2}, {4, 9}).i64({}, {-1}).out(DataType::f32, {2}).floats(),
              ElementsAre(0.25F, 1.0F / 9));
}

TEST(Binary, VariadicFoldsAllOperands) {
  EXPECT_THAT(Case("Max").f32({2}, {1, 5}).f32({1}, {3}).f32({}, {2}).out(DataType::f32, {2}).floats(),
              ElementsAre(3, 5));
  EXPECT_THAT(Case("Mean").f32({2}, {1, 5}).f32({1}, {3}).out(DataType::f32, {2}).floats(),
              ElementsAre(2, 4));
  EXPECT_THAT(Case("Sum").f32({1}, {7}).out(DataType::f32, {1}).floats(), ElementsAre(7));
}

TEST(Logic, WhereBroadcastsAllThree) {
  EXPECT_THAT(Case("Where")
                  .of<std::uint8_t>(DataType::boolean, {2, 1}, {1, 0})
                  .f32({2}, {1, 2})
                  .f32({}, {9})
                  .out(DataType::f32, {2, 2})
                  .floats(),
              ElementsAre(1, 2, 9, 9));
  EXPECT_THAT(Case("Where")
                  .of<std::uint8_t>(DataType::boolean, {3}, {1, 0, 255})
                  .i64({}, {5})
                  .i64({3}, {1, 2, 3})
                  .out(DataType::i64, {3})
                  .integers(),
              ElementsAre(5, 2, 5));
}

TEST(Logic, BytesOtherThanZeroAreTrue) {
  EXPECT_THAT(Case("And")
                  .of<std::uint8_t>(DataType::boolean, {3}, {2, 0, 4})
                  .of<std::uint8_t>(DataType::boolean, {3}, {1, 1, 2})
                  .out(DataType::boolean, {3})
                  .result<std::uint8_t>(),
              ElementsAre(1, 0, 1));
  EXPECT_THAT(Case("Xor")
                  .of<std::uint8_t>(DataType::boolean, {2}, {2, 0})
                  .of<std::uint8_t>(DataType::boolean, {2}, {1, 1})
                  .out(DataType::boolean, {2})
                  .result<std::uint8_t>(),
              ElementsAre(0, 1));
}

TEST(Unary, RoundsHalfToEven) {
  EXPECT_THAT(Case("Round").f32({4}, {0.5, 1.5, -2.5, 2.6F}).out(DataType::f32, {4}).floats(),
              ElementsAre(0, 2, -2, 3));
}

TEST(Unary, ClipTakesItsBoundsAsInputs) {
  EXPECT_THAT(Case("Clip").f32({3}, {-2, 0, 2}).absent().f32({}, {1}).out(DataType::f32, {3}).floats(),
              ElementsAre(-2, 0, 1));
  EXPECT_THAT(Case("Clip").i64({3}, {-2, 0, 2}).i64({}, {-1}).out(DataType::i64, {3}).integers(),
              ElementsAre(-1, 0, 2));
}

TEST(Kernels, ArithmeticOfTextsAndUnknownOperatorsHaveNone) {
  Node node;
  node.op = "Neg";
  node.outputs = {ValueId{0}};
  const TensorType text{DataType::string, {1}};
  const TensorType number{DataType::f32, {1}};
  const TensorType* types[] = {&text};
  EXPECT_EQ(find_plain_kernel(node, types), nullptr);
  types[0] = &number;
  EXPECT_NE(find_plain_kernel(node, types), nullptr);
  types[0] = &text;
  node.op = "Identity";  // moves them
  EXPECT_NE(find_plain_kernel(node, types), nullptr);
  node.op = "NoSuchOperator";
  EXPECT_EQ(find_plain_kernel(node, types), nullptr);
}

TEST(PostOps, RunInOrderWithBroadcastOperands) {
  Node node;
  node.name = "n";
  node.post_ops = {{.kind = PostOp::Kind::add, .operand = ValueId{1}},
                   {.kind = PostOp::Kind::relu},
                   {.kind = PostOp::Kind::linear, .alpha = 2, .beta = 1},
                   {.kind = PostOp::Kind::clip, .alpha = 0, .beta = 8},
                   {.kind = PostOp::Kind::mul, .operand = ValueId{2}}};
  Tensor y = Tensor::of_f32({2, 2}, std::vector<float>{-1, 2, -3, 4});
  const Tensor column = Tensor::of_f32({2, 1}, std::vector<float>{0, 1});
  const Tensor scalar = Tensor::of_f32({}, std::vector<float>{10});
  const ConstView operands[] = {
      {&column.type(), column.bytes().data()}, {}, {}, {}, {&scalar.type(), scalar.bytes().data()}};
  apply_post_ops(node, operands, {&y.type(), y.bytes().data()});
  EXPECT_THAT(y.as<float>(), ElementsAre(10, 50, 10, 80));
}

}  // namespace
}  // namespace carillon::graph::plain
