#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/fold.h"
#include "carillon/graph/kernel.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/specialize.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using plain::BFloat16;
using plain::Half;
using plain::to_float;
using ::testing::ElementsAre;
using testing::Onnx;
using testing::operators;

double number_at(const Tensor& tensor, std::size_t i) {
  switch (tensor.type().type) {
    case DataType::f32:
      return tensor.as<float>()[i];
    case DataType::f16:
      return to_float(tensor.as<Half>()[i]);
    case DataType::bf16:
      return to_float(tensor.as<BFloat16>()[i]);
    default:
      return static_cast<double>(tensor.as<std::int64_t>()[i]);
  }
}

// The optimised graph at batch 2. Its results are those of the graph as written to `tolerance`, of 1 and
// more.
Graph optimised(const Onnx& m, double tolerance) {
  const testing::Folder folder;
  const auto file = folder.write("model.onnx", m.bytes());
  const auto model = import_onnx(file, {.batched = true});
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  if (!model) return {};
  auto fused = (*model)->specialize(2);
  EXPECT_TRUE(fused.has_value()) << (fused ? "" : fused.error().message);
  if (!fused) return {};
  EXPECT_TRUE(validate(*fused).has_value());

  const auto source = read_onnx(file);
  ConstantStore store;
  Folder folding(store, std::uint64_t{1} << 30);
  std::vector<Shape> shapes;
  for (const TensorSpec& spec : (*model)->inputs()) shapes.push_back(spec.shape_at(2));
  const auto plain = infer_types(*source, shapes, folding);
  EXPECT_TRUE(plain.has_value());
  if (!plain) return {};
  Random random(5);
  std::vector<SharedTensor> inputs;
  for (const ValueId id : plain->inputs)
    inputs.push_back(testing::random_tensor(plain->value(id).type, random));
  const auto want = testing::run_plainly(*plain, inputs);
  const auto got = testing::run_plainly(*fused, inputs);
  EXPECT_TRUE(want.has_value() && got.has_value());
  if (!want || !got) return *std::move(fused);
  for (std::size_t i = 0; i < want->size(); ++i) {
    const Tensor &a = *(*want)[i], &b = *(*got)[i];
    EXPECT_EQ(plain->value(plain->outputs[i]).name, fused->value(fused->outputs[i]).name);
    EXPECT_EQ(a.type(), b.type());
    if (a.type() != b.type()) continue;
    for (std::size_t k = 0; k < static_cast<std::size_t>(a.type().elements()); ++k)
      EXPECT_NEAR(number_at(a, k), number_at(b, k), tolerance * (1 + std::abs(number_at(a, k))))
          << to_text(*fused) << "element " << k;
  }
  return *std::move(fused);
}

// A constant `name` of that type.
void constant(Onnx& m, const std::string& name, const Shape& dims, DataType type) {
  m.random(name + ".long", dims).node("Cast", {name + ".long"}, {name});
  m.set("to", type == DataType::f16 ? 10 : 16);
}

class Halves : public ::testing::TestWithParam<DataType> {
 protected:
  DataType type() const { return GetParam(); }
  double near() const { return type() == DataType::f16 ? 4e-3 : 3e-2; }
};

TEST_P(Halves, ProductsAndWhatFollowsAreComputedInF32) {
  Onnx m;
  m.input("x", {"n", "4"}, type());
  constant(m, "w", {4, 3}, type());
  m.node("MatMul", {"x", "w"}, {"p"}).node("Relu", {"p"}, {"y"}).output("y", type());
  const Graph g = optimised(m, near());
  ASSERT_THAT(operators(g), ElementsAre("Cast", "MatMul", "Cast"));
  EXPECT_EQ(g.value(g.nodes[1].inputs[1]).type.type, DataType::f32);
}

TEST_P(Halves, WhatOnlyMovesNumbersKeepsThem) {
  Onnx m;
  m.input("x", {"n", "4", "3"}, type()).i64("axes", {1}, {1});
  m.node("Transpose", {"x"}, {"t"}).set("perm", std::vector<std::int64_t>{0, 2, 1});
  m.node("Unsqueeze", {"t", "axes"}, {"y"}).output("y", type());
  EXPECT_THAT(operators(optimised(m, 0)), ElementsAre("Transpose", "Reshape"));
}

TEST_P(Halves, TablesStaySmall) {
  Onnx m;
  m.input("b", {"n", "5"}, DataType::boolean).node("Cast", {"b"}, {"i"}).set("to", 7);
  constant(m, "table", {4, 3}, type());
  m.node("Gather", {"table", "i"}, {"g"}).node("Tanh", {"g"}, {"y"}).output("y", type());
  const Graph g = optimised(m, near());
  ASSERT_THAT(operators(g), ElementsAre("Cast", "Gather", "Cast", "Tanh", "Cast"));
  EXPECT_EQ(g.value(g.nodes[1].inputs[0]).type.type, type());
}

TEST_P(Halves, AValueThatIsAnOutputAndIsReadHasBothTypes) {
  Onnx m;
  m.input("x", {"n", "4"}, type());
  m.node("Tanh", {"x"}, {"y"}).node("Exp", {"y"}, {"z"}).output("y", type()).output("z", type());
  EXPECT_THAT(operators(optimised(m, near())), ElementsAre("Cast", "Tanh", "Cast", "Exp", "Cast"));
}

