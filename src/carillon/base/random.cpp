#include "carillon/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "carillon/base/assert.h"
#include "carillon/base/mix.h"

namespace carillon {

Random::Random(std::uint64_t seed) {
  for (auto& word : state_) {
    seed += 0x9e3779b97f4a7c15ULL;
    word = mix(seed);
  }
}

std::uint64_t Random::bits() {
  const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double Random::uniform() {
  return static_cast<double>(bits() >> 11) * 0x1p-53;
}

std::uint64_t Random::below(std::uint64_t bound) {
  CARILLON_ASSERT(bound > 0);
  // Values under 2^64 mod bound would favour the small remainders.
  const std::uint64_t unfair = (0 - bound) % bound;
  for (;;)
    if (const std::uint64_t drawn = bits(); drawn >= unfair) return drawn % bound;
}

double Random::exponential(double mean) {
  return -mean * std::log1p(-uniform());
}

double Random::normal() {
  const double radius = std::sqrt(-2 * std::log1p(-uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

double Random::gamma(double shape, double scale) {
  CARILLON_ASSERT(shape > 0 && scale > 0);
  if (shape < 1) {
    const double u = 1 - uniform();
    return gamma(shape + 1, scale) * std::pow(u, 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal();
    const double cube = 1 + c * x;
    if (cube <= 0) continue;
    const double v = cube * cube * cube;
    const double u = 1 - uniform();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v * scale;
  }
}

Random Random::split() {
  return Random(bits());
}

}  // namespace carillon
