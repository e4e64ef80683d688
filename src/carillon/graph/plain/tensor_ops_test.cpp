#include <numeric>
#include <random>

#include <gmock/gmock.h>

#include "carillon/graph/plain/plain_test.h"

namespace carillon::graph::plain {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using List = std::vector<std::int64_t>;

TEST(Move, TransposeAgreesWithIndexArithmetic) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::size_t rank = 1 + random() % 5;
    Shape from(rank);
    for (auto& extent : from) extent = 1 + static_cast<std::int64_t>(random() % (rank < 3 ? 70 : 6));
    List permutation(rank);
    std::iota(permutation.begin(), permutation.end(), 0);
    for (std::size_t i = rank; i > 1; --i) std::swap(permutation[i - 1], permutation[random() % i]);
    Shape to(rank);
    for (std::size_t d = 0; d < rank; ++d) to[d] = from[static_cast<std::size_t>(permutation[d])];
    Tensor x({DataType::i64, from});
    std::iota(x.as<std::int64_t>().begin(), x.as<std::int64_t>().end(), 0);
    Case test("Transpose");
    test.with("perm", permutation).out(DataType::i64, to);
    test.inputs.push_back(std::move(x));
    const auto got = test.integers();
    for (std::int64_t flat = 0; flat < static_cast<std::int64_t>(got.size()); ++flat) {
      std::int64_t rest = flat;
      Shape index(rank);
      for (std::size_t d = rank; d-- > 0;) {
        index[static_cast<std::size_t>(permutation[d])] = rest % to[d];
        rest /= to[d];
      }
      std::int64_t place = 0;
      for (std::size_t d = 0; d < rank; ++d) place = place * from[d] + index[d];
      ASSERT_EQ(got[static_cast<std::size_t>(flat)], place) << "round " << round;
    }
  }
}

