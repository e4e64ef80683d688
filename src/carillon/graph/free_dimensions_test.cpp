#include "carillon/graph/free_dimensions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/onnx_import.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Onnx;

FreeDimensions made_of(const std::vector<std::string>& symbols) {
  FreeDimensions free;
  for (const std::string& symbol : symbols) {
    const auto number = free.add(symbol, "input 'x' dimension 1", 1, 3);
    EXPECT_TRUE(number.has_value());
  }
  return free;
}

TEST(FreeDimensions, ASymbolIsOneDimensionAndNoneIsItsOwn) {
  FreeDimensions free;
  EXPECT_EQ(free.add("seq", "a", 1, 3).value(), 0U);
  EXPECT_EQ(free.add("", "input 'y' dimension 2", 2, 3).value(), 1U);
  EXPECT_EQ(free.add("seq", "b", 1, 3).value(), 0U);
  EXPECT_EQ(free.add("", "input 'y' dimension 3", 3, 3).value(), 2U);
  EXPECT_THAT(free.names(), ElementsAre("seq", "input 'y' dimension 2", "input 'y' dimension 3"));
  EXPECT_EQ(free.text(Extents{5, 6, 7}), "seq = 5, input 'y' dimension 2 = 6, input 'y' dimension 3 = 7");
}

TEST(FreeDimensions, ThereAreNotTooMany) {
  FreeDimensions free;
  for (std::size_t i = 0; i < most_free_dimensions; ++i)
    EXPECT_TRUE(free.add("d" + std::to_string(i), "x", 1, 3).has_value());
  EXPECT_TRUE(free.add("d0", "x", 1, 3).has_value());
  const auto more = free.add("more", "input 'x' dimension 1", 1, 3);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code, ErrorCode::unsupported);
  EXPECT_THAT(more.error().message, HasSubstr("more than 32 dimensions"));
}

TEST(FreeDimensions, ChecksExtents) {
  const FreeDimensions free = made_of({"height", "width"});
  EXPECT_TRUE(free.check(Extents{1, 640}).has_value());
  EXPECT_THAT(free.check(Extents{5}).error().message, HasSubstr("1 extents are given, and the model has 2"));
  EXPECT_TRUE(free.check(Extents{5, 0}).has_value());
  EXPECT_THAT(free.check(Extents{5, -1}).error().message, HasSubstr("extent -1 of 'width': it must be 0 to"));
  EXPECT_FALSE(free.check(Extents{std::int64_t{1} << 40, 1}).has_value());
}

TEST(FreeDimensions, GuessesWhatIsLikelyFirst) {
  EXPECT_EQ(made_of({"height", "width"}).guesses().front(), (Extents{224, 224}));
  EXPECT_EQ(made_of({"sequence"}).guesses().front(), Extents{64});
  EXPECT_EQ(made_of({"seq", "Width"}).guesses().front(), (Extents{64, 224}));
  EXPECT_THAT(made_of({"seq"}).guesses(), Contains(Extents{1}));
}

// Exporters say so what fits together.
TEST(FreeDimensions, AtLastFirstDimensionsAreOneAlone) {
  FreeDimensions free;
  ASSERT_TRUE(free.add("batch", "", 0, 4).has_value());
  ASSERT_TRUE(free.add("frames", "", 2, 4).has_value());
  EXPECT_THAT(free.guesses(), Contains(Extents{1, 64}));
  EXPECT_EQ(free.guesses().front(), (Extents{4, 64}));  // whose plan need not be large
}

TEST(FreeDimensions, SumsAndProductsFollowTheirTerms) {
  EXPECT_EQ(made_of({"past", "past + 1"}).guesses().front(), (Extents{64, 65}));
  EXPECT_EQ(made_of({"past", "seq", "past + seq"}).guesses().front(), (Extents{64, 64, 128}));
  EXPECT_EQ(made_of({"s0", "2*s0"}).guesses().front(), (Extents{64, 128}));
  // What was there before, and what comes now.
  EXPECT_EQ(made_of({"sequence", "total", "past"}).guesses().front(), (Extents{64, 128, 64}));
  EXPECT_EQ(made_of({"total_sequence_length", "past_sequence_length", "sequence_length"}).guesses().front(),
            (Extents{128, 64, 64}));
  EXPECT_EQ(made_of({"total", "past"}).guesses().front(), (Extents{64, 64}));
  // Of what is not here nothing is known; the guess without is tried, too.
  EXPECT_EQ(made_of({"a + b"}).guesses().front(), Extents{64});
  EXPECT_THAT(made_of({"past", "past + 1"}).guesses(), Contains(Extents{64, 64}));
  EXPECT_EQ(made_of({"s0", "999999999999999999999*s0"}).guesses().front(), (Extents{64, 64}));
  EXPECT_EQ(made_of({"s0", "+", "*", "s0 +"}).guesses().front(), (Extents{64, 64, 64, 64}));
}

