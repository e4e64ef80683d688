#include <algorithm>
#include <string_view>
#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::graph {
namespace {

template <typename T>
bool all_equal(const Tensor& tensor, T value) {
  const auto values = tensor.as<T>();
  return std::all_of(values.begin(), values.end(), [&](T v) { return v == value; });
}

// Whether input `i` is a constant list of integers that all are `value`.
bool all_integers(const Graph& graph, const Node& node, std::size_t i, std::int64_t value) {
  if (i >= node.inputs.size() || !graph.is_constant(node.inputs[i])) return false;
  const Tensor& tensor = *graph.value(node.inputs[i]).constant;
  if (tensor.type().type == DataType::i64) return all_equal<std::int64_t>(tensor, value);
  if (tensor.type().type == DataType::i32) return all_equal(tensor, static_cast<std::int32_t>(value));
  return false;
}

// The input that `node`'s only output equals, or no_value.
ValueId same_as(const Editor& editor, const Graph& graph, const Node& node) {
  if (node.outputs.size() != 1 || node.inputs.empty() || !node.post_ops.empty()) return no_value;
  if (node.op == "Merge") return node.inputs[1] == node.inputs[2] ? node.inputs[1] : no_value;
  const ValueId x = node.inputs[0];
  if (x == no_value || graph.value(x).type != graph.value(node.outputs[0]).type) {
    // Only arithmetic with a constant can still give its other operand.
    if (node.op != "Add" && node.op != "Mul") return no_value;
  } else {
    const std::string_view op = node.op;
    const bool one = node.inputs.size() == 1;
    if (op == "Identity" || op == "Cast" || op == "Reshape" || op == "Expand" || op == "Tile") return x;
    if (one && (op == "Concat" || op == "Sum" || op == "Mean" || op == "Max" || op == "Min")) return x;
    if (op == "Split") return x;
    if (op == "Pad" && all_integers(graph, node, 1, 0)) return x;
    if (op == "Slice" &&
        (node.inputs.size() < 5 || node.inputs[4] == no_value || all_integers(graph, node, 4, 1)))
      return x;
    if (op == "Transpose") {
      const auto perm = node.integers("perm");
      if (std::is_sorted(perm.begin(), perm.end())) return x;
    }
  }
  if (node.inputs.size() != 2) return no_value;
  float value = 0;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    const ValueId other = node.inputs[1 - i];
    if (!editor.scalar(node.inputs[i], value) || other == no_value ||
        graph.value(other).type != graph.value(node.outputs[0]).type)
      continue;
    if ((node.op == "Mul" && value == 1) || (node.op == "Add" && value == 0)) return other;
    if (i == 1 && ((node.op == "Div" && value == 1) || (node.op == "Sub" && value == 0))) return other;
  }
  return no_value;
}

Node reshape_of(const Node& node, ValueId from) {
  return Node{.name = node.name, .op = "Reshape", .inputs = {from}};
}

