#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "carillon/graph/passes/passes.h"

namespace carillon::graph {

void merge_common(Graph& graph) {
  std::vector<ValueId> same(graph.values.size());
  std::unordered_map<const Tensor*, ValueId> constants;
  for (std::size_t i = 0; i < same.size(); ++i) {
    const ValueId id{static_cast<std::uint32_t>(i)};
    same[i] = id;
    if (graph.values[i].constant != nullptr)
      same[i] = constants.try_emplace(graph.values[i].constant.get(), id).first->second;
  }
  std::vector<bool> output(graph.values.size(), false);
  for (const ValueId id : graph.outputs) output[id.index()] = true;

  // A node that runs whenever another does can stand for it: one under the same guard or one around it.
  using ByGuard = std::vector<std::pair<int, std::size_t>>;  // mostly of one node
  std::unordered_map<std::string, ByGuard> seen;
  seen.reserve(graph.nodes.size());
  const auto earlier = [&](const ByGuard& nodes, int guard) {
    for (;; guard = graph.guards[static_cast<std::size_t>(guard)].parent)
      if (const auto found = std::ranges::find(nodes, guard, &ByGuard::value_type::first);
          found != nodes.end() || guard < 0)
        return found;
  };
  std::string key;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    key.clear();
    const auto add = [&](std::size_t number) {
      key.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    add(node.inputs.size());
    for (ValueId& id : node.inputs) {
      if (id != no_value) id = same[id.index()];
      add(id.value);
    }
    for (PostOp& post : node.post_ops)
      if (post.operand != no_value) post.operand = same[post.operand.index()];
    add(node.outputs.size());
    key += signature(node);
    // In its canonical form only its output's type says what it does.
    if (node.op == "Reshape") key += to_text(graph.value(node.outputs[0]).type.shape);
    ByGuard& nodes = seen[key];
    const auto found = earlier(nodes, node.guard);
    if (found == nodes.end()) {
      nodes.emplace_back(node.guard, n);
      continue;
    }
    const Node& first = graph.nodes[found->second];
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId from = node.outputs[i];
      // A graph output keeps its own value, and what the first node does not make cannot be taken from it.
      if (from != no_value && !output[from.index()] && first.outputs[i] != no_value)
        same[from.index()] = first.outputs[i];
    }
  }
  for (Guard& guard : graph.guards) guard.condition = same[guard.condition.index()];
}

}  // namespace carillon::graph
