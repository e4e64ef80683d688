#include "carillon/graph/guards.h"

#include <algorithm>
#include <string>
#include <vector>

#include "carillon/graph/bounded.h"

namespace carillon::graph {
namespace {

std::unexpected<Error> broken(const std::string& where, const std::string& what) {
  return fail(ErrorCode::internal, where + ": " + what);
}

std::string value_name(const Graph& graph, ValueId id) {
  return "value '" + graph.value(id).name + "' (%" + std::to_string(id.value) + ")";
}

}  // namespace

bool is_within(std::span<const Guard> guards, int inner, int outer) {
  // Parents come first, so that below `outer` there is nothing to find.
  while (inner > outer) inner = guards[static_cast<std::size_t>(inner)].parent;
  return inner == outer;
}

bool is_made(std::span<const Guard> guards, int made, int guard, std::span<const Known> known) {
  for (; !is_within(guards, guard, made); made = guards[static_cast<std::size_t>(made)].parent) {
    const Guard& needed = guards[static_cast<std::size_t>(made)];
    bool found = std::ranges::any_of(known, [&](const Known& each) {
      return each.condition == needed.condition && each.when == needed.when;
    });
    for (int g = guard; g >= 0 && !found; g = guards[static_cast<std::size_t>(g)].parent) {
      const Guard& around = guards[static_cast<std::size_t>(g)];
      found = around.condition == needed.condition && around.when == needed.when;
    }
    if (!found) return false;
  }
  return true;
}

Result<> validate_guards(const Graph& graph) {
  const auto count = static_cast<int>(graph.guards.size());
  for (int g = 0; g < count; ++g) {
    const Guard& guard = graph.guards[static_cast<std::size_t>(g)];
    const std::string where = "guard " + std::to_string(g);
    if (guard.parent < -1 || guard.parent >= g) return broken(where, "its parent is not an earlier guard");
    if (guard.condition.index() >= graph.values.size())
      return broken(where, "its condition is not a value of the graph");
    const TensorType& type = graph.value(guard.condition).type;
    if (type.type != DataType::boolean || type.elements() != 1)
      return broken(where, value_name(graph, guard.condition) + " is not one boolean");
  }

  constexpr int always = -1, never = -2;
  std::vector<int> made(graph.values.size(), never);  // by value: its maker's guard
  for (std::size_t i = 0; i < made.size(); ++i)
    if (graph.values[i].constant != nullptr) made[i] = always;
  for (const ValueId id : graph.inputs) made[id.index()] = always;
  std::vector<bool> seen(graph.guards.size(), false);
  for (const Node& node : graph.nodes) {
    const std::string where = "node '" + node.name + "' (" + node.op + ")";
    if (!node.subgraphs.empty()) return broken(where, "it still holds a subgraph");
    if (node.guard < -1 || node.guard >= count) return broken(where, "its guard does not exist");
    for (int g = node.guard; g >= 0 && !seen[static_cast<std::size_t>(g)];) {
      const Guard& guard = graph.guards[static_cast<std::size_t>(g)];
      const int at = made[guard.condition.index()];
      if (at == never || !is_made(graph.guards, at, guard.parent))
        return broken(where, "its guard depends on " + value_name(graph, guard.condition) +
                                 ", which is not made before it or not always");
      seen[static_cast<std::size_t>(g)] = true;
      g = guard.parent;
    }
    const bool merge = node.op == "Merge";
    if (merge && (node.inputs.size() != 3 || std::ranges::find(node.inputs, no_value) != node.inputs.end()))
      return broken(where, "it needs a condition and two values");
    const auto there = [&](ValueId id, std::span<const Known> known) {
      return id == no_value || is_made(graph.guards, made[id.index()], node.guard, known);
    };
    std::vector<std::vector<Known>> known(node.inputs.size());
    if (merge)
      for (const std::size_t i : {1U, 2U}) known[i].push_back({node.inputs[0], i == 1});
    if (is_choose(node)) {
      const auto ways = choose_paths(node);
      for (std::size_t i = 0; i < ways.size(); ++i)
        for (const ChoosePath& each : ways[i]) known[i].push_back({node.inputs[each.condition], each.when});
    }
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (!there(node.inputs[i], known[i]))
        return broken(where, value_name(graph, node.inputs[i]) + " is not always made when it is read");
    for (const PostOp& post : node.post_ops)
      if (!there(post.operand, {}))
        return broken(where, value_name(graph, post.operand) + " is not always made when it is read");
    for (const ValueId id : node.outputs)
      if (id != no_value) made[id.index()] = node.guard;
  }
  for (const ValueId id : graph.outputs)
    if (made[id.index()] != always) return broken(value_name(graph, id), "a graph output is not always made");
  return {};
}

}  // namespace carillon::graph