TEST(FreeDimensions, OthersChangeEachAlone) {
  const FreeDimensions free = made_of({"m", "n"});
  const auto others = free.others(Extents{64, 32});
  EXPECT_THAT(others, Contains(Extents{128, 64}));
  EXPECT_THAT(others, Contains(Extents{128, 32}));
  EXPECT_THAT(others, Contains(Extents{64, 16}));
  EXPECT_THAT(others, Not(Contains(Extents{64, 32})));
  EXPECT_THAT(made_of({"n"}).others(Extents{1}), ElementsAre(Extents{2}, Extents{0})) << "half of 1 is 1";
  for (const std::int64_t few : {0, 1})
    for (const Extents& extents : {Extents{few, few}, Extents{few, 32}, Extents{64, few}})
      EXPECT_THAT(others, Contains(extents));
}

// Two sequences of different lengths, and an image's strides: what outputs become is computed.
Onnx pair() {
  Onnx m;
  m.input("a", {"batch", "m", "4"}).input("b", {"batch", "n", "4"});
  m.node("Transpose", {"b"}, {"bt"}).set("perm", std::vector<std::int64_t>{0, 2, 1});
  m.node("MatMul", {"a", "bt"}, {"y"})
      .node("ReduceMean", {"a"}, {"mean"})
      .set("axes", std::vector<std::int64_t>{1});
  return m.output("y").output("mean");
}

TEST(OpenModel, TellsWhatIsFreeAndWhatIsComputed) {
  const auto model = pair().import({.open = true});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT((*model)->free_dimensions(), ElementsAre("m", "n"));
  EXPECT_THAT((*model)->reference(), ElementsAre(64, 64));
  EXPECT_THAT((*model)->inputs(),
              ElementsAre(TensorSpec{"a", DataType::f32, {batch_dimension, free_dimension(0), 4}},
                          TensorSpec{"b", DataType::f32, {batch_dimension, free_dimension(1), 4}}));
  EXPECT_THAT(
      (*model)->outputs(),
      ElementsAre(TensorSpec{"y", DataType::f32, {batch_dimension, computed_dimension, computed_dimension}},
                  TensorSpec{"mean", DataType::f32, {batch_dimension, 1, 4}}));
  EXPECT_EQ((*model)->outputs()[0].open_shape(), (Shape{-1, -1, -1}));
  EXPECT_EQ((*model)->inputs()[1].shape_at(3, Extents{5, 7}), (Shape{3, 7, 4}));
  const auto graph = (*model)->specialize_at(3, Extents{5, 7});
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_EQ(graph->value(graph->outputs[0]).type.shape, (Shape{3, 5, 7}));
  const auto reference = (*model)->specialize(2);
  ASSERT_TRUE(reference.has_value());
  EXPECT_EQ(reference->value(reference->outputs[0]).type.shape, (Shape{2, 64, 64}));
  EXPECT_FALSE((*model)->specialize_at(1, Extents{5}).has_value());
  EXPECT_FALSE((*model)->specialize_at(1, Extents{5, -1}).has_value());
}

TEST(OpenModel, IsNoneWhereEverythingIsFixedOrNobodyAskedForIt) {
  EXPECT_THAT(pair().import().error().message, HasSubstr("has no fixed extent"));
  const auto fixed = pair().import({.input_shapes = {{"a", {-1, 3, 4}}, {"b", {-1, 5, 4}}}, .open = true});
  ASSERT_TRUE(fixed.has_value()) << fixed.error().message;
  EXPECT_TRUE((*fixed)->free_dimensions().empty());
  EXPECT_FALSE((*fixed)->specialize_at(1, {}).has_value());
  // One of them may be.
  const auto half = pair().import({.input_shapes = {{"b", {-1, 5, 4}}}, .open = true});
  ASSERT_TRUE(half.has_value());
  EXPECT_THAT((*half)->free_dimensions(), ElementsAre("m"));
}