bool moves_only_ones(const Shape& from, std::span<const std::int64_t> perm) {
  std::int64_t last = -1;
  for (const std::int64_t axis : perm) {
    if (from[static_cast<std::size_t>(axis)] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

// Reshape of Reshape, Transpose of Transpose, Transpose that moves nothing.
void simplify_moves(Editor& editor) {
  Graph& graph = editor.graph();
  for (std::size_t i = 0; i < editor.nodes(); ++i) {
    if (!editor.alive(i)) continue;
    const Node& node = editor.node(i);
    if (!node.post_ops.empty() || node.inputs.empty() || node.inputs[0] == no_value) continue;
    const ValueId x = node.inputs[0];
    if (node.op == "Reshape") {
      if (const Node* before = editor.made_by(x, "Reshape"); before != nullptr)
        editor.replace(i, reshape_of(node, before->inputs[0]));
    } else if (node.op == "Transpose") {
      if (moves_only_ones(graph.value(x).type.shape, node.integers("perm"))) {
        editor.replace(i, reshape_of(node, x));
      } else if (const Node* before = editor.made_by(x, "Transpose"); before != nullptr) {
        std::vector<std::int64_t> perm;
        for (const std::int64_t axis : node.integers("perm"))
          perm.push_back(before->integers("perm")[static_cast<std::size_t>(axis)]);
        Node both = node;
        both.inputs[0] = before->inputs[0];
        both.attributes.insert_or_assign("perm", std::move(perm));
        editor.replace(i, std::move(both));
      }
    }
  }
}

bool broadcasts(std::string_view op) {
  static constexpr std::string_view ops[] = {
      "Add",         "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
      "LessOrEqual", "Mul", "Or",  "Pow",   "Sub",     "Where",          "Xor"};
  return std::find(std::begin(ops), std::end(ops), op) != std::end(ops);
}

// The operator broadcasts its operands itself: a tensor need not be spread out for it.
void skip_expands(Editor& editor) {
  const Graph& graph = editor.graph();
  for (std::size_t i = 0; i < editor.nodes(); ++i) {
    if (!editor.alive(i) || !broadcasts(editor.node(i).op)) continue;
    for (std::size_t k = 0; k < editor.node(i).inputs.size(); ++k) {
      const Node& node = editor.node(i);
      const Node* expand = editor.made_by(node.inputs[k], "Expand");
      if (expand == nullptr) continue;
      Node better = node;
      better.inputs[k] = expand->inputs[0];
      Shape shape;
      bool fits = true;
      for (const ValueId id : better.inputs) {
        auto both = broadcast(shape, graph.value(id).type.shape);
        fits = fits && both.has_value();
        if (fits) shape = *std::move(both);
      }
      if (fits && shape == graph.value(node.outputs[0]).type.shape) editor.replace(i, std::move(better));
    }
  }
}

// Lets every user of a no-op's result use its input instead.
void forward(Graph& graph) {
  std::vector<ValueId> instead(graph.values.size());
  std::vector<std::int64_t> maker(graph.values.size(), -1);
  for (std::size_t i = 0; i < instead.size(); ++i) instead[i] = ValueId{static_cast<std::uint32_t>(i)};
  std::vector<bool> output(graph.values.size(), false);
  for (const ValueId id : graph.outputs) output[id.index()] = true;
  const Editor editor(graph);
  // A value that stands for others is renamed at most once, so chains are short.
  const auto resolve = [&](ValueId& id) {
    while (id != no_value && instead[id.index()] != id) id = instead[id.index()];
  };

  std::vector<bool> gone(graph.nodes.size(), false);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    for (const ValueId id : node.outputs)
      if (id != no_value) maker[id.index()] = static_cast<std::int64_t>(i);
    for (ValueId& id : node.inputs) resolve(id);
    const ValueId from = same_as(editor, graph, node);
    if (from == no_value) continue;
    const ValueId to = node.outputs[0];
    if (!output[to.index()]) {
      instead[to.index()] = from;
      gone[i] = true;
    } else if (graph.is_constant(from)) {
      graph.value(to).constant = graph.value(from).constant;
      gone[i] = true;
    } else if (maker[from.index()] >= 0 && !output[from.index()]) {
      // The value under the output's name is made where the no-op's input was.
      const auto at = static_cast<std::size_t>(maker[from.index()]);
      std::replace(graph.nodes[at].outputs.begin(), graph.nodes[at].outputs.end(), from, to);
      maker[to.index()] = maker[from.index()];
      instead[from.index()] = to;
      gone[i] = true;
    } else {
      // An output that is an input, or another output, by a second name: it needs a place of its own.
      Node copy = reshape_of(node, from);
      copy.outputs = node.outputs;
      copy.guard = node.guard;
      node = std::move(copy);
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (gone[i]) continue;
    Node& node = graph.nodes[i];
    for (ValueId& id : node.inputs) resolve(id);
    for (PostOp& post : node.post_ops) resolve(post.operand);
    if (kept != i) graph.nodes[kept] = std::move(node);
    ++kept;
  }
  graph.nodes.resize(kept);
  for (Guard& guard : graph.guards) resolve(guard.condition);
}

}  // namespace

void remove_no_ops(Graph& graph) {
  forward(graph);
  {
    Editor editor(graph);
    simplify_moves(editor);
    skip_expands(editor);
    editor.finish();
  }
  forward(graph);
}

}  // namespace carillon::graph
