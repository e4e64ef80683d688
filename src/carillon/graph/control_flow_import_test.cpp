#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using ::testing::HasSubstr;
using testing::Onnx;

// y = c ? x + 1 : 2 * x, then z = y doubled three times; what the cases below spoil.
struct Parts {
  Onnx yes, no, body, m;

  Parts() {
    yes.f32("one", {}, {1}).node("Add", {"x", "one"}, {"a"}, "plus").output("a");
    no.f32("two", {}, {2}).node("Mul", {"x", "two"}, {"b"}, "times").output("b");
    body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {"2"});
    body.node("Add", {"s", "s"}, {"t"}, "double").output("on", DataType::boolean).output("t");
    m.input("x", {"2"}).input("c", {}, DataType::boolean).i64("three", {}, {3});
  }
  Onnx whole() const {
    Onnx out = m;
    out.node("If", {"c"}, {"y"}, "if").set("then_branch", yes).set("else_branch", no);
    out.node("Loop", {"three", "", "y"}, {"z"}, "loop").set("body", body).output("z");
    return out;
  }
};

onnx::NodeProto& node(Onnx& m, const std::string& name) {
  for (auto& n : *m.proto.mutable_graph()->mutable_node())
    if (n.name() == name) return n;
  ADD_FAILURE() << "no node '" << name << "'";
  return *m.proto.mutable_graph()->add_node();
}

