#pragma once

#include <cstdint>

#include "carillon/engine/cpu/byte_product.h"

// How ByteProduct makes results of sums. For the sources of ByteProduct alone.
namespace carillon::engine::cpu::panels {

// What becomes of a tile's sums.
struct Finish {
  const std::int32_t* sums = nullptr;
  std::int64_t rows = 0, columns = 0;  // of the tile; columns are a multiple of 16
  const std::int32_t* less = nullptr;  // what is taken away of each column
  // Weights' zero points, and the sums of rows less `of_row` that they are multiplied by; nullptr: all 0.
  const std::int32_t* zeros = nullptr;
  const std::uint32_t* row_sums = nullptr;
  std::uint32_t of_row = 0;
  const float* units = nullptr;
  const float* biases = nullptr;
  std::int32_t y_zero = 0;
};

// Whole sums, real ones, or bytes. A row of the result is `step` elements behind the one before.
void finish(const Finish& f, std::int32_t* to, std::int64_t step);
void finish(const Finish& f, float* to, std::int64_t step);
void finish(const Finish& f, std::uint8_t* to, std::int64_t step);
void finish(const Finish& f, std::int8_t* to, std::int64_t step);

// A further step on `count` real results of a row.
void apply(const ByteProduct::After& after, const float* operand, float* to, std::int64_t count);

}  // namespace carillon::engine::cpu::panels
