#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <unordered_map>

#include <openvino/openvino.hpp>

// Of what the results of a model's nodes are made: which of them data decide.
namespace carillon::engine::second {

template <std::size_t N>
bool is_one_of(const ov::Node& node, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, std::string_view(node.get_type_name())) != names.end();
}

// What data decide of a node's results: their extents, or what they hold.
struct Decided {
  bool extents = false;
  bool contents = false;
};

// Which of the operands of a node that is told sizes say them, and the first of them that do.
std::size_t first_size(const ov::Node& node);

// A result of these has no more elements than an operand has, or a few more for padding.
bool never_grows(const ov::Node& node);

// Of what each node's results are made, node by node in the order of the model.
class Origins {
 public:
  // Nodes of a body come after the node that has it, or before: what its parameters are nobody asks.
  void add(const ov::Node& node, bool inside);
  void add_guard(const ov::Output<ov::Node>& guard, const ov::Output<ov::Node>& of_what);
  Decided of(const ov::Output<ov::Node>& value) const;

 private:
  std::unordered_map<const ov::Node*, Decided> of_;
};

}  // namespace carillon::engine::second
