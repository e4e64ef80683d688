// Operators that put elements in another order or place: all are strided copies.

#include <cstring>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Reshape and all that keeps the elements as they lie.
Result<> copy(const Node& node, Inputs inputs, Outputs outputs) {
  const std::size_t bytes = inputs[0].type->bytes().count;
  if (outputs[0].type->bytes().count != bytes) return misfit(node, inputs, outputs);
  if (bytes > 0) std::memcpy(outputs[0].data, inputs[0].data, bytes);
  return {};
}

// At inference Dropout is a copy; its mask, if wanted, is all true.
Result<> dropout(const Node& node, Inputs inputs, Outputs outputs) {
  if (const MutableView mask = output(outputs, 1); mask && mask.type->elements() > 0) {
    std::memset(mask.data, 1, mask.type->bytes().count);
  }
  return outputs[0] ? copy(node, inputs, outputs) : Result<>{};
}

Result<> transpose(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& from = inputs[0].type->shape;
  const Shape& to = outputs[0].type->shape;
  const int rank = static_cast<int>(from.size());
  const auto permutation = node.integers("perm");
  if (static_cast<int>(to.size()) != rank || (!permutation.empty() && permutation.size() != from.size())) {
    return misfit(node, inputs, outputs);
  }
  const auto from_strides = dense_strides(from);
  const auto to_strides = dense_strides(to);
  Loops<2> loops;
  for (int d = 0; d < rank; ++d) {
    const std::int64_t source = permutation.empty() ? rank - 1 - d : permutation[d];
    if (source < 0 || source >= rank || to[d] != from[source]) return misfit(node, inputs, outputs);
    loops.push(to[d], {to_strides[d], from_strides[source]});
  }
  strided_copy(loops, outputs[0].data, inputs[0].data, size_of(inputs[0].type->type));
  return {};
}

Result<> expand(const Node& node, Inputs inputs, Outputs outputs) {
  Loops<2> loops;
  if (!broadcast<1>(outputs[0].type->shape, {inputs[0].type->shape}, loops)) {
    return misfit(node, inputs, outputs);
  }
  strided_copy(loops, outputs[0].data, inputs[0].data, size_of(inputs[0].type->type));
  return {};
}

// The output's extents say how often each dimension is repeated.
Result<> tile(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& from = inputs[0].type->shape;
  const Shape& to = outputs[0].type->shape;
  if (from.size() != to.size()) return misfit(node, inputs, outputs);
  if (outputs[0].type->elements() == 0) return {};
  const auto from_strides = dense_strides(from);
  const auto to_strides = dense_strides(to);
  Loops<2> loops;
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (from[d] == 0 || to[d] % from[d] != 0) return misfit(node, inputs, outputs);
    loops.push(to[d] / from[d], {to_strides[d] * from[d], 0});
    loops.push(from[d], {to_strides[d], from_strides[d]});
  }
  strided_copy(loops, outputs[0].data, inputs[0].data, size_of(inputs[0].type->type));
  return {};
}

// Inputs: data, starts, ends, axes, steps. Starts are clamped as ONNX says; the output's extents are given.
Result<> slice(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& from = inputs[0].type->shape;
  const Shape& to = outputs[0].type->shape;
  if (from.size() != to.size()) return misfit(node, inputs, outputs);
  if (outputs[0].type->elements() == 0) return {};
  const auto from_strides = dense_strides(from);
  const auto to_strides = dense_strides(to);
  std::array<std::int64_t, max_rank> start{};
  std::array<std::int64_t, max_rank> step{};
  step.fill(1);
  const ConstView starts = inputs[1];
  const ConstView axes = input(inputs, 3);
  const ConstView steps = input(inputs, 4);
  const std::int64_t count = starts.type->elements();
  if ((axes && axes.type->elements() != count) || (steps && steps.type->elements() != count)) {
    return failed(node, "starts, axes and steps differ in length");
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto axis = axis_of(axes ? index_at(axes, i) : i, from.size());
    if (!axis) return failed(node, "an axis is outside the tensor");
    const std::int64_t extent = from[*axis];
    const std::int64_t by = steps ? index_at(steps, i) : 1;
    if (by == 0) return failed(node, "a step is 0");
    std::int64_t first = index_at(starts, i);
    if (first < 0) first += extent;
    start[*axis] = by > 0 ? std::clamp<std::int64_t>(first, 0, extent)
                          : std::clamp<std::int64_t>(first, 0, std::max<std::int64_t>(extent - 1, 0));
    step[*axis] = by;
  }
  Loops<2> loops;
  std::int64_t base = 0;
  for (std::size_t d = 0; d < from.size(); ++d) {
    // |step| may be absurdly large where one element is taken; what is taken must lie inside.
    const std::int64_t by = to[d] == 1 ? 1 : step[d];
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(to[d] - 1, by, &reach) || start[d] >= from[d] || reach < -start[d] ||
        reach >= from[d] - start[d]) {
      return misfit(node, inputs, outputs);
    }
    base += start[d] * from_strides[d];
    loops.push(to[d], {to_strides[d], by * from_strides[d]});
  }
  const std::size_t size = size_of(inputs[0].type->type);
  strided_copy(loops, outputs[0].data, inputs[0].data + base * static_cast<std::int64_t>(size), size);
  return {};
}

