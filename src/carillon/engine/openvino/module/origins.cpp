#include "carillon/engine/openvino/module/origins.h"

#include <utility>

#include <openvino/op/constant.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>
#include <openvino/op/util/shape_of_base.hpp>
#include <openvino/op/util/unary_elementwise_arithmetic.hpp>

namespace carillon::engine::second {
namespace {

using Body = ov::op::util::MultiSubGraphOp;

// These have as many elements as their data say, whatever they are told besides.
bool finds_its_size(const ov::Node& node) {
  static constexpr std::array<std::string_view, 10> names = {
      "NonZero",          "Unique",     "NonMaxSuppression",   "MulticlassNms",
      "MatrixNms",        "NMSRotated", "SparseFillEmptyRows", "StringTensorUnpack",
      "StringTensorPack", "Proposal"};
  return is_one_of(node, names);
}

}  // namespace

std::size_t first_size(const ov::Node& node) {
  static constexpr std::array<std::pair<std::string_view, std::size_t>, 23> first = {{
      {"Tile", 1},
      {"Broadcast", 1},
      {"Pad", 1},
      {"OneHot", 1},
      {"Range", 0},
      {"Interpolate", 1},
      {"DFT", 1},
      {"IDFT", 1},
      {"RDFT", 1},
      {"IRDFT", 1},
      {"Eye", 0},
      {"Reshape", 1},
      {"TopK", 1},
      {"VariadicSplit", 1},
      {"Slice", 1},
      {"StridedSlice", 1},
      {"STFT", 2},
      {"ISTFT", 2},
      {"Col2Im", 1},
      {"RandomUniform", 0},
      {"BatchToSpace", 1},
      {"SpaceToBatch", 1},
      {"AdaptiveAvgPool", 1},
  }};
  for (const auto& [name, input] : first)
    if (name == node.get_type_name()) return input;
  static constexpr std::array<std::string_view, 2> transposed = {"ConvolutionBackpropData",
                                                                 "GroupConvolutionBackpropData"};
  return is_one_of(node, transposed) ? 2 : node.get_input_size();
}

bool never_grows(const ov::Node& node) {
  static constexpr std::array<std::string_view, 47> names = {"Result",
                                                             "Parameter",
                                                             "Constant",
                                                             "Convert",
                                                             "Reshape",
                                                             "Squeeze",
                                                             "Unsqueeze",
                                                             "Transpose",
                                                             "Slice",
                                                             "StridedSlice",
                                                             "ReduceL1",
                                                             "ReduceL2",
                                                             "ReduceMax",
                                                             "ReduceMean",
                                                             "ReduceMin",
                                                             "ReduceProd",
                                                             "ReduceSum",
                                                             "ReduceLogicalAnd",
                                                             "ReduceLogicalOr",
                                                             "Softmax",
                                                             "LogSoftmax",
                                                             "Split",
                                                             "VariadicSplit",
                                                             "TopK",
                                                             "ShapeOf",
                                                             "CumSum",
                                                             "Reverse",
                                                             "ReverseSequence",
                                                             "MVN",
                                                             "NormalizeL2",
                                                             "LRN",
                                                             "MaxPool",
                                                             "AvgPool",
                                                             "Clamp",
                                                             "HardSigmoid",
                                                             "Elu",
                                                             "Selu",
                                                             "Swish",
                                                             "GroupNormalization",
                                                             "BatchNormInference",
                                                             "ScatterUpdate",
                                                             "ScatterElementsUpdate",
                                                             "ScatterNDUpdate",
                                                             "Roll",
                                                             "LogicalNot",
                                                             "DepthToSpace",
                                                             "SpaceToDepth"};
  return is_one_of(node, names) || finds_its_size(node) ||
         dynamic_cast<const ov::op::util::UnaryElementwiseArithmetic*>(&node) != nullptr;
}

void Origins::add(const ov::Node& node, bool inside) {
  using namespace ov::op;
  Decided& out = of_[&node];
  const auto outputs = node.outputs();
  const bool open =
      std::ranges::any_of(outputs, [](const auto& each) { return each.get_partial_shape().is_dynamic(); });
  if (ov::is_type<v0::Constant>(&node)) return;
  if (ov::is_type<v0::Parameter>(&node)) {
    out = {.extents = inside && open, .contents = true};
    return;
  }
  if (dynamic_cast<const util::ShapeOfBase*>(&node) != nullptr) {
    out.contents = of(node.input_value(0)).extents;
    return;
  }
  if (dynamic_cast<const Body*>(&node) != nullptr || finds_its_size(node)) {
    out = {.extents = open, .contents = true};
    return;
  }
  const std::size_t sizes = first_size(node);
  for (std::size_t i = 0; i < node.get_input_size(); ++i) {
    const Decided is = of(node.input_value(i));
    out.contents = out.contents || is.contents || is.extents;
    out.extents = out.extents || (open && (is.extents || (i >= sizes && is.contents)));
  }
  if (std::string_view(node.get_type_name()) == "RandomUniform") out.contents = true;
}

void Origins::add_guard(const ov::Output<ov::Node>& guard, const ov::Output<ov::Node>& of_what) {
  of_[guard.get_node()] = of(of_what);
}

Decided Origins::of(const ov::Output<ov::Node>& value) const {
  const auto found = of_.find(value.get_node());
  return found == of_.end() ? Decided{} : found->second;
}

}  // namespace carillon::engine::second