TEST(Move, SliceWalksBackwardsAndClamps) {
  Case test("Slice");
  test.i64({2, 4}, {0, 1, 2, 3, 4, 5, 6, 7})
      .i64({2}, {-1, 100})
      .i64({2}, {-100, -100})
      .i64({2}, {0, 1})
      .i64({2}, {-1, -2});
  EXPECT_THAT(test.out(DataType::i64, {2, 2}).integers(), ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(
      Case("Slice").i64({4}, {0, 1, 2, 3}).i64({1}, {1}).i64({1}, {3}).out(DataType::i64, {2}).integers(),
      ElementsAre(1, 2));
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(Case("Slice")
                  .i64({4}, {0, 1, 2, 3})
                  .i64({1}, {2})
                  .i64({1}, {huge})
                  .i64({1}, {0})
                  .i64({1}, {huge})
                  .out(DataType::i64, {1})
                  .integers(),
              ElementsAre(2));
}

TEST(Move, SliceThatReachesOutsideIsRefused) {
  EXPECT_FALSE(
      Case("Slice").i64({4}, {0, 1, 2, 3}).i64({1}, {2}).i64({1}, {9}).out(DataType::i64, {4}).run());
}

TEST(Move, ConcatAndSplitAreInverse) {
  EXPECT_THAT(Case("Concat")
                  .i64({2, 1}, {1, 4})
                  .i64({2, 2}, {2, 3, 5, 6})
                  .with("axis", std::int64_t{-1})
                  .out(DataType::i64, {2, 3})
                  .integers(),
              ElementsAre(1, 2, 3, 4, 5, 6));
  Case split("Split");
  split.i64({2, 3}, {1, 2, 3, 4, 5, 6}).i64({2}, {1, 2}).with("axis", std::int64_t{1});
  split.out(DataType::i64, {2, 1}).out(DataType::i64, {2, 2});
  EXPECT_THAT(split.integers(0), ElementsAre(1, 4));
  EXPECT_THAT(split.integers(1), ElementsAre(2, 3, 5, 6));
}

TEST(Move, SplitWithoutItsLastParts) {
  Case split("Split");
  split.i64({4}, {1, 2, 3, 4}).i64({3}, {2, 1, 1}).with("axis", std::int64_t{0});
  split.out(DataType::i64, {2}).out(DataType::i64, {1});
  EXPECT_THAT(split.integers(0), ElementsAre(1, 2));
  EXPECT_THAT(split.integers(1), ElementsAre(3));
  Case equal("Split");
  equal.i64({4}, {1, 2, 3, 4}).with("axis", std::int64_t{0}).with("num_outputs", std::int64_t{4});
  equal.out(DataType::i64, {1}).out(DataType::i64, {1});
  EXPECT_THAT(equal.integers(1), ElementsAre(2));
}

TEST(Move, TileExpandAndTrilu) {
  EXPECT_THAT(Case("Tile").i64({2, 2}, {1, 2, 3, 4}).i64({2}, {2, 2}).out(DataType::i64, {4, 4}).integers(),
              ElementsAre(1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4));
  EXPECT_THAT(Case("Expand").i64({2, 1}, {1, 2}).i64({2}, {2, 3}).out(DataType::i64, {2, 3}).integers(),
              ElementsAre(1, 1, 1, 2, 2, 2));
  EXPECT_THAT(
      Case("Trilu").i64({2, 3}, {1, 2, 3, 4, 5, 6}).i64({}, {1}).out(DataType::i64, {2, 3}).integers(),
      ElementsAre(0, 2, 3, 0, 0, 6));
}

TEST(Pad, EveryMode) {
  const struct {
    const char* mode;
    List want;
  } rows[] = {
      {"constant", {9, 9, 1, 2, 3, 9}},
      {"reflect", {3, 2, 1, 2, 3, 2}},
      {"edge", {1, 1, 1, 2, 3, 3}},
      {"wrap", {2, 3, 1, 2, 3, 1}},
  };
  for (const auto& [mode, want] : rows) {
    EXPECT_EQ(Case("Pad")
                  .i64({3}, {1, 2, 3})
                  .i64({2}, {2, 1})
                  .i64({}, {9})
                  .with("mode", std::string(mode))
                  .out(DataType::i64, {6})
                  .integers(),
              want)
        << mode;
  }
  EXPECT_THAT(Case("Pad")
                  .i64({2, 3}, {1, 2, 3, 4, 5, 6})
                  .i64({4}, {1, -1, 0, 0})
                  .out(DataType::i64, {3, 2})
                  .integers(),
              ElementsAre(0, 0, 2, 3, 5, 6));
  EXPECT_THAT(Case("Pad")
                  .i64({2, 1}, {1, 2})
                  .i64({2}, {1, 1})
                  .absent()
                  .i64({1}, {-1})
                  .out(DataType::i64, {2, 3})
                  .integers(),
              ElementsAre(0, 1, 0, 0, 2, 0));
}

TEST(Index, GatherTakesNegativeIndicesAndRefusesOthers) {
  EXPECT_THAT(
      Case("Gather").i64({3, 2}, {1, 2, 3, 4, 5, 6}).i64({2}, {-1, 0}).out(DataType::i64, {2, 2}).integers(),
      ElementsAre(5, 6, 1, 2));
  EXPECT_THAT(Case("Gather")
                  .i64({2, 3}, {1, 2, 3, 4, 5, 6})
                  .i64({}, {1})
                  .with("axis", std::int64_t{1})
                  .out(DataType::i64, {2})
                  .integers(),
              ElementsAre(2, 5));
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t bad : {std::int64_t{3}, std::int64_t{-4}, least}) {
    const auto ran = Case("Gather").i64({3}, {1, 2, 3}).i64({1}, {bad}).out(DataType::i64, {1}).run();
    ASSERT_FALSE(ran);
    EXPECT_THAT(ran.error().message, HasSubstr("node 'n' (Gather): index " + std::to_string(bad)));
  }
}

TEST(Index, EveryIndexedOperatorChecksItsIndices) {
  EXPECT_FALSE(
      Case("GatherElements").i64({2, 2}, {1, 2, 3, 4}).i64({1, 2}, {0, 2}).out(DataType::i64, {1, 2}).run());
  EXPECT_FALSE(Case("GatherND").i64({2, 2}, {1, 2, 3, 4}).i64({1, 2}, {0, 2}).out(DataType::i64, {1}).run());
  EXPECT_FALSE(
      Case("ScatterND").i64({2}, {1, 2}).i64({1, 1}, {-3}).i64({1}, {5}).out(DataType::i64, {2}).run());
  EXPECT_FALSE(
      Case("ScatterElements").i64({2}, {1, 2}).i64({1}, {2}).i64({1}, {5}).out(DataType::i64, {2}).run());
  EXPECT_FALSE(Case("ReverseSequence").i64({2, 1}, {1, 2}).i64({1}, {3}).out(DataType::i64, {2, 1}).run());
}

