#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/bounded.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/guards.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/random_control_flow.h"
#include "carillon/graph/specialize.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Onnx;
using testing::operators;
using Floats = std::vector<float>;

SharedTensor floats(Shape shape, const Floats& values) {
  return std::make_shared<const Tensor>(Tensor::of_f32(std::move(shape), values));
}
SharedTensor truth(bool value) {
  Tensor tensor(TensorType{DataType::boolean, {}});
  tensor.bytes()[0] = std::byte{value ? std::uint8_t{1} : std::uint8_t{0}};
  return std::make_shared<const Tensor>(std::move(tensor));
}
SharedTensor whole(std::int64_t value) {
  return std::make_shared<const Tensor>(Tensor::of_i64({}, {&value, 1}));
}

Graph specialised(const Onnx& m) {
  const auto model = m.import({.batched = false});
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  if (!model) return {};
  auto graph = (*model)->specialize(1);
  EXPECT_TRUE(graph.has_value()) << (graph ? "" : graph.error().message);
  return graph ? *std::move(graph) : Graph{};
}

std::string refusal(const Onnx& m, ErrorCode code = ErrorCode::invalid_argument) {
  const auto model = m.import({.batched = false});
  EXPECT_FALSE(model.has_value());
  if (model) return "";
  EXPECT_EQ(model.error().code, code) << model.error().message;
  return model.error().message;
}

// The first output, and which nodes ran.
Floats run(const Graph& graph, const std::vector<SharedTensor>& inputs,
           std::vector<std::string>* ran = nullptr) {
  const auto out = testing::run_plainly(graph, inputs, ran);
  EXPECT_TRUE(out.has_value()) << (out ? "" : out.error().message);
  if (!out) return {};
  const auto values = (*out)[0]->as<float>();
  return {values.begin(), values.end()};
}

// y = c ? relu(x) : -x, with an outer value read by one branch.
Onnx choice() {
  Onnx yes, no, m;
  yes.node("Relu", {"x"}, {"yes"}).output("yes");
  no.node("Neg", {"x"}, {"no"}, "neg").output("no");
  m.input("x", {"2"}).input("c", {}, DataType::boolean);
  m.node("If", {"c"}, {"y"}, "choice").set("then_branch", yes).set("else_branch", no).output("y");
  return m;
}

TEST(If, RunsTheBranchThatTheConditionTakes) {
  const Graph g = specialised(choice());
  EXPECT_THAT(operators(g), ElementsAre("Relu", "Neg", "Merge"));
  ASSERT_EQ(g.guards.size(), 2U);
  EXPECT_EQ(g.nodes[0].guard, 0);
  EXPECT_EQ(g.nodes[1].guard, 1);
  EXPECT_EQ(g.nodes[2].guard, -1);
  EXPECT_EQ(g.value(g.outputs[0]).name, "y");
  const auto x = floats({2}, {-1, 2});
  EXPECT_THAT(run(g, {x, truth(true)}), ElementsAre(0, 2));
  std::vector<std::string> ran;
  EXPECT_THAT(run(g, {x, truth(false)}, &ran), ElementsAre(1, -2));
  EXPECT_THAT(ran, ElementsAre("neg", "choice"));
  EXPECT_THAT(to_text(g), HasSubstr("if not %1"));
}

TEST(If, AConstantConditionLeavesNoTrace) {
  for (const bool by_shape : {false, true}) {
    Onnx yes, no, m;
    yes.node("Relu", {"x"}, {"yes"}).output("yes");
    no.node("Transpose", {"x"}, {"no"}).output("no");  // of another shape: never looked at
    m.input("x", {"2", "3"}).i64("two", {}, {2}).i64("zero", {}, {0});
    if (by_shape)
      m.node("Shape", {"x"}, {"s"}).node("Gather", {"s", "zero"}, {"n"}).node("Equal", {"n", "two"}, {"c"});
    else
      m.node("Equal", {"two", "two"}, {"c"});
    m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
    const Graph g = specialised(m);
    EXPECT_THAT(operators(g), ElementsAre("Relu"));
    EXPECT_THAT(g.guards, IsEmpty());
  }
}

TEST(If, NestsAndReadsFromEveryGraphAround) {
  Onnx deep_yes, deep_no, yes, no, m;
  deep_yes.node("Add", {"x", "half"}, {"dy"}).output("dy");
  deep_no.node("Sub", {"x", "half"}, {"dn"}).output("dn");
  yes.f32("two", {}, {2}).node("Div", {"x", "two"}, {"half"});
  yes.node("If", {"d"}, {"inner"}).set("then_branch", deep_yes).set("else_branch", deep_no);
  yes.node("Neg", {"inner"}, {"yes"}).output("yes");
  no.node("Identity", {"x"}, {"no"}).output("no");
  m.input("x", {"2"}).input("c", {"1"}, DataType::boolean).input("d", {}, DataType::boolean);
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  const Graph g = specialised(m);
  ASSERT_EQ(g.guards.size(), 3U) << to_text(g);  // the empty else branch needs none
  const auto x = floats({2}, {2, 4});
  Tensor one(TensorType{DataType::boolean, {1}});
  const auto zero = std::make_shared<const Tensor>(TensorType{DataType::boolean, {1}});
  one.bytes()[0] = std::byte{1};
  const auto c = std::make_shared<const Tensor>(std::move(one));
  EXPECT_THAT(run(g, {x, c, truth(true)}), ElementsAre(-3, -6));
  EXPECT_THAT(run(g, {x, c, truth(false)}), ElementsAre(-1, -2));
  EXPECT_THAT(run(g, {x, zero, truth(false)}), ElementsAre(2, 4));
}

