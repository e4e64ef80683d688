#pragma once

#include <compare>
#include <cstdint>

namespace carillon {

// What a run costs by its shapes alone, known before it ever ran: of one row, or of a batch.
struct Effort {
  std::uint64_t operations =
      0;                    // multiplications and additions of matrix products, convolutions, recurrences
  std::uint64_t bytes = 0;  // that its kernels read and write, but for weights

  constexpr bool known() const { return operations > 0 || bytes > 0; }
  // One number for both, in bytes: processors do about so many operations in the time that a byte takes.
  constexpr double size() const {
    constexpr double operations_a_byte = 8;
    return static_cast<double>(operations) / operations_a_byte + static_cast<double>(bytes);
  }
  constexpr Effort& operator+=(const Effort& other) {
    operations += other.operations;
    bytes += other.bytes;
    return *this;
  }
  friend auto operator<=>(const Effort&, const Effort&) = default;
};

}  // namespace carillon
