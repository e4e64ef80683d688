#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon {

// A size in bytes, never negative.
struct Bytes {
  std::uint64_t count = 0;

  friend constexpr auto operator<=>(const Bytes&, const Bytes&) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return {a.count * n}; }
};

constexpr Bytes kib(std::uint64_t n) {
  return {n << 10};
}
constexpr Bytes mib(std::uint64_t n) {
  return {n << 20};
}
constexpr Bytes gib(std::uint64_t n) {
  return {n << 30};
}

// `size` rounded up to a multiple of `unit` (unit > 0).
constexpr std::uint64_t round_up(std::uint64_t size, std::uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// "16 GB", "512 MiB", "4096": decimal and binary units, B optional, no sign. Errors name the text.
Result<Bytes> parse_bytes(std::string_view text);

// "1.5 GiB", "16.0 MiB", "12 B": for people.
std::string to_text(Bytes size);

// Of a device's memory for weights, where nobody chose another size (Clockwork, section 5.2).
inline constexpr Bytes page_size = mib(16);
constexpr std::uint64_t pages_for(Bytes weights, Bytes page = page_size) {
  return (weights.count + page.count - 1) / page.count;
}

}  // namespace carillon
