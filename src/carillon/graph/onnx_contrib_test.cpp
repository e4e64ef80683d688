#include "carillon/graph/onnx_contrib.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <onnx/onnx_pb.h>

#include "carillon/graph/recurrence.h"

namespace carillon::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

onnx::NodeProto& contrib(onnx::GraphProto& graph, std::string op, const std::vector<std::string>& inputs) {
  onnx::NodeProto& node = *graph.add_node();
  node.set_domain("com.microsoft");
  node.set_op_type(op);
  node.set_name("n");
  for (const std::string& input : inputs) node.add_input(input);
  node.add_output("y");
  return node;
}

std::vector<std::string> operators(const onnx::GraphProto& graph) {
  std::vector<std::string> found;
  for (const auto& node : graph.node())
    found.push_back((node.domain().empty() ? "" : node.domain() + ".") + node.op_type());
  return found;
}

// Every input is the graph's (one letter and a digit) or made before; no two values have one name; the last
// is y.
void expect_whole(const onnx::GraphProto& graph) {
  std::set<std::string> made;
  for (const auto& node : graph.node()) {
    for (const auto& input : node.input())
      if (input.find('/') != std::string::npos) {
        EXPECT_TRUE(made.contains(input)) << input;
      }
    for (const auto& output : node.output()) EXPECT_TRUE(made.insert(output).second) << output;
  }
  EXPECT_TRUE(made.contains("y"));
}

TEST(ExpandContrib, AnAdditionIsOneOfFloats) {
  onnx::GraphProto graph;
  contrib(graph, "QLinearAdd", {"a", "as", "az", "b", "bs", "", "ys", "yz"});
  ASSERT_TRUE(expand_contrib(graph));
  EXPECT_THAT(operators(graph), ElementsAre("DequantizeLinear", "DequantizeLinear", "Add", "QuantizeLinear"));
  EXPECT_THAT(graph.node(0).input(), ElementsAre("a", "as", "az"));
  EXPECT_THAT(graph.node(1).input(), ElementsAre("b", "bs"));
  EXPECT_EQ(graph.node(3).input(1), "ys");
  expect_whole(graph);
}

TEST(ExpandContrib, AttributesGoToTheOperator) {
  onnx::GraphProto graph;
  auto& a = *contrib(graph, "QLinearLeakyRelu", {"x", "xs", "xz", "ys", "yz"}).add_attribute();
  a.set_name("alpha");
  a.set_type(onnx::AttributeProto::FLOAT);
  a.set_f(0.25F);
  ASSERT_TRUE(expand_contrib(graph));
  EXPECT_THAT(operators(graph), ElementsAre("DequantizeLinear", "LeakyRelu", "QuantizeLinear"));
  ASSERT_EQ(graph.node(1).attribute_size(), 1);
  EXPECT_EQ(graph.node(1).attribute(0).f(), 0.25F);
  expect_whole(graph);
}

TEST(ExpandContrib, AProductMayStayReal) {
  onnx::GraphProto graph;
  contrib(graph, "QGemm", {"a", "as", "az", "b", "bs", "bz", "c"});
  ASSERT_TRUE(expand_contrib(graph));
  EXPECT_THAT(operators(graph),
              ElementsAre("DequantizeLinear", "DequantizeLinear", "Cast", "Mul", "Mul", "Gemm"));
  expect_whole(graph);
}

TEST(ExpandContrib, PartsAreConcatenated) {
  onnx::GraphProto graph;
  contrib(graph, "QLinearConcat", {"ys", "yz", "a", "as", "az", "b", "bs", "bz"});
  ASSERT_TRUE(expand_contrib(graph));
  EXPECT_THAT(operators(graph),
              ElementsAre("DequantizeLinear", "DequantizeLinear", "Concat", "QuantizeLinear"));
  expect_whole(graph);
}

