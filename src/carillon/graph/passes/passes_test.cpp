#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/fold.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/specialize.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kinds;
using testing::Onnx;
using testing::operators;
using Kind = PostOp::Kind;

// The optimised graph at batch 2, after it was seen to compute what the graph as written does.
Graph optimised(const Onnx& m, bool batched = true) {
  const testing::Folder folder;
  const auto file = folder.write("model.onnx", m.bytes());
  const auto model = import_onnx(file, {.batched = batched});
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  if (!model) return {};
  const std::int64_t batch = batched ? 2 : 1;
  auto fused = (*model)->specialize(batch);
  EXPECT_TRUE(fused.has_value()) << (fused ? "" : fused.error().message);
  if (!fused) return {};

  const auto source = read_onnx(file);
  ConstantStore store;
  Folder folding(store, std::uint64_t{1} << 30);
  std::vector<Shape> shapes;
  for (const TensorSpec& spec : (*model)->inputs()) shapes.push_back(spec.shape_at(batch));
  const auto plain = infer_types(*source, shapes, folding);
  EXPECT_TRUE(plain.has_value());
  EXPECT_TRUE(validate(*plain).has_value());
  Random random(11);
  std::vector<SharedTensor> inputs;
  for (const ValueId id : plain->inputs)
    inputs.push_back(testing::random_tensor(plain->value(id).type, random));
  const auto want = testing::run_plainly(*plain, inputs);
  const auto got = testing::run_plainly(*fused, inputs);
  EXPECT_TRUE(want.has_value()) << (want ? "" : want.error().message);
  EXPECT_TRUE(got.has_value()) << (got ? "" : got.error().message);
  if (!want || !got) return *std::move(fused);
  for (std::size_t i = 0; i < want->size(); ++i) {
    EXPECT_EQ(plain->value(plain->outputs[i]).name, fused->value(fused->outputs[i]).name);
    EXPECT_EQ((*want)[i]->type(), (*got)[i]->type());
    if ((*want)[i]->type() != (*got)[i]->type()) continue;
    if ((*want)[i]->type().type != DataType::f32) {
      EXPECT_TRUE(std::ranges::equal((*want)[i]->bytes(), (*got)[i]->bytes()));
      continue;
    }
    const auto a = (*want)[i]->as<float>();
    const auto b = (*got)[i]->as<float>();
    for (std::size_t k = 0; k < a.size(); ++k)
      EXPECT_NEAR(a[k], b[k], 1e-4F * (1 + std::abs(a[k]))) << to_text(*fused) << "element " << k;
  }
  return *std::move(fused);
}

Onnx image() {
  Onnx m;
  m.input("x", {"n", "4", "6", "6"});
  return m;
}

void batch_norm(Onnx& m, const std::string& from, const std::string& to, std::int64_t channels) {
  for (const char* p : {".s", ".b", ".m", ".v"}) m.random(to + p, {channels}, true);
  m.node("BatchNormalization", {from, to + ".s", to + ".b", to + ".m", to + ".v"}, {to});
}

TEST(FoldBatchNormalization, IntoConv) {
  Onnx m = image();
  m.random("w", {8, 2, 3, 3}).node("Conv", {"x", "w"}, {"c"}).set("group", 2);
  batch_norm(m, "c", "y", 8);
  m.output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("Conv"));
}

TEST(FoldBatchNormalization, IntoConvWithBiasThenRelu) {
  Onnx m = image();
  m.random("w", {8, 4, 1, 1}).random("b", {8}).node("Conv", {"x", "w", "b"}, {"c"});
  batch_norm(m, "c", "n", 8);
  m.node("Relu", {"n"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Conv"));
  EXPECT_THAT(kinds(g.nodes[0]), ElementsAre(Kind::relu));
}

TEST(FoldBatchNormalization, IntoGroupedConvTranspose) {
  Onnx m = image();
  m.random("w", {4, 3, 3, 3}).node("ConvTranspose", {"x", "w"}, {"c"}).set("group", 2);
  batch_norm(m, "c", "y", 6);
  m.output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("ConvTranspose"));
}

TEST(FoldBatchNormalization, IntoGemmEitherWay) {
  for (const int turned : {0, 1}) {
    Onnx m;
    m.input("x", {"n", "5"}).random("w", turned ? Shape{3, 5} : Shape{5, 3}).random("b", {3});
    m.node("Gemm", {"x", "w", "b"}, {"g"}).set("transB", turned).set("alpha", 0.5F).set("beta", 2.0F);
    batch_norm(m, "g", "y", 3);
    m.output("y");
    EXPECT_THAT(operators(optimised(m)), ElementsAre("Gemm"));
  }
}

TEST(FoldBatchNormalization, StaysWhereTheConvHasAnotherUser) {
  Onnx m = image();
  m.random("w", {8, 4, 1, 1}).node("Conv", {"x", "w"}, {"c"});
  batch_norm(m, "c", "y", 8);
  m.node("Exp", {"c"}, {"z"}).output("y").output("z");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("Conv", "BatchNormalization", "Exp"));
}

