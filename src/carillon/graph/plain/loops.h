#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "carillon/base/assert.h"
#include "carillon/graph/tensor.h"

namespace carillon::graph::plain {

inline constexpr int max_rank = 8;              // of the tensors that plain kernels take
inline constexpr int max_loops = 2 * max_rank;  // Tile walks two loops a dimension

// Nested loops, outermost first, over N operands at once: where each goes with each step. Collapsed, they are
// as few as the strides allow, so that the innermost is long.
template <int N>
struct Loops {
  int depth = 0;
  std::array<std::int64_t, max_loops> extent{};
  std::array<std::array<std::int64_t, max_loops>, N> stride{};  // of each operand, in elements

  void push(std::int64_t count, const std::array<std::int64_t, N>& strides) {
    CARILLON_ASSERT(depth < max_loops);
    extent[depth] = count;
    for (int k = 0; k < N; ++k) stride[k][depth] = strides[k];
    ++depth;
  }

  // Drops loops of one step and merges neighbours that walk memory evenly; leaves at least one loop.
  void collapse() {
    int kept = 0;
    for (int d = 0; d < depth; ++d) {
      if (extent[d] == 1) continue;
      bool merges = kept > 0;
      for (int k = 0; k < N && merges; ++k) merges = stride[k][kept - 1] == stride[k][d] * extent[d];
      if (merges) {
        extent[kept - 1] *= extent[d];
        for (int k = 0; k < N; ++k) stride[k][kept - 1] = stride[k][d];
      } else {
        extent[kept] = extent[d];
        for (int k = 0; k < N; ++k) stride[k][kept] = stride[k][d];
        ++kept;
      }
    }
    if (kept == 0) {
      extent[0] = 1;
      for (int k = 0; k < N; ++k) stride[k][0] = 1;
      kept = 1;
    }
    depth = kept;
  }

  std::int64_t inner_extent() const { return extent[depth - 1]; }
  std::int64_t inner_stride(int operand) const { return stride[operand][depth - 1]; }
};

// Calls row(offsets, count) for each pass of the innermost loop; offsets are in elements, one an operand.
template <int N, typename Row>
void for_each_row(const Loops<N>& loops, Row&& row) {
  for (int d = 0; d < loops.depth; ++d) {
    if (loops.extent[d] == 0) return;
  }
  std::array<std::int64_t, N> at{};
  std::array<std::int64_t, max_loops> index{};
  const int last = loops.depth - 1;
  for (;;) {
    row(std::as_const(at), loops.extent[last]);
    int d = last - 1;
    for (; d >= 0; --d) {
      for (int k = 0; k < N; ++k) at[k] += loops.stride[k][d];
      if (++index[d] < loops.extent[d]) break;
      index[d] = 0;
      for (int k = 0; k < N; ++k) at[k] -= loops.stride[k][d] * loops.extent[d];
    }
    if (d < 0) return;
  }
}

// Loops over `out` (operand 0) and operands that broadcast to it by ONNX's rules. False where one does not.
template <int N>
bool broadcast(std::span<const std::int64_t> out,
               const std::array<std::span<const std::int64_t>, N>& operands, Loops<N + 1>& loops) {
  const int rank = static_cast<int>(out.size());
  if (rank > max_rank) return false;
  std::array<std::array<std::int64_t, max_rank>, N + 1> strides{};
  std::int64_t dense = 1;
  for (int d = rank - 1; d >= 0; --d) {
    strides[0][d] = dense;
    dense *= out[d];
  }
  for (int k = 0; k < N; ++k) {
    const int missing = rank - static_cast<int>(operands[k].size());
    if (missing < 0) return false;
    std::int64_t step = 1;
    for (int d = rank - 1; d >= missing; --d) {
      const std::int64_t extent = operands[k][d - missing];
      if (extent != out[d] && extent != 1) return false;
      strides[k + 1][d] = extent == 1 ? 0 : step;
      step *= extent;
    }
  }
  loops.depth = 0;
  for (int d = 0; d < rank; ++d) {
    std::array<std::int64_t, N + 1> at{};
    for (int k = 0; k <= N; ++k) at[k] = strides[k][d];
    loops.push(out[d], at);
  }
  loops.collapse();
  return true;
}

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

// Copies elements of `size` bytes between two strided places (operand 0 of `loops`: to, 1: from).
void strided_copy(Loops<2> loops, std::byte* to, const std::byte* from, std::size_t size);

}  // namespace carillon::graph::plain
