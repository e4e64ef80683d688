#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carillon/graph/tensor.h"

namespace carillon::engine::cuda {

using graph::Shape;

// A tensor as it lies: element i is at `offset` + i . `strides` elements into a buffer. Dimensions of extent
// 1 may have any stride.
struct Lying {
  int buffer = -1;                              // of the workspace; -1: the weights
  std::uint64_t offset = 0;                     // bytes
  graph::DataType type = graph::DataType::f32;  // as it is stored
  Shape shape;
  std::vector<std::int64_t> strides;

  std::int64_t elements() const;
};

std::int64_t elements_in(std::span<const std::int64_t> shape);
std::vector<std::int64_t> row_major(const Shape& shape);
std::vector<std::int64_t> channels_last(const Shape& shape);  // of 4 dimensions
bool is_row_major(const Lying& tensor);
// Elements from a pixel to the next where the tensor, of 4 dimensions, is channels last but for gaps between
// pixels; 0 where it is not.
std::int64_t pixel_pitch(const Lying& tensor);

// Views: no byte moves.
Lying transposed(const Lying& tensor, std::span<const std::int64_t> order);
std::optional<Lying> reshaped(const Lying& tensor, const Shape& shape);  // nothing where it takes a copy
// Repeats what has extent 1 or is missing in front. Requires shapes that ONNX broadcasts.
Lying broadcast(const Lying& tensor, const Shape& shape);
// Elements [first, first + count) of an axis, each `step`-th (>= 1).
Lying sliced(const Lying& tensor, std::size_t axis, std::int64_t first, std::int64_t count,
             std::int64_t step = 1);

}  // namespace carillon::engine::cuda
