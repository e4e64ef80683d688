#include <algorithm>
#include <memory>
#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// Beside such a number a score disappears by rounding, so adding it is as good as putting it in its place.
constexpr float hides_any_score = -1e30F;

}  // namespace

void mask_by_adding(Graph& graph, ConstantStore& store) {
  std::vector<Node> nodes = std::exchange(graph.nodes, {});
  std::vector<std::uint32_t> uses(graph.values.size(), 0);
  std::vector<std::int64_t> maker(graph.values.size(), -1);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const ValueId id : nodes[i].inputs)
      if (id != no_value) ++uses[id.index()];
    for (const PostOp& post : nodes[i].post_ops)
      if (post.operand != no_value) ++uses[post.operand.index()];
    for (const ValueId id : nodes[i].outputs)
      if (id != no_value) maker[id.index()] = static_cast<std::int64_t>(i);
  }
  for (const ValueId id : graph.outputs) ++uses[id.index()];

  const auto new_value = [&](std::string name, TensorType type, SharedTensor constant) {
    graph.values.push_back({std::move(name), std::move(type), std::move(constant)});
    return ValueId{static_cast<std::uint32_t>(graph.values.size() - 1)};
  };
  const auto is_small = [&](ValueId id, const TensorType& than) {
    return graph.value(id).type.elements() * 4 <= than.elements();
  };
  const auto hides = [&](ValueId id) {
    if (!graph.is_constant(id) || graph.value(id).type.elements() != 1) return false;
    return graph.value(id).constant->as<float>()[0] <= hides_any_score;
  };

  // By the Where's place: the node that makes the mask to add.
  std::vector<std::pair<std::size_t, Node>> masks;
  for (const Node& softmax : nodes) {
    if (softmax.op != "Softmax") continue;
    const std::int64_t made = maker[softmax.inputs[0].index()];
    if (made < 0 || uses[softmax.inputs[0].index()] != 1) continue;
    Node& where = nodes[static_cast<std::size_t>(made)];
    if (where.op != "Where") continue;
    const TensorType result = graph.value(where.outputs[0]).type;
    if (result.type != DataType::f32 || !is_small(where.inputs[0], result)) continue;
    const std::size_t hidden = hides(where.inputs[1]) ? 1 : hides(where.inputs[2]) ? 2 : 0;
    if (hidden == 0 || graph.value(where.inputs[3 - hidden]).type != result) continue;
    const ValueId scores = where.inputs[3 - hidden];
    Node mask = where;
    mask.name += "_mask";
    mask.inputs[3 - hidden] =
        new_value(where.name + ".zero", {DataType::f32, {}},
                  store.intern(std::make_shared<const Tensor>(Tensor(TensorType{DataType::f32, {}}))));
    Shape shape = graph.value(where.inputs[0]).type.shape;
    const Shape& other = graph.value(where.inputs[hidden]).type.shape;
    while (shape.size() < other.size()) shape.insert(shape.begin(), 1);
    mask.outputs = {new_value(where.name + ".mask", {DataType::f32, std::move(shape)}, nullptr)};
    const ValueId added = mask.outputs[0];
    masks.emplace_back(static_cast<std::size_t>(made), std::move(mask));
    where = Node{.name = where.name,
                 .op = "Add",
                 .inputs = {scores, added},
                 .outputs = where.outputs,
                 .guard = where.guard};
  }
  std::sort(masks.begin(), masks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  auto next = masks.begin();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (next != masks.end() && next->first == i) graph.nodes.push_back(std::move((next++)->second));
    graph.nodes.push_back(std::move(nodes[i]));
  }
}

}  // namespace carillon::graph
