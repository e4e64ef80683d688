#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "carillon/base/assert.h"
#include "carillon/graph/kernel.h"

namespace carillon::graph::plain {

inline constexpr int max_rank = most_plain_dimensions;
inline constexpr int max_loops = 2 * max_rank;  // Tile walks two loops a dimension

// Nested loops, outermost first, over N operands at once: where each goes with
// each step. Collapsed, they are as few as the strides allow, so that the
// innermost is long.
template <int N>
struct Loops {
  int depth = 0;
  std::array<std::int64_t, max_loops> extent{};
  std::array<std::array<std::int64_t, max_loops>, N> stride{};  // of each operand, in elements

  void push(std::int64_t count, const std::array<std::int64_t, N>& strides);

  // Drops loops of one step and merges neighbours that walk memory evenly;
  // leaves at least one loop.
  void collapse();

  std::int64_t inner_extent() const { return extent[depth - 1]; }
  std::int64_t inner_stride(int operand) const { return stride[operand][depth - 1]; }
};

// The way through all loops but the innermost: where each operand is, pass by
// pass. Compiled once, not into each kernel: a pass is long.
template <int N>
class Passes {
 public:
  explicit Passes(const Loops<N>& loops) : loops_(loops) {}

  // Whether there is a first pass.
  bool any() const;
  // To the next pass; false after the last.
  bool next();
  const std::array<std::int64_t, N>& at() const { return at_; }

 private:
  const Loops<N>& loops_;
  std::array<std::int64_t, N> at_{};
  std::array<std::int64_t, max_loops> index_{};
};

// Calls row(offsets, count) for each pass of the innermost loop; offsets are in
// elements, one an operand.
template <int N, typename Row>
void for_each_row(const Loops<N>& loops, Row&& row) {
  Passes<N> passes(loops);
  if (!passes.any()) return;
  do {
    row(passes.at(), loops.inner_extent());
  } while (passes.next());
}

// Loops over `out` (operand 0) and operands that broadcast to it by ONNX's
// rules. False where one does not.
template <int N>
bool broadcast(std::span<const std::int64_t> out,
               const std::array<std::span<const std::int64_t>, N>& operands, Loops<N + 1>& loops);

// A tensor seen as [outer, extent, inner] around `axis`.
struct Around {
  std::int64_t outer = 1;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
};
inline Around around(std::span<const std::int64_t> shape, std::int64_t axis) {
  Around result;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(shape.size()); ++d) {
    (d < axis ? result.outer : d == axis ? result.extent : result.inner) *= shape[d];
  }
  return result;
}

// Element strides of a dense tensor.
inline std::array<std::int64_t, max_rank> dense_strides(std::span<const std::int64_t> shape) {
  CARILLON_ASSERT(shape.size() <= max_rank);
  std::array<std::int64_t, max_rank> strides{};
  std::int64_t step = 1;
  for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
}

// Copies elements of `size` bytes between two strided places (operand 0 of
// `loops`: to, 1: from).
void strided_copy(Loops<2> loops, std::byte* to, const std::byte* from, std::size_t size);

}  // namespace carillon::graph::plain
