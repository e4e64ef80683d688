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
std::span<const Operator> quantize_operators();
std::span<const Operator> byte_operators();
std::span<const Operator> einsum_operators();
std::span<const Operator> move_operators();
std::span<const Operator> pad_operators();
std::span<const Operator> index_operators();
std::span<const Operator> resize_operators();
std::span<const Operator> generate_operators();
std::span<const Operator> recurrent_operators();
std::span<const Operator> tree_operators();
std::span<const Operator> score_operators();
std::span<const Operator> label_operators();
std::span<const Operator> loss_operators();
std::span<const Operator> training_operators();
std::span<const Operator> signal_operators();
std::span<const Operator> sample_operators();
std::span<const Operator> word_operators();
// Those of decides_extents() (bounded.h), whose results have the most elements that they can have. Behind the
// node's outputs there is one more for each of them (absent where it is): int64, an element a dimension, for
// the extents that it has. The elements lie as they do at these.
std::span<const Operator> deciding_operators();
// See plain_workspace().
std::optional<TensorType> score_workspace(const Node& node, InputTypes types);
std::optional<TensorType> recurrent_workspace(const Node& node, InputTypes types);

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

// Element `at` of `operand` is bad data, about which say() makes the Error. Notes it where somebody takes
// notes: the kernel goes on with a harmless value. Else the error, for the kernel to return.
template <typename Say>
Result<> note(const MutableView& output, const ConstView& operand, std::int64_t at, const Say& say) {
  if (output.faults == nullptr || operand.origin == nullptr) return say();
  const int row = operand.origin->row_of(at, operand.type->elements());
  if (output.faults->is_news(row)) output.faults->add(row, Result<>(say()).error());
  return {};
}
// The same of an index, where an axis has `extent` elements; an error where that is 0. `from_end`: indices
// below 0 count from the axis' end.
Result<> note_index(const Node& node, const MutableView& output, const ConstView& indices, std::int64_t at,
                    std::int64_t extent, bool from_end = true);
// ", which comes from input 'x'," where that is known, else nothing: for what is said of an operand.
std::string source_of(const ConstView& operand);

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
