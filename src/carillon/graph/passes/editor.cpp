#include "carillon/graph/passes/editor.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::graph {
namespace {

template <typename F>
void for_each_use(const Node& node, F f) {
  for (const ValueId id : node.inputs)
    if (id != no_value) f(id);
  for (const PostOp& post : node.post_ops)
    if (post.operand != no_value) f(post.operand);
}

}  // namespace

Editor::Editor(Graph& graph)
    : graph_(graph),
      maker_(graph.values.size(), -1),
      uses_(graph.values.size(), 0),
      output_(graph.values.size(), false),
      dead_(graph.nodes.size(), false) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId id : graph.nodes[i].outputs)
      if (id != no_value) maker_[id.index()] = static_cast<std::int64_t>(i);
    use(graph.nodes[i], true);
  }
  for (const ValueId id : graph.outputs) {
    output_[id.index()] = true;
    ++uses_[id.index()];
  }
  for (const Guard& guard : graph.guards) ++uses_[guard.condition.index()];
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    bool wanted = false;
    for (const ValueId id : graph.nodes[i].outputs) wanted = wanted || (id != no_value && uses(id) > 0);
    if (wanted) continue;
    dead_[i] = true;
    use(graph.nodes[i], false);
  }
}

const Node* Editor::made_by(ValueId id, std::string_view op) const {
  const std::int64_t index = maker(id);
  if (index < 0) return nullptr;
  const Node& node = graph_.nodes[static_cast<std::size_t>(index)];
  return node.op == op && node.post_ops.empty() && node.outputs[0] == id ? &node : nullptr;
}

bool Editor::scalar(ValueId id, float& value) const {
  if (!graph_.is_constant(id)) return false;
  const Tensor& tensor = *graph_.value(id).constant;
  if (tensor.type().type != DataType::f32 || tensor.as<float>().size() != 1) return false;
  value = tensor.as<float>()[0];
  return true;
}

ValueId Editor::add_value(std::string name, TensorType type, SharedTensor constant) {
  graph_.values.push_back({std::move(name), std::move(type), std::move(constant)});
  maker_.push_back(-1);
  uses_.push_back(0);
  output_.push_back(false);
  return ValueId{static_cast<std::uint32_t>(graph_.values.size() - 1)};
}

void Editor::use(const Node& node, bool more) {
  for_each_use(node, [&](ValueId id) {
    CARILLON_ASSERT(more || uses_[id.index()] > 0);
    uses_[id.index()] += more ? 1 : -1;
  });
}

void Editor::replace(std::size_t index, Node node) {
  CARILLON_ASSERT(alive(index));
  node.outputs = graph_.nodes[index].outputs;
  node.guard = graph_.nodes[index].guard;
  use(node, true);
  const Node old = std::exchange(graph_.nodes[index], std::move(node));
  use(old, false);
  std::vector<ValueId> candidates;
  for_each_use(old, [&](ValueId id) { candidates.push_back(id); });
  drop_unused(std::move(candidates));
}

void Editor::drop_unused(std::vector<ValueId> candidates) {
  while (!candidates.empty()) {
    const std::int64_t made = maker(candidates.back());
    candidates.pop_back();
    if (made < 0 || dead_[static_cast<std::size_t>(made)]) continue;
    const Node& node = graph_.nodes[static_cast<std::size_t>(made)];
    bool wanted = false;
    for (const ValueId id : node.outputs) wanted = wanted || (id != no_value && uses(id) > 0);
    if (wanted) continue;
    dead_[static_cast<std::size_t>(made)] = true;
    use(node, false);
    for_each_use(node, [&](ValueId id) { candidates.push_back(id); });
  }
}

void Editor::finish() {
  std::size_t to = 0;
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
    if (!dead_[i]) {
      if (to != i) graph_.nodes[to] = std::move(graph_.nodes[i]);
      ++to;
    }
  graph_.nodes.resize(to);
}

}  // namespace carillon::graph
