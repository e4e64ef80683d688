#include <memory>
#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// The mean of `id`'s maker's input over the dimensions from `axis` on, which stay as 1. no_value where it is
// not that.
ValueId mean_of(const Editor& editor, const Graph& graph, ValueId id, std::int64_t& axis) {
  const Node* mean = editor.made_by(id, "ReduceMean");
  if (mean == nullptr || mean->integer("keepdims", 1) == 0 || mean->inputs.size() < 2 ||
      !graph.is_constant(mean->inputs[1]))
    return no_value;
  const Tensor& tensor = *graph.value(mean->inputs[1]).constant;
  if (tensor.type().type != DataType::i64) return no_value;
  const auto rank = static_cast<std::int64_t>(editor.type(mean->inputs[0]).shape.size());
  std::vector<bool> reduced(static_cast<std::size_t>(rank), false);
  for (const std::int64_t a : tensor.as<std::int64_t>())
    reduced[static_cast<std::size_t>(a < 0 ? a + rank : a)] = true;
  axis = rank;
  while (axis > 0 && reduced[static_cast<std::size_t>(axis - 1)]) --axis;
  for (std::int64_t a = 0; a < axis; ++a)
    if (reduced[static_cast<std::size_t>(a)]) return no_value;
  return axis == rank ? no_value : mean->inputs[0];
}

// d where `id` is d^2.
ValueId square_of(const Editor& editor, ValueId id) {
  float two = 0;
  if (const Node* pow = editor.made_by(id, "Pow"); pow != nullptr)
    return editor.scalar(pow->inputs[1], two) && two == 2 ? pow->inputs[0] : no_value;
  const Node* mul = editor.made_by(id, "Mul");
  return mul != nullptr && mul->inputs[0] == mul->inputs[1] ? mul->inputs[0] : no_value;
}

struct Normalised {
  ValueId x = no_value;
  std::int64_t axis = 0;
  float epsilon = 0;
};

// (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)
bool match(const Editor& editor, const Graph& graph, const Node& div, Normalised& out) {
  const ValueId centred = div.inputs[0];
  const Node* root = editor.made_by(div.inputs[1], "Sqrt");
  const Node* sub = editor.made_by(centred, "Sub");
  if (root == nullptr || sub == nullptr) return false;
  const Node* add = editor.made_by(root->inputs[0], "Add");
  if (add == nullptr) return false;
  ValueId variance = no_value;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    if (editor.scalar(add->inputs[i], out.epsilon)) variance = add->inputs[1 - i];
  if (variance == no_value) return false;
  std::int64_t axis_of_variance = 0;
  const ValueId square = mean_of(editor, graph, variance, axis_of_variance);
  if (square == no_value || square_of(editor, square) != centred) return false;
  out.x = sub->inputs[0];
  return mean_of(editor, graph, sub->inputs[1], out.axis) == out.x && out.axis == axis_of_variance;
}

// The constant operand of `node` with exactly the normalised dimensions, or no_value.
ValueId parameter(const Editor& editor, const Graph& graph, const Node& node, ValueId other,
                  const Shape& wanted) {
  if (node.inputs.size() != 2 || !node.post_ops.empty()) return no_value;
  const std::size_t i = node.inputs[0] == other ? 1 : 0;
  if (node.inputs[1 - i] != other || !graph.is_constant(node.inputs[i])) return no_value;
  return editor.type(node.inputs[i]).shape == wanted ? node.inputs[i] : no_value;
}

// The only user of each value, or -1.
std::vector<std::int64_t> only_users(const Editor& editor, const Graph& graph) {
  std::vector<std::int64_t> users(graph.values.size(), -1);
  for (std::size_t i = 0; i < editor.nodes(); ++i) {
    if (!editor.alive(i)) continue;
    for (const ValueId id : editor.node(i).inputs)
      if (id != no_value && editor.uses(id) == 1) users[id.index()] = static_cast<std::int64_t>(i);
  }
  return users;
}

}  // namespace

void fuse_layer_normalization(Graph& graph, ConstantStore& store) {
  Editor editor(graph);
  const auto users = only_users(editor, graph);
  for (std::size_t i = 0; i < editor.nodes(); ++i) {
    if (!editor.alive(i) || editor.node(i).op != "Div" || !editor.node(i).post_ops.empty()) continue;
    const Node& div = editor.node(i);
    const TensorType type = editor.type(div.outputs[0]);
    Normalised found;
    if (type.type != DataType::f32 || !match(editor, graph, div, found) || editor.type(found.x) != type)
      continue;
    const Shape dimensions(type.shape.begin() + found.axis, type.shape.end());
    std::size_t last = i;
    const auto follow = [&](std::string_view op) -> ValueId {
      const ValueId result = editor.node(last).outputs[0];
      const std::int64_t user = editor.is_output(result) ? -1 : users[result.index()];
      if (user < 0 || editor.node(static_cast<std::size_t>(user)).op != op) return no_value;
      const ValueId operand =
          parameter(editor, graph, editor.node(static_cast<std::size_t>(user)), result, dimensions);
      if (operand != no_value) last = static_cast<std::size_t>(user);
      return operand;
    };
    ValueId scale = follow("Mul");
    const ValueId bias = follow("Add");
    Node norm{.name = editor.node(last).name, .op = "LayerNormalization"};
    if (scale == no_value) {
      TensorType ones{DataType::f32, dimensions};
      Tensor tensor(ones);
      for (float& v : tensor.as<float>()) v = 1;
      scale = editor.add_value(norm.name + ".scale", std::move(ones),
                               store.intern(std::make_shared<const Tensor>(std::move(tensor))));
    }
    norm.inputs = {found.x, scale};
    if (bias != no_value) norm.inputs.push_back(bias);
    norm.attributes.insert_or_assign("axis", Attribute{found.axis});
    norm.attributes.insert_or_assign("epsilon", Attribute{found.epsilon});
    editor.replace(last, std::move(norm));
  }
  editor.finish();
}

}  // namespace carillon::graph
