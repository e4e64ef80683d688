#include "carillon/graph/opset.h"

#include <algorithm>
#include <memory>
#include <string>

#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

ValueId add_constant(Graph& graph, const Node& node, std::string_view what, Tensor tensor) {
  const ValueId id{static_cast<std::uint32_t>(graph.values.size())};
  TensorType type = tensor.type();
  graph.values.push_back({node.name + "." + std::string(what), std::move(type),
                          std::make_shared<const Tensor>(std::move(tensor))});
  return id;
}

void set_input(Node& node, std::size_t i, ValueId id) {
  if (node.inputs.size() <= i) node.inputs.resize(i + 1, no_value);
  node.inputs[i] = id;
}

// A list of integers that was an attribute becomes input `i`.
void list_to_input(Graph& graph, Node& node, std::string_view attribute, std::size_t i) {
  if (!node.has(attribute)) return;
  const auto values = node.integers(attribute);
  const auto count = static_cast<std::int64_t>(values.size());
  set_input(node, i, add_constant(graph, node, attribute, Tensor::of_i64({count}, values)));
  node.attributes.erase(node.attributes.find(attribute));
}

bool starts_with_reduce(std::string_view op) {
  return op.starts_with("Reduce");
}

Result<> require_inputs(const Node& node, std::size_t count, std::string_view names) {
  bool there = node.inputs.size() >= count;
  for (std::size_t i = 0; there && i < count; ++i) there = node.inputs[i] != no_value;
  if (there) return {};
  return invalid(describe(node) + ": it needs " + std::string(names));
}

}  // namespace

Result<> to_newest_form(Graph& graph, Node& node, int opset) {
  const std::string op = node.op;
  if (starts_with_reduce(op) || op == "Squeeze" || op == "Unsqueeze") {
    list_to_input(graph, node, "axes", 1);
    if (op == "Unsqueeze") return require_inputs(node, 2, "data and axes");
  } else if (op == "Slice") {
    list_to_input(graph, node, "starts", 1);
    list_to_input(graph, node, "ends", 2);
    list_to_input(graph, node, "axes", 3);
    return require_inputs(node, 3, "data, starts and ends");
  } else if (op == "Split") {
    list_to_input(graph, node, "split", 1);
    if (node.outputs.empty()) return invalid(describe(node) + ": it has no outputs");
  } else if (op == "Pad") {
    list_to_input(graph, node, "pads", 1);
    if (node.has("value") && node.inputs.size() > 2) node.attributes.erase("value");
    return require_inputs(node, 2, "data and pads");
  } else if (op == "TopK") {
    if (node.has("k"))
      set_input(node, 1, add_constant(graph, node, "k", Tensor::of_i64({1}, {{node.integer("k", 0)}})));
    node.attributes.erase("k");
    return require_inputs(node, 2, "data and k");
  } else if (op == "Clip") {
    if (opset >= 11) node.attributes.clear();
  } else if (op == "Dropout") {
    node.attributes.erase("ratio");
  } else if (op == "Softmax" || op == "LogSoftmax" || op == "Hardmax") {
    if (opset < 13) {
      const std::int64_t axis = node.integer("axis", 1);
      node.attributes.erase("axis");
      node.attributes.insert_or_assign(matrix_axis, Attribute{axis});
    }
  } else if (op == "Upsample" || (op == "Resize" && opset == 10)) {
    if (node.has("scales")) {
      const auto scales = node.reals("scales");
      const auto count = static_cast<std::int64_t>(scales.size());
      set_input(node, 1, add_constant(graph, node, "scales", Tensor::of_f32({count}, scales)));
      node.attributes.erase("scales");
    }
    if (auto ok = require_inputs(node, 2, "data and scales"); !ok) return ok;
    node.inputs = {node.inputs[0], no_value, node.inputs[1]};
    // Where a Resize makes less, the nearest is the next: ONNX's tests of opset 10 have it so.
    node.attributes.insert_or_assign("nearest_mode",
                                     Attribute{std::string(op == "Resize" ? "ceil_of_less" : "floor")});
    node.op = "Resize";
    node.attributes.insert_or_assign("coordinate_transformation_mode", Attribute{std::string("asymmetric")});
  } else if (op == "BatchNormalization") {
    if (node.integer("training_mode", 0) != 0) node.op = "TrainingBatchNormalization";
  } else if (op == "RoiAlign") {
    if (opset < 16)
      node.attributes.insert_or_assign("coordinate_transformation_mode",
                                       Attribute{std::string("output_half_pixel")});
  } else if (op == "DFT") {
    if (opset < 20 && !node.has("axis")) node.attributes.insert_or_assign("axis", Attribute{std::int64_t{1}});
  } else if (op == "Scan" && opset < 9) {
    if (node.inputs[0] != no_value)
      return fail(ErrorCode::unsupported,
                  describe(node) + ": sequences of different lengths (input 0) are not supported");
    node.inputs.erase(node.inputs.begin());
    if (const auto told = node.attributes.find("directions"); told != node.attributes.end())
      node.attributes.insert_or_assign("scan_input_directions", told->second);
    node.attributes.insert_or_assign("batched", Attribute{std::int64_t{1}});
  } else if (op == "Scatter") {
    node.op = "ScatterElements";
  }
  return {};
}

}  // namespace carillon::graph
