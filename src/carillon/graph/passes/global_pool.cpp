#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// Whether `axes` (already checked by inference) are all dimensions of images from 2 on. Sequences of vectors
// (rank 3) are left alone: their last dimension is not a spatial one.
bool are_spatial(const Tensor& axes, std::int64_t rank) {
  if (axes.type().type != DataType::i64 || rank < 4 || rank > 5) return false;
  const auto values = axes.as<std::int64_t>();
  if (static_cast<std::int64_t>(values.size()) != rank - 2) return false;
  for (const std::int64_t a : values)
    if ((a < 0 ? a + rank : a) < 2) return false;
  return true;
}

}  // namespace

void use_global_pools(Graph& graph) {
  Graph out = std::exchange(graph, {});
  std::vector<Node> nodes;
  for (Node& node : out.nodes) {
    const bool mean = node.op == "ReduceMean";
    if ((!mean && node.op != "ReduceMax") || node.inputs.size() < 2 || !out.is_constant(node.inputs[1]) ||
        out.value(node.inputs[0]).type.type != DataType::f32 ||
        !are_spatial(*out.value(node.inputs[1]).constant,
                     static_cast<std::int64_t>(out.value(node.inputs[0]).type.shape.size()))) {
      nodes.push_back(std::move(node));
      continue;
    }
    TensorType pooled = out.value(node.inputs[0]).type;
    for (std::size_t i = 2; i < pooled.shape.size(); ++i) pooled.shape[i] = 1;
    Node pool{.name = node.name,
              .op = mean ? "GlobalAveragePool" : "GlobalMaxPool",
              .inputs = {node.inputs[0]},
              .guard = node.guard};
    if (out.value(node.outputs[0]).type == pooled) {
      pool.outputs = node.outputs;
      nodes.push_back(std::move(pool));
      continue;
    }
    out.values.push_back({node.name + ".pooled", std::move(pooled), nullptr});
    const ValueId id{static_cast<std::uint32_t>(out.values.size() - 1)};
    pool.outputs = {id};
    nodes.push_back(pool);
    nodes.push_back(Node{.name = node.name + "_shape",
                         .op = "Reshape",
                         .inputs = {id},
                         .outputs = node.outputs,
                         .guard = pool.guard});
  }
  out.nodes = std::move(nodes);
  graph = std::move(out);
}

}  // namespace carillon::graph
