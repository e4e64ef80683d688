#include "carillon/graph/effort.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace carillon::graph {
namespace {

std::uint64_t elements(const Value& value) {
  std::uint64_t out = 1;
  for (const std::int64_t extent : value.type.shape)
    out *= static_cast<std::uint64_t>(std::max<std::int64_t>(0, extent));
  return out;
}

// Of input `index`, or 0 where it has no such extent.
std::uint64_t extent(const Graph& graph, const Node& node, std::size_t index, std::size_t from_the_end) {
  if (index >= node.inputs.size() || node.inputs[index] == no_value) return 0;
  const Shape& shape = graph.value(node.inputs[index]).type.shape;
  if (from_the_end >= shape.size()) return 0;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, shape[shape.size() - 1 - from_the_end]));
}

std::uint64_t operand_elements(const Graph& graph, const Node& node, std::size_t index) {
  if (index >= node.inputs.size() || node.inputs[index] == no_value) return 0;
  return elements(graph.value(node.inputs[index]));
}

// How many products each element of the first output sums; 0 where the node is none of these.
std::uint64_t products_an_element(const Graph& graph, const Node& node) {
  const std::string_view op = node.op;
  if (op == "MatMul" || op == "MatMulInteger" || op == "QLinearMatMul") return extent(graph, node, 0, 0);
  if (op == "Gemm") return extent(graph, node, 0, node.integer("transA", 0) != 0 ? 1 : 0);
  if (op == "Conv" || op == "ConvInteger" || op == "QLinearConv") {
    const std::size_t weights = op == "QLinearConv" ? 3 : 1;
    if (weights >= node.inputs.size() || node.inputs[weights] == no_value) return 0;
    const Shape& shape = graph.value(node.inputs[weights]).type.shape;
    const std::uint64_t all = operand_elements(graph, node, weights);
    return shape.empty() || shape[0] <= 0 ? 0 : all / static_cast<std::uint64_t>(shape[0]);
  }
  return 0;
}

}  // namespace

std::uint64_t operations_of(const Graph& graph, const Node& node) {
  const std::string_view op = node.op;
  if (node.outputs.empty()) return 0;
  if (op == "LSTM" || op == "GRU" || op == "RNN") {
    // Each step multiplies with both matrices: X is [steps, batch, inputs].
    const std::uint64_t rows = extent(graph, node, 0, 2) * extent(graph, node, 0, 1);
    return 2 * rows * (operand_elements(graph, node, 1) + operand_elements(graph, node, 2));
  }
  if (op == "ConvTranspose") {
    // Each element of the input meets all weights of its channel.
    const Shape& weights = graph.value(node.inputs[1]).type.shape;
    const auto channels = static_cast<std::uint64_t>(std::max<std::int64_t>(1, weights.front()));
    return 2 * operand_elements(graph, node, 0) * (operand_elements(graph, node, 1) / channels);
  }
  if (node.outputs.front() == no_value) return 0;
  return 2 * elements(graph.value(node.outputs.front())) * products_an_element(graph, node);
}

Effort effort_of(const Graph& graph) {
  Effort out;
  for (const Node& node : graph.nodes) {
    out.operations += operations_of(graph, node);
    for (const auto& ids : {node.inputs, node.outputs})
      for (const ValueId id : ids)
        if (id != no_value && !graph.is_constant(id)) out.bytes += graph.value(id).type.bytes().count;
  }
  return out;
}

}  // namespace carillon::graph
