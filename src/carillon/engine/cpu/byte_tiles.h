#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "carillon/engine/cpu/byte_panels.h"

// What ByteProduct does with every set of instructions: rows of the source times a panel of weights.
namespace carillon::engine::cpu::panels {

// Some rows times one panel.
struct Tile {
  std::array<const std::byte*, most_rows> rows{};
  const std::byte* weights = nullptr;
  const std::uint32_t* offsets = nullptr;
  const PanelHead* panel = nullptr;
  std::int32_t* sums = nullptr;  // [rows, columns of a panel]
};
using TileKernel = void (*)(const Tile&);

// Sorted steps of some rows, for a part of the depth. Each step has the place of its weights in the panel, in
// bytes, and the source's bytes that multiply them.
template <std::int64_t rows>
struct Sorted {
  static constexpr std::int64_t most = 128;
  static constexpr auto places = static_cast<std::size_t>(most);
  std::uint32_t narrow = 0, wide = 0;  // how many of either
  std::array<std::uint32_t, places> narrow_at, wide_at;
  alignas(line) std::array<std::byte, places * rows * deep> narrow_x;    // bytes: of each row four neighbours
  alignas(line) std::array<std::byte, places * rows * deep * 2> wide_x;  // 16 bits: of each the first and
                                                                         // third, then the others
};

template <std::int64_t most>
using SortedKernel = void (*)(const Sorted<most>&, bool first, const std::byte* weights, std::int32_t* sums);
// Where rows of the source lie, and how their bytes become those without a sign, less a base.
template <std::int64_t rows>
struct Unsorted {
  std::array<const std::byte*, static_cast<std::size_t>(rows)> row{};
  const std::uint32_t* offsets = nullptr;  // of steps, in each row
  std::uint32_t first_weights = 0;         // of the first step, in its panel
  std::uint8_t mask = 0, base = 0;
};

// Of 1 to rows_of(with) rows.
TileKernel find_tile(Instructions with, std::int64_t rows);
// Of as many of the tile's rows.
SortedKernel<4> find_sorted(const Sorted<4>&, std::int64_t rows);
SortedKernel<8> find_sorted(const Sorted<8>&, std::int64_t rows);

// Sorts the next `count` steps, whose weights lie `step_bytes` apart.
void sort_steps(const Unsorted<4>& from, std::int64_t count, std::int64_t step_bytes, Sorted<4>& to);
void sort_steps(const Unsorted<8>& from, std::int64_t count, std::int64_t step_bytes, Sorted<8>& to);

}  // namespace carillon::engine::cpu::panels