TEST_P(Halves, ACastToF32ReadsWhatWasComputed) {
  Onnx m;
  m.input("x", {"n", "4"}, type());
  m.node("Tanh", {"x"}, {"t"}).node("Cast", {"t"}, {"y"}).set("to", 1).output("y");
  EXPECT_THAT(operators(optimised(m, near())), ElementsAre("Cast", "Tanh"));
}

// 1 + 2^-12 is 1 in 16 bits: the file asks for that by its Cast.
TEST_P(Halves, ACastTo16BitsRounds) {
  Onnx m;
  m.f32("little", {1}, {1.0F + 0x1p-12F}).input("x", {"n", "1"});
  m.node("Mul", {"x", "little"}, {"p"})
      .node("Cast", {"p"}, {"h"})
      .set("to", type() == DataType::f16 ? 10 : 16);
  m.node("Neg", {"h"}, {"m"}).node("Cast", {"m"}, {"y"}).set("to", 1).output("y");
  const auto model = m.import({.batched = true});
  ASSERT_TRUE(model) << model.error().message;
  const auto g = (*model)->specialize(1);
  ASSERT_TRUE(g) << g.error().message;
  EXPECT_THAT(operators(*g), ElementsAre("Mul", "Cast", "Cast", "Neg"));
  const auto made =
      testing::run_plainly(*g, {std::make_shared<const Tensor>(Tensor::of_f32({1, 1}, std::vector{1.0F}))});
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->front()->as<float>()[0], -1.0F);
}

TEST_P(Halves, WhatHangsOnThe16BitsReadsThem) {
  Onnx m(20);
  m.input("x", {"n", "4"}, type());
  m.node("Exp", {"x"}, {"e"}).node("IsNaN", {"e"}, {"nan"});
  m.node("Cast", {"nan"}, {"y"}).set("to", 7).output("y", DataType::i64);
  m.node("Sqrt", {"e"}, {"z"}).output("z", type());
  EXPECT_THAT(operators(optimised(m, near())),
              ElementsAre("Cast", "Exp", "Cast", "IsNaN", "Cast", "Sqrt", "Cast"));
}

TEST_P(Halves, BranchesAreConvertedWhereTheyRun) {
  const auto branch = [&](const char* op) {
    Onnx out;
    out.node(op, {"x"}, {std::string(op) + ".y"}).output(std::string(op) + ".y", type());
    return out;
  };
  Onnx m;
  m.input("x", {"n", "4"}, type()).i64("all", {2}, {0, 1});
  m.f32("much", {}, {1e9F}).node("Cast", {"x"}, {"f"}).set("to", 1).node("ReduceSum", {"f", "all"}, {"sum"});
  m.set("keepdims", 0).node("Less", {"sum", "much"}, {"c"});
  m.node("If", {"c"}, {"b"}).set("then_branch", branch("Exp")).set("else_branch", branch("Tanh"));
  m.node("Sigmoid", {"b"}, {"y"}).output("y", type());
  (void)optimised(m, near());
}

INSTANTIATE_TEST_SUITE_P(Types, Halves, ::testing::Values(DataType::f16, DataType::bf16),
                         [](const auto& test) { return test.param == DataType::f16 ? "f16" : "bf16"; });

// The processor's conversions and those by single bits agree on every number of 16 bits, and around halfway.
TEST(CastOfHalves, IsTheSameHoweverManyAreConverted) {
  std::vector<float> floats;
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float x = to_float(Half{static_cast<std::uint16_t>(bits)});
    for (const float y : {x, std::nextafter(x, std::numeric_limits<float>::infinity()), x * (1 + 0x1p-11F),
                          x * (1 + 0x1p-12F)})
      floats.push_back(y);
  }
  floats.push_back(1e30F);
  floats.push_back(-1e30F);
  floats.push_back(1e-30F);
  const auto count = static_cast<std::int64_t>(floats.size());
  const TensorType in{DataType::f32, {count}}, middle{DataType::f16, {count}};
  Tensor halves(middle), back(in);
  const auto cast = [](const TensorType& from, const void* x, Tensor& to) {
    const Node node{.name = "cast", .op = "Cast", .inputs = {ValueId{0}}, .outputs = {ValueId{1}}};
    const TensorType* types[] = {&from};
    const PlainKernel kernel = find_plain_kernel(node, types);
    ASSERT_NE(kernel, nullptr);
    const ConstView view{&from, static_cast<const std::byte*>(x)};
    const MutableView out{&to.type(), to.bytes().data()};
    ASSERT_TRUE(kernel(node, {&view, 1}, {&out, 1}));
  };
  cast(in, floats.data(), halves);
  cast(middle, halves.bytes().data(), back);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const Half want = plain::to_half(floats[i]), got = halves.as<Half>()[i];
    if (std::isnan(floats[i])) {
      EXPECT_TRUE(std::isnan(to_float(got)));
      EXPECT_TRUE(std::isnan(back.as<float>()[i]));
      continue;
    }
    ASSERT_EQ(want.bits, got.bits) << floats[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(to_float(want)),
              std::bit_cast<std::uint32_t>(back.as<float>()[i]));
  }
}

}  // namespace
}  // namespace carillon::graph
