#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "carillon/engine/cpu/byte_product.h"

// How ByteProduct's packed weights lie: in panels of columns, step by step. For the sources of ByteProduct
// alone.
namespace carillon::engine::cpu::panels {

using Instructions = ByteProduct::Instructions;

inline constexpr std::int64_t deep = 4;           // neighbours of the depth that a step takes
inline constexpr std::int64_t most_columns = 32;  // of a panel
inline constexpr std::int64_t most_rows = 8;      // of a tile
inline constexpr std::int64_t line = 64;          // of the cache, in bytes
// Of sorted steps: how many panels meet them, and how many tiles are sorted at once, whose panels then lie in
// the first cache.
inline constexpr std::size_t sorted_panels = 8, sorted_tiles = 4;

inline std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
// Two vectors of sums.
inline std::int64_t columns_of(Instructions with) {
  return with == Instructions::avx2 ? 16 : 32;
}
// As many as there are registers for their sums.
inline std::int64_t rows_of(Instructions with) {
  return with == Instructions::avx2 ? 4 : 8;
}
inline std::int64_t panels_of(std::int64_t columns, Instructions with) {
  return up_to(columns, columns_of(with)) / columns_of(with);
}

// Packed weights begin with this.
struct alignas(line) Head {
  std::uint32_t sorted = 0;  // whether runs sort the steps
  std::uint32_t steps = 0;   // of all panels, with what is behind them
};
// What a panel has, in this order. A step takes four neighbours of the depth.
struct alignas(line / 2) PanelHead {
  std::uint64_t weights = 0;  // where they begin, in bytes behind the first panel's
  std::uint32_t offsets = 0;  // where its steps begin among all
  std::uint32_t merged = 0;   // pairs of steps whose products may be added in 16 bits
  std::uint32_t single = 0;   // steps whose neighbours may, or that runs sort
  // Of each of the two vectors: steps for what had to be left out of others.
  std::array<std::uint32_t, 2> extra{};
};
static_assert(sizeof(Head) == line && sizeof(PanelHead) == line / 2);

// Places in packed weights, in bytes. Of each step: which byte of a row it begins with. Of each column: the
// sum of its weights, and its zero point. Then the weights.
struct Places {
  std::int64_t panels = line, offsets = 0, sums = 0, zeros = 0, weights = 0;

  Places(std::int64_t count, std::int64_t columns, std::int64_t steps) {
    constexpr std::int64_t word = 4;
    offsets = panels + up_to(count * line / 2, line);
    sums = offsets + up_to(steps * word, line);
    zeros = sums + up_to(count * columns * word, line);
    weights = zeros + up_to(count * columns * word, line);
  }
};

template <typename T>
const T* at_byte(const std::byte* data, std::int64_t place) {
  return reinterpret_cast<const T*>(data + place);
}

}  // namespace carillon::engine::cpu::panels