TEST(Index, Scatter) {
  EXPECT_THAT(Case("ScatterElements")
                  .i64({2, 3}, {0, 0, 0, 0, 0, 0})
                  .i64({1, 3}, {1, 0, 1})
                  .i64({1, 3}, {7, 8, 9})
                  .out(DataType::i64, {2, 3})
                  .integers(),
              ElementsAre(0, 8, 0, 7, 0, 9));
  EXPECT_THAT(Case("ScatterElements")
                  .i64({3}, {1, 2, 3})
                  .i64({3}, {1, 1, -1})
                  .i64({3}, {10, 20, 30})
                  .with("reduction", std::string("add"))
                  .out(DataType::i64, {3})
                  .integers(),
              ElementsAre(1, 32, 33));
  EXPECT_THAT(Case("ScatterND")
                  .i64({3, 2}, {1, 1, 1, 1, 1, 1})
                  .i64({2, 1}, {2, 0})
                  .i64({2, 2}, {5, 6, 7, 8})
                  .out(DataType::i64, {3, 2})
                  .integers(),
              ElementsAre(7, 8, 1, 1, 5, 6));
}

TEST(Reduce, AnyAxesAgreeWithIndexArithmetic) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const std::size_t rank = 1 + random() % 4;
    Shape shape(rank);
    for (auto& extent : shape) extent = 1 + static_cast<std::int64_t>(random() % (rank < 3 ? 90 : 7));
    Shape kept;
    List axes;
    for (std::size_t d = 0; d < rank; ++d) {
      const bool reduced = random() % 2 == 0;
      if (reduced)
        axes.push_back(static_cast<std::int64_t>(d) -
                       (random() % 2 == 0 ? 0 : static_cast<std::int64_t>(rank)));
      kept.push_back(reduced ? 1 : shape[d]);
    }
    if (axes.empty()) continue;
    Tensor x({DataType::f32, shape});
    for (float& value : x.as<float>()) value = static_cast<float>(random() % 17) - 8;
    std::vector<float> want(static_cast<std::size_t>(TensorType{DataType::f32, kept}.elements()), 0.0F);
    for (std::size_t flat = 0; flat < x.as<float>().size(); ++flat) {
      auto rest = static_cast<std::int64_t>(flat);
      std::int64_t place = 0;
      std::int64_t step = 1;
      for (std::size_t d = rank; d-- > 0;) {
        if (kept[d] != 1) place += rest % shape[d] * step;
        step *= kept[d];
        rest /= shape[d];
      }
      want[static_cast<std::size_t>(place)] += x.as<float>()[flat];
    }
    Case test("ReduceSum");
    test.inputs.push_back(std::move(x));
    test.inputs.push_back(Tensor::of_i64({static_cast<std::int64_t>(axes.size())}, axes));
    test.out(DataType::f32, kept);
    ASSERT_EQ(test.floats(), want) << "round " << round;
  }
}

TEST(Reduce, LogSumExpDoesNotOverflow) {
  EXPECT_THAT(Case("ReduceLogSumExp").f32({2}, {1000, 1000}).out(DataType::f32, {1}).floats(),
              ElementsAre(FloatNear(1000.6931F, 1e-3F)));
}

TEST(Order, TopKIsSortedAndTakesTheFirstOfEqualElements) {
  Case test("TopK");
  test.i64({6}, {3, 9, 9, 1, 7, 9}).i64({1}, {4}).out(DataType::i64, {4}).out(DataType::i64, {4});
  EXPECT_THAT(test.integers(0), ElementsAre(9, 9, 9, 7));
  EXPECT_THAT(test.integers(1), ElementsAre(1, 2, 5, 4));
  Case columns("TopK");
  columns.i64({3, 2}, {3, 1, 2, 5, 9, 4})
      .i64({1}, {2})
      .with("axis", std::int64_t{0})
      .with("largest", std::int64_t{0});
  columns.out(DataType::i64, {2, 2}).out(DataType::i64, {2, 2});
  EXPECT_THAT(columns.integers(0), ElementsAre(2, 1, 3, 4));
  EXPECT_THAT(columns.integers(1), ElementsAre(1, 0, 0, 2));
}

TEST(Order, ArgMaxOfEqualElements) {
  EXPECT_THAT(Case("ArgMax")
                  .i64({2, 3}, {1, 5, 5, 7, 2, 7})
                  .with("axis", std::int64_t{1})
                  .out(DataType::i64, {2, 1})
                  .integers(),
              ElementsAre(1, 0));
  EXPECT_THAT(Case("ArgMax")
                  .i64({2, 3}, {1, 5, 5, 7, 2, 7})
                  .with("axis", std::int64_t{1})
                  .with("select_last_index", std::int64_t{1})
                  .out(DataType::i64, {2, 1})
                  .integers(),
              ElementsAre(2, 2));
}

