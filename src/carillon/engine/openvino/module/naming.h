#pragma once

#include <string>

#include <openvino/core/node.hpp>

namespace carillon::engine::second {

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