TEST(If, TheSameConditionInsideIsKnown) {
  Onnx deep_yes, deep_no, yes, no, m;
  deep_yes.node("Relu", {"x"}, {"dy"}).output("dy");
  deep_no.node("Abs", {"x"}, {"dn"}).output("dn");
  yes.node("If", {"c"}, {"yes"}).set("then_branch", deep_yes).set("else_branch", deep_no).output("yes");
  no.node("Neg", {"x"}, {"no"}).output("no");
  m.input("x", {"2"}).input("c", {}, DataType::boolean);
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  EXPECT_THAT(operators(specialised(m)), ElementsAre("Relu", "Neg", "Merge"));
}

// An index out of range matters only where it is used.
TEST(If, BadDataInTheOtherBranchIsNoError) {
  Onnx yes, no, m;
  yes.node("Gather", {"x", "i"}, {"yes"}).output("yes");
  no.f32("zero", {}, {0}).output("zero");
  m.input("x", {"3"}).input("i", {}, DataType::i64).i64("three", {}, {3}).node("Less", {"i", "three"}, {"c"});
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  const Graph g = specialised(m);
  const auto x = floats({3}, {5, 6, 7});
  EXPECT_THAT(run(g, {x, whole(2)}), ElementsAre(7));
  EXPECT_THAT(run(g, {x, whole(1000)}), ElementsAre(0));
}

TEST(If, BadConstantsInTheOtherBranchAreNoErrorEither) {
  Onnx yes, no, m;
  yes.f32("table", {3}, {5, 6, 7})
      .i64("far", {}, {100})
      .node("Gather", {"table", "far"}, {"yes"})
      .output("yes");
  no.node("Relu", {"x"}, {"no"}).output("no");
  m.input("x", {}).input("c", {}, DataType::boolean);
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  const Graph g = specialised(m);
  EXPECT_THAT(run(g, {floats({}, {4}), truth(false)}), ElementsAre(4));
  EXPECT_FALSE(testing::run_plainly(g, {floats({}, {4}), truth(true)}).has_value());
}

