#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

// Such a number gives a score no weight beside others: it is there to mask.
constexpr float hides_any_score = -1e30F;
constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

void mask_by_bounds(Graph& graph, ConstantStore& store) {
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

  const auto number = [&](const std::string& name, float value) {
    return new_value(name, {DataType::f32, {}},
                     store.intern(std::make_shared<const Tensor>(scalar_of(DataType::f32, value))));
  };

  // By the Where's place: the nodes that are there instead.
  std::map<std::size_t, std::vector<Node>> instead;
  for (const Node& softmax : nodes) {
    if (softmax.op != "Softmax") continue;
    const std::int64_t made = maker[softmax.inputs[0].index()];
    if (made < 0 || uses[softmax.inputs[0].index()] != 1) continue;
    const Node& where = nodes[static_cast<std::size_t>(made)];
    if (where.op != "Where") continue;
    const TensorType result = graph.value(where.outputs[0]).type;
    if (result.type != DataType::f32 || !is_small(where.inputs[0], result)) continue;
    const std::size_t hidden = hides(where.inputs[1]) ? 1 : hides(where.inputs[2]) ? 2 : 0;
    if (hidden == 0 || graph.value(where.inputs[3 - hidden]).type != result) continue;
    Shape shape = graph.value(where.inputs[0]).type.shape;
    const Shape& other = graph.value(where.inputs[hidden]).type.shape;
    while (shape.size() < other.size()) shape.insert(shape.begin(), 1);
    std::vector<Node>& made_of = instead[static_cast<std::size_t>(made)];
    ValueId scores = where.inputs[3 - hidden];
    const auto bound = [&](const char* op, const char* name, float shown, ValueId to) {
      Node mask = where;
      mask.name += name;
      mask.inputs[3 - hidden] = number(where.name + name + ".shown", shown);
      mask.outputs = {new_value(where.name + name, {DataType::f32, shape}, nullptr)};
      Node node{.name = where.name,
                .op = op,
                .inputs = {scores, mask.outputs[0]},
                .outputs = {to},
                .guard = where.guard};
      made_of.push_back(std::move(mask));
      made_of.push_back(std::move(node));
      scores = to;
    };
    const bool finite = graph.value(where.inputs[hidden]).constant->as<float>()[0] > -infinity;
    bound("AtMost", "_high", infinity,
          finite ? new_value(where.name + ".at_most", result, nullptr) : where.outputs[0]);
    if (finite) bound("AtLeast", "_low", -infinity, where.outputs[0]);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto other = instead.find(i);
    if (other == instead.end())
      graph.nodes.push_back(std::move(nodes[i]));
    else
      std::ranges::move(other->second, std::back_inserter(graph.nodes));
  }
}

}  // namespace carillon::graph