TEST(FoldBatchNormalization, ScaleAndShiftByChannelToo) {
  Onnx m = image();
  m.random("w", {8, 4, 1, 1}).random("s", {8, 1, 1}).random("t", {1, 8, 1, 1});
  m.node("Conv", {"x", "w"}, {"c"}).node("Mul", {"s", "c"}, {"d"}).node("Add", {"d", "t"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Conv"));
  EXPECT_THAT(kinds(g.nodes[0]), IsEmpty());
}

TEST(PostOps, ResidualBlock) {
  Onnx m = image();
  m.random("w1", {4, 4, 1, 1}).random("w2", {4, 4, 1, 1});
  // The shortcut is made after the main path, as in some exporters' order.
  m.node("Conv", {"x", "w1"}, {"a"}).node("Conv", {"x", "w2"}, {"b"}).node("Add", {"a", "b"}, {"s"});
  m.node("Relu", {"s"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Conv", "Conv"));
  EXPECT_THAT(kinds(g.nodes[1]), ElementsAre(Kind::add, Kind::relu));
}

TEST(PostOps, OrderOfOperandsIsKept) {
  Onnx m = image();
  m.random("w", {4, 4, 1, 1});
  m.node("Conv", {"x", "w"}, {"a"}).node("Exp", {"x"}, {"late"}).node("Mul", {"late", "a"}, {"p"});
  m.node("Add", {"p", "x"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Exp", "Conv"));
  EXPECT_THAT(kinds(g.nodes[1]), ElementsAre(Kind::mul, Kind::add));
}

TEST(PostOps, NotWhereTheResultIsSeen) {
  Onnx m = image();
  m.random("w", {4, 4, 1, 1})
      .node("Conv", {"x", "w"}, {"a"})
      .node("Relu", {"a"}, {"y"})
      .output("a")
      .output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("Conv", "Relu"));
}

TEST(PostOps, NotWhereTheSumIsWider) {
  Onnx m;
  m.input("x", {"n", "1", "4"}).random("w", {4, 4}).random("wide", {3, 4});
  m.node("MatMul", {"x", "w"}, {"a"}).node("Add", {"a", "wide"}, {"y"}).output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("MatMul", "Add"));
}

TEST(PostOps, BiasScalarsAndActivations) {
  Onnx m;
  m.input("x", {"n", "4"}).random("w", {4, 4}).random("b", {4}).f32("two", {}, {2}).f32("three", {1}, {3});
  m.node("MatMul", {"x", "w"}, {"a"}).node("Add", {"b", "a"}, {"c"}).node("Mul", {"c", "two"}, {"d"});
  m.node("Sub", {"three", "d"}, {"e"}).node("Div", {"e", "two"}, {"f"}).node("Elu", {"f"}, {"g"});
  m.node("Tanh", {"g"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("MatMul"));
  EXPECT_THAT(kinds(g.nodes[0]), ElementsAre(Kind::add, Kind::linear, Kind::elu, Kind::tanh));
}

TEST(PostOps, SquareIsNotAPostOpOfItself) {
  Onnx m;
  m.input("x", {"n", "4"})
      .random("w", {4, 4})
      .node("MatMul", {"x", "w"}, {"a"})
      .node("Mul", {"a", "a"}, {"y"});
  m.output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("MatMul", "Mul"));
}

TEST(PostOps, Silu) {
  Onnx m = image();
  m.random("w", {4, 4, 1, 1}).node("Conv", {"x", "w"}, {"a"}).node("Sigmoid", {"a"}, {"s"});
  m.node("Mul", {"a", "s"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Conv"));
  EXPECT_THAT(kinds(g.nodes[0]), ElementsAre(Kind::silu));
}

TEST(PostOps, Relu6AndOpenClip) {
  Onnx m = image();
  m.random("w", {4, 4, 1, 1}).f32("zero", {}, {0}).f32("six", {}, {6});
  m.node("Conv", {"x", "w"}, {"a"}).node("Clip", {"a", "zero", "six"}, {"b"});
  m.node("Conv", {"b", "w"}, {"c"}).node("Clip", {"c", "zero"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Conv", "Conv"));
  EXPECT_THAT(kinds(g.nodes[0]), ElementsAre(Kind::clip));
  EXPECT_EQ(g.nodes[0].post_ops[0].beta, 6.0F);
  EXPECT_THAT(kinds(g.nodes[1]), ElementsAre(Kind::relu));
}

TEST(HardSwish, BothOrders) {
  for (const bool divide_last : {false, true}) {
    Onnx m = image();
    m.random("w", {4, 4, 1, 1}).f32("3", {}, {3}).f32("0", {}, {0}).f32("6", {}, {6});
    m.node("Conv", {"x", "w"}, {"a"}).node("Add", {"a", "3"}, {"b"}).node("Clip", {"b", "0", "6"}, {"c"});
    if (divide_last)
      m.node("Mul", {"a", "c"}, {"d"}).node("Div", {"d", "6"}, {"y"});
    else
      m.node("Div", {"c", "6"}, {"d"}).node("Mul", {"a", "d"}, {"y"});
    m.output("y");
    const Graph g = optimised(m);
    ASSERT_THAT(operators(g), ElementsAre("Conv")) << divide_last;
    EXPECT_THAT(kinds(g.nodes[0]), ElementsAre(Kind::hard_swish));
  }
}

Onnx tokens() {
  Onnx m;
  m.input("x", {"n", "3", "8"}).f32("half", {}, {0.5F}).f32("one", {}, {1}).f32("root2", {}, {1.41421356F});
  m.f32("k", {}, {0.044715F}).f32("root", {}, {0.7978845608F}).f32("three", {}, {3}).f32("two", {}, {2});
  m.f32("eps", {}, {1e-5F}).random("scale", {8}).random("bias", {8}).i64("last", {1}, {-1});
  return m;
}

TEST(Gelu, ErfForms) {
  for (const int form : {0, 1, 2}) {
    Onnx m = tokens();
    m.node("Exp", {"x"}, {"v"})
        .node("Div", {"v", "root2"}, {"d"})
        .node("Erf", {"d"}, {"e"})
        .node("Add", {"e", "one"}, {"g"});
    if (form == 0) m.node("Mul", {"v", "g"}, {"p"}).node("Mul", {"p", "half"}, {"y"});
    if (form == 1) m.node("Mul", {"half", "v"}, {"p"}).node("Mul", {"p", "g"}, {"y"});
    if (form == 2) m.node("Mul", {"half", "g"}, {"p"}).node("Mul", {"v", "p"}, {"y"});
    m.output("y");
    const Graph g = optimised(m);
    ASSERT_THAT(operators(g), ElementsAre("Exp", "Gelu")) << form;
    EXPECT_EQ(g.nodes[1].text("approximate", ""), "none");
  }
}

TEST(Gelu, TanhForms) {
  for (const int form : {0, 1}) {
    Onnx m = tokens();
    m.node("Sin", {"x"}, {"v"});
    if (form == 0)
      m.node("Pow", {"v", "three"}, {"c"});
    else
      m.node("Mul", {"v", "v"}, {"sq"}).node("Mul", {"sq", "v"}, {"c"});
    m.node("Mul", {"c", "k"}, {"kc"}).node("Add", {"v", "kc"}, {"s"}).node("Mul", {"s", "root"}, {"u"});
    m.node("Tanh", {"u"}, {"t"}).node("Add", {"one", "t"}, {"g"}).node("Mul", {"v", "half"}, {"h"});
    m.node("Mul", {"h", "g"}, {"y"}).output("y");
    const Graph g = optimised(m);
    ASSERT_THAT(operators(g), ElementsAre("Sin", "Gelu")) << form;
    EXPECT_EQ(g.nodes[1].text("approximate", ""), "tanh");
  }
}

TEST(Gelu, NotWithAnotherFactor) {
  Onnx m = tokens();
  m.node("Div", {"x", "root2"}, {"d"}).node("Erf", {"d"}, {"e"}).node("Add", {"e", "one"}, {"g"});
  m.node("Mul", {"x", "g"}, {"p"}).node("Mul", {"p", "three"}, {"y"}).output("y");
  const auto ops = operators(optimised(m));
  EXPECT_THAT(ops, ::testing::Not(::testing::Contains("Gelu")));
  EXPECT_THAT(ops, ::testing::Contains("Erf"));
}

TEST(LayerNormalization, AsTorchUsedToExportIt) {
  for (const bool affine : {true, false}) {
    Onnx m = tokens();
    m.node("ReduceMean", {"x"}, {"mean"}).set("axes", std::vector<std::int64_t>{-1});
    m.node("Sub", {"x", "mean"}, {"d"}).node("Pow", {"d", "two"}, {"sq"});
    m.node("ReduceMean", {"sq"}, {"var"}).set("axes", std::vector<std::int64_t>{-1});
    m.node("Add", {"var", "eps"}, {"ve"})
        .node("Sqrt", {"ve"}, {"root_ve"})
        .node("Div", {"d", "root_ve"}, {"n"});
    if (affine) m.node("Mul", {"n", "scale"}, {"ns"}).node("Add", {"ns", "bias"}, {"y"});
    m.output(affine ? "y" : "n");
    const Graph g = optimised(m);
    ASSERT_THAT(operators(g), ElementsAre("LayerNormalization"));
    EXPECT_EQ(g.nodes[0].inputs.size(), affine ? 3U : 2U);
    EXPECT_EQ(g.nodes[0].integer("axis", 9), 2);
  }
}

TEST(NoOps, VanishAndOutputsKeepTheirNames) {
  Onnx m = tokens();
  m.node("Identity", {"x"}, {"a"}).node("Dropout", {"a"}, {"b"}).node("Cast", {"b"}, {"c"}).set("to", 1);
  m.node("Exp", {"c"}, {"d"})
      .node("Identity", {"d"}, {"e"})
      .node("Concat", {"e"}, {"y"})
      .set("axis", 1)
      .output("y");
  const Graph g = optimised(m);
  EXPECT_THAT(operators(g), ElementsAre("Exp"));
  EXPECT_EQ(g.value(g.outputs[0]).name, "y");
}

TEST(NoOps, OutputsThatAreInputsOrEachOther) {
  Onnx m = tokens();
  m.node("Identity", {"x"}, {"y"}).node("Exp", {"x"}, {"z"}).node("Identity", {"z"}, {"w"});
  m.output("y").output("z").output("w");
  const Graph g = optimised(m);
  EXPECT_THAT(operators(g), ::testing::UnorderedElementsAre("Reshape", "Exp", "Reshape"));
  EXPECT_EQ(g.value(g.outputs[0]).name, "y");
  EXPECT_EQ(g.value(g.outputs[1]).name, "z");
  EXPECT_EQ(g.value(g.outputs[2]).name, "w");
}

TEST(NoOps, OutputThatIsAConstant) {
  Onnx m;
  m.input("x", {"3"}).f32("c", {2}, {1, 2}).node("Identity", {"c"}, {"y"}).node("Relu", {"x"}, {"z"});
  m.output("y").output("z");
  const Graph g = optimised(m, false);
  EXPECT_TRUE(g.is_constant(g.outputs[0]));
  EXPECT_EQ(g.value(g.outputs[0]).name, "y");
}

TEST(NoOps, MovesCancel) {
  Onnx m = tokens();
  const std::vector<std::int64_t> perm{0, 2, 1};
  m.node("Transpose", {"x"}, {"a"}).set("perm", perm).node("Transpose", {"a"}, {"b"}).set("perm", perm);
  m.i64("flat", {2}, {0, -1}).i64("back", {3}, {-1, 3, 8});
  m.node("Exp", {"b"}, {"e"})
      .node("Reshape", {"e", "flat"}, {"c"})
      .node("Reshape", {"c", "back"}, {"y"})
      .output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("Exp"));
}

TEST(NoOps, TransposeOfOnesIsReshape) {
  Onnx m;
  m.input("x", {"n", "1", "5"})
      .node("Transpose", {"x"}, {"y"})
      .set("perm", std::vector<std::int64_t>{0, 2, 1})
      .output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("Reshape"));
}

TEST(Fold, ShapeArithmeticIsGone) {
  Onnx m = tokens();
  m.i64("zero", {}, {0}).i64("i0", {1}, {0}).i64("rest", {1}, {24});
  m.node("Shape", {"x"}, {"s"}).node("Gather", {"s", "zero"}, {"n"}).node("Unsqueeze", {"n", "i0"}, {"n1"});
  m.node("Concat", {"n1", "rest"}, {"to"}).set("axis", 0).node("Reshape", {"x", "to"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Reshape"));
  EXPECT_EQ(g.nodes[0].inputs.size(), 1U);
}

TEST(Attention, ScaleAndMaskBecomePostOps) {
  for (const float low : {-3.4028234e38F, -std::numeric_limits<float>::infinity()}) {
    Onnx m;
    m.input("q", {"n", "2", "8", "4"})
        .input("k", {"n", "2", "4", "8"})
        .input("mask", {"n", "1", "1", "8"}, DataType::boolean);
    m.f32("c", {}, {2})
        .f32("low", {}, {low})
        .node("Div", {"q", "c"}, {"qs"})
        .node("MatMul", {"qs", "k"}, {"s"});
    m.node("Where", {"mask", "low", "s"}, {"masked"})
        .node("Softmax", {"masked"}, {"y"})
        .set("axis", -1)
        .output("y");
    const Graph g = optimised(m);
    EXPECT_EQ(g.value(g.nodes[0].outputs[0]).type.shape, (Shape{2, 1, 1, 8}));
    if (std::isinf(low)) {
      ASSERT_THAT(operators(g), ElementsAre("Where", "MatMul", "Softmax"));
      EXPECT_THAT(kinds(g.nodes[1]), ElementsAre(Kind::linear, Kind::at_most));
    } else {
      ASSERT_THAT(operators(g), ElementsAre("Where", "Where", "MatMul", "Softmax"));
      EXPECT_THAT(kinds(g.nodes[2]), ElementsAre(Kind::linear, Kind::at_most, Kind::at_least));
    }
  }
}

// The score's maker takes no post-ops: the bounds are nodes of their own.
TEST(Attention, AMaskOfAnyScoreIsBounds) {
  Onnx m;
  m.input("s", {"n", "2", "8", "8"})
      .input("mask", {"n", "1", "1", "8"}, DataType::boolean)
      .f32("low", {}, {-1e38F});
  m.node("Exp", {"s"}, {"e"}).node("Where", {"mask", "e", "low"}, {"masked"});
  m.node("Softmax", {"masked"}, {"y"}).set("axis", -1).output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("Exp", "Where", "AtMost", "Where", "AtLeast", "Softmax"));
}

TEST(GlobalPools, MeanOverAnImage) {
  for (const int keep : {0, 1}) {
    Onnx m = image();
    m.node("ReduceMean", {"x"}, {"y"})
        .set("axes", std::vector<std::int64_t>{2, -1})
        .set("keepdims", keep)
        .output("y");
    const auto ops = operators(optimised(m));
    EXPECT_EQ(ops[0], "GlobalAveragePool");
    EXPECT_EQ(ops.size(), keep ? 1U : 2U);
  }
}

TEST(MergeCommon, SameWorkIsDoneOnce) {
  Onnx m = tokens();
  m.node("Exp", {"x"}, {"a"}).node("Exp", {"x"}, {"b"}).node("Sub", {"a", "b"}, {"y"}).output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("Exp", "Sub"));
}

TEST(MergeCommon, ReshapesOfOneValueToDifferentShapesStayApart) {
  Onnx m = tokens();
  m.i64("row", {1}, {1}).i64("column", {1}, {-1});
  m.node("Unsqueeze", {"x", "row"}, {"a"}).node("Unsqueeze", {"x", "column"}, {"b"});
  m.node("Exp", {"a"}, {"y"}).node("Exp", {"b"}, {"z"}).output("y").output("z");
  const Graph graph = optimised(m);
  EXPECT_THAT(operators(graph), ElementsAre("Reshape", "Reshape", "Exp", "Exp"));
  EXPECT_EQ(graph.value(graph.outputs[1]).type.shape.back(), 1);
}

// Bytes of `name`: scale `name`.s, zero point `name`.z.
Onnx& bytes_scale(Onnx& m, const std::string& name, float scale, std::uint8_t zero) {
  m.f32(name + ".s", {}, {scale});
  m.tensor(name + ".z", {}, DataType::u8)->set_raw_data(&zero, 1);
  return m;
}
// `to` is `from` rounded to bytes of scale `scale`, as reals again.
void rounded(Onnx& m, const std::string& from, const std::string& to, const std::string& scale) {
  m.node("QuantizeLinear", {from, scale + ".s", scale + ".z"}, {to + ".q"});
  m.node("DequantizeLinear", {to + ".q", scale + ".s", scale + ".z"}, {to});
}
void byte_weights(Onnx& m, const std::string& name, const Shape& shape, std::int64_t axis) {
  auto* tensor = m.tensor(name + ".q", shape, DataType::i8);
  std::string values;
  for (std::int64_t i = 0; i < TensorType(DataType::i8, shape).elements(); ++i)
    values += static_cast<char>((i * 37) % 101 - 50);
  tensor->set_raw_data(values);
  const std::int64_t channels = shape[static_cast<std::size_t>(axis)];
  std::vector<float> scales;
  for (std::int64_t i = 0; i < channels; ++i) scales.push_back(0.002F * static_cast<float>(i + 1));
  m.f32(name + ".s", {channels}, scales);
  m.node("DequantizeLinear", {name + ".q", name + ".s"}, {name}).set("axis", axis);
}

TEST(Quantised, ConvolutionsMultiplyBytes) {
  for (const bool relu : {false, true}) {
    Onnx m = image();
    bytes_scale(bytes_scale(m, "in", 0.02F, 120), "out", 0.03F, relu ? 0 : 128);
    byte_weights(m, "w", {6, 4, 3, 3}, 0);
    m.f32("b", {6}, {0.1F, -0.2F, 0, 0.3F, 0, 1});
    rounded(m, "x", "a", "in");
    m.node("Conv", {"a", "w", "b"}, {"c"});
    if (relu) m.node("Relu", {"c"}, {"r"});
    rounded(m, relu ? "r" : "c", "y", "out");
    m.output("y");
    EXPECT_THAT(operators(optimised(m)), ElementsAre("QuantizeLinear", "QLinearConv", "DequantizeLinear"));
  }
}

// What rounding does not do: below this zero point there are numbers that Relu would make zero.
TEST(Quantised, ReluThatRoundingDoesNotDoStays) {
  Onnx m = image();
  bytes_scale(bytes_scale(m, "in", 0.02F, 120), "out", 0.03F, 100);
  byte_weights(m, "w", {6, 4, 3, 3}, 0);
  rounded(m, "x", "a", "in");
  m.node("Conv", {"a", "w"}, {"c"}).node("Relu", {"c"}, {"r"});
  rounded(m, "r", "y", "out");
  m.output("y");
  const Graph g = optimised(m);
  EXPECT_THAT(operators(g),
              ElementsAre("QuantizeLinear", "QLinearConv", "QuantizeLinear", "DequantizeLinear"));
  EXPECT_THAT(kinds(g.nodes[1]), ElementsAre(Kind::relu)) << "real until then";
}

TEST(Quantised, GemmWithTurnedWeightsAndItsBias) {
  Onnx m;
  m.input("x", {"n", "8"});
  bytes_scale(bytes_scale(m, "in", 0.02F, 120), "out", 0.05F, 128);
  byte_weights(m, "w", {5, 8}, 0);
  m.f32("b", {5}, {1, -1, 0.5F, 0, 2});
  rounded(m, "x", "a", "in");
  m.node("Gemm", {"a", "w", "b"}, {"c"}).set("transB", 1);
  rounded(m, "c", "y", "out");
  m.output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("QuantizeLinear", "QLinearMatMul", "DequantizeLinear"));
  EXPECT_EQ(g.value(g.nodes[1].inputs[3]).type.shape, (Shape{8, 5}));
}

// x * sigmoid(x), rounded between: a function of one byte.
TEST(Quantised, ActivationsBecomeOneTable) {
  Onnx m = image();
  bytes_scale(bytes_scale(bytes_scale(m, "in", 0.02F, 120), "gate", 1.0F / 255, 0), "out", 0.02F, 20);
  rounded(m, "x", "a", "in");
  m.node("Sigmoid", {"a"}, {"s"});
  rounded(m, "s", "g", "gate");
  m.node("Mul", {"a", "g"}, {"p"});
  rounded(m, "p", "y", "out");
  m.output("y");
  EXPECT_THAT(operators(optimised(m)), ElementsAre("QuantizeLinear", "ByteLookup", "DequantizeLinear"));
}

// A file may say any scale: 0/0 is the smallest byte, as where it is run.
TEST(Quantised, WhatIsNoNumberIsTheSmallestByte) {
  Onnx m = image();
  const auto scale = [&](const std::string& name, float value, std::int8_t zero) {
    m.f32(name + ".s", {}, {value});
    m.tensor(name + ".z", {}, DataType::i8)->set_raw_data(&zero, 1);
  };
  scale("in", 0.02F, 3);
  scale("out", 0, 0);
  m.node("Neg", {"x"}, {"minus"});
  rounded(m, "x", "a", "in");
  rounded(m, "minus", "b", "in");
  m.node("Concat", {"a", "b"}, {"both"}).set("axis", 1);
  rounded(m, "both", "y", "out");
  m.output("y");
  const Graph g = optimised(m);
  const auto lookup = std::ranges::find(g.nodes, "ByteLookup", &Node::op);
  ASSERT_NE(lookup, g.nodes.end());
  const auto table = g.value(lookup->inputs[1]).constant->as<std::int8_t>();
  EXPECT_EQ(table[3], -128) << "0/0";
  EXPECT_EQ(table[4], 127);
  EXPECT_EQ(table[2], -128);
}

TEST(Quantised, SumsMeansAndWhatMovesStayBytes) {
  Onnx m = image();
  bytes_scale(bytes_scale(bytes_scale(m, "in", 0.02F, 120), "two", 0.03F, 100), "out", 0.05F, 128);
  m.random("k", {1, 4, 1, 1});
  rounded(m, "x", "a", "in");
  m.node("Neg", {"x"}, {"minus"});
  rounded(m, "minus", "b", "two");
  m.node("Add", {"a", "b"}, {"sum"});
  rounded(m, "sum", "c", "out");
  m.node("Transpose", {"c"}, {"t"}).set("perm", std::vector<std::int64_t>{0, 1, 3, 2});
  rounded(m, "t", "d", "out");
  m.node("Mul", {"d", "k"}, {"scaled"});
  rounded(m, "scaled", "e", "in");
  m.node("Concat", {"b", "e"}, {"both"}).set("axis", 1);
  rounded(m, "both", "f", "out");
  m.node("GlobalAveragePool", {"f"}, {"mean"});
  rounded(m, "mean", "y", "in");
  m.output("y");
  const auto made = operators(optimised(m));
  for (const char* op : {"QLinearAdd", "QLinearMul", "QLinearGlobalAveragePool", "Concat", "Transpose"})
    EXPECT_THAT(made, ::testing::Contains(op));
  EXPECT_EQ(std::ranges::count(made, "DequantizeLinear"), 1) << "at the end";
}

TEST(Quantised, ZeroPointsThatNobodyNamesAreZero) {
  Onnx m = image();
  m.f32("s", {}, {0.02F}).node("Neg", {"x"}, {"minus"});
  for (const std::string& real : {std::string("x"), std::string("minus")})
    m.node("QuantizeLinear", {real, "s"}, {real + ".q"})
        .node("DequantizeLinear", {real + ".q", "s"}, {real + ".r"});
  m.node("Add", {"x.r", "minus.r"}, {"sum"}).node("QuantizeLinear", {"sum", "s"}, {"q"});
  m.node("DequantizeLinear", {"q", "s"}, {"y"}).output("y");
  EXPECT_THAT(operators(optimised(m)), ::testing::Contains("QLinearAdd"));
}

TEST(Quantised, RangesFoundAtRunTime) {
  Onnx m;
  m.input("x", {"3", "8"});
  auto* w = m.tensor("w", {8, 5}, DataType::i8);
  std::string values;
  for (int i = 0; i < 40; ++i) values += static_cast<char>(i * 3 - 60);
  w->set_raw_data(values);
  m.f32("ws", {5}, {0.01F, 0.02F, 0.03F, 0.01F, 0.02F}).random("bias", {5});
  m.node("DynamicQuantizeLinear", {"x"}, {"q", "s", "z"});
  m.node("MatMulInteger", {"q", "w", "z"}, {"sums"});
  m.node("Cast", {"sums"}, {"real"}).set("to", 1);
  m.node("Mul", {"s", "ws"}, {"scale"}).node("Mul", {"real", "scale"}, {"p"});
  m.node("Add", {"bias", "p"}, {"y"}).output("y");
  const Graph g = optimised(m, /*batched=*/false);
  ASSERT_THAT(operators(g), ElementsAre("DynamicQuantizeLinear", "QLinearMatMul"));
  EXPECT_THAT(kinds(g.nodes[1]), ElementsAre(Kind::add));
}

TEST(Quantised, WeightsThatNoProductTakesAreReal) {
  Onnx m = image();
  byte_weights(m, "w", {6, 4, 3, 3}, 0);
  m.node("Conv", {"x", "w"}, {"y"}).output("y");
  const Graph g = optimised(m);
  ASSERT_THAT(operators(g), ElementsAre("Conv"));
  EXPECT_TRUE(g.is_constant(g.nodes[0].inputs[1]));
}

TEST(EinsumAsMatMul, WhereItIsAProductOfMatrices) {
  const struct {
    const char* equation;
    testing::Dims a, b;
    bool product;
  } rows[] = {{"bij,bjk->bik", {"n", "3", "4"}, {"n", "4", "5"}, true},
              {"bqhd,bkhd->bhqk", {"n", "3", "2", "4"}, {"n", "5", "2", "4"}, true},
              {"bhqk,bkhd->bqhd", {"n", "2", "3", "5"}, {"n", "5", "2", "4"}, true},
              {"bi,bj->bij", {"n", "3"}, {"n", "4"}, false},
              {"bij,bjk->bki", {"n", "3", "4"}, {"n", "4", "5"}, true},
              {"bijk,bjk->bi", {"n", "3", "4", "5"}, {"n", "4", "5"}, true},
              {"bii,bij->bj", {"n", "4", "4"}, {"n", "4", "5"}, false},
              {"bij,bk->bi", {"n", "3", "4"}, {"n", "5"}, false}};
  for (const auto& [equation, a, b, product] : rows) {
    SCOPED_TRACE(equation);
    Onnx m;
    m.input("a", a).input("b", b).node("Einsum", {"a", "b"}, {"y"}).set("equation", equation).output("y");
    const auto made = operators(optimised(m));
    EXPECT_EQ(std::ranges::count(made, "MatMul"), product ? 1 : 0);
    EXPECT_EQ(std::ranges::count(made, "Einsum"), product ? 0 : 1);
  }
}

// Steps of x, [n, 3, 4] or [3, 2, 4], each times the same weights.
Onnx steps(bool time_first, std::initializer_list<int> taken, const char* product = "MatMul") {
  Onnx m;
  m.input("x", time_first ? testing::Dims{"3", "2", "4"} : testing::Dims{"n", "3", "4"});
  m.random("w", {4, 5}).random("bias", {5});
  std::vector<std::string> made;
  for (const int t : taken) {
    const std::string number = std::to_string(t);
    m.i64("at" + number, {}, {t})
        .node("Gather", {"x", "at" + number}, {"x" + number})
        .set("axis", time_first ? 0 : 1);
    if (product == std::string("Gemm"))
      m.node("Gemm", {"x" + number, "w", "bias"}, {"y" + number}).set("alpha", 0.5F);
    else
      m.node(product, {"x" + number, "w"}, {"y" + number});
    m.node("Tanh", {"y" + number}, {"z" + number}).output("z" + number);
  }
  return m;
}

TEST(JoinProducts, OfTheStepsOfOneValue) {
  for (const bool time_first : {true, false})
    for (const char* product : {"MatMul", "Gemm"}) {
      SCOPED_TRACE(product);
      const auto made = operators(optimised(steps(time_first, {0, 1, -1}, product), /*batched=*/!time_first));
      EXPECT_EQ(std::ranges::count(made, product), 1);
      EXPECT_EQ(std::ranges::count(made, "Gather"), 3);
    }
}

TEST(JoinProducts, NotOfFewStepsNorWithWeightsOfTheirOwn) {
  EXPECT_EQ(std::ranges::count(operators(optimised(steps(false, {1}))), "MatMul"), 1);
  Onnx few;
  few.input("x", {"n", "5", "4"}).random("w", {4, 3});
  for (const char* t : {"0", "1"})
    few.i64(std::string("at") + t, {}, {t[0] - '0'})
        .node("Gather", {"x", std::string("at") + t}, {std::string("x") + t})
        .set("axis", 1);
  few.node("MatMul", {"x0", "w"}, {"a"}).output("a").node("MatMul", {"x1", "w"}, {"b"}).output("b");
  EXPECT_EQ(std::ranges::count(operators(optimised(few)), "MatMul"), 2);

  Onnx own;
  own.input("x", {"n", "2", "4"})
      .random("v", {4, 3})
      .random("w", {4, 3})
      .i64("at0", {}, {0})
      .i64("at1", {}, {1});
  own.node("Gather", {"x", "at0"}, {"x0"}).set("axis", 1).node("Gather", {"x", "at1"}, {"x1"}).set("axis", 1);
  own.node("MatMul", {"x0", "v"}, {"a"}).output("a").node("MatMul", {"x1", "w"}, {"b"}).output("b");
  EXPECT_EQ(std::ranges::count(operators(optimised(own)), "MatMul"), 2);
}

// The axis that a product sums over is no step.
TEST(JoinProducts, NotAlongWhatTheySumOver) {
  Onnx m;
  m.input("x", {"n", "4", "2"}).random("w", {4, 3}).i64("at0", {}, {0}).i64("at1", {}, {1});
  for (const char* t : {"0", "1"})
    m.node("Gather", {"x", std::string("at") + t}, {std::string("x") + t}).set("axis", 2);
  m.node("MatMul", {"x0", "w"}, {"a"}).output("a").node("MatMul", {"x1", "w"}, {"b"}).output("b");
  EXPECT_EQ(std::ranges::count(operators(optimised(m)), "MatMul"), 2);
}

}  // namespace
}  // namespace carillon::graph
