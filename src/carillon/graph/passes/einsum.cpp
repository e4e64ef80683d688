#include "carillon/graph/einsum.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "carillon/graph/passes/editor.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// How the labels of an Einsum take part in a product of matrices.
struct Roles {
  std::vector<int> batch;          // of both operands and the result
  std::vector<int> rows, columns;  // of the one operand and the result, of the other and the result
  std::vector<int> inner;          // of both operands alone
};

class Lowering {
 public:
  explicit Lowering(Graph& graph) : graph_(graph) {}

  void run() {
    std::vector<Node> nodes;
    for (Node& node : graph_.nodes) {
      if (node.op != "Einsum" || !lower(node, nodes)) nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
  }

 private:
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }

  std::optional<Roles> roles(const Einsum& e) const {
    Roles out;
    for (int i = 0; i < e.count; ++i) {
      const auto& label = e.labels[static_cast<std::size_t>(i)];
      if (label.extent < 1) return std::nullopt;
      // An extent of 1 leaves no stride: whose it is does not matter.
      const bool a = label.stride[0] != 0, b = label.stride[1] != 0;
      if (i >= e.kept) {
        if (label.extent > 1 && !(a && b)) return std::nullopt;  // a sum of one operand alone
        out.inner.push_back(i);
      } else if (a && b) {
        out.batch.push_back(i);
      } else {
        (b ? out.columns : out.rows).push_back(i);
      }
    }
    return out;
  }

  std::int64_t extent(const Einsum& e, const std::vector<int>& labels) const {
    std::int64_t product = 1;
    for (const int i : labels) product *= e.labels[static_cast<std::size_t>(i)].extent;
    return product;
  }

  ValueId add(Node node, std::vector<Node>& to, Shape result) {
    graph_.values.push_back({node.name, {DataType::f32, std::move(result)}, nullptr});
    const ValueId id{static_cast<std::uint32_t>(graph_.values.size() - 1)};
    node.outputs = {id};
    to.push_back(std::move(node));
    return id;
  }

  // Operand `which` with its labels in the order of `labels`, each of which it has (but those of extent 1): a
  // Transpose of its dimensions. Nothing where its dimensions are not one label each.
  std::optional<std::vector<std::int64_t>> order(const Einsum& e, std::size_t which, const Shape& dims,
                                                 const std::vector<int>& labels) const {
    std::vector<std::int64_t> perm;
    std::vector<bool> used(dims.size(), false);
    for (const int i : labels) {
      const auto& label = e.labels[static_cast<std::size_t>(i)];
      if (label.extent == 1) continue;
      std::int64_t step = 1;
      std::optional<std::size_t> found;
      for (std::size_t d = dims.size(); d-- > 0;) {
        if (!used[d] && dims[d] == label.extent && step == label.stride[which]) found = d;
        step *= dims[d];
      }
      if (!found) return std::nullopt;
      used[*found] = true;
      perm.push_back(static_cast<std::int64_t>(*found));
    }
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (used[d]) continue;
      if (dims[d] != 1) return std::nullopt;
      perm.push_back(static_cast<std::int64_t>(d));
    }
    return perm;
  }

  ValueId arranged(const Node& node, const std::string& name, ValueId id,
                   const std::vector<std::int64_t>& perm, Shape matrix, std::vector<Node>& to) {
    Shape turned;
    for (const std::int64_t d : perm) turned.push_back(shape(id)[static_cast<std::size_t>(d)]);
    if (!std::ranges::is_sorted(perm))
      id = add({.name = name + ".transposed",
                .op = "Transpose",
                .inputs = {id},
                .attributes = {{"perm", perm}},
                .guard = node.guard},
               to, turned);
    if (turned == matrix) return id;
    return add({.name = name + ".matrix", .op = "Reshape", .inputs = {id}, .guard = node.guard}, to,
               std::move(matrix));
  }

  // Appends what the node is made of; false: it stays as it is, and nothing is appended.
  bool lower(const Node& node, std::vector<Node>& to) {
    if (node.inputs.size() != 2 || node.inputs[1] == no_value || !node.post_ops.empty()) return false;
    const ValueId a = node.inputs[0], b = node.inputs[1], result = node.outputs[0];
    if (graph_.value(a).type.type != DataType::f32 || graph_.value(b).type.type != DataType::f32)
      return false;
    const std::array types{&graph_.value(a).type, &graph_.value(b).type};
    const auto e = einsum_of(node, types);
    if (!e) return false;
    const auto r = roles(*e);
    if (!r || extent(*e, r->inner) == 1 || shape(result) != e->result()) return false;
    const auto joined = [](std::initializer_list<const std::vector<int>*> parts) {
      std::vector<int> all;
      for (const auto* part : parts) all.insert(all.end(), part->begin(), part->end());
      return all;
    };
    const auto a_order = order(*e, 0, shape(a), joined({&r->batch, &r->rows, &r->inner}));
    const auto b_order = order(*e, 1, shape(b), joined({&r->batch, &r->inner, &r->columns}));
    if (!a_order || !b_order) return false;
    const std::int64_t batch = extent(*e, r->batch), rows = extent(*e, r->rows),
                       columns = extent(*e, r->columns), inner = extent(*e, r->inner);
    // The batch as the labels have it: attention's products find their views so.
    Shape left, right, product;
    for (const int i : r->batch) left.push_back(e->labels[static_cast<std::size_t>(i)].extent);
    if (left.size() > 4) left = {batch};
    right = product = left;
    left.insert(left.end(), {rows, inner});
    right.insert(right.end(), {inner, columns});
    product.insert(product.end(), {rows, columns});
    const ValueId x = arranged(node, node.name + ".a", a, *a_order, left, to);
    const ValueId y = arranged(node, node.name + ".b", b, *b_order, right, to);
    Node matmul{.name = node.name, .op = "MatMul", .inputs = {x, y}, .guard = node.guard};
    const std::vector<int> made = joined({&r->batch, &r->rows, &r->columns});
    const bool in_order = std::ranges::is_sorted(made);
    if (in_order && product == shape(result)) {
      matmul.outputs = {result};
      to.push_back(std::move(matmul));
      return true;
    }
    ValueId z = add(std::move(matmul), to, product);
    if (!in_order) {
      Shape spread;
      for (const int i : made) spread.push_back(e->labels[static_cast<std::size_t>(i)].extent);
      if (spread != product)
        z = add({.name = node.name + ".spread", .op = "Reshape", .inputs = {z}, .guard = node.guard}, to,
                spread);
      std::vector<std::int64_t> perm(made.size());
      for (std::size_t i = 0; i < made.size(); ++i)
        perm[static_cast<std::size_t>(made[i])] = static_cast<std::int64_t>(i);
      to.push_back({.name = node.name + ".transposed",
                    .op = "Transpose",
                    .inputs = {z},
                    .outputs = {result},
                    .attributes = {{"perm", perm}},
                    .guard = node.guard});
      return true;
    }
    to.push_back({.name = node.name + ".result",
                  .op = "Reshape",
                  .inputs = {z},
                  .outputs = {result},
                  .guard = node.guard});
    return true;
  }

  Graph& graph_;
};

}  // namespace

void einsum_as_matmul(Graph& graph) {
  if (std::ranges::none_of(graph.nodes, [](const Node& node) { return node.op == "Einsum"; })) return;
  Lowering(graph).run();
}

}  // namespace carillon::graph
