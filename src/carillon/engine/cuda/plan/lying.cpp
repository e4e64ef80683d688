#include "carillon/engine/cuda/plan/lying.h"

#include <functional>
#include <numeric>

#include "carillon/graph/tensor.h"

namespace carillon::engine::cuda {
namespace {

// Whether `strides` are those of a dense tensor whose axes lie in `order`, outermost first.
bool lies_in(const Lying& tensor, std::span<const std::int64_t> strides) {
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    if (tensor.shape[i] != 1 && tensor.strides[i] != strides[i]) return false;
  return true;
}

}  // namespace

std::int64_t elements_in(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t Lying::elements() const {
  return elements_in(shape);
}

std::vector<std::int64_t> row_major(const Shape& shape) {
  std::vector<std::int64_t> out(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0; step *= shape[i]) out[i] = step;
  return out;
}

std::vector<std::int64_t> channels_last(const Shape& shape) {
  const std::int64_t c = shape[1], h = shape[2], w = shape[3];
  return {h * w * c, 1, w * c, c};
}

bool is_row_major(const Lying& tensor) {
  return lies_in(tensor, row_major(tensor.shape));
}

std::int64_t pixel_pitch(const Lying& tensor) {
  const auto& s = tensor.shape;
  if (s.size() != 4 || (s[1] != 1 && tensor.strides[1] != 1)) return 0;
  // What the first axis that moves says a pixel takes.
  std::int64_t pitch = s[1];
  if (s[3] != 1) {
    pitch = tensor.strides[3];
  } else if (s[2] != 1) {
    pitch = tensor.strides[2];
  } else if (s[0] != 1) {
    pitch = tensor.strides[0];
  }
  if (pitch < s[1]) return 0;
  const std::int64_t wanted[] = {s[2] * s[3] * pitch, 1, s[3] * pitch, pitch};
  return lies_in(tensor, wanted) ? pitch : 0;
}

Lying transposed(const Lying& tensor, std::span<const std::int64_t> order) {
  Lying out = tensor;
  for (std::size_t i = 0; i < order.size(); ++i) {
    out.shape[i] = tensor.shape[static_cast<std::size_t>(order[i])];
    out.strides[i] = tensor.strides[static_cast<std::size_t>(order[i])];
  }
  return out;
}

std::optional<Lying> reshaped(const Lying& tensor, const Shape& shape) {
  // Both shapes fall into groups of axes with the same product; each group of the old one has to go on as
  // one.
  Lying out = tensor;
  out.shape = shape;
  out.strides.assign(shape.size(), 0);
  std::size_t i = 0, j = 0;
  while (i < tensor.shape.size() || j < shape.size()) {
    std::int64_t old_count = 1, new_count = 1;
    const std::size_t i0 = i, j0 = j;
    if (i < tensor.shape.size()) old_count = tensor.shape[i++];
    if (j < shape.size()) new_count = shape[j++];
    while (old_count != new_count) {
      if (old_count < new_count) {
        if (i == tensor.shape.size()) return std::nullopt;
        old_count *= tensor.shape[i++];
      } else {
        if (j == shape.size()) return std::nullopt;
        new_count *= shape[j++];
      }
    }
    std::int64_t step = 0;  // of the group's innermost element
    std::int64_t expected = 0;
    for (std::size_t k = i; k-- > i0;) {
      if (tensor.shape[k] == 1) continue;
      if (step == 0) {
        step = tensor.strides[k];
        if (step == 0 && old_count != tensor.shape[k]) return std::nullopt;
      } else if (tensor.strides[k] != expected) {
        return std::nullopt;
      }
      expected = tensor.strides[k] * tensor.shape[k];
    }
    if (step == 0 && old_count == 1) step = 1;
    for (std::size_t k = j; k-- > j0; step *= shape[k]) out.strides[k] = step;
  }
  return out;
}

Lying broadcast(const Lying& tensor, const Shape& shape) {
  Lying out = tensor;
  const std::size_t front = shape.size() - tensor.shape.size();
  out.shape = shape;
  out.strides.assign(shape.size(), 0);
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    if (tensor.shape[i] != 1) out.strides[front + i] = tensor.strides[i];
  return out;
}

Lying sliced(const Lying& tensor, std::size_t axis, std::int64_t first, std::int64_t count,
             std::int64_t step) {
  Lying out = tensor;
  out.offset += static_cast<std::uint64_t>(first * tensor.strides[axis]) * graph::size_of(tensor.type);
  out.shape[axis] = count;
  out.strides[axis] *= step;
  return out;
}

}  // namespace carillon::engine::cuda
