#include "carillon/graph/empty.h"

#include <algorithm>

namespace carillon::graph {

bool has_empty(const Graph& graph, const Node& node) {
  const auto empty = [&](ValueId id) { return id != no_value && graph.value(id).type.elements() == 0; };
  if (std::ranges::any_of(node.outputs, empty)) return true;
  if (node.op == "Resize" || node.op.starts_with("Reduce"))
    return !node.inputs.empty() && empty(node.inputs.front());
  return std::ranges::any_of(node.inputs, empty) ||
         std::ranges::any_of(node.post_ops, [&](const PostOp& op) { return empty(op.operand); });
}

}  // namespace carillon::graph