TEST(Softmax, AlongAnyAxis) {
  EXPECT_THAT(Case("Softmax").f32({1, 2}, {0, 0}).out(DataType::f32, {1, 2}).floats(), ElementsAre(0.5, 0.5));
  EXPECT_THAT(Case("Softmax")
                  .f32({2, 2}, {0, 1000, 0, 1000})
                  .with("axis", std::int64_t{0})
                  .out(DataType::f32, {2, 2})
                  .floats(),
              ElementsAre(0.5, 0.5, 0.5, 0.5));
}

TEST(Convolution, PaddingStrideAndDilation) {
  // 1-d, kernel [1, 10] dilated by 2: y[i] = x[i - 1] + 10 * x[i + 1].
  Case test("Conv");
  test.f32({1, 1, 4}, {1, 2, 3, 4}).f32({1, 1, 2}, {1, 10}).f32({1}, {100});
  test.with("kernel_shape", List{2})
      .with("strides", List{1})
      .with("dilations", List{2})
      .with("pads", List{1, 1})
      .with("group", std::int64_t{1});
  EXPECT_THAT(test.out(DataType::f32, {1, 1, 4}).floats(), ElementsAre(120, 131, 142, 103));
  Case strided("Conv");
  strided.f32({1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}).f32({2, 1, 2}, {1, 1, 1, -1});
  strided.with("kernel_shape", List{2}).with("strides", List{2}).with("group", std::int64_t{2});
  EXPECT_THAT(strided.out(DataType::f32, {1, 2, 2}).floats(), ElementsAre(3, 7, -1, -1));
}

