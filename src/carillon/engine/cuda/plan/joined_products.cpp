#include "carillon/engine/cuda/plan/joined_products.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "carillon/engine/cuda/plan/lower.h"
#include "carillon/graph/empty.h"

namespace carillon::engine::cuda {

namespace {

using graph::DataType;
using graph::Node;
using graph::ValueId;

// Slices of so many columns begin at whole 16 bytes in f16, as kernels for tensor cores want it.
constexpr std::int64_t whole_columns = 8;

const graph::SharedTensor& matrix_of(const graph::Graph& graph, const Node& node) {
  return graph.value(node.inputs[1]).constant;
}
std::int64_t columns_of(const graph::Graph& graph, const Node& node) {
  return graph.value(node.inputs[1]).type.shape[1];
}

bool is_row(const graph::Graph& graph, ValueId id, std::int64_t columns) {
  if (!graph.is_constant(id)) return false;
  const graph::TensorType& type = graph.value(id).type;
  return type.type == DataType::f32 && type.elements() == columns && !type.shape.empty() &&
         type.shape.back() == columns;
}

// Whether it is a product of a value and a constant matrix, with or without a row that is added.
bool fits(const graph::Graph& graph, const Node& node) {
  if (node.op != "MatMul" || node.guard >= 0 || node.outputs.size() != 1 || graph::has_empty(graph, node))
    return false;
  const ValueId a = node.inputs[0], b = node.inputs[1];
  if (graph.is_constant(a) || !graph.is_constant(b)) return false;
  const graph::TensorType &left = graph.value(a).type, &right = graph.value(b).type;
  if (left.type != DataType::f32 || right.type != DataType::f32 || left.shape.size() < 2 ||
      right.shape.size() != 2 || right.shape[1] % whole_columns != 0)
    return false;
  if (node.post_ops.empty()) return true;
  return node.post_ops.size() == 1 && node.post_ops[0].kind == graph::PostOp::Kind::add &&
         is_row(graph, node.post_ops[0].operand, right.shape[1]);
}

// By value: whether Reshapes and Transposes alone read it.
std::vector<bool> only_viewed(const graph::Graph& graph) {
  std::vector<bool> out(graph.values.size(), true);
  const auto is_read = [&](ValueId id) {
    if (id != graph::no_value) out[id.index()] = false;
  };
  for (const Node& node : graph.nodes) {
    const bool is_view = node.guard < 0 && (node.op == "Reshape" || node.op == "Transpose");
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (!is_view || i > 0) is_read(node.inputs[i]);
    for (const graph::PostOp& post : node.post_ops) is_read(post.operand);
  }
  for (const graph::Guard& guard : graph.guards) is_read(guard.condition);
  for (const ValueId id : graph.outputs) is_read(id);
  return out;
}

// Side by side: of each of `rows` rows, each part's.
void join(std::span<const std::span<const float>> parts, std::size_t rows, std::span<float> to) {
  std::size_t at = 0;
  for (std::size_t row = 0; row < rows; ++row)
    for (const auto part : parts) {
      const std::size_t columns = part.size() / rows;
      std::ranges::copy(part.subspan(row * columns, columns), to.begin() + static_cast<std::ptrdiff_t>(at));
      at += columns;
    }
}

}  // namespace

std::vector<std::vector<std::size_t>> find_joined_products(const graph::Graph& graph) {
  const std::vector<bool> viewed = only_viewed(graph);
  // By what those of a group have in common; in the order of their first nodes.
  std::map<std::tuple<std::uint32_t, bool>, std::size_t> known;
  std::vector<std::vector<std::size_t>> out;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!fits(graph, node) || !viewed[node.outputs[0].index()]) continue;
    const auto [it, is_new] = known.try_emplace({node.inputs[0].value, node.post_ops.empty()}, out.size());
    if (is_new) out.emplace_back();
    out[it->second].push_back(n);
  }
  std::erase_if(out, [](const auto& group) { return group.size() < 2; });
  return out;
}

Result<> lower_joined_products(Builder& builder, const std::vector<std::size_t>& group) {
  const graph::Graph& graph = builder.graph();
  std::vector<const Node*> nodes;
  for (const std::size_t n : group) nodes.push_back(&graph.nodes[n]);
  const Node& first = *nodes.front();
  builder.enter(first);
  const Lying a = builder.in(first.inputs[0]);
  const std::int64_t depth = a.shape.back();
  std::int64_t columns = 0;
  for (const Node* const node : nodes) columns += columns_of(graph, *node);

  const auto joined = [&](const char* what, const Shape& of, std::int64_t rows, const auto& tensor_of) {
    std::vector<graph::SharedTensor> tensors;
    for (const Node* const node : nodes) tensors.push_back(tensor_of(*node));
    return builder.packed(tensors, what, of, a.type, [&](std::span<float> to) {
      std::vector<std::span<const float>> parts;
      for (const graph::SharedTensor& tensor : tensors) parts.push_back(std::as_const(*tensor).as<float>());
      join(parts, static_cast<std::size_t>(rows), to);
    });
  };
  const Lying weights = joined("side by side", {depth, columns}, depth,
                               [&](const Node& node) { return matrix_of(graph, node); });
  std::optional<Lying> bias;
  if (!first.post_ops.empty())
    bias = joined("row by row", {columns}, 1,
                  [&](const Node& node) { return builder.constant(node.post_ops[0].operand); });
  Shape shape = a.shape;
  shape.back() = columns;
  const auto whole = multiply_by_constant(builder, a, weights, shape, bias);
  if (!whole) return std::unexpected(whole.error());
  for (std::int64_t at = 0; const Node* const node : nodes) {
    const std::int64_t own = columns_of(graph, *node);
    builder.set(node->outputs[0], sliced(*whole, shape.size() - 1, at, own));
    at += own;
  }
  return {};
}

}  // namespace carillon::engine::cuda
