#include <algorithm>

#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

Result<std::int64_t> elements_of(const Inference& x, std::size_t i) {
  auto count = element_count(x.shape(i));
  if (!count) return x.error(count.error().message);
  return count;
}

// A scalar, or a tensor of one element.
Result<> require_one(const Inference& x, std::size_t i, DataType type) {
  if (!x.present(i)) return {};
  if (x.input(i).type != type || x.input(i).elements() != 1)
    return x.error("input " + std::to_string(i) + " must be one " + std::string(onnx_name(type)));
  return {};
}

}  // namespace

Result<> non_zero(Inference& x) {
  if (x.input(0).type == DataType::string) return x.error("input 0 holds strings");
  auto count = elements_of(x, 0);
  if (!count) return std::unexpected(count.error());
  x.set(0, DataType::i64, {x.rank(0), *count});
  return {};
}

Result<> compress(Inference& x) {
  if (x.input(1).type != DataType::boolean || x.rank(1) != 1)
    return x.error("condition (input 1) must be a bool tensor of one dimension");
  if (!x.node().has("axis")) {
    auto count = elements_of(x, 0);
    if (!count) return std::unexpected(count.error());
    x.set(0, x.input(0).type, {std::min(*count, x.shape(1)[0])});
    return {};
  }
  auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
  if (!axis) return std::unexpected(axis.error());
  Shape shape = x.shape(0);
  std::int64_t& extent = shape[static_cast<std::size_t>(*axis)];
  extent = std::min(extent, x.shape(1)[0]);
  x.set(0, x.input(0).type, std::move(shape));
  return {};
}

Result<> unique(Inference& x) {
  if (x.input(0).type == DataType::string) return x.error("input 0 holds strings");
  auto count = elements_of(x, 0);
  if (!count) return std::unexpected(count.error());
  Shape values{*count};
  std::int64_t most = *count;
  if (x.node().has("axis")) {
    auto axis = x.axis(x.node().integer("axis", 0), x.rank(0));
    if (!axis) return std::unexpected(axis.error());
    values = x.shape(0);
    most = values[static_cast<std::size_t>(*axis)];
  }
  x.set(0, x.input(0).type, std::move(values));
  for (std::size_t i = 1; i < x.outputs(); ++i) x.set(i, DataType::i64, {most});
  return {};
}

Result<> non_max_suppression(Inference& x) {
  for (const std::size_t i : {0U, 1U}) {
    if (x.input(i).type != DataType::f32) return x.error("boxes and scores must be float");
    if (auto ok = x.require_rank(i, 3, 3); !ok) return ok;
  }
  const Shape &boxes = x.shape(0), &scores = x.shape(1);
  if (boxes[2] != 4 || boxes[0] != scores[0] || boxes[1] != scores[2])
    return x.error("boxes " + to_text(boxes) + " must be [batches, boxes, 4] and scores " + to_text(scores) +
                   " [batches, classes, boxes]");
  if (auto ok = require_one(x, 2, DataType::i64); !ok) return ok;
  for (const std::size_t i : {3U, 4U})
    if (auto ok = require_one(x, i, DataType::f32); !ok) return ok;
  std::int64_t most = x.present(2) ? boxes[1] : 0;
  if (const Tensor* limit = x.constant(2); limit != nullptr)
    most = std::clamp<std::int64_t>(limit->as<std::int64_t>()[0], 0, most);
  auto rows = element_count(Shape{scores[0], scores[1], most});
  if (!rows) return x.error(rows.error().message);
  x.set(0, DataType::i64, {*rows, 3});
  return {};
}

}  // namespace carillon::graph::infer
