#pragma once

#include <cstdint>

namespace carillon {

// Splitmix64's finaliser: a bijection that lets every bit of `x` change every bit of the result with a chance
// of about a half. No random numbers: the same `x` gives the same.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace carillon
