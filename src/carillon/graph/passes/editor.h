#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/graph/graph.h"

namespace carillon::graph {

// Rewrites nodes of a graph in place and keeps count of who makes and who uses each value.
//
// A pattern is fused by replacing its last node: the new node makes the same value, at the same place, so the
// order stays right, and what only the old node used disappears by itself.
class Editor {
 public:
  explicit Editor(Graph& graph);

  Graph& graph() { return graph_; }
  std::size_t nodes() const { return graph_.nodes.size(); }
  bool alive(std::size_t index) const { return !dead_[index]; }
  const Node& node(std::size_t index) const { return graph_.nodes[index]; }
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }

  // The node that makes `id`, or -1 for inputs, constants and no_value.
  std::int64_t maker(ValueId id) const { return id == no_value ? -1 : maker_[id.index()]; }
  // The maker where its operator is `op`, else nullptr.
  const Node* made_by(ValueId id, std::string_view op) const;
  // Uses by nodes' inputs and post-ops, by guards and as graph outputs; one node can use a value more than
  // once.
  std::uint32_t uses(ValueId id) const { return uses_[id.index()]; }
  bool is_output(ValueId id) const { return output_[id.index()]; }

  // The only element of a constant of type float, if that is what `id` is.
  bool scalar(ValueId id, float& value) const;

  ValueId add_value(std::string name, TensorType type, SharedTensor constant = nullptr);

  // `node` takes the place of the one at `index`, under its guard, and makes the same values. May move the
  // result's maker to a later place (and under a guard, where its only user is), never to an earlier one:
  // every input must be made before `index`.
  void replace(std::size_t index, Node node);

  // Drops what is dead. The editor is not used after it.
  void finish();

 private:
  void use(const Node& node, bool more);
  void drop_unused(std::vector<ValueId> candidates);

  Graph& graph_;
  std::vector<std::int64_t> maker_;
  std::vector<std::uint32_t> uses_;
  std::vector<bool> output_;
  std::vector<bool> dead_;
};

}  // namespace carillon::graph