Result<> concat(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& to = outputs[0].type->shape;
  const auto axis = node_axis(node, 0, to.size());
  if (!axis) return bad_axis(node, to.size());
  const auto size = static_cast<std::int64_t>(size_of(outputs[0].type->type));
  const Around whole = around(to, *axis);
  std::int64_t place = 0;
  for (const ConstView& view : inputs) {
    if (!view || view.type->shape.size() != to.size()) return misfit(node, inputs, outputs);
    const Around part = around(view.type->shape, *axis);
    if (part.outer != whole.outer || part.inner != whole.inner || place + part.extent > whole.extent) {
      return misfit(node, inputs, outputs);
    }
    const std::int64_t run = part.extent * part.inner;
    Loops<2> loops;
    loops.push(part.outer, {whole.extent * whole.inner, run});
    loops.push(run, {1, 1});
    strided_copy(loops, outputs[0].data + place * whole.inner * size, view.data,
                 static_cast<std::size_t>(size));
    place += part.extent;
  }
  return place == whole.extent ? Result<>{} : misfit(node, inputs, outputs);
}

// The outputs' extents say where to cut; one that nobody wants still takes its part (input 1, or an equal
// one).
Result<> split(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& from = inputs[0].type->shape;
  const auto axis = node_axis(node, 0, from.size());
  if (!axis) return bad_axis(node, from.size());
  const auto size = static_cast<std::int64_t>(size_of(inputs[0].type->type));
  const Around whole = around(from, *axis);
  const ConstView lengths = input(inputs, 1);
  const auto wanted = static_cast<std::int64_t>(outputs.size());
  // The last ones may be missing, as nobody wants them or they have no elements.
  const std::int64_t parts = lengths ? lengths.type->elements() : node.integer("num_outputs", wanted);
  if (parts < wanted) return misfit(node, inputs, outputs);
  const std::int64_t equal = (whole.extent + parts - 1) / parts;
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < wanted; ++i) {
    const std::int64_t extent = lengths ? index_at(lengths, i) : std::min(equal, whole.extent - place);
    if (extent < 0 || extent > whole.extent - place) return misfit(node, inputs, outputs);
    if (outputs[i]) {
      if (outputs[i].type->elements() != whole.outer * extent * whole.inner) {
        return misfit(node, inputs, outputs);
      }
      const std::int64_t run = extent * whole.inner;
      Loops<2> loops;
      loops.push(whole.outer, {run, whole.extent * whole.inner});
      loops.push(run, {1, 1});
      strided_copy(loops, outputs[i].data, inputs[0].data + place * whole.inner * size,
                   static_cast<std::size_t>(size));
    }
    place += extent;
  }
  return {};
}