// Nor do shapes that do not fit together: a model for two kinds of input has a branch for each.
TEST(If, ABranchThatDoesNotFitIsNoErrorWhereItIsNotTaken) {
  for (const bool fits : {true, false}) {
    Onnx good, bad, m;
    good.node("Relu", {"x"}, {"good"}, "relu").output("good");
    bad.f32("three", {3}, {1, 2, 3})
        .node("Neg", {"x"}, {"n"})
        .node("Add", {"n", "three"}, {"bad"}, "add")
        .output("bad");
    m.input("x", {"2"}).input("c", {}, DataType::boolean);
    m.node("If", {"c"}, {"y"}, "choice").set("then_branch", fits ? good : bad);
    m.set("else_branch", fits ? bad : good).output("y");
    const Graph g = specialised(m);
    EXPECT_THAT(operators(g), ElementsAre("Relu", "Only"));
    EXPECT_THAT(run(g, {floats({2}, {-1, 2}), truth(fits)}), ElementsAre(0, 2));
    const auto other = testing::run_plainly(g, {floats({2}, {-1, 2}), truth(!fits)});
    ASSERT_FALSE(other.has_value());
    EXPECT_EQ(other.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(other.error().message,
                HasSubstr(fits ? "else_branch does not fit inputs of this size: node 'add'"
                               : "then_branch does not fit inputs of this size: node 'add'"));
  }
}

TEST(If, OfTwoBranchesThatDoNotFitOneIsSaid) {
  Onnx bad, m;
  bad.f32("three", {3}, {1, 2, 3}).node("Add", {"x", "three"}, {"bad"}, "add").output("bad");
  m.input("x", {"2"}).input("c", {}, DataType::boolean);
  m.node("If", {"c"}, {"y"}, "choice").set("then_branch", bad).set("else_branch", bad).output("y");
  EXPECT_THAT(refusal(m), HasSubstr("node 'add' (Add)"));
}

TEST(If, BranchesMayGiveConstantsInputsAndTheSame) {
  Onnx yes, no, m;
  yes.f32("ones", {2}, {1, 1}).node("Identity", {"x"}, {"a1"}).node("Neg", {"x"}, {"b1"});
  yes.output("a1").output("b1").output("ones").output("x");
  no.f32("twos", {2}, {2, 2}).node("Identity", {"x"}, {"a2"}).node("Abs", {"x"}, {"b2"});
  no.output("a2").output("x").output("twos").output("b2");
  m.input("x", {"2"}).input("c", {}, DataType::boolean);
  m.node("If", {"c"}, {"a", "b", "k", ""}).set("then_branch", yes).set("else_branch", no);
  m.output("k").output("a").output("b");
  const Graph g = specialised(m);
  // Both give x: that needs no branch. The last output is wanted by nobody.
  EXPECT_THAT(operators(g), Not(Contains("Abs")));
  EXPECT_EQ(std::ranges::count(operators(g), "Merge"), 2) << to_text(g);
  const auto x = floats({2}, {-3, 3});
  for (const bool c : {false, true}) {
    const auto out = testing::run_plainly(g, {x, truth(c)});
    ASSERT_TRUE(out.has_value());
    EXPECT_EQ((*out)[0]->as<float>()[0], c ? 1 : 2);
    EXPECT_EQ((*out)[1]->as<float>()[0], -3);
    EXPECT_EQ((*out)[2]->as<float>()[0], c ? 3 : -3);
  }
}

TEST(If, SaysWhatItCannotHold) {
  Onnx yes, no, m;
  yes.node("Relu", {"x"}, {"yes"}).output("yes");
  no.node("Shape", {"x"}, {"no"}).output("no", DataType::i64);
  m.input("x", {"2", "3", "4"}).input("c", {}, DataType::boolean).input("d", {"2"}, DataType::boolean);
  Onnx other = m;
  m.node("If", {"c"}, {"y"}, "exit").set("then_branch", yes).set("else_branch", no).output("y");
  EXPECT_THAT(refusal(m),
              HasSubstr("node 'exit' (If): output 0 is of type float in then_branch, but of int64 in "
                        "else_branch"));
  other.node("If", {"d"}, {"y"}, "exit").set("then_branch", yes).set("else_branch", yes).output("y");
  EXPECT_THAT(refusal(other), HasSubstr("its condition is bool[2], but must be one bool"));
}

// y = c ? x : the first row of x, or that row without its first dimension.
Onnx unlike(bool rank) {
  Onnx yes, no, m;
  yes.node("Identity", {"x"}, {"all"}).output("all");
  no.i64("row", rank ? Shape{} : Shape{1}, {0}).node("Gather", {"x", "row"}, {"one"}).output("one");
  m.input("x", {"3", "2"}).input("c", {}, DataType::boolean);
  m.node("If", {"c"}, {"y"}, "choice").set("then_branch", yes).set("else_branch", no);
  return m;
}
SharedTensor first(const Graph& graph, const std::vector<SharedTensor>& inputs) {
  const auto out = testing::run_plainly(graph, inputs);
  EXPECT_TRUE(out.has_value()) << (out ? "" : out.error().message);
  return out ? out->front() : nullptr;
}

TEST(UnlikeBranches, AnOutputHasTheShapeOfItsBranch) {
  const auto x = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  for (const bool rank : {false, true}) {
    const auto model = unlike(rank).output("y").import({.batched = false});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    EXPECT_EQ((*model)->outputs()[0].shape,
              rank ? (Shape{open_rank(2), bounded_dimension(6)}) : (Shape{bounded_dimension(3), 2}));
    EXPECT_EQ((*model)->outputs()[0].open_shape(), rank ? Shape{-1} : (Shape{-1, 2}));
    const Graph g = specialised(unlike(rank).output("y"));
    EXPECT_EQ(first(g, {x, truth(true)})->type().shape, (Shape{3, 2}));
    const auto one = first(g, {x, truth(false)});
    EXPECT_EQ(one->type().shape, rank ? Shape{2} : (Shape{1, 2}));
    EXPECT_EQ(one->as<float>()[1], 2);
  }
}

// Nodes behind the If are planned once for each branch. Their results become one value where the types agree.
TEST(UnlikeBranches, WhatFollowsIsMadeForEach) {
  for (const bool rank : {false, true}) {
    Onnx m = unlike(rank);
    m.node("Neg", {"y"}, {"n"}).node("Shape", {"n"}, {"s"}).node("Relu", {"n"}, {"r"});
    m.node("Reshape", {"r", "s"}, {"same"}).node("Add", {"n", "same"}, {"z"});
    m.node("ReduceSum", {"z"}, {"sum"}).set("keepdims", 0).node("Exp", {"sum"}, {"e"});
    const Graph g = specialised(m.output("e"));
    EXPECT_THAT(operators(g), Not(Contains("Bounded")));
    EXPECT_EQ(std::ranges::count(operators(g), "Exp"), 1) << to_text(g);
    EXPECT_EQ(std::ranges::count(operators(g), "Merge"), 1) << to_text(g);
    const auto x = floats({3, 2}, {-1, 0, -2, 1, 0, 0});
    EXPECT_NEAR(run(g, {x, truth(true)})[0], std::exp(2 + 4 - 1), 1e-3);
    EXPECT_NEAR(run(g, {x, truth(false)})[0], std::exp(2), 1e-3);
  }
}

TEST(UnlikeBranches, TheConditionIsKnownBelow) {
  Onnx yes, no, m = unlike(true);
  yes.node("Relu", {"y"}, {"yes"}).output("yes");
  no.node("Neg", {"y"}, {"no"}).output("no");
  m.node("If", {"c"}, {"z"}).set("then_branch", yes).set("else_branch", no);
  const Graph g = specialised(m.output("z"));
  EXPECT_EQ(std::ranges::count(operators(g), "Relu"), 1) << to_text(g);
  EXPECT_EQ(std::ranges::count(operators(g), "Neg"), 1) << to_text(g);
  // Another condition: two values of each shape, of which each shape's become one.
  Onnx other = unlike(true);
  other.input("d", {}, DataType::boolean);
  other.node("If", {"d"}, {"z"}).set("then_branch", yes).set("else_branch", no);
  const Graph both = specialised(other.output("z"));
  EXPECT_EQ(std::ranges::count(operators(both), "Merge"), 2) << to_text(both);
  const auto x = floats({3, 2}, {-1, 2, 3, 4, 5, 6});
  const auto z = first(both, {x, truth(false), truth(true)});
  EXPECT_EQ(z->type().shape, Shape{2});
  EXPECT_EQ(z->as<float>()[0], 0);
}

TEST(UnlikeBranches, ASideThatDoesNotFitIsBadDataWhereItIsTaken) {
  Onnx m = unlike(false);
  m.f32("three", {3, 2}, Floats(6, 1)).i64("six", {1}, {6}).node("Reshape", {"y", "six"}, {"flat"}, "six");
  const Graph g = specialised(m.output("flat"));
  const auto x = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(run(g, {x, truth(true)}).size(), 6U);
  const auto bad = testing::run_plainly(g, {x, truth(false)});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(bad.error().message, HasSubstr("else_branch"));
  EXPECT_THAT(bad.error().message, HasSubstr("'six.else' (Reshape)"));
  Onnx neither = unlike(false);
  neither.i64("five", {1}, {5}).node("Reshape", {"y", "five"}, {"flat"}, "five");
  EXPECT_THAT(refusal(neither.output("flat")), HasSubstr("(Reshape)"));
}

// Each If more that stays apart doubles what follows.
TEST(UnlikeBranches, AreLimitedInAll) {
  const auto chain = [](int count) {
    Onnx m;
    m.input("x", {"2"}).input("c", {std::to_string(count)}, DataType::boolean);
    std::string value = "x";
    for (int i = 0; i < count; ++i) {
      const std::string n = std::to_string(i);
      std::vector<float> more(std::size_t{1} << i, 1);
      const auto size = static_cast<std::int64_t>(more.size());
      Onnx yes, no;
      yes.f32("w" + n, {size}, std::move(more)).node("Concat", {value, "w" + n}, {"y" + n}).set("axis", 0);
      yes.output("y" + n);
      no.node("Neg", {value}, {"n" + n}).output("n" + n);
      m.i64("at" + n, {}, {i}).node("Gather", {"c", "at" + n}, {"c" + n});
      value = "v" + n;
      m.node("If", {"c" + n}, {value}).set("then_branch", yes).set("else_branch", no);
    }
    return m.output(value);
  };
  const Graph g = specialised(chain(6));
  Tensor all(TensorType{DataType::boolean, {6}});
  for (const std::size_t i : {0U, 2U, 5U}) all.bytes()[i] = std::byte{1};
  const auto y = first(g, {floats({2}, {1, 2}), std::make_shared<const Tensor>(std::move(all))});
  EXPECT_EQ(y->type().shape, Shape{2 + 1 + 4 + 32});
  EXPECT_EQ(y->as<float>()[0], -1);  // three times
  EXPECT_THAT(refusal(chain(16), ErrorCode::unsupported), HasSubstr("more than 20000 nodes"));
}

// Branches that only pass on what is there have no nodes; ways through them double with each If all the same.
TEST(UnlikeBranches, ThatHaveNoNodesAreBounded) {
  for (const bool one_condition : {true, false}) {
    constexpr int count = 60;
    Onnx m;
    m.input("a", {"2"}).input("b", {"3"}).input("c", {std::to_string(count)}, DataType::boolean);
    std::string a = "a", b = "b";
    for (int i = 0; i < count; ++i) {
      const std::string n = std::to_string(i);
      m.i64("at" + n, {}, {one_condition ? i % 2 : i}).node("Gather", {"c", "at" + n}, {"c" + n});
      Onnx first, second, other_first, other_second;
      first.output(a);
      second.output(b);
      other_first.output(b);
      other_second.output(a);
      m.node("If", {"c" + n}, {"a" + n}).set("then_branch", first).set("else_branch", second);
      m.node("If", {"c" + n}, {"b" + n}).set("then_branch", other_first).set("else_branch", other_second);
      a = "a" + n;
      b = "b" + n;
    }
    EXPECT_THAT(refusal(m.output(a), ErrorCode::unsupported), HasSubstr("more than 20000 nodes"));
  }
}

TEST(UnlikeBranches, InStatesAndScansAreRefused) {
  for (const bool state : {false, true}) {
    Onnx yes, no, body, m;
    yes.node("Identity", {"t"}, {"yes"}).output("yes");
    no.node("Concat", {"t", "t"}, {"no"}).set("axis", 0).output("no");
    body.input("s", {"2"}).input("t", {"2"});
    body.node("If", {"c"}, {"u"}).set("then_branch", yes).set("else_branch", no);
    body.output(state ? "u" : "s").output(state ? "t" : "u");
    m.input("x", {"2"}).input("sequence", {"3", "2"}).input("c", {}, DataType::boolean);
    m.node("Scan", {"x", "sequence"}, {"last", "all"}, "scan").set("body", body).set("num_scan_inputs", 1);
    EXPECT_THAT(refusal(m.output("last").output("all"), ErrorCode::unsupported),
                HasSubstr(state ? "node 'scan' (Scan): its state 0 has unlike shapes"
                                : "node 'scan' (Scan): scan output 0 has unlike shapes"));
  }
}

// What is done to a branch's value alone is done in the branch; nothing else goes there.
TEST(Passes, KeepToTheirGuards) {
  Onnx yes, no, m;
  yes.node("Relu", {"a"}, {"r"}).node("Exp", {"x"}, {"e"}).node("Add", {"r", "e"}, {"yes"}).output("yes");
  no.node("Exp", {"x"}, {"f"}).node("Mul", {"f", "b"}, {"no"}).output("no");
  m.input("x", {"2", "4"}).input("c", {}, DataType::boolean).random("w", {4, 4}).random("v", {4, 4});
  m.node("MatMul", {"x", "w"}, {"a"}).node("MatMul", {"x", "v"}, {"b"});
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no);
  m.node("Exp", {"x"}, {"z"}).output("y").output("z").output("b");
  const Graph g = specialised(m);
  for (const Node& node : g.nodes) {
    if (node.op == "MatMul") {
      EXPECT_EQ(node.guard, node.post_ops.empty() ? -1 : 0) << to_text(g);
    }
    // Three Exp of x: none stands for another, since the last one, which always runs, comes last.
    if (node.outputs[0] == g.outputs[1]) {
      EXPECT_EQ(node.guard, -1) << to_text(g);
    }
  }
  EXPECT_EQ(std::ranges::count(operators(g), "Exp"), 3) << to_text(g);
  EXPECT_EQ(std::ranges::count(operators(g), "Relu"), 0) << to_text(g);
}

