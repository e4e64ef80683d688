#include "carillon/graph/plain/loops.h"

#include <cstring>

namespace carillon::graph::plain {
namespace {

template <typename T>
void copy_elements(const Loops<2>& loops, T* to, const T* from) {
  const std::int64_t to_step = loops.inner_stride(0);
  const std::int64_t from_step = loops.inner_stride(1);
  // Where the source runs along the loop outside the innermost (a transposition), tiles of both loops keep
  // the lines of memory that they touch in the nearest cache.
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