TEST(ControlFlowImport, TheSoundModelIsTaken) {
  const auto model = Parts().whole().import({.batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT((*model)->outputs(), ::testing::ElementsAre(TensorSpec{"z", DataType::f32, {2}}));
}

struct Case {
  const char* name;
  std::function<void(Parts&)> parts;  // before they are put together
  std::function<void(Onnx&)> whole;   // after
  const char* says;
  ErrorCode code = ErrorCode::invalid_argument;
};

const auto nothing = [](auto&) {};

class ControlFlowImportRefuses : public ::testing::TestWithParam<Case> {};

TEST_P(ControlFlowImportRefuses, AndSaysWhy) {
  Parts parts;
  GetParam().parts(parts);
  Onnx m = parts.whole();
  GetParam().whole(m);
  const auto model = m.import({.batched = false});
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, GetParam().code) << model.error().message;
  EXPECT_THAT(model.error().message, HasSubstr(GetParam().says));
}

const Case cases[] = {
    {"MissingBranch", nothing, [](Onnx& m) { node(m, "if").mutable_attribute()->RemoveLast(); },
     "node 'if' (If): it has no graph 'else_branch'"},
    {"MissingBody", nothing, [](Onnx& m) { node(m, "loop").clear_attribute(); },
     "node 'loop' (Loop): it has no graph 'body'"},
    {"BranchTwice", nothing,
     [](Onnx& m) { *node(m, "if").add_attribute() = onnx::AttributeProto(node(m, "if").attribute(0)); },
     "it has two graphs 'then_branch'"},
    {"BranchIsNoGraph", nothing,
     [](Onnx& m) { node(m, "if").mutable_attribute(0)->set_type(onnx::AttributeProto::INT); },
     "attribute 'then_branch' has the wrong type"},
    {"GraphWhereNoneIsWanted", nothing,
     [](Onnx& m) {
       auto& a = *node(m, "if").add_attribute();
       a.set_name("axis");
       a.set_type(onnx::AttributeProto::GRAPH);
     },
     "'axis' is not one that the operator has"},
    {"GraphForANumber",
     [](Parts& p) {
       p.yes.node("Elu", {"a"}, {"e"});
       p.yes.set("alpha", p.no);
     },
     nothing, "attribute 'alpha' has the wrong type"},
    {"UnknownName", [](Parts& p) { p.yes.node("Relu", {"nowhere"}, {"r"}, "odd"); }, nothing,
     "node 'if' (If): in its then_branch: node 'odd' (Relu): its input 'nowhere' is not made by anything"},
    {"NameOfTheOtherBranch", [](Parts& p) { p.no.node("Relu", {"a"}, {"r"}, "odd"); }, nothing,
     "node 'odd' (Relu): its input 'a' is not made by anything"},
    {"NameInsideIsNotSeenOutside", [](Parts& p) { p.m.node("Relu", {"a"}, {"r"}, "odd"); }, nothing,
     "node 'odd' (Relu): its input 'a' is not made by anything"},
    {"UnknownOutput", [](Parts& p) { p.no.output("nowhere"); }, nothing,
     "in its else_branch: output 'nowhere' is not made by anything"},
    {"ShadowsAnInput", [](Parts& p) { p.yes.node("Relu", {"a"}, {"x"}); }, nothing,
     "the name 'x' is given to two values, one of them in a graph around the other's"},
    {"ShadowsWhatComesLater", [](Parts& p) { p.yes.f32("z", {}, {1}); }, nothing,
     "the name 'z' is given to two"},
    {"ShadowsByAnInput", [](Parts& p) { p.body.proto.mutable_graph()->mutable_input(2)->set_name("x"); },
     nothing, "the name 'x' is given to two"},
    {"CycleThroughABranch", [](Parts& p) { p.yes.node("Relu", {"z"}, {"r"}); }, nothing,
     "node 'if' (If): it is part of a cycle"},
    {"CycleThroughItself", [](Parts& p) { p.body.node("Relu", {"z"}, {"r"}); }, nothing,
     "node 'loop' (Loop): it is part of a cycle"},
    {"CycleInside", [](Parts& p) { p.yes.node("Relu", {"q"}, {"p"}, "first").node("Relu", {"p"}, {"q"}); },
     nothing, "in its then_branch: node 'first' (Relu): it is part of a cycle"},
    {"BranchTakesInputs", [](Parts& p) { p.yes.input("k", {"2"}); }, nothing,
     "in its then_branch: it has 1 inputs, but 0 are wanted for a node with 1 inputs"},
    {"BranchGivesTooFew", [](Parts& p) { p.yes.proto.mutable_graph()->clear_output(); }, nothing,
     "in its then_branch: it has 0 outputs, but 1 are wanted for a node with 1 outputs"},
    {"BranchGivesTooMany", [](Parts& p) { p.no.output("x"); }, nothing,
     "in its else_branch: it has 2 outputs"},
    {"BodyTakesTooFew", [](Parts& p) { p.body.proto.mutable_graph()->mutable_input()->RemoveLast(); },
     [](Onnx&) {}, "node 'double' (Add): its input 's' is not made by anything"},
    {"BodyTakesTooMany", [](Parts& p) { p.body.input("u", {"2"}); }, nothing,
     "in its body: it has 4 inputs, but 3 are wanted"},
    {"BodyGivesNoCondition",
     [](Parts& p) { p.body.proto.mutable_graph()->mutable_output()->DeleteSubrange(0, 1); }, nothing,
     "in its body: it has 1 outputs, but 2 are wanted"},
    {"LoopDropsWhatItCarries", [](Parts& p) { p.body.input("u", {"2"}); },
     [](Onnx& m) { node(m, "loop").add_input("x"); },
     "the node has 2 values that the loop carries, but 1 outputs"},
    {"LoopWithoutInputs", nothing, [](Onnx& m) { node(m, "loop").mutable_input()->DeleteSubrange(1, 2); },
     "it has 1 inputs, but takes at least 2"},
    {"CarriedValueIsMissing", nothing, [](Onnx& m) { node(m, "loop").set_input(2, ""); },
     "input 2 is missing"},
    {"ConditionIsMissing", nothing, [](Onnx& m) { node(m, "if").set_input(0, ""); }, "input 0 is missing"},
    {"ConditionIsAFloat", nothing, [](Onnx& m) { node(m, "if").set_input(0, "x"); },
     "node 'if' (If): its condition is float[2], but must be one bool"},
    {"TripCountIsAFloat", [](Parts& p) { p.m.f32("many", {}, {3}); },
     [](Onnx& m) { node(m, "loop").set_input(0, "many"); }, "its trip count (input 0) is float[]"},
    {"TripCountIsMany", [](Parts& p) { p.m.i64("many", {2}, {3, 4}); },
     [](Onnx& m) { node(m, "loop").set_input(0, "many"); }, "its trip count (input 0) is int64[2]"},
    {"TripCountIsHuge", [](Parts& p) { p.m.i64("many", {}, {INT64_MAX}); },
     [](Onnx& m) { node(m, "loop").set_input(0, "many"); }, "it runs for more than 256 iterations",
     ErrorCode::unsupported},
    {"NeverEnds", nothing, [](Onnx& m) { node(m, "loop").set_input(0, ""); },
     "it runs for more than 256 iterations", ErrorCode::unsupported},
    {"SequenceIntoALoop",
     [](Parts& p) {
       p.body.proto.mutable_graph()
           ->mutable_input(2)
           ->mutable_type()
           ->mutable_sequence_type()
           ->mutable_elem_type();
     },
     nothing, "in its body: input 's' is not a tensor", ErrorCode::unsupported},
    {"UnknownOperatorInside", [](Parts& p) { p.yes.node("Frobnicate", {"a"}, {"f"}, "odd"); }, nothing,
     "in its then_branch: node 'odd' (Frobnicate): the operator is not supported", ErrorCode::unsupported},
    {"BadWeightInside", [](Parts& p) { p.no.tensor("bad", {4}, DataType::f32)->set_raw_data("short"); },
     nothing, "in its else_branch: initializer 'bad'"},
    // In one alone they may.
    {"ShapesDoNotFitInsideBoth",
     [](Parts& p) {
       p.yes.f32("three_wide", {3}, {1, 2, 3}).node("Add", {"x", "three_wide"}, {"f"}, "odd");
       p.no.f32("four_wide", {4}, {1, 2, 3, 4}).node("Add", {"x", "four_wide"}, {"g"}, "odd");
     },
     nothing, "node 'odd' (Add)"},
};

INSTANTIATE_TEST_SUITE_P(All, ControlFlowImportRefuses, ::testing::ValuesIn(cases),
                         [](const auto& given) { return std::string(given.param.name); });

// A nested message of any depth must not exhaust our stack, whoever notices.
TEST(ControlFlowImport, DeepNestingIsRefused) {
  for (const int depth : {17, 30, 60, 200}) {
    Onnx inside;
    inside.node("Relu", {"x"}, {"v0"}).output("v0");
    for (int d = 1; d <= depth; ++d) {
      const std::string y = "v" + std::to_string(d);
      Onnx around;
      around.node("If", {"c"}, {y}).set("then_branch", inside).set("else_branch", inside).output(y);
      around.proto.mutable_graph()->mutable_node(0)->mutable_attribute(1)->mutable_g()->clear_node();
      auto& other = *around.proto.mutable_graph()->mutable_node(0)->mutable_attribute(1)->mutable_g();
      other.mutable_output(0)->set_name("x");
      inside = std::move(around);
    }
    inside.input("x", {"2"}).input("c", {}, DataType::boolean);
    const auto model = inside.import({.batched = false});
    ASSERT_FALSE(model.has_value()) << depth;
    EXPECT_NE(model.error().code, ErrorCode::internal) << model.error().message;
  }
}

TEST(ControlFlowImport, NodesMayStandInAnyOrder) {
  Parts p;
  p.yes.node("Add", {"a", "later"}, {"a2"});
  p.yes.proto.mutable_graph()->mutable_output(0)->set_name("a2");
  Onnx m = p.whole();
  m.node("Neg", {"x"}, {"later"});  // what the branch reads is made after the If
  auto& nodes = *m.proto.mutable_graph()->mutable_node();
  nodes.SwapElements(0, 1);
  const auto model = m.import({.batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
}

// Old forms of operators inside bodies become new ones.
TEST(ControlFlowImport, OldOpsetsInside) {
  Onnx yes(9), no(9), m(9);
  yes.node("Unsqueeze", {"x"}, {"u"}).set("axes", std::vector<std::int64_t>{0}).output("u");
  no.node("Clip", {"x"}, {"k"}).set("min", 0.0F);
  no.node("Reshape", {"k", "to"}, {"v"}).output("v");
  m.input("x", {"2"}).input("c", {}, DataType::boolean).i64("to", {2}, {1, 2});
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  const auto model = m.import({.batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->outputs()[0].shape, (Shape{1, 2}));
}

// A condition is of the whole batch; a branch by the batch size is known at each.
TEST(ControlFlowImport, Batches) {
  Onnx yes, no, m;
  yes.node("Relu", {"x"}, {"a"}).output("a");
  no.node("Neg", {"x"}, {"b"}).output("b");
  m.input("x", {"n", "2"}).i64("zero", {}, {0}).i64("one", {}, {1});
  m.node("Shape", {"x"}, {"s"}).node("Gather", {"s", "zero"}, {"n"}).node("Equal", {"n", "one"}, {"c"});
  m.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  const auto model = m.import();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(testing::operators(*(*model)->specialize(1)), std::vector<std::string>{"Relu"});
  EXPECT_EQ(testing::operators(*(*model)->specialize(2)), std::vector<std::string>{"Neg"});

  Onnx each;
  each.input("x", {"n", "2"}).f32("limit", {}, {0}).node("ReduceMax", {"x"}, {"most"});
  each.set("axes", std::vector<std::int64_t>{1}).set("keepdims", 0).node("Greater", {"most", "limit"}, {"c"});
  each.node("If", {"c"}, {"y"}).set("then_branch", yes).set("else_branch", no).output("y");
  const auto refused = each.import();
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message,
              HasSubstr("its condition is bool[2], but must be one bool (of a whole batch"));
}

}  // namespace
}  // namespace carillon::graph
