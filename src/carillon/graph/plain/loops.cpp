#include "carillon/graph/plain/loops.h"

#include <cstring>

namespace carillon::graph::plain {

template <int N>
void Loops<N>::push(std::int64_t count, const std::array<std::int64_t, N>& strides) {
  CARILLON_ASSERT(depth < max_loops);
  extent[depth] = count;
  for (int k = 0; k < N; ++k) stride[k][depth] = strides[k];
  ++depth;
}

template <int N>
void Loops<N>::collapse() {
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

template <int N>
bool Passes<N>::any() const {
  for (int d = 0; d < loops_.depth; ++d) {
    if (loops_.extent[d] == 0) return false;
  }
  return true;
}

template <int N>
bool Passes<N>::next() {
  for (int d = loops_.depth - 2; d >= 0; --d) {
    for (int k = 0; k < N; ++k) at_[k] += loops_.stride[k][d];
    if (++index_[d] < loops_.extent[d]) return true;
    index_[d] = 0;
    for (int k = 0; k < N; ++k) at_[k] -= loops_.stride[k][d] * loops_.extent[d];
  }
  return false;
}

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

template struct Loops<1>;
template struct Loops<2>;
template struct Loops<3>;
template struct Loops<4>;
template class Passes<1>;
template class Passes<2>;
template class Passes<3>;
template class Passes<4>;
template bool broadcast<1>(std::span<const std::int64_t>, const std::array<std::span<const std::int64_t>, 1>&,
                           Loops<2>&);
template bool broadcast<2>(std::span<const std::int64_t>, const std::array<std::span<const std::int64_t>, 2>&,
                           Loops<3>&);
template bool broadcast<3>(std::span<const std::int64_t>, const std::array<std::span<const std::int64_t>, 3>&,
                           Loops<4>&);

namespace {

template <typename T>
void copy_elements(const Loops<2>& loops, T* to, const T* from) {
  const std::int64_t to_step = loops.inner_stride(0);
  const std::int64_t from_step = loops.inner_stride(1);
  // Where the source runs along the loop outside the innermost (a
  // transposition), tiles of both loops keep the lines of memory that they
  // touch in the nearest cache.
  const int outside = loops.depth - 2;
  if (outside >= 0 && from_step != 1 && from_step != 0 && loops.stride[1][outside] == 1 &&
      loops.inner_extent() > 1) {
    constexpr std::int64_t tile = 32;
    const std::int64_t rows = loops.extent[outside];
    const std::int64_t columns = loops.inner_extent();
    const std::int64_t to_row = loops.stride[0][outside];
    Loops<2> outer = loops;
    outer.depth = loops.depth - 2;
    if (outer.depth == 0) outer.push(1, {1, 1});
    const std::int64_t outer_to = outer.inner_stride(0);
    const std::int64_t outer_from = outer.inner_stride(1);
    for_each_row(outer, [&](const auto& at, std::int64_t count) {
      for (std::int64_t o = 0; o < count; ++o) {
        T* __restrict base_to = to + at[0] + o * outer_to;
        const T* base_from = from + at[1] + o * outer_from;
        for (std::int64_t r0 = 0; r0 < rows; r0 += tile) {
          const std::int64_t r1 = std::min(rows, r0 + tile);
          for (std::int64_t c0 = 0; c0 < columns; c0 += tile) {
            const std::int64_t c1 = std::min(columns, c0 + tile);
            for (std::int64_t r = r0; r < r1; ++r) {
              T* __restrict line = base_to + r * to_row;
              const T* column = base_from + r;
              for (std::int64_t c = c0; c < c1; ++c) line[c * to_step] = column[c * from_step];
            }
          }
        }
      }
    });
    return;
  }
  for_each_row(loops, [&](const auto& at, std::int64_t count) {
    T* __restrict y = to + at[0];
    const T* x = from + at[1];
    if (to_step == 1 && from_step == 1) {
      if (count * static_cast<std::int64_t>(sizeof(T)) >= 64) {
        std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(T));
      } else {
        for (std::int64_t i = 0; i < count; ++i) y[i] = x[i];
      }
    } else if (to_step == 1 && from_step == 0) {
      std::fill_n(y, count, *x);
    } else {
      for (std::int64_t i = 0; i < count; ++i) y[i * to_step] = x[i * from_step];
    }
  });
}

}  // namespace

void strided_copy(Loops<2> loops, std::byte* to, const std::byte* from, std::size_t size) {
  loops.collapse();
  switch (size) {
    case 1:
      return copy_elements(loops, reinterpret_cast<std::uint8_t*>(to),
                           reinterpret_cast<const std::uint8_t*>(from));
    case 2:
      return copy_elements(loops, reinterpret_cast<std::uint16_t*>(to),
                           reinterpret_cast<const std::uint16_t*>(from));
    case 4:
      return copy_elements(loops, reinterpret_cast<std::uint32_t*>(to),
                           reinterpret_cast<const std::uint32_t*>(from));
    case 8:
      return copy_elements(loops, reinterpret_cast<std::uint64_t*>(to),
                           reinterpret_cast<const std::uint64_t*>(from));
  }
  CARILLON_ASSERT(false);
}

}  // namespace carillon::graph::plain
