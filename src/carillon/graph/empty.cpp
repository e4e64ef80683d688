#include "carillon/graph/empty.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace carillon::graph {
namespace {

bool is_empty(const Value& value) {
  return std::ranges::find(value.type.shape, 0) != value.type.shape.end();
}

void make_constant(Value& value) {
  value.constant = std::make_shared<const Tensor>(value.type);  // zeros, as far as it has elements
}

}  // namespace

Result<> drop_empty(Graph& graph) {
  if (std::ranges::none_of(graph.values, is_empty)) return {};
  // Empty constants of the file are operands that count as absent (Resize's roi), and kernels know them.
  std::vector<bool> emptied(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    emptied[i] = is_empty(graph.values[i]) && graph.values[i].constant == nullptr;
  const auto among = [&](ValueId id) { return id != no_value && emptied[id.index()]; };
  std::vector<Node> kept;
  for (Node& node : graph.nodes) {
    const bool makes =
        std::ranges::any_of(node.outputs, [&](ValueId id) { return id != no_value && !among(id); });
    if (!makes) continue;
    if (std::ranges::none_of(node.inputs, among)) {
      kept.push_back(std::move(node));
    } else if (node.op == "Concat") {
      std::erase_if(node.inputs, among);
      kept.push_back(std::move(node));
    } else if ((node.op == "MatMul" || node.op == "ReduceSum") && node.post_ops.empty()) {
      make_constant(graph.value(node.outputs.front()));
    } else {
      return fail(ErrorCode::unsupported,
                  "node '" + node.name + "' (" + node.op +
                      "): one of its inputs has no elements, of which it would make " +
                      to_text(graph.value(node.outputs.front()).type.shape) + "; that is not supported");
    }
  }
  graph.nodes = std::move(kept);
  std::vector<bool> given(graph.values.size());
  for (const ValueId id : graph.inputs) given[id.index()] = true;
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    if (emptied[i] && !given[i]) make_constant(graph.values[i]);
  return {};
}

}  // namespace carillon::graph
