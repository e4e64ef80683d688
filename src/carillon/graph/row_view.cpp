#include "carillon/graph/row_view.h"

#include <algorithm>

namespace carillon::graph {

RowView::RowView(const RowTrace& trace, int index)
    : trace_(trace),
      node_(trace.together().nodes[static_cast<std::size_t>(index)]),
      results_(node_.outputs.size()) {}

const Shape& RowView::shape(std::size_t i) const {
  return trace_.together().value(node_.inputs[i]).type.shape;
}
const Shape& RowView::out_shape(std::size_t i) const {
  return trace_.together().value(node_.outputs[i]).type.shape;
}
std::int64_t RowView::elements(std::size_t i) const {
  return trace_.together().value(node_.inputs[i]).type.elements();
}

const RowLayout* RowView::rows(std::size_t i) const {
  if (!present(i)) return nullptr;
  const RowState& state = trace_.of(node_.inputs[i]);
  return state.kind == RowState::Kind::rows ? &state.layout : nullptr;
}

bool RowView::fixed(std::size_t i) const {
  return !present(i) || trace_.of(node_.inputs[i]).kind == RowState::Kind::shared;
}

bool RowView::fixed_from(std::size_t first) const {
  for (std::size_t i = first; i < inputs(); ++i)
    if (!fixed(i)) return false;
  return true;
}

bool RowView::has(std::size_t i, const RowLayout& layout) const {
  if (!present(i)) return false;
  if (const RowLayout* mine = rows(i)) return *mine == layout;
  return trace_.constant_has(node_.inputs[i], layout);
}

std::optional<std::vector<std::int64_t>> RowView::numbers_of(const Graph& graph, std::size_t i) const {
  if (!present(i) || !graph.is_constant(node_.inputs[i])) return std::nullopt;
  const Tensor& tensor = *graph.value(node_.inputs[i]).constant;
  std::vector<std::int64_t> out;
  if (tensor.type().type == DataType::i64)
    for (const std::int64_t n : tensor.as<std::int64_t>()) out.push_back(n);
  else if (tensor.type().type == DataType::i32)
    for (const std::int32_t n : tensor.as<std::int32_t>()) out.push_back(n);
  else
    return std::nullopt;
  return out;
}

std::optional<std::vector<std::int64_t>> RowView::numbers(std::size_t i) const {
  return numbers_of(trace_.together(), i);
}

std::optional<std::vector<std::int64_t>> RowView::numbers_alone(std::size_t i) const {
  return numbers_of(trace_.alone() != nullptr ? *trace_.alone() : trace_.together(), i);
}

const Shape& RowView::shape_alone(std::size_t i) const {
  return (proves() ? *trace_.alone() : trace_.together()).value(node_.inputs[i]).type.shape;
}

bool RowView::broadcasts(std::size_t i, const RowLayout& result, std::size_t rank) const {
  return broadcasts_by_rows(trace_, node_.inputs[i], result, rank);
}

std::vector<const TensorType*> RowView::types() const {
  std::vector<const TensorType*> out;
  for (const ValueId id : node_.inputs)
    out.push_back(id == no_value ? nullptr : &trace_.together().value(id).type);
  return out;
}

std::optional<std::vector<float>> RowView::reals(std::size_t i) const {
  if (!present(i) || !trace_.together().is_constant(node_.inputs[i])) return std::nullopt;
  const Tensor& tensor = *trace_.together().value(node_.inputs[i]).constant;
  if (tensor.type().type != DataType::f32) return std::nullopt;
  const auto from = tensor.as<float>();
  return std::vector<float>(from.begin(), from.end());
}

std::optional<RowLayout> RowView::own_rows(std::size_t i, const RowLayout& data, int coordinate) const {
  if (!proves() || !numbers(i) || !numbers_alone(i)) return std::nullopt;
  const Shape &here = shape(i), &there = shape_alone(i);
  if (here.size() != there.size()) return std::nullopt;
  const auto axis = static_cast<std::size_t>(std::ranges::mismatch(here, there).in1 - here.begin());
  if (axis + (coordinate < 0 ? 0 : 1) >= here.size() || here[axis] != batch() * there[axis])
    return std::nullopt;
  Shape others = here;
  others[axis] = there[axis];
  if (others != there) return std::nullopt;
  for (std::int64_t outer = 1; outer <= there[axis]; ++outer) {
    if (there[axis] % outer != 0) continue;
    const RowLayout own{static_cast<int>(axis), outer, there[axis] / outer};
    if (points_at_own(i, own, data, coordinate)) return own;
  }
  return std::nullopt;
}

bool RowView::points_at_own(std::size_t i, const RowLayout& own, const RowLayout& data,
                            int coordinate) const {
  const auto here = *numbers(i), there = *numbers_alone(i);
  const Shape& shape = shape_alone(i);
  const std::int64_t rows = batch(), last = shape.back();
  std::int64_t behind = own.inner;
  for (std::size_t d = static_cast<std::size_t>(own.axis) + 1; d < shape.size(); ++d) behind *= shape[d];
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(here.size()); ++at) {
    const std::int64_t row = at / behind % rows;
    std::int64_t index = here[static_cast<std::size_t>(at)];
    std::int64_t alone = there[static_cast<std::size_t>(at / (behind * rows) * behind + at % behind)];
    if (coordinate >= 0 && at % last != coordinate) {
      if (index != alone) return false;
      continue;
    }
    const std::int64_t extent = data.outer * data.inner;
    if (index < 0) index += extent * rows;
    if (alone < 0) alone += extent;
    const std::int64_t to = index / (rows * data.inner) * data.inner + index % data.inner;
    if (index < 0 || index >= extent * rows || index / data.inner % rows != row || to != alone) return false;
  }
  return true;
}

bool broadcasts_by_rows(const RowTrace& trace, ValueId operand, const RowLayout& result, std::size_t rank) {
  const Shape& shape = trace.together().value(operand).type.shape;
  const RowState& state = trace.of(operand);
  const int axis = result.axis - static_cast<int>(rank) + static_cast<int>(shape.size());
  const RowLayout here{axis, result.outer, result.inner};
  if (state.kind == RowState::Kind::rows) return state.layout == here;
  if (axis < 0 || shape[static_cast<std::size_t>(axis)] == 1) return state.kind == RowState::Kind::shared;
  return trace.constant_has(operand, here);
}

}  // namespace carillon::graph