// What the passes fuse, with a branch that begins at any place of it: one half outside, one inside.
TEST(Passes, FuseAcrossTheEdgeOfABranch) {
  struct Step {
    std::string op;
    std::vector<std::string> inputs;
    std::string output;
  };
  const std::vector<std::vector<Step>> patterns = {
      {{"Div", {"x", "root2"}, "p"},
       {"Erf", {"p"}, "q"},
       {"Add", {"q", "one"}, "r"},
       {"Mul", {"x", "r"}, "s"},
       {"Mul", {"s", "half"}, "t"}},
      {{"ReduceMean", {"x"}, "p"},
       {"Sub", {"x", "p"}, "q"},
       {"Pow", {"q", "two"}, "r"},
       {"ReduceMean", {"r"}, "s"},
       {"Add", {"s", "eps"}, "t"},
       {"Sqrt", {"t"}, "u"},
       {"Div", {"q", "u"}, "v"},
       {"Mul", {"v", "scale"}, "w"},
       {"Add", {"w", "bias"}, "z"}},
      {{"Add", {"x", "three"}, "p"},
       {"Clip", {"p", "zero", "six"}, "q"},
       {"Mul", {"x", "q"}, "r"},
       {"Div", {"r", "six"}, "s"}},
      {{"Mul", {"x", "half"}, "p"},
       {"MatMul", {"p", "weights"}, "q"},
       {"Add", {"q", "bias"}, "r"},
       {"Sigmoid", {"r"}, "s"},
       {"Mul", {"r", "s"}, "t"},
       {"Add", {"t", "x"}, "u"},
       {"Relu", {"u"}, "v"}},
      {{"Greater", {"x", "half"}, "p"},
       {"Gemm", {"x", "weights"}, "q"},
       {"Where", {"row", "low", "q"}, "r"},
       {"Softmax", {"r"}, "s"},
       {"Transpose", {"s"}, "t"},
       {"Neg", {"t"}, "u"},
       {"Transpose", {"u"}, "v"}},
  };
  const auto add = [](Onnx& m, const Step& step) {
    m.node(step.op, step.inputs, {step.output}, step.output);
    if (step.op == "ReduceMean") m.set("axes", std::vector<std::int64_t>{-1});
  };
  for (const auto& pattern : patterns) {
    for (std::size_t cut = 1; cut < pattern.size(); ++cut) {
      SCOPED_TRACE(pattern[0].op + " cut at " + std::to_string(cut));
      Onnx yes, no, m;
      m.input("x", {"4", "8"}).input("c", {}, DataType::boolean);
      m.f32("root2", {}, {1.41421356F}).f32("half", {}, {0.5F}).f32("one", {}, {1}).f32("two", {}, {2});
      m.f32("three", {}, {3}).f32("zero", {}, {0}).f32("six", {}, {6}).f32("eps", {}, {1e-5F});
      m.f32("low", {}, {-3e38F}).random("scale", {8}).random("bias", {8}).random("weights", {8, 8});
      m.f32("place", {8}, {0, 1, 2, 3, 4, 5, 6, 7}).node("Greater", {"place", "two"}, {"row"});
      for (std::size_t i = 0; i < pattern.size(); ++i) add(i < cut ? m : yes, pattern[i]);
      yes.output(pattern.back().output);
      no.node("Abs", {"x"}, {"other"});
      const std::string& last = pattern[cut - 1].op;  // what the other branch reads
      if (last != "Greater" && last != "Transpose" && last != "Neg")
        no.node("Add", {"x", pattern[cut - 1].output}, {"else"}).output("else");
      else
        no.output("other");
      m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
      Random random(cut);
      const auto x = testing::random_tensor({DataType::f32, {4, 8}}, random);
      const Graph fused = specialised(m);
      for (const bool c : {true, false}) {
        const auto got = testing::run_plainly(fused, {x, truth(c)});
        ASSERT_TRUE(got.has_value()) << got.error().message;
        Onnx known = testing::with_constant_input(m, *x);
        known.tensor("c", {}, DataType::boolean)->add_int32_data(c ? 1 : 0);
        const auto want = testing::run_plainly(specialised(known), {});
        EXPECT_LE(testing::furthest((*got)[0], (*want)[0]), 1e-4) << to_text(fused);
      }
    }
  }
}

