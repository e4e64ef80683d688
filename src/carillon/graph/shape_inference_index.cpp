#include <algorithm>

#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

Result<> require_indices(const Inference& x, std::size_t i) {
  const DataType type = x.input(i).type;
  if (type == DataType::i64 || type == DataType::i32) return {};
  return x.error("its indices must be int64 or int32, not " + std::string(onnx_name(type)));
}

}  // namespace

Result<> slice(Inference& x) {
  auto starts = x.integers(1, "starts");
  if (!starts) return std::unexpected(starts.error());
  auto ends = x.integers(2, "ends");
  if (!ends) return std::unexpected(ends.error());
  const std::int64_t rank = x.rank(0);
  std::vector<std::int64_t> axes;
  if (x.present(3)) {
    auto given = x.integers(3, "axes");
    if (!given) return std::unexpected(given.error());
    axes = *std::move(given);
  } else {
    for (std::size_t i = 0; i < starts->size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  }
  auto resolved = x.axes(axes, rank);
  if (!resolved) return std::unexpected(resolved.error());
  std::vector<std::int64_t> steps(starts->size(), 1);
  if (x.present(4)) {
    auto given = x.integers(4, "steps");
    if (!given) return std::unexpected(given.error());
    steps = *std::move(given);
  }
  if (ends->size() != starts->size() || resolved->size() != starts->size() || steps.size() != starts->size())
    return x.error("starts, ends, axes and steps must have one length");
  Shape shape = x.shape(0);
  for (std::size_t i = 0; i < starts->size(); ++i) {
    const std::int64_t step = steps[i];
    if (step == 0) return x.error("a step is 0");
    std::int64_t& extent = shape[static_cast<std::size_t>((*resolved)[i])];
    const auto place = [&](std::int64_t at, std::int64_t low, std::int64_t high) {
      return std::clamp(at < 0 ? at + extent : at, low, high);
    };
    std::int64_t count = 0;
    if (step > 0) {
      const std::int64_t start = place((*starts)[i], 0, extent);
      const std::int64_t end = place((*ends)[i], 0, extent);
      count = end > start ? (end - start - 1) / step + 1 : 0;
    } else if (extent > 0) {
      const std::int64_t start = place((*starts)[i], 0, extent - 1);
      const std::int64_t end = place((*ends)[i], -1, extent - 1);
      // -step would overflow for the smallest integer; dividing by step itself does not.
      count = end < start ? (end - start + 1) / step + 1 : 0;
    }
    extent = count;
  }
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> gather(Inference& x) {
  if (auto ok = require_indices(x, 1); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  const Shape& data = x.shape(0);
  const Shape& indices = x.shape(1);
  Shape shape(data.begin(), data.begin() + *axis);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + *axis + 1, data.end());
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> gather_elements(Inference& x) {
  if (auto ok = require_indices(x, 1); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  if (x.rank(1) != x.rank(0)) return x.error("data and indices must have one rank");
  for (std::int64_t i = 0; i < x.rank(0); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i != *axis && x.shape(1)[at] > x.shape(0)[at])
      return x.error("indices " + to_text(x.shape(1)) + " reach outside data " + to_text(x.shape(0)));
  }
  x.set(0, x.input(0).type, x.shape(1));
  return {};
}

Result<> gather_nd(Inference& x) {
  if (auto ok = require_indices(x, 1); !ok) return ok;
  const std::int64_t batch = x.node().integer("batch_dims", 0);
  if (x.rank(1) < 1 || batch < 0 || batch >= x.rank(1) || batch > x.rank(0))
    return x.error("batch_dims " + std::to_string(batch) + " does not fit data " + to_text(x.shape(0)) +
                   " and indices " + to_text(x.shape(1)));
  for (std::int64_t i = 0; i < batch; ++i)
    if (x.shape(0)[static_cast<std::size_t>(i)] != x.shape(1)[static_cast<std::size_t>(i)])
      return x.error("data " + to_text(x.shape(0)) + " and indices " + to_text(x.shape(1)) +
                     " differ in a batch dimension");
  const std::int64_t depth = x.shape(1).back();
  if (depth < 1 || depth > x.rank(0) - batch)
    return x.error("indices of length " + std::to_string(depth) + " do not fit data " + to_text(x.shape(0)));
  Shape shape(x.shape(1).begin(), x.shape(1).end() - 1);
  shape.insert(shape.end(), x.shape(0).begin() + batch + depth, x.shape(0).end());
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> scatter_elements(Inference& x) {
  if (auto ok = require_indices(x, 1); !ok) return ok;
  if (auto ok = x.require_same(0, 2); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  if (x.rank(1) != x.rank(0) || x.shape(1) != x.shape(2))
    return x.error("indices " + to_text(x.shape(1)) + " and updates " + to_text(x.shape(2)) +
                   " must have one shape, of data's rank " + std::to_string(x.rank(0)));
  for (std::int64_t i = 0; i < x.rank(0); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i != *axis && x.shape(1)[at] > x.shape(0)[at])
      return x.error("indices " + to_text(x.shape(1)) + " reach outside data " + to_text(x.shape(0)));
  }
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> scatter_nd(Inference& x) {
  if (auto ok = require_indices(x, 1); !ok) return ok;
  if (auto ok = x.require_same(0, 2); !ok) return ok;
  if (x.rank(1) < 1) return x.error("indices must have at least one dimension");
  const std::int64_t depth = x.shape(1).back();
  if (depth < 0 || depth > x.rank(0))
    return x.error("indices of length " + std::to_string(depth) + " do not fit data " + to_text(x.shape(0)));
  Shape updates(x.shape(1).begin(), x.shape(1).end() - 1);
  updates.insert(updates.end(), x.shape(0).begin() + depth, x.shape(0).end());
  if (updates != x.shape(2))
    return x.error("updates have shape " + to_text(x.shape(2)) + ", but must have " + to_text(updates));
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> one_hot(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  std::int64_t depth = -1;
  const Tensor* given = x.constant(1);
  if (given != nullptr && given->type().type == DataType::f32 && given->as<float>().size() == 1) {
    const float v = given->as<float>()[0];  // ONNX allows any numeric type
    if (v >= 0 && v < 1e9F) depth = static_cast<std::int64_t>(v);
  } else {
    auto values = x.integers(1, "depth");
    if (!values) return std::unexpected(values.error());
    if (values->size() == 1) depth = (*values)[0];
  }
  if (depth < 0) return x.error("depth must be one number that is not negative");
  if (x.shape(2) != Shape{2}) return x.error("values must have shape [2], not " + to_text(x.shape(2)));
  auto axis = x.axis(x.node().integer("axis", -1), x.rank(0) + 1);
  if (!axis) return std::unexpected(axis.error());
  Shape shape = x.shape(0);
  shape.insert(shape.begin() + *axis, depth);
  x.set(0, x.input(2).type, std::move(shape));
  return {};
}

// The caller folds it where the input is constant; elsewhere the shape cannot be known.
Result<> reverse_sequence(Inference& x) {
  if (auto ok = x.require_rank(0, 2, 64); !ok) return ok;
  auto batch = x.axis(x.node().integer("batch_axis", 1), 2);
  if (!batch) return std::unexpected(batch.error());
  auto time = x.axis(x.node().integer("time_axis", 0), 2);
  if (!time) return std::unexpected(time.error());
  if (*batch == *time) return x.error("batch_axis and time_axis must differ");
  if (x.input(1).type != DataType::i64 || x.shape(1) != Shape{x.shape(0)[static_cast<std::size_t>(*batch)]})
    return x.error("sequence_lens must be int64, one a batch entry");
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

}  // namespace carillon::graph::infer
