#include <algorithm>
#include <optional>

#include "carillon/engine/cpu/plan_builder.h"

namespace carillon::engine::cpu {

// Reshape and Transpose only change how bytes are seen; who cannot read them so gets a reorder in front of
// it.
bool lower_view(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0], output = node.outputs[0];
  if (builder.is_constant(input) || !node.post_ops.empty()) return false;
  Operand operand = builder.current(input);
  if (node.op == "Reshape") {
    if (builder.is_laid_out(input) != builder.is_laid_out(output))
      return false;  // rank out of oneDNN's range
    if (builder.is_laid_out(input)) {
      Desc seen = reshaped(operand.desc, builder.shape(output));
      if (seen.is_zero()) {
        operand = builder.in_layout(input, row_major(builder.shape(input), operand.desc.get_data_type()));
        seen = reshaped(operand.desc, builder.shape(output));
      }
      operand.desc = seen;
    }
    builder.alias(output, operand);
    return true;
  }
  if (!builder.is_laid_out(input) || builder.shape(input).empty()) return false;
  const auto perm = node.integers("perm");
  std::vector<std::int64_t> order(perm.begin(), perm.end());
  if (order.empty())  // ONNX: all dimensions turned round
    for (std::size_t i = builder.shape(input).size(); i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
  if (order.size() != builder.shape(input).size()) return false;
  const Desc seen = transposed(operand.desc, order);
  if (seen.is_zero()) return false;
  operand.desc = seen;
  builder.alias(output, operand);
  return true;
}

namespace {

// `operand` from `first` on along each dimension, `shape` elements.
std::optional<Operand> part_of(Operand operand, const Dims& first, std::span<const std::int64_t> shape) {
  if (operand.desc.get_inner_nblks() != 0 || operand.desc.get_submemory_offset() != 0) return std::nullopt;
  const Dims strides = operand.desc.get_strides();
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < first.size(); ++d) offset += first[d] * strides[d];
  const DnnlType type = operand.desc.get_data_type();
  operand.offset += static_cast<std::uint64_t>(offset) * dnnl::memory::data_type_size(type);
  operand.desc = Desc(Dims(shape.begin(), shape.end()), type, strides);
  return operand;
}

std::vector<std::int64_t> integers_of(PlanBuilder& builder, graph::ValueId id) {
  const graph::Tensor& tensor = *builder.constant(id);
  std::vector<std::int64_t> out;
  if (tensor.type().type == graph::DataType::i64)
    for (const std::int64_t n : tensor.as<std::int64_t>()) out.push_back(n);
  else if (tensor.type().type == graph::DataType::i32)
    for (const std::int32_t n : tensor.as<std::int32_t>()) out.push_back(n);
  return out;
}

// One element along an axis, which the result lacks. Where there is no such element it is the plain kernel
// that says so, if it ever runs.
bool lower_element(PlanBuilder& builder, const graph::Node& node, const Operand& whole) {
  if (!builder.is_constant(node.inputs[1]) || !builder.shape(node.inputs[1]).empty()) return false;
  const graph::Shape& x = builder.shape(node.inputs[0]);
  const auto rank = static_cast<std::int64_t>(x.size());
  const std::int64_t given = node.integer("axis", 0);
  const auto axis = static_cast<std::size_t>(given < 0 ? given + rank : given);
  const std::int64_t extent = x[axis], asked = integers_of(builder, node.inputs[1]).front();
  const std::int64_t index = asked < 0 ? asked + extent : asked;
  if (index < 0 || index >= extent) return false;
  Dims first(x.size(), 0), shape(x.begin(), x.end());
  first[axis] = index;
  shape[axis] = 1;
  auto part = part_of(whole, first, shape);
  if (!part) return false;
  part->desc = reshaped(part->desc, builder.shape(node.outputs[0]));
  if (part->desc.is_zero()) return false;
  builder.alias(node.outputs[0], *part);
  return true;
}

}  // namespace

// Parts of a value are where it lies, with gaps between them; who wants them without makes a copy.
bool lower_slice(PlanBuilder& builder, const graph::Node& node) {
  const auto input = node.inputs[0];
  if (!builder.is_laid_out(input) || builder.is_constant(input) || !node.post_ops.empty()) return false;
  const graph::Shape& x = builder.shape(input);
  if (x.empty()) return false;
  const auto rank = static_cast<std::int64_t>(x.size());
  const Operand whole = builder.current(input);
  if (node.op == "Split") {
    const std::int64_t given = node.integer("axis", 0);
    const auto axis = static_cast<std::size_t>(given < 0 ? given + rank : given);
    std::vector<std::pair<graph::ValueId, Operand>> parts;
    Dims first(x.size(), 0);
    for (const auto id : node.outputs) {
      if (id == graph::no_value || !builder.is_laid_out(id)) return false;
      const auto part = part_of(whole, first, builder.shape(id));
      if (!part) return false;
      parts.emplace_back(id, *part);
      first[axis] += builder.shape(id)[axis];
    }
    for (const auto& [id, part] : parts) builder.alias(id, part);
    return true;
  }
  const auto output = node.outputs[0];
  if (!builder.is_laid_out(output)) return false;
  if (node.op == "Gather") return lower_element(builder, node, whole);
  for (std::size_t i = 1; i < node.inputs.size(); ++i)
    if (node.inputs[i] != graph::no_value && !builder.is_constant(node.inputs[i])) return false;
  const auto list = [&](std::size_t i) {
    return i < node.inputs.size() && node.inputs[i] != graph::no_value ? integers_of(builder, node.inputs[i])
                                                                       : std::vector<std::int64_t>();
  };
  const auto starts = list(1), axes = list(3), steps = list(4);
  if (starts.empty() || !std::ranges::all_of(steps, [](std::int64_t step) { return step == 1; }))
    return false;
  Dims first(x.size(), 0);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t axis = axes.empty()  ? static_cast<std::int64_t>(i)
                              : axes[i] < 0 ? axes[i] + rank
                                            : axes[i];
    const std::int64_t extent = x[static_cast<std::size_t>(axis)];
    first[static_cast<std::size_t>(axis)] =
        std::clamp<std::int64_t>(starts[i] < 0 ? starts[i] + extent : starts[i], 0, extent);
  }
  const auto part = part_of(whole, first, builder.shape(output));
  if (!part) return false;
  builder.alias(output, *part);
  return true;
}

}  // namespace carillon::engine::cpu