// What a guard depends on is renamed with everything else.
TEST(Passes, FindConditionsAgain) {
  Onnx yes, no, m;
  yes.node("Relu", {"x"}, {"yes"}).output("yes");
  no.node("Neg", {"x"}, {"no"}).output("no");
  m.input("x", {"2"}).input("c", {}, DataType::boolean).f32("zero", {}, {0});
  m.node("Identity", {"c"}, {"d"}).node("ReduceSum", {"x"}, {"s"}).set("keepdims", 0);
  m.node("Greater", {"s", "zero"}, {"e"})
      .node("Greater", {"s", "zero"}, {"f"})
      .node("Identity", {"e"}, {"g"});
  for (const std::string condition : {"d", "f", "g"}) {
    for (Onnx* branch : {&yes, &no})
      branch->proto.mutable_graph()->mutable_node(0)->set_output(
          0, condition + (branch == &yes ? ".yes" : ".no"));
    yes.proto.mutable_graph()->mutable_output(0)->set_name(condition + ".yes");
    no.proto.mutable_graph()->mutable_output(0)->set_name(condition + ".no");
    m.node("If", {condition}, {condition + ".y"}).set("then_branch", yes).set("else_branch", no);
    m.output(condition + ".y");
  }
  m.output("g", DataType::boolean);
  const Graph g = specialised(m);
  EXPECT_EQ(std::ranges::count(operators(g), "Greater"), 1) << to_text(g);
  EXPECT_THAT(operators(g), Not(Contains("Identity")));
  const auto x = floats({2}, {-1, 2});
  EXPECT_THAT(run(g, {x, truth(true)}), ElementsAre(0, 2));
  EXPECT_THAT(run(g, {x, truth(false)}), ElementsAre(1, -2));
}

TEST(Passes, TakeFromAroundTheBranch) {
  Onnx yes, no, m;
  yes.node("Exp", {"x"}, {"e"}).node("Neg", {"e"}, {"yes"}).output("yes");
  no.node("Identity", {"x"}, {"no"}).output("no");
  m.input("x", {"2"}).input("c", {}, DataType::boolean).node("Exp", {"x"}, {"z"});
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y").output("z");
  EXPECT_THAT(operators(specialised(m)), ElementsAre("Exp", "Neg", "Merge"));
}