TEST(OpenModel, ADimensionWithoutABatchIsFree) {
  Onnx m;
  m.input("x", {"", "4"}).random("w", {4, 3}).node("MatMul", {"x", "w"}, {"y"}).output("y");
  const auto model = m.import({.open = true, .batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT((*model)->free_dimensions(), ElementsAre("input 'x' dimension 0"));
  EXPECT_EQ((*model)->outputs()[0].shape, (Shape{computed_dimension, 3}));
}

// A Squeeze takes out what is 1: at other extents the output has another rank. A batch stays in front.
TEST(OpenModel, TellsThatARankIsOpen) {
  Onnx m;
  m.input("x", {"batch", "n", "4"}).node("Shape", {"x"}, {"s"}).set("start", 1).set("end", 2);
  m.i64("one", {1}, {1}).node("Equal", {"s", "one"}, {"c"});
  Onnx then, otherwise;
  then.i64("axis", {1}, {1}).node("Squeeze", {"x", "axis"}, {"t"}).output("t");
  otherwise.node("Identity", {"x"}, {"e"}).output("e");
  m.node("If", {"c"}, {"y"}).set("then_branch", then).set("else_branch", otherwise).output("y");
  const auto batched = m.import({.open = true});
  ASSERT_TRUE(batched.has_value()) << batched.error().message;
  EXPECT_EQ((*batched)->outputs()[0].shape, (Shape{batch_dimension, any_dimensions}));
  EXPECT_EQ((*batched)->outputs()[0].open_shape(), (Shape{-1, -1}));
  const auto whole = m.import({.open = true, .batched = false});
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ((*whole)->outputs()[0].shape, (Shape{any_dimensions}));
  for (const auto& [extents, shape] : {std::pair{Extents{3, 1}, Shape{3, 4}}, {Extents{3, 5}, Shape{3, 5, 4}}}) {
    const auto graph = (*whole)->specialize_at(1, extents);
    ASSERT_TRUE(graph.has_value()) << graph.error().message;
    EXPECT_EQ(graph->value(graph->outputs[0]).type.shape, shape);
  }
}

// What a slice has at small sizes it has at no others.
TEST(OpenModel, TellsWhatChangesAtSmallExtents) {
  Onnx m;
  m.input("x", {"n", "4"}).i64("from", {1}, {0}).i64("to", {1}, {2}).i64("axis", {1}, {0});
  m.node("Slice", {"x", "from", "to", "axis"}, {"y"}).output("y");
  const auto model = m.import({.open = true, .batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->outputs()[0].shape, (Shape{computed_dimension, 4}));
}

// Of extents that fit nowhere the first guess's error is told, with these.
TEST(OpenModel, SaysWhatDoesNotFit) {
  Onnx m;
  m.input("x", {"batch", "n", "4"}).random("w", {5, 3}).node("MatMul", {"x", "w"}, {"y"}, "mm").output("y");
  const auto model = m.import({.open = true});
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().message, HasSubstr("at n = 64: node 'mm'"));
}

TEST(OpenModel, FindsExtentsThatFit) {
  // A reshape that wants multiples of 3000.
  Onnx m;
  m.input("x", {"batch", "samples"}).i64("shape", {3}, {0, -1, 3000});
  m.node("Reshape", {"x", "shape"}, {"y"}).output("y");
  const auto model = m.import({.open = true});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT((*model)->reference(), ElementsAre(3000));
  EXPECT_EQ((*model)->outputs()[0].shape, (Shape{batch_dimension, computed_dimension, 3000}));
  const auto wrong = (*model)->specialize_at(1, Extents{3001});
  ASSERT_FALSE(wrong.has_value());
  EXPECT_THAT(wrong.error().message, HasSubstr("Reshape"));
}

// Whose first dimension has a name, but is one in another input.
TEST(OpenModel, FindsThatOnlyOneSequenceFits) {
  Onnx m;
  m.input("x", {"batch", "frames", "2"}).input("h", {"1", "1", "2"});
  m.i64("shape", {3}, {1, -1, 2})
      .node("Shape", {"x"}, {"s"})
      .i64("zero", {1}, {0})
      .node("Gather", {"s", "zero"}, {"n"});
  m.i64("tail", {2}, {1, 2}).node("Concat", {"n", "tail"}, {"to"}).set("axis", 0);
  m.node("Reshape", {"h", "to"}, {"g"}).node("Add", {"x", "g"}, {"z"});
  m.i64("eights", {3}, {1, -1, 16})
      .node("Reshape", {"z", "eights"}, {"y"})
      .output("y");  // not one frame alone
  const auto model = m.import({.open = true, .batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT((*model)->reference(), ElementsAre(1, 64));
}

// Paddle's converter calls what it does not know "?".
TEST(OpenModel, AQuestionMarkIsNoName) {
  Onnx m;
  m.input("x", {"?", "?"}).node("Relu", {"x"}, {"y"}).output("y");
  const auto model = m.import({.open = true, .batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT((*model)->free_dimensions(), ElementsAre("input 'x' dimension 0", "input 'x' dimension 1"));
}

TEST(OpenModel, SpecialisationsShareWeightsAndKeepWhatIsTheirs) {
  Onnx m;
  m.input("x", {"batch", "n", "64"}).random("w", {64, 64});
  m.node("MatMul", {"x", "w"}, {"h"}).node("Shape", {"h"}, {"shape"});
  m.node("ConstantOfShape", {"shape"}, {"zeros"}).node("Cos", {"zeros"}, {"ones"});
  m.node("Add", {"h", "ones"}, {"y"}).output("y");
  const auto model = m.import({.open = true});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto constants = [&](const Graph& graph) {
    std::vector<std::pair<const Tensor*, std::int64_t>> out;
    for (const Value& value : graph.values)
      if (value.constant != nullptr && value.constant->type().elements() >= 64)
        out.emplace_back(value.constant.get(), value.constant.use_count());
    return out;
  };
  const auto one = (*model)->specialize_at(1, Extents{9});
  const auto other = (*model)->specialize_at(1, Extents{9});
  ASSERT_TRUE(one && other);
  int shared = 0, own = 0;
  for (const auto& [tensor, holders] : constants(*one)) {
    const auto there = constants(*other);
    const bool both = std::ranges::any_of(there, [&](const auto& each) { return each.first == tensor; });
    (both ? shared : own) += 1;
    if (!both) {
      EXPECT_EQ(holders, 1) << "nobody keeps it for others";
    }
  }
  EXPECT_EQ(shared, 1);
  EXPECT_EQ(own, 1);
}

}  // namespace
}  // namespace carillon::graph
