#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "carillon/graph/passes/passes.h"

namespace carillon::graph {
namespace {

// Element `index` of `whole` along `axis`.
struct TakenElement {
  ValueId whole;
  std::int64_t axis = 0;
  ValueId index;
};

class Joiner {
 public:
  explicit Joiner(Graph& graph) : graph_(graph) {}

  void run() {
    find();
    std::erase_if(groups_, [this](const auto& group) { return !is_worth_it(group.second); });
    if (groups_.empty()) return;
    std::map<std::size_t, const Group*> group_of;  // by node
    for (const auto& [key, group] : groups_)
      for (const std::size_t n : group.products) group_of.emplace(n, &group);
    std::unordered_map<const Group*, ValueId> joined;
    std::vector<Node> nodes;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node& node = graph_.nodes[n];
      const auto found = group_of.find(n);
      if (found == group_of.end()) {
        nodes.push_back(std::move(node));
        continue;
      }
      const TakenElement& part = parts_.at(node.inputs[0].index());
      const auto [entry, fresh] = joined.try_emplace(found->second, no_value);
      if (fresh) entry->second = product_of(part.whole, node, nodes);
      Node taken{
          .name = node.name, .op = "Gather", .inputs = {entry->second, part.index}, .outputs = node.outputs};
      taken.attributes.insert_or_assign("axis", Attribute{part.axis});
      nodes.push_back(std::move(taken));
    }
    graph_.nodes = std::move(nodes);
  }

 private:
  using Key = std::tuple<ValueId, std::int64_t, std::string, ValueId, ValueId>;
  struct Group {
    std::vector<std::size_t> products;  // nodes
    std::int64_t extent = 0;            // how many elements there are
  };

  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }
  bool is_f32(ValueId id) const { return graph_.value(id).type.type == DataType::f32; }

  std::optional<TakenElement> part_of(const Node& node) const {
    if (node.op != "Gather" || node.guard >= 0) return std::nullopt;
    const ValueId whole = node.inputs[0], index = node.inputs[1];
    if (!is_f32(whole) || graph_.is_constant(whole) || !graph_.is_constant(index) || !shape(index).empty())
      return std::nullopt;
    const auto rank = static_cast<std::int64_t>(shape(whole).size());
    std::int64_t axis = node.integer("axis", 0);
    if (axis < 0) axis += rank;
    // What a product sums over is left whole.
    if (axis < 0 || axis >= rank - 1) return std::nullopt;
    return TakenElement{whole, axis, index};
  }

  // Of constant weights, so that each row of the result depends on one row of the operand.
  bool is_product(const Node& node) const {
    if ((node.op != "MatMul" && node.op != "Gemm") || node.guard >= 0 || !node.post_ops.empty()) return false;
    const ValueId weights = node.inputs[1];
    if (!graph_.is_constant(weights) || !is_f32(weights) || shape(weights).size() != 2) return false;
    if (node.op == "MatMul") return true;
    if (node.integer("transA", 0) != 0) return false;
    if (node.inputs.size() < 3 || node.inputs[2] == no_value) return true;
    const Shape& bias = shape(node.inputs[2]);
    return graph_.is_constant(node.inputs[2]) && (bias.size() < 2 || bias[0] == 1);
  }

  void find() {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (const auto part = part_of(node)) {
        parts_.emplace(node.outputs[0].index(), *part);
        continue;
      }
      if (!is_product(node)) continue;
      const auto part = parts_.find(node.inputs[0].index());
      if (part == parts_.end()) continue;
      const auto& [whole, axis, index] = part->second;
      Group& group = groups_[{whole, axis, signature(node), node.inputs[1],
                              node.inputs.size() > 2 ? node.inputs[2] : no_value}];
      group.products.push_back(n);
      group.extent = shape(whole)[static_cast<std::size_t>(axis)];
    }
  }

  // No more than twice the rows that are asked for are multiplied: weights that are read once instead of
  // twice pay for these.
  static bool is_worth_it(const Group& group) {
    const auto count = static_cast<std::int64_t>(group.products.size());
    return count >= 2 && 2 * count >= group.extent;
  }

  ValueId add(Node node, Shape result, std::vector<Node>& to) {
    graph_.values.push_back({node.name, {DataType::f32, std::move(result)}, nullptr});
    node.outputs = {ValueId{static_cast<std::uint32_t>(graph_.values.size() - 1)}};
    to.push_back(std::move(node));
    return to.back().outputs[0];
  }

  // The product like `node`, of all of `whole`.
  ValueId product_of(ValueId whole, const Node& node, std::vector<Node>& to) {
    Shape result = shape(whole);
    const std::int64_t inner = result.back(), columns = shape(node.outputs[0]).back();
    result.back() = columns;
    Node product{.name = node.name + ".all", .op = node.op, .inputs = node.inputs, .outputs = {}};
    product.attributes = node.attributes;
    product.inputs[0] = whole;
    if (node.op == "MatMul") return add(std::move(product), std::move(result), to);
    // A Gemm takes matrices.
    const std::int64_t rows = graph_.value(whole).type.elements() / inner;
    product.inputs[0] = add({.name = node.name + ".rows", .op = "Reshape", .inputs = {whole}, .outputs = {}},
                            {rows, inner}, to);
    const ValueId flat = add(std::move(product), {rows, columns}, to);
    return add({.name = node.name + ".parts", .op = "Reshape", .inputs = {flat}, .outputs = {}},
               std::move(result), to);
  }

  Graph& graph_;
  std::unordered_map<std::size_t, TakenElement> parts_;  // by value
  std::map<Key, Group> groups_;
};

}  // namespace

void join_products(Graph& graph) {
  Joiner(graph).run();
}

}  // namespace carillon::graph