// Sums x onto itself while the sum is below 10, at most `trips` times.
Onnx doubling(std::int64_t trips, bool scans = false) {
  Onnx body, m;
  body.input("i", {}, DataType::i64)
      .input("on", {}, DataType::boolean)
      .input("s", {"1"})
      .f32("ten", {}, {10});
  body.node("Add", {"s", "s"}, {"t"}, "double").node("ReduceSum", {"t"}, {"sum"}).set("keepdims", 0);
  body.node("Less", {"sum", "ten"}, {"next"}).output("next", DataType::boolean).output("t");
  if (scans) body.output("s");
  m.input("x", {"1"}).i64("trips", {}, {trips}).tensor("true", {}, DataType::boolean)->add_int32_data(1);
  m.node("Loop", {"trips", "true", "x"},
         scans ? std::vector<std::string>{"y", "all"} : std::vector<std::string>{"y"}, "loop");
  m.set("body", body).output("y");
  if (scans) m.output("all");
  return m;
}

TEST(Loop, EndsWhereItsConditionSays) {
  const Graph g = specialised(doubling(4));
  EXPECT_THAT(g.nodes.front().name, "double#0");
  EXPECT_EQ(g.guards.size(), 3U) << to_text(g);  // of all iterations but the first
  const struct {
    float x, y;
    int runs;
  } rows[] = {{20, 40, 1}, {5, 10, 1}, {3, 12, 2}, {2, 16, 3}, {0.5F, 8, 4}, {-1, -16, 4}};
  for (const auto& row : rows) {
    std::vector<std::string> ran;
    EXPECT_THAT(run(g, {floats({1}, {row.x})}, &ran), ElementsAre(row.y));
    EXPECT_EQ(std::ranges::count_if(ran, [](const auto& name) { return name.starts_with("double"); }),
              row.runs);
  }
}

TEST(Loop, AConditionOnTheWayInMaySkipItAll) {
  Onnx body, m;
  body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {"1"});
  body.node("Add", {"s", "s"}, {"t"}).node("Identity", {"on"}, {"next"});
  body.output("next", DataType::boolean).output("t");
  m.input("x", {"1"}).input("c", {}, DataType::boolean).i64("three", {1}, {3});
  m.node("Loop", {"three", "c", "x"}, {"y"}).set("body", body).output("y");
  const Graph g = specialised(m);
  EXPECT_EQ(std::ranges::count(operators(g), "Merge"), 1) << to_text(g);
  EXPECT_THAT(run(g, {floats({1}, {1}), truth(true)}), ElementsAre(8));
  EXPECT_THAT(run(g, {floats({1}, {1}), truth(false)}), ElementsAre(1));
}

// Nor is a later iteration that does not fit: what is carried may have grown.
TEST(Loop, AnIterationThatDoesNotFitIsNoErrorWhereTheDataEndBefore) {
  Onnx body, m;
  body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {});
  body.node("Add", {"s", "x"}, {"t"}, "add").node("Concat", {"t", "t"}, {"twice"}).set("axis", 0);
  body.node("Identity", {"again"}, {"next"}).output("next", DataType::boolean).output("twice");
  m.input("x", {"2"}).input("first", {}, DataType::boolean).input("again", {}, DataType::boolean);
  m.i64("three", {}, {3}).node("Loop", {"three", "first", "x"}, {"y"}, "loop").set("body", body).output("y");
  const Graph g = specialised(m);
  const SharedTensor x = floats({2}, {1, 2});
  EXPECT_THAT(run(g, {x, truth(false), truth(true)}), ElementsAre(1, 2));
  EXPECT_THAT(run(g, {x, truth(true), truth(false)}), ElementsAre(2, 4, 2, 4));
  const auto bad = testing::run_plainly(g, {x, truth(true), truth(true)});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(bad.error().message,
              HasSubstr("iteration 1 of the Loop does not fit inputs of this size: node 'add#1' (Add)"));
}

TEST(Loop, OfKnownLengthIsUnrolledAndStacksItsScans) {
  Onnx body, m;
  body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {"2"});
  body.node("Cast", {"i"}, {"f"}).set("to", 1).node("Add", {"s", "f"}, {"t"});
  body.node("Neg", {"t"}, {"row"}).node("Identity", {"on"}, {"next"});
  body.output("next", DataType::boolean).output("t").output("row").output("f");
  m.input("x", {"2"}).i64("three", {}, {3});
  m.node("Loop", {"three", "", "x"}, {"y", "rows", "steps"}).set("body", body);
  m.output("rows").output("y").output("steps");
  const Graph g = specialised(m);
  EXPECT_THAT(g.guards, IsEmpty());
  EXPECT_EQ(g.value(g.outputs[0]).type.shape, (Shape{3, 2}));
  EXPECT_EQ(g.value(g.outputs[2]).type.shape, (Shape{3}));
  EXPECT_TRUE(g.is_constant(g.outputs[2]));
  EXPECT_THAT(run(g, {floats({2}, {1, 2})}), ElementsAre(-1, -2, -2, -3, -4, -5));
}

// y sums up the columns of x, the last first, and z has every sum, as columns in the order of x.
Onnx scan_of_columns() {
  Onnx body, m;
  body.input("sum", {"2"}).input("column", {"2"}).node("Add", {"sum", "column"}, {"next"});
  body.node("Identity", {"next"}, {"so_far"}).output("next").output("so_far");
  m.input("x", {"2", "3"}).f32("zeros", {2}, {0, 10});
  m.node("Scan", {"zeros", "x"}, {"y", "z"}, "scan").set("body", body).set("num_scan_inputs", 1);
  for (const char* list :
       {"scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"})
    m.set(list, std::vector<std::int64_t>{1});
  return m;
}

TEST(Scan, IsUnrolledAlongAnyAxisInEitherDirection) {
  const SharedTensor x = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  const Graph states = specialised(scan_of_columns().output("y"));
  EXPECT_THAT(states.guards, IsEmpty());
  EXPECT_THAT(run(states, {x}), ElementsAre(6, 25));
  const Graph sums = specialised(scan_of_columns().output("z"));
  EXPECT_EQ(sums.value(sums.outputs[0]).type.shape, (Shape{2, 3}));
  EXPECT_THAT(run(sums, {x}), ElementsAre(6, 5, 3, 25, 21, 16));
}

