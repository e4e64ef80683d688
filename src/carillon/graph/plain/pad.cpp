// Pad: constant, reflect, edge and wrap; negative pads cut.

#include <cstring>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

enum class Mode { constant, reflect, edge, wrap };

// Where element `at` (counted from the input's first, so maybe outside) of an axis comes from.
std::int64_t source(Mode mode, std::int64_t at, std::int64_t extent) {
  if (at >= 0 && at < extent) return at;
  switch (mode) {
    case Mode::constant:
      return -1;
    case Mode::edge:
      return at < 0 ? 0 : extent - 1;
    case Mode::wrap:
      return (at % extent + extent) % extent;
    case Mode::reflect: {
      if (extent == 1) return 0;
      const std::int64_t period = 2 * (extent - 1);
      const std::int64_t folded = (at % period + period) % period;
      return folded < extent ? folded : period - folded;
    }
  }
  return -1;
}

struct Padding {
  Mode mode = Mode::constant;
  int rank = 0;
  std::array<std::int64_t, max_rank> from{};
  std::array<std::int64_t, max_rank> to{};
  std::array<std::int64_t, max_rank> begin{};
  std::array<std::int64_t, max_rank> from_stride{};
  std::array<std::int64_t, max_rank> to_stride{};
};

template <typename T>
void pad_axis(const Padding& padding, int axis, const T* from, T* to, T value) {
  const std::int64_t extent = padding.from[axis];
  const std::int64_t begin = padding.begin[axis];
  const std::int64_t count = padding.to[axis];
  if (axis == padding.rank - 1) {
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, count);
    const std::int64_t last = std::clamp<std::int64_t>(begin + extent, first, count);
    for (std::int64_t i = 0; i < first; ++i) {
      const std::int64_t at = source(padding.mode, i - begin, extent);
      to[i] = at < 0 ? value : from[at];
    }
    if (last > first) {
      std::memcpy(to + first, from + (first - begin), static_cast<std::size_t>(last - first) * sizeof(T));
    }
    for (std::int64_t i = last; i < count; ++i) {
      const std::int64_t at = source(padding.mode, i - begin, extent);
      to[i] = at < 0 ? value : from[at];
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    T* part = to + i * padding.to_stride[axis];
    const std::int64_t at = source(padding.mode, i - begin, extent);
    if (at < 0) {
      std::fill_n(part, padding.to_stride[axis], value);
    } else {
      pad_axis(padding, axis + 1, from + at * padding.from_stride[axis], part, value);
    }
  }
}

// Inputs: data, pads (begins, then ends), value, axes.
template <typename T>
Result<> pad(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& from = inputs[0].type->shape;
  const Shape& to = outputs[0].type->shape;
  const ConstView pads = inputs[1];
  const ConstView axes = input(inputs, 3);
  if (from.size() != to.size()) return misfit(node, inputs, outputs);
  if (outputs[0].type->elements() == 0) return {};
  if (from.empty()) {
    std::memcpy(outputs[0].data, inputs[0].data, sizeof(T));
    return {};
  }
  Padding padding;
  const std::string_view mode = node.text("mode", "constant");
  if (mode == "reflect") {
    padding.mode = Mode::reflect;
  } else if (mode == "edge") {
    padding.mode = Mode::edge;
  } else if (mode == "wrap") {
    padding.mode = Mode::wrap;
  } else if (mode != "constant") {
    return failed(node, "mode '" + std::string(mode) + "' is none of constant, reflect, edge, wrap");
  }
  const std::int64_t count = axes ? axes.type->elements() : static_cast<std::int64_t>(from.size());
  if (pads.type->elements() != 2 * count) return failed(node, "pads are not two for each axis");
  padding.rank = static_cast<int>(from.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto axis = axis_of(axes ? index_at(axes, i) : i, from.size());
    if (!axis) return failed(node, "an axis is outside the tensor");
    padding.begin[*axis] = index_at(pads, i);
  }
  for (int d = 0; d < padding.rank; ++d) {
    if (padding.begin[d] > to[d] || padding.begin[d] < -from[d] ||
        (from[d] == 0 && padding.mode != Mode::constant)) {
      return misfit(node, inputs, outputs);
    }
    padding.from[d] = from[d];
    padding.to[d] = to[d];
  }
  padding.from_stride = dense_strides(from);
  padding.to_stride = dense_strides(to);
  T value{0};
  if (const ConstView given = input(inputs, 2)) {
    if (given.type->elements() != 1) return failed(node, "the value to pad with is not a scalar");
    value = *given.as<T>();
  }
  pad_axis(padding, 0, inputs[0].as<T>(), outputs[0].as<T>(), value);
  return {};
}

PlainKernel find(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr || type_at(types, 1) == nullptr || !is_index(types[1]->type)) {
    return nullptr;
  }
  if (const TensorType* value = type_at(types, 2); value != nullptr && value->type != types[0]->type) {
    return nullptr;
  }
  if (const TensorType* axes = type_at(types, 3); axes != nullptr && !is_index(axes->type)) return nullptr;
  return pick_size(types[0]->type, []<typename T>() -> PlainKernel { return &pad<T>; });
}

constexpr Operator operators[] = {{"Pad", &find}};

}  // namespace

std::span<const Operator> pad_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
