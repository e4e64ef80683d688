#include <utility>

#include "carillon/graph/passes/passes.h"

namespace carillon::graph {

void compact(Graph& graph) {
  std::vector<bool> needed(graph.values.size(), false);
  for (const ValueId id : graph.outputs) needed[id.index()] = true;
  std::vector<bool> guarding(graph.guards.size(), false);
  std::vector<Node> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    bool wanted = false;
    for (const ValueId id : node->outputs) wanted = wanted || (id != no_value && needed[id.index()]);
    if (!wanted) continue;
    for (const ValueId id : node->inputs)
      if (id != no_value) needed[id.index()] = true;
    for (const PostOp& post : node->post_ops)
      if (post.operand != no_value) needed[post.operand.index()] = true;
    for (int g = node->guard; g >= 0 && !guarding[static_cast<std::size_t>(g)];) {
      const Guard& guard = graph.guards[static_cast<std::size_t>(g)];
      guarding[static_cast<std::size_t>(g)] = true;
      needed[guard.condition.index()] = true;
      g = guard.parent;
    }
    kept.push_back(std::move(*node));
  }
  graph.nodes.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));

  std::vector<int> moved(graph.guards.size(), -1);
  std::vector<Guard> guards;
  for (std::size_t g = 0; g < graph.guards.size(); ++g) {
    if (!guarding[g]) continue;
    moved[g] = static_cast<int>(guards.size());
    guards.push_back(graph.guards[g]);
    int& parent = guards.back().parent;
    if (parent >= 0) parent = moved[static_cast<std::size_t>(parent)];
  }
  graph.guards = std::move(guards);

  std::vector<ValueId> renamed(graph.values.size(), no_value);
  std::vector<Value> values;
  const auto rename = [&](ValueId& id) {
    if (id == no_value) return;
    ValueId& to = renamed[id.index()];
    if (to == no_value) {
      to = ValueId{static_cast<std::uint32_t>(values.size())};
      values.push_back(std::move(graph.values[id.index()]));
    }
    id = to;
  };
  for (ValueId& id : graph.inputs) rename(id);
  for (Node& node : graph.nodes) {
    for (ValueId& id : node.inputs) rename(id);
    for (PostOp& post : node.post_ops) rename(post.operand);
    // An optional output that nobody uses is as good as absent.
    for (ValueId& id : node.outputs)
      if (id != no_value && !needed[id.index()]) id = no_value;
    while (node.outputs.size() > 1 && node.outputs.back() == no_value) node.outputs.pop_back();
    for (ValueId& id : node.outputs) rename(id);
    if (node.guard >= 0) node.guard = moved[static_cast<std::size_t>(node.guard)];
  }
  for (Guard& guard : graph.guards) rename(guard.condition);
  for (ValueId& id : graph.outputs) rename(id);
  graph.values = std::move(values);
}

}  // namespace carillon::graph