TEST(Scan, IsRefusedWhereItCannotBeUnrolled) {
  Onnx axis = scan_of_columns().output("y"), many = axis, state = axis, count = axis;
  const auto attribute = [](Onnx& m, int i) -> onnx::AttributeProto& {
    return *m.proto.mutable_graph()->mutable_node(0)->mutable_attribute(i);
  };
  attribute(axis, 2).set_ints(0, 2);
  EXPECT_THAT(refusal(axis), HasSubstr("node 'scan' (Scan): axis 2 is out of range for [2,3]"));
  attribute(count, 1).set_i(3);
  EXPECT_THAT(refusal(count), HasSubstr("num_scan_inputs is 3, of 2 inputs"));
  many.proto.mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(1)
      ->set_dim_value(257);
  EXPECT_THAT(refusal(many, ErrorCode::unsupported),
              HasSubstr("it has 257 steps; it is unrolled, for at most 256"));
  state.proto.mutable_graph()->mutable_initializer(0)->set_dims(0, 1);
  state.proto.mutable_graph()->mutable_initializer(0)->set_raw_data(std::string(4, '\0'));
  EXPECT_THAT(refusal(state), HasSubstr("its state 0 is float[1] before step 0, but float[2] after it"));
}

TEST(Loop, WithoutATripCountEndsByAConstantCondition) {
  for (const bool ends : {true, false}) {
    Onnx body, m;
    body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {"2"});
    body.i64("limit", {}, {ends ? 4 : 1000}).node("Less", {"i", "limit"}, {"next"});
    body.node("Add", {"s", "s"}, {"t"}).output("next", DataType::boolean).output("t");
    m.input("x", {"2"}).node("Loop", {"", "", "x"}, {"y"}, "loop").set("body", body).output("y");
    if (ends) {
      EXPECT_THAT(run(specialised(m), {floats({2}, {1, 2})}), ElementsAre(32, 64));
    } else {
      EXPECT_THAT(refusal(m, ErrorCode::unsupported),
                  HasSubstr("node 'loop' (Loop): it runs for more than 256 iterations"));
    }
  }
}

TEST(Loop, OfNoIterationsGivesWhatItGot) {
  EXPECT_THAT(run(specialised(doubling(0)), {floats({1}, {3})}), ElementsAre(3));
  EXPECT_THAT(run(specialised(doubling(-5)), {floats({1}, {3})}), ElementsAre(3));
  // What an iteration would give says what its stack is of.
  const Graph none = specialised(doubling(0, true));
  EXPECT_EQ(none.value(none.outputs[1]).type, (TensorType{DataType::f32, {0, 1}}));
  EXPECT_TRUE(none.is_constant(none.outputs[1]));
  EXPECT_THAT(none.nodes.size(), 1U) << "of the body nothing stays\n" << to_text(none);
}

TEST(Scan, OfNoStepsGivesItsStateAndNothing) {
  Onnx body, m;
  body.input("s", {"2"}).input("e", {"2"}).node("Add", {"s", "e"}, {"t"}).node("MatMul", {"w", "e"}, {"o"});
  body.random("w", {3, 2}).output("t").output("o");
  m.input("x", {"2"}).input("z", {"2", "n"}).node("Scan", {"x", "z"}, {"y", "all"}, "scan").set("body", body);
  m.set("num_scan_inputs", 1).set("scan_input_axes", std::vector<std::int64_t>{1});
  m.set("scan_output_axes", std::vector<std::int64_t>{-1}).output("y").output("all");
  const auto model = m.import({.open = true, .batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto graph = (*model)->specialize_at(1, Extents{0});
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_EQ(graph->value(graph->outputs[0]).type, (TensorType{DataType::f32, {2}}));
  EXPECT_EQ(graph->value(graph->outputs[1]).type, (TensorType{DataType::f32, {3, 0}}));
}

TEST(Loop, SaysWhatItCannotHold) {
  EXPECT_THAT(refusal(doubling(4, true), ErrorCode::unsupported),
              HasSubstr("node 'loop' (Loop): scan output 1 is as long as the loop runs"));
  EXPECT_THAT(refusal(doubling(INT64_MAX), ErrorCode::unsupported),
              HasSubstr("more than 256 iterations unless its condition, which depends on data, ends it"));
  {
    Onnx m = doubling(1);
    m.proto.mutable_graph()->mutable_initializer()->erase(m.proto.graph().initializer().begin());
    m.input("trips", {}, DataType::i64);
    EXPECT_THAT(refusal(m, ErrorCode::unsupported), HasSubstr("its trip count (input 0) is not a constant"));
  }
  {
    Onnx body, m;
    body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {"2"});
    body.node("Concat", {"s", "s"}, {"t"}).set("axis", 0).output("on").output("t");
    m.input("x", {"2"}).input("c", {}, DataType::boolean).i64("three", {}, {3});
    Onnx known = m;
    m.node("Loop", {"three", "c", "x"}, {"y"}, "loop").set("body", body).output("y");
    // It grows as long as the loop runs.
    const Graph g = specialised(m);
    EXPECT_EQ(first(g, {floats({2}, {1, 2}), truth(false)})->type().shape, Shape{2});
    EXPECT_EQ(first(g, {floats({2}, {1, 2}), truth(true)})->type().shape, Shape{16});
    known.node("Loop", {"three", "", "x"}, {"y"}, "loop").set("body", body).output("y");
    EXPECT_EQ(specialised(known).value(specialised(known).outputs[0]).type.shape, (Shape{16}));
  }
}

TEST(Loop, LoopsInLoopsAreLimitedInAll) {
  const auto nested = [](int depth, std::int64_t trips) {
    Onnx inside;
    for (int d = depth; d >= 0; --d) {
      const std::string n = std::to_string(d);
      Onnx around;
      if (d > 0) {
        around.input("i" + n, {}, DataType::i64).input("on" + n, {}, DataType::boolean).input("s" + n, {"2"});
        around.output("on" + n, DataType::boolean);
      } else {
        around.input("s0", {"2"}).i64("trips", {}, {trips});
      }
      if (d == depth)
        around.node("Neg", {"s" + n}, {"t" + n});
      else
        around.node("Loop", {"trips", "", "s" + n}, {"t" + n}, "loop" + n).set("body", inside);
      around.output("t" + n);
      inside = around;
    }
    return inside;
  };
  EXPECT_EQ(specialised(nested(3, 3)).nodes.size(), 27U);
  EXPECT_THAT(refusal(nested(3, 200), ErrorCode::unsupported), HasSubstr("more than 20000 nodes"));
  EXPECT_THAT(refusal(nested(15, 256), ErrorCode::unsupported), HasSubstr("more than 20000 nodes"));
  EXPECT_THAT(refusal(nested(17, 1), ErrorCode::unsupported), HasSubstr("nested more than 16 deep"));
}

// Against the same model with its inputs as constants: there every condition is known.
TEST(RandomControlFlow, AgreesWithTheBranchesKnown) {
  int with_guards = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Onnx m = testing::random_control_flow(seed);
    const testing::Folder folder;
    const auto file = folder.write("model.onnx", m.bytes());
    const auto source = read_onnx(file);
    ASSERT_TRUE(source.has_value()) << source.error().message;
    ConstantStore store;
    Folder folding(store, std::uint64_t{1} << 30);
    const auto plain = infer_types(*source, {testing::control_flow_shape}, folding);
    ASSERT_TRUE(plain.has_value()) << plain.error().message;
    const auto valid = validate(*plain);
    ASSERT_TRUE(valid.has_value()) << valid.error().message;
    const Graph fused = specialised(m);
    with_guards += !fused.guards.empty();
    for (const float scale : {-1.0F, 0.1F, 1.0F, 3.0F}) {
      Random random(seed + 1);
      const auto x = testing::control_flow_input(scale, random);
      const auto want = testing::run_plainly(specialised(testing::with_constant_input(m, *x)), {});
      ASSERT_TRUE(want.has_value()) << want.error().message;
      for (const Graph* graph : {&*plain, &fused}) {
        const auto got = testing::run_plainly(*graph, {x});
        ASSERT_TRUE(got.has_value()) << got.error().message;
        for (std::size_t i = 0; i < want->size(); ++i)
          EXPECT_LE(testing::furthest((*got)[i], (*want)[i]), 1e-4) << to_text(*graph);
      }
    }
  }
  EXPECT_GT(with_guards, 70);
}

