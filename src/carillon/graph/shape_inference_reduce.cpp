#include <algorithm>
#include <numeric>

#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {

Result<> reduce(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  std::vector<std::int64_t> axes;
  if (x.present(1)) {
    auto given = x.integers(1, "axes");
    if (!given) return std::unexpected(given.error());
    auto resolved = x.axes(*given, x.rank(0));
    if (!resolved) return std::unexpected(resolved.error());
    axes = *std::move(resolved);
  }
  if (axes.empty() && x.node().integer("noop_with_empty_axes", 0) == 0) {
    axes.resize(static_cast<std::size_t>(x.rank(0)));
    std::iota(axes.begin(), axes.end(), 0);
  }
  const bool keep = x.node().integer("keepdims", 1) != 0;
  Shape shape;
  for (std::int64_t i = 0; i < x.rank(0); ++i) {
    const bool reduced = std::find(axes.begin(), axes.end(), i) != axes.end();
    if (!reduced) shape.push_back(x.shape(0)[static_cast<std::size_t>(i)]);
    if (reduced && keep) shape.push_back(1);
  }
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> arg_reduce(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  Shape shape = x.shape(0);
  const auto at = shape.begin() + *axis;
  if (*at == 0) return x.error("axis " + std::to_string(*axis) + " is empty");
  if (x.node().integer("keepdims", 1) != 0)
    *at = 1;
  else
    shape.erase(at);
  x.set(0, DataType::i64, std::move(shape));
  return {};
}

Result<> cumsum(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  if (auto ok = x.require(1, TypeClass::integer); !ok) return ok;
  if (x.input(1).elements() != 1) return x.error("axis must be one number");
  if (x.constant(1) != nullptr) {
    auto axis = x.integers(1, "axis");
    if (!axis) return std::unexpected(axis.error());
    if (auto ok = x.axis((*axis)[0], x.rank(0)); !ok) return std::unexpected(ok.error());
  }
  x.set(0, x.input(0).type, x.shape(0));
  return {};
}

Result<> top_k(Inference& x) {
  if (auto ok = x.require(0, TypeClass::number); !ok) return ok;
  auto axis = x.axis(x.node().integer("axis", -1), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  auto k = x.integers(1, "k");
  if (!k) return std::unexpected(k.error());
  Shape shape = x.shape(0);
  std::int64_t& extent = shape[static_cast<std::size_t>(*axis)];
  if (k->size() != 1 || (*k)[0] < 0 || (*k)[0] > extent)
    return x.error("k must be one number from 0 to " + std::to_string(extent));
  extent = (*k)[0];
  x.set(0, x.input(0).type, shape);
  x.set(1, DataType::i64, std::move(shape));
  return {};
}

}  // namespace carillon::graph::infer
