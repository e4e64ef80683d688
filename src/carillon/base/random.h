#pragma once

#include <array>
#include <cstdint>

namespace carillon {

// xoshiro256++ seeded through splitmix64 (Blackman and Vigna), with distributions of our own: the standard
// ones differ between vendors, and the same seed must give the same bytes everywhere. Not safe for several
// threads.
class Random {
 public:
  explicit Random(std::uint64_t seed);

  std::uint64_t bits();                      // uniform over all 64-bit values
  double uniform();                          // [0, 1), 53 bits
  std::uint64_t below(std::uint64_t bound);  // [0, bound), unbiased; bound > 0
  double exponential(double mean);           // mean > 0
  double normal();                           // mean 0, variance 1
  double gamma(double shape, double scale);  // shape > 0, scale > 0 (Marsaglia and Tsang 2000)

  // A generator whose stream is independent of this one's; deals seeds to parts of a run.
  Random split();

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace carillon
