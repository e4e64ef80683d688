#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "carillon/base/time.h"

namespace carillon::worker {

inline constexpr int max_batch = 128;

// Tensors of one row of one request, where the frontend holds them. Each pointer is to one row of the model's
// input or output, in the model's order; whoever submits keeps them, and the arrays of pointers, valid until
// the action's result. An output that nobody wants is nullptr, and is not copied. Outputs are written only
// where the result is success. `length` is the row's own extent
// of what varies, where the model has lengths: its tensors are so long, whatever they are padded to. Of an
// open model it is the number of the row's size (Worker::add_size()), 0 for the reference.
struct RowBuffers {
  std::span<const std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::int64_t length = 0;
  TimePoint deadline = TimePoint::max();  // from then on it is not worth running alone: see BadRow
};

}  // namespace carillon::worker