// Both between [n, c*b*b, h, w] and [n, c, h*b, w*b]. In the deep tensor the block's place is outside the
// channel (DCR, and SpaceToDepth), or inside it (CRD).
Result<> depth_space(const Node& node, Inputs inputs, Outputs outputs) {
  const bool to_space = node.op == "DepthToSpace";
  const Shape& from = inputs[0].type->shape;
  const Shape& to = outputs[0].type->shape;
  const Shape& deep = to_space ? from : to;
  const Shape& wide = to_space ? to : from;
  const std::int64_t b = node.integer("blocksize", 1);
  if (from.size() != 4 || to.size() != 4 || b < 1 || deep[0] != wide[0] || deep[1] % b != 0 ||
      deep[1] / b % b != 0 || deep[1] / b / b != wide[1] || deep[2] * b != wide[2] ||
      deep[3] * b != wide[3]) {
    return misfit(node, inputs, outputs);
  }
  const bool crd = to_space && node.text("mode", "DCR") == "CRD";
  const std::int64_t channels = wide[1];
  const auto d = dense_strides(deep);
  const auto w = dense_strides(wide);
  const std::int64_t channel_step = crd ? d[1] * b * b : d[1];
  const std::int64_t block_step = crd ? d[1] : d[1] * channels;
  Loops<2> loops;
  const auto push = [&](std::int64_t count, std::int64_t deep_step, std::int64_t wide_step) {
    to_space ? loops.push(count, {wide_step, deep_step}) : loops.push(count, {deep_step, wide_step});
  };
  push(deep[0], d[0], w[0]);
  push(channels, channel_step, w[1]);
  push(deep[2], d[2], w[2] * b);
  push(b, block_step * b, w[2]);
  push(deep[3], d[3], b);
  push(b, block_step, 1);
  strided_copy(loops, outputs[0].data, inputs[0].data, size_of(inputs[0].type->type));
  return {};
}

// Keeps what is on or above (upper=1) or on or below the k-th diagonal of each matrix.
template <typename T>
Result<> trilu(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  if (shape.size() < 2 || outputs[0].type->elements() != inputs[0].type->elements()) {
    return misfit(node, inputs, outputs);
  }
  const bool upper = node.integer("upper", 1) != 0;
  const std::int64_t rows = shape[shape.size() - 2];
  const std::int64_t columns = shape[shape.size() - 1];
  std::int64_t k = 0;
  if (const ConstView view = input(inputs, 1)) {
    if (view.type->elements() != 1) return failed(node, "k is not a scalar");
    k = std::clamp(index_at(view, 0), -rows - 1, columns + 1);
  }
  const std::int64_t matrices = rows * columns == 0 ? 0 : inputs[0].type->elements() / (rows * columns);
  const T* x = inputs[0].as<T>();
  T* y = outputs[0].as<T>();
  for (std::int64_t m = 0; m < matrices; ++m) {
    for (std::int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
      const std::int64_t cut = std::clamp<std::int64_t>(upper ? r + k : r + k + 1, 0, columns);
      for (std::int64_t c = 0; c < columns; ++c) y[c] = (c >= cut) == upper ? x[c] : T{0};
    }
  }
  return {};
}

template <Result<> (*kernel)(const Node&, Inputs, Outputs)>
PlainKernel find(const Node&, InputTypes types) {
  return type_at(types, 0) != nullptr ? kernel : nullptr;
}
PlainKernel find_slice(const Node&, InputTypes types) {
  for (std::size_t i = 1; i < 5; ++i) {
    const TensorType* type = type_at(types, i);
    if (type == nullptr ? i < 3 : !is_index(type->type)) return nullptr;
  }
  return &slice;
}
PlainKernel find_split(const Node&, InputTypes types) {
  if (const TensorType* lengths = type_at(types, 1); lengths != nullptr && !is_index(lengths->type)) {
    return nullptr;
  }
  return type_at(types, 0) != nullptr ? &split : nullptr;
}
PlainKernel find_concat(const Node&, InputTypes types) {
  return same_types(types, types.size()) ? &concat : nullptr;
}
PlainKernel find_trilu(const Node&, InputTypes types) {
  if (type_at(types, 0) == nullptr) return nullptr;
  if (const TensorType* k = type_at(types, 1); k != nullptr && !is_index(k->type)) return nullptr;
  return pick_size(types[0]->type, []<typename T>() -> PlainKernel { return &trilu<T>; });
}

constexpr Operator operators[] = {
    {"Reshape", &find<copy>},
    {"Flatten", &find<copy>},
    {"Squeeze", &find<copy>},
    {"Unsqueeze", &find<copy>},
    {"Identity", &find<copy>},
    {"Dropout", &find<dropout>},
    {"Transpose", &find<transpose>},
    {"Expand", &find<expand>},
    {"Tile", &find<tile>},
    {"Slice", &find_slice},
    {"Concat", &find_concat},
    {"Split", &find_split},
    {"DepthToSpace", &find<depth_space>},
    {"SpaceToDepth", &find<depth_space>},
    {"Trilu", &find_trilu},
};

}  // namespace

std::span<const Operator> move_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
