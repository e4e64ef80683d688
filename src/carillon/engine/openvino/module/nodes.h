#pragma once

#include <cstddef>
#include <string>

#include <openvino/core/model.hpp>
#include <openvino/core/node.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>

namespace carillon::engine::second {

inline bool is_constant(const ov::Output<ov::Node>& value) {
  return ov::is_type<ov::op::v0::Constant>(value.get_node_shared_ptr());
}

// Calls `use` for each body of the node; an operator that is no Loop, Scan or If has none.
template <typename Use>
void each_body(const ov::Node& node, const Use& use) {
  const auto* const others = dynamic_cast<const ov::op::util::MultiSubGraphOp*>(&node);
  for (std::size_t i = 0; others != nullptr && i < others->get_internal_subgraphs_size(); ++i)
    use(*others->get_function(i));
}

// Calls `visit(node, inside)` for each operator of the model and, with `inside`, of the bodies in it.
template <typename Visit>
void each_node(const ov::Model& model, const Visit& visit, bool inside = false) {
  for (const auto& node : model.get_ordered_ops()) {
    visit(*node, inside);
    each_body(*node, [&](const ov::Model& body) { each_node(body, visit, true); });
  }
}

// The type and a number: no operator of the file became this one.
inline bool named_by_openvino(const ov::Node& node) {
  const std::string type = std::string(node.get_type_name()) + "_", &name = node.get_friendly_name();
  return name.starts_with(type) && name.find_first_not_of("0123456789", type.size()) == std::string::npos;
}

// For errors. What OpenVINO makes of one operator of the file is several nodes, and the last has its name.
inline std::string name_of(const ov::Node& node) {
  std::string out = std::string(node.get_type_name()) + " '" + node.get_friendly_name() + "'";
  if (!named_by_openvino(node)) return out;
  const ov::Node* last = &node;
  while (named_by_openvino(*last)) {
    const ov::Node* next = nullptr;
    for (const auto& output : last->outputs())
      for (const auto& reader : output.get_target_inputs())
        if (next == nullptr) next = reader.get_node();
    if (next == nullptr) return out;
    last = next;
  }
  return out + " of '" + last->get_friendly_name() + "'";
}

}  // namespace carillon::engine::second