TEST(RandomControlFlow, UnlikeBranchesAgreeWithTheBranchesKnown) {
  int open = 0, bounded = 0, compared = 0, misfits = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Onnx m = testing::random_unlike_branches(seed);
    const auto model = m.import({.batched = false});
    if (!model) {
      // No way through it fits, or not even what is the same on all ways.
      EXPECT_EQ(model.error().code, ErrorCode::invalid_argument) << model.error().message;
      continue;
    }
    for (const TensorSpec& output : (*model)->outputs()) {
      open += has_open_rank(output.shape) ? 1 : 0;
      bounded += has_bounded(output.shape) && !has_open_rank(output.shape) ? 1 : 0;
    }
    const Graph graph = specialised(m);
    for (const float scale : {-1.0F, 0.1F, 1.0F, 3.0F}) {
      Random random(seed + 1);
      const auto x = testing::control_flow_input(scale, random);
      const auto got = testing::run_plainly(graph, {x});
      const auto known = testing::with_constant_input(m, *x).import({.batched = false});
      if (!known) {
        // The way that these data take does not fit; that is no fault where no output depends on it.
        misfits += got ? 0 : 1;
        continue;
      }
      ASSERT_TRUE(got.has_value()) << got.error().message << "\n" << to_text(graph);
      const auto want = testing::run_plainly(*(*known)->specialize(1), {});
      ASSERT_TRUE(want.has_value()) << want.error().message;
      ++compared;
      for (std::size_t i = 0; i < want->size(); ++i)
        EXPECT_LE(testing::furthest((*got)[i], (*want)[i]), 1e-4) << to_text(graph);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(open, 50);
  EXPECT_GT(bounded, 50);
  EXPECT_GT(compared, 400);
  EXPECT_GT(misfits, 2);
}

TEST(Validate, SeesWhatGuardsForbid) {
  const Graph good = specialised(choice());
  const auto says = [&](const std::function<void(Graph&)>& change) {
    Graph g = good;
    change(g);
    const auto valid = validate(g);
    return valid ? std::string("it is valid") : valid.error().message;
  };
  EXPECT_EQ(says([](Graph&) {}), "it is valid");
  EXPECT_THAT(says([](Graph& g) { g.nodes[0].guard = 7; }), HasSubstr("guard does not exist"));
  EXPECT_THAT(says([](Graph& g) { g.guards[0].parent = 0; }), HasSubstr("not an earlier guard"));
  EXPECT_THAT(says([](Graph& g) { g.guards[0].condition = g.inputs[0]; }), HasSubstr("not one boolean"));
  EXPECT_THAT(says([](Graph& g) { std::swap(g.nodes[2].inputs[1], g.nodes[2].inputs[2]); }),
              HasSubstr("not always made when it is read"));
  EXPECT_THAT(says([](Graph& g) { g.nodes[1].inputs[0] = g.nodes[0].outputs[0]; }),
              HasSubstr("not always made when it is read"));
  EXPECT_THAT(says([](Graph& g) { g.nodes[2].guard = 0; }), HasSubstr("is not always made"));
  EXPECT_THAT(says([](Graph& g) { g.outputs[0] = g.nodes[0].outputs[0]; }), HasSubstr("not always made"));
}

}  // namespace
}  // namespace carillon::graph
