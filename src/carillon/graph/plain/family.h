#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "carillon/graph/kernel.h"

namespace carillon::graph::plain {

using InputTypes = std::span<const TensorType* const>;
using Inputs = std::span<const ConstView>;
using Outputs = std::span<const MutableView>;

// Chooses the kernel for one operator by its inputs' types; nullptr where it has none.
using Finder = PlainKernel (*)(const Node& node, InputTypes types);

struct Operator {
  std::string_view name;
  Finder find;
};

// The operators of each family, one source file each.
std::span<const Operator> unary_operators();
std::span<const Operator> binary_operators();
std::span<const Operator> logic_operators();
std::span<const Operator> cast_operators();
std::span<const Operator> reduce_operators();
std::span<const Operator> order_operators();
std::span<const Operator> softmax_operators();
std::span<const Operator> convolution_operators();
std::span<const Operator> pool_operators();
std::span<const Operator> norm_operators();
std::span<const Operator> matmul_operators();
std::span<const Operator> move_operators();
std::span<const Operator> pad_operators();
std::span<const Operator> index_operators();
std::span<const Operator> resize_operators();
std::span<const Operator> generate_operators();

// The type of input `index`, or nullptr where it is absent.
inline const TensorType* type_at(InputTypes types, std::size_t index) {
  return index < types.size() ? types[index] : nullptr;
}
inline bool has_type(InputTypes types, std::size_t index, DataType type) {
  const TensorType* at = type_at(types, index);
  return at != nullptr && at->type == type;
}
// Inputs [0, count) are there and of one element type (those of `count` and beyond do not matter).
inline bool same_types(InputTypes types, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (type_at(types, i) == nullptr || types[i]->type != types[0]->type) return false;
  }
  return count > 0;
}
inline bool is_index(DataType type) {
  return type == DataType::i64 || type == DataType::i32;
}

inline ConstView input(Inputs inputs, std::size_t index) {
  return index < inputs.size() ? inputs[index] : ConstView{};
}
inline MutableView output(Outputs outputs, std::size_t index) {
  return index < outputs.size() ? outputs[index] : MutableView{};
}

// "node 'name' (Op): <what>"
std::unexpected<Error> failed(const Node& node, std::string_view what);
// The shapes of a node's operands do not fit together.
std::unexpected<Error> misfit(const Node& node, Inputs inputs, Outputs outputs);
std::unexpected<Error> bad_index(const Node& node, std::int64_t index, std::int64_t extent);

// Element `at` of a tensor of i64 or i32.
inline std::int64_t index_at(const ConstView& view, std::int64_t at) {
  return view.type->type == DataType::i32 ? view.as<std::int32_t>()[at] : view.as<std::int64_t>()[at];
}

// `axis` counted from the front, or nothing where it is outside [-rank, rank).
inline std::optional<std::int64_t> axis_of(std::int64_t axis, std::size_t rank) {
  const auto r = static_cast<std::int64_t>(rank);
  if (axis < -r || axis >= r) return std::nullopt;
  return axis < 0 ? axis + r : axis;
}
// As above for the attribute `axis` of `node`.
inline std::optional<std::int64_t> node_axis(const Node& node, std::int64_t fallback, std::size_t rank) {
  return axis_of(node.integer("axis", fallback), rank);
}
std::unexpected<Error> bad_axis(const Node& node, std::size_t rank);

}  // namespace carillon::graph::plain