TEST(ExpandContrib, AnLstmGetsItsWeightsBack) {
  for (const int rank : {1, 2}) {
    onnx::GraphProto graph;
    for (const char* name : {"ws", "rs"}) {
      auto& tensor = *graph.add_initializer();
      tensor.set_name(name);
      for (int d = 0; d < rank; ++d) tensor.add_dims(1);
      tensor.set_data_type(onnx::TensorProto::FLOAT);
      tensor.add_float_data(name[0] == 'w' ? 0.25F : 0.5F);
    }
    contrib(graph, "DynamicQuantizeLSTM", {"x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"})
        .add_output("h");
    ASSERT_TRUE(expand_contrib(graph));
    EXPECT_EQ(operators(graph).back(), "LSTM");
    EXPECT_EQ(graph.node(graph.node_size() - 1).output(1), "h");
    EXPECT_EQ(graph.node(graph.node_size() - 1).input_size(), 4);
    ASSERT_EQ(graph.node(graph.node_size() - 1).attribute_size(), 2);
    for (const auto& scales : graph.node(graph.node_size() - 1).attribute()) {
      ASSERT_EQ(scales.floats_size(), 1) << scales.name();
      EXPECT_EQ(scales.floats(0), scales.name() == input_weight_scales ? 0.25F : 0.5F) << scales.name();
    }
    expect_whole(graph);
  }
}

TEST(ExpandContrib, NoFileSaysWhatWeightsAreMultiplesOf) {
  for (const auto name : {input_weight_scales, state_weight_scales}) {
    onnx::GraphProto graph;
    onnx::NodeProto& node = *graph.add_node();
    node.set_op_type("LSTM");
    node.add_attribute()->set_name(std::string(name));
    const auto done = expand_contrib(graph);
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, HasSubstr("is not one that the operator has"));
  }
}

TEST(ExpandContrib, AnLstmMayLackItsFirstOutput) {
  onnx::GraphProto graph;
  for (const char* name : {"ws", "rs"}) graph.add_initializer()->set_name(name);
  auto& node =
      contrib(graph, "DynamicQuantizeLSTM", {"x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"});
  node.set_output(0, "");
  node.add_output("y");
  ASSERT_TRUE(expand_contrib(graph));
  EXPECT_EQ(operators(graph).back(), "LSTM");
  EXPECT_THAT(graph.node(graph.node_size() - 1).output(), ElementsAre("", "y"));
  expect_whole(graph);
}

TEST(ExpandContrib, OthersStay) {
  onnx::GraphProto graph;
  contrib(graph, "FusedMatMul", {"a", "b"});
  graph.add_node()->set_op_type("QLinearAdd");  // of no domain: not ours
  ASSERT_TRUE(expand_contrib(graph));
  EXPECT_THAT(operators(graph), ElementsAre("com.microsoft.FusedMatMul", "QLinearAdd"));
}

TEST(ExpandContrib, SaysWhatIsMissing) {
  const auto said = [](std::string op, const std::vector<std::string>& inputs) {
    onnx::GraphProto graph;
    contrib(graph, std::move(op), inputs);
    const auto done = expand_contrib(graph);
    return done ? std::string("done") : done.error().message;
  };
  EXPECT_THAT(said("QLinearAdd", {"a"}), HasSubstr("it has 1 inputs, but takes at least 7"));
  EXPECT_THAT(said("QLinearConcat", {"ys", "yz", "a", "as"}), HasSubstr("it has 4 inputs"));
  EXPECT_THAT(said("QGemm", {}), HasSubstr("at least 6"));
  EXPECT_THAT(said("DynamicQuantizeLSTM", {"x", "w", "r", "", "", "", "", "", "ws", "wz", "rs"}),
              HasSubstr("must be an initializer"));
  onnx::GraphProto last;
  auto& node = contrib(last, "QLinearGlobalAveragePool", {"x", "xs", "xz", "ys", "yz"});
  auto& a = *node.add_attribute();
  a.set_name("channels_last");
  a.set_i(1);
  EXPECT_FALSE(expand_contrib(last));
}

}  // namespace
}  // namespace carillon::graph