TEST(Convolution, TransposedIsTheAdjoint) {
  // <conv(x), y> = <x, transposed(y)> for the same weights.
  std::mt19937 random(5);
  const auto tensor = [&](Shape shape) {
    Tensor made({DataType::f32, std::move(shape)});
    for (float& value : made.as<float>()) value = static_cast<float>(random() % 9) - 4;
    return made;
  };
  const auto attributes = [](Case& test) {
    test.with("strides", List{2, 3})
        .with("dilations", List{1, 2})
        .with("pads", List{1, 2, 0, 1})
        .with("group", std::int64_t{2});
  };
  Tensor x = tensor({2, 4, 7, 11});
  Tensor w = tensor({6, 2, 3, 2});
  Tensor y = tensor({2, 6, 3, 4});
  const auto dot = [](std::span<const float> a, std::span<const float> b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  Case forward("Conv");
  attributes(forward);
  forward.inputs.push_back(Tensor::of_f32(x.type().shape, x.as<float>()));
  forward.inputs.push_back(Tensor::of_f32(w.type().shape, w.as<float>()));
  forward.out(DataType::f32, y.type().shape);
  Case back("ConvTranspose");
  attributes(back);
  back.inputs.push_back(Tensor::of_f32(y.type().shape, y.as<float>()));
  back.inputs.push_back(Tensor::of_f32(w.type().shape, w.as<float>()));
  back.out(DataType::f32, x.type().shape);
  const auto a = forward.floats();
  const auto b = back.floats();
  EXPECT_NE(dot(a, y.as<float>()), 0.0);
  EXPECT_EQ(dot(a, y.as<float>()), dot(x.as<float>(), b));
}

TEST(Pool, MaximumWithPlacesAndAverageWithPads) {
  Case test("MaxPool");
  test.f32({1, 1, 2, 3}, {1, 5, 2, 3, 4, 6}).with("kernel_shape", List{2, 2}).with("strides", List{1, 1});
  test.out(DataType::f32, {1, 1, 1, 2}).out(DataType::i64, {1, 1, 1, 2});
  EXPECT_THAT(test.floats(), ElementsAre(5, 6));
  EXPECT_THAT(test.integers(1), ElementsAre(1, 5));
  Case average("AveragePool");
  average.f32({1, 1, 3}, {2, 4, 6})
      .with("kernel_shape", List{2})
      .with("strides", List{2})
      .with("pads", List{1, 0});
  EXPECT_THAT(average.out(DataType::f32, {1, 1, 2}).floats(), ElementsAre(2, 5));
  average.with("count_include_pad", std::int64_t{1});
  EXPECT_THAT(average.floats(), ElementsAre(1, 5));
}

TEST(MatMul, VectorsAndBatches) {
  EXPECT_THAT(Case("MatMul").f32({2}, {1, 2}).f32({2}, {3, 4}).out(DataType::f32, {}).floats(),
              ElementsAre(11));
  EXPECT_THAT(Case("MatMul")
                  .f32({2, 1, 2}, {1, 2, 3, 4})
                  .f32({2, 2}, {1, 0, 1, 1})
                  .out(DataType::f32, {2, 1, 2})
                  .floats(),
              ElementsAre(3, 2, 7, 4));
  EXPECT_THAT(Case("Gemm")
                  .f32({2, 2}, {1, 2, 3, 4})
                  .f32({2, 2}, {1, 2, 3, 4})
                  .f32({2}, {10, 20})
                  .with("transB", std::int64_t{1})
                  .out(DataType::f32, {2, 2})
                  .floats(),
              ElementsAre(15, 31, 21, 45));
}

TEST(Resize, NearestAndLinear) {
  EXPECT_THAT(Case("Resize")
                  .f32({2}, {1, 2})
                  .absent()
                  .f32({1}, {2})
                  .with("mode", std::string("nearest"))
                  .out(DataType::f32, {4})
                  .floats(),
              ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(Case("Resize")
                  .f32({2}, {1, 2})
                  .absent()
                  .f32({1}, {2})
                  .with("mode", std::string("linear"))
                  .out(DataType::f32, {4})
                  .floats(),
              ElementsAre(1, 1.25, 1.75, 2));
}

TEST(Cast, BetweenTypes) {
  EXPECT_THAT(Case("Cast")
                  .f32({3}, {-1.7F, 0, 3e9F})
                  .with("to", std::int64_t{6})
                  .out(DataType::i32, {3})
                  .result<std::int32_t>(),
              ElementsAre(-1, 0, std::numeric_limits<std::int32_t>::max()));
  EXPECT_THAT(Case("Cast")
                  .f32({3}, {-1.7F, 0, 1})
                  .with("to", std::int64_t{9})
                  .out(DataType::boolean, {3})
                  .result<std::uint8_t>(),
              ElementsAre(1, 0, 1));
}

// A place outside the image stays where it is, and only what its curve reads is of the border. The numbers
// are those of torch 2.13 and onnxruntime 1.31.
TEST(GridSample, CubicCurvesAtTheBorder) {
  EXPECT_THAT(Case("GridSample")
                  .f32({1, 1, 1, 2}, {0, 4})
                  .f32({1, 1, 4, 2}, {-0.75F, 0, -1.2F, 0, 1.4F, 0, -2, 0})
                  .with("mode", std::string("cubic"))
                  .with("padding_mode", std::string("border"))
                  .out(DataType::f32, {1, 1, 1, 4})
                  .floats(),
              testing::Pointwise(FloatNear(1e-6F), {-0.421875F, -0.189F, 4.027F, 0.0F}));
}

// They deviate by nothing, so that the least rounding of their mean would be divided by the root of epsilon.
TEST(GroupNormalization, OfEqualNumbersIsTheBias) {
  for (const char* op : {"InstanceNormalization", "GroupNormalization"}) {
    Case test(op);
    test.f32({1, 1, 2}, {1.5276843F, 1.5276843F}).f32({1}, {-1.17694F}).f32({1}, {-0.0756649F});
    test.with("num_groups", std::int64_t{1}).out(DataType::f32, {1, 1, 2});
    EXPECT_THAT(test.floats(), ElementsAre(-0.0756649F, -0.0756649F)) << op;
  }
}

TEST(Empty, TensorsWithoutElementsAreFine) {
  EXPECT_TRUE(Case("Add").f32({0, 3}, {}).f32({3}, {1, 2, 3}).out(DataType::f32, {0, 3}).run());
  EXPECT_TRUE(Case("Transpose").f32({0, 3}, {}).out(DataType::f32, {3, 0}).run());
  EXPECT_TRUE(Case("Concat").f32({0}, {}).f32({1}, {4}).out(DataType::f32, {1}).run());
  EXPECT_TRUE(Case("MatMul").f32({2, 0}, {}).f32({0, 2}, {}).out(DataType::f32, {2, 2}).run());
  EXPECT_TRUE(Case("Gather").f32({2}, {1, 2}).i64({0}, {}).out(DataType::f32, {0}).run());
  EXPECT_FALSE(Case("Gather").f32({0}, {}).i64({1}, {0}).out(DataType::f32, {1}).run());
}

}  // namespace
}  // namespace carillon::graph::plain
