#include <algorithm>

#include "carillon/engine/cuda/plan/lower.h"

namespace carillon::engine::cuda {

Result<> lower_reshape(Builder& builder, const graph::Node& node) {
  const Lying in = builder.in(node.inputs[0]);
  const Shape& shape = builder.type(node.outputs[0]).shape;
  auto view = reshaped(in, shape);
  if (!view) {
    auto moved = builder.dense(in);
    if (!moved) return std::unexpected(moved.error());
    view = reshaped(*moved, shape);
  }
  builder.set(node.outputs[0], std::move(*view));
  return {};
}

Result<> lower_transpose(Builder& builder, const graph::Node& node) {
  const Lying in = builder.in(node.inputs[0]);
  std::vector<std::int64_t> order(node.integers("perm").begin(), node.integers("perm").end());
  if (order.empty())
    for (std::size_t i = in.shape.size(); i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
  builder.set(node.outputs[0], transposed(in, order));
  return {};
}

Result<> lower_slice(Builder& builder, const graph::Node& node) {
  Lying out = builder.in(node.inputs[0]);
  const auto starts = builder.integers(1), ends = builder.integers(2);
  if (!starts || !ends) return std::unexpected(starts ? ends.error() : starts.error());
  std::vector<std::int64_t> axes, steps(starts->size(), 1);
  for (std::size_t i = 0; i < starts->size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  if (builder.has(3)) {
    auto given = builder.integers(3);
    if (!given) return std::unexpected(given.error());
    axes = std::move(*given);
  }
  if (builder.has(4)) {
    auto given = builder.integers(4);
    if (!given) return std::unexpected(given.error());
    steps = std::move(*given);
  }
  const Shape& shape = builder.type(node.outputs[0]).shape;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis =
        static_cast<std::size_t>(axes[i] < 0 ? axes[i] + static_cast<std::int64_t>(shape.size()) : axes[i]);
    const std::int64_t extent = out.shape[axis];
    if (steps[i] < 0) return builder.refuse("a step below 0");
    std::int64_t first = (*starts)[i];
    if (first < 0) first += extent;
    first = std::clamp<std::int64_t>(first, 0, extent);
    out = sliced(out, axis, first, shape[axis], steps[i]);
  }
  builder.set(node.outputs[0], std::move(out));
  return {};
}

Result<> lower_split(Builder& builder, const graph::Node& node) {
  const Lying in = builder.in(node.inputs[0]);
  const std::int64_t given = node.integer("axis", 0);
  const auto axis =
      static_cast<std::size_t>(given < 0 ? given + static_cast<std::int64_t>(in.shape.size()) : given);
  std::int64_t first = 0;
  for (const graph::ValueId id : node.outputs) {
    if (id == graph::no_value) return builder.refuse("a part that nobody names");
    const std::int64_t extent = builder.type(id).shape[axis];
    builder.set(id, sliced(in, axis, first, extent));
    first += extent;
  }
  return {};
}

Result<> lower_concat(Builder& builder, const graph::Node& node) {
  const graph::TensorType& type = builder.type(node.outputs[0]);
  const std::int64_t given = node.integer("axis", 0);
  const auto axis =
      static_cast<std::size_t>(given < 0 ? given + static_cast<std::int64_t>(type.shape.size()) : given);
  if (auto whole = builder.in_place(node)) {
    // What could not be written there is brought there, for those that come after, too.
    for (const graph::ValueId id : node.inputs) {
      const Lying home = *builder.home(id);
      const Lying now = builder.in(id);
      if (now.buffer == home.buffer && now.offset == home.offset) continue;
      if (auto moved = builder.move(now, home); !moved) return moved;
      builder.set(id, home);
    }
    builder.set(node.outputs[0], std::move(*whole));
    return {};
  }
  std::optional<Lying> out = builder.home(node.outputs[0]);
  if (!out) {
    const Lying first = builder.in(node.inputs[0]);
    const bool last = type.shape.size() == 4 && axis == 1 && pixel_pitch(first) != 0;
    out = builder.fresh(first.type, type.shape, last ? channels_last(type.shape) : row_major(type.shape));
  }
  std::int64_t at = 0;
  for (const graph::ValueId id : node.inputs) {
    const Lying now = builder.in(id);
    if (auto moved = builder.move(now, sliced(*out, axis, at, now.shape[axis])); !moved) return moved;
    at += now.shape[axis];
  }
  builder.set(node.outputs[0], std::move(*out));
  return {};
}

Result<> lower_expand(Builder& builder, const graph::Node& node) {
  builder.set(node.outputs[0], broadcast(builder.in(node.inputs[0]), builder.type(node.outputs[0]).shape));
  return {};
}

Result<> lower_gather(Builder& builder, const graph::Node& node) {
  auto data = builder.dense(builder.in(node.inputs[0]));
  if (!data) return std::unexpected(data.error());
  auto indices = builder.dense(builder.in(node.inputs[1]));
  if (!indices) return std::unexpected(indices.error());
  if (indices->type != graph::DataType::i64) return builder.refuse("indices that are not int64");
  const std::int64_t given = node.integer("axis", 0);
  const auto axis =
      static_cast<std::size_t>(given < 0 ? given + static_cast<std::int64_t>(data->shape.size()) : given);
  kernels::GatherParams params{};
  params.outer = params.inner = 1;
  for (std::size_t i = 0; i < data->shape.size(); ++i)
    (i < axis    ? params.outer
     : i == axis ? params.axis
                 : params.inner) =
        i == axis ? data->shape[i] : (i < axis ? params.outer : params.inner) * data->shape[i];
  params.count = indices->elements();
  const Shape& shape = builder.type(node.outputs[0]).shape;
  Lying out = builder.fresh(data->type, shape, row_major(shape));
  if (auto put =
          builder.kernel(params, kernels::launch(params, graph::size_of(data->type), builder.processors()),
                         {{offsetof(kernels::GatherParams, input), &*data},
                          {offsetof(kernels::GatherParams, indices), &*indices}},
                         offsetof(kernels::GatherParams, output), out);
      !put)
    return put;
  builder.set(node.outputs[0], std::move(out));
  return {};
}

}  // namespace carillon::engine::cuda
