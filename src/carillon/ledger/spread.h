#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "carillon/base/time.h"

namespace carillon::ledger {

// Where runs lie about what was expected of them, as a histogram: 1 is as expected, 2 a whole expectation
// longer. A run counts the less the more runs came since (over `runs`) and the longer it is ago (over
// `lasts`). 58 bins, each a thirty-second of an octave wide near 1; 250 bytes. add() costs O(1). Not
// thread-safe.
class Spread {
 public:
  static constexpr std::size_t bins = 58;
  static constexpr double runs = 4096, lasts = 60;  // `lasts` in seconds
  // Beyond so many times what is expected a run is an outlier.
  static constexpr double odd = 3;
  using Edges = std::array<double, bins>;
  // Upper edges of the bins. Some lie at 1 and at `odd` exactly. The last one is infinite.
  static const Edges& edges() { return table().edges; }
  // The first whose edge is not below the value.
  static std::size_t bin(double value) {
    const Table& t = table();
    if (!(value > t.edges.front())) return 0;
    if (value > t.edges[bins - 2]) return bins - 1;
    std::size_t i = t.from[cell(value) - first_cell];
    while (t.edges[i] < value) ++i;
    return i;
  }
  // That of `odd`.
  static constexpr std::size_t odd_bin() { return low + fine + coarse - 1; }

  void add(double value, TimePoint now) {
    const double gone = count_ > 0 ? std::max(0.0, to_seconds(now - newest_)) : 0;
    newest_ = std::max(newest_, now);
    unit_ *= static_cast<float>((1 + 1 / runs) * std::exp(std::min(gone / lasts, 50.0)));
    counts_[bin(value - rounding)] += unit_;
    count_ += unit_;
    if (!(unit_ > most_unit)) return;
    for (float& each : counts_) each /= unit_;
    count_ /= unit_;
    unit_ = 1;
  }
  // How many runs it counts for.
  double count() const { return static_cast<double>(count_ / unit_); }
  // Those in a bin.
  double at(std::size_t bin) const { return static_cast<double>(counts_[bin] / unit_); }

 private:
  static constexpr float most_unit = 64;
  static constexpr double rounding = 1e-5;  // what is as expected but for a nanosecond or so is as expected
  // Edges up to 0.5, then from 2^-0.5 on by a thirty-second of an octave, and by an eighth up to `odd`.
  static constexpr std::size_t low = 2, fine = 35, coarse = 8;
  static Edges make_edges() {
    Edges all{};
    std::size_t n = 0;
    all[n++] = 1.0 / 3;
    all[n++] = 0.5;
    for (int k = -16; n < low + fine; ++k) all[n++] = std::exp2(k / 32.0);
    for (int k = 1; n < low + fine + coarse; ++k) all[n++] = 1.5 * std::exp2(k / 8.0);
    for (int k = 1; n < bins - 1; ++k) all[n++] = odd * std::exp2(k / 2.0);
    all[n] = std::numeric_limits<double>::infinity();
    return all;
  }
  // A thirty-second of what lies between two powers of two: by the first bits of the value.
  static constexpr std::size_t cell(double value) {
    return static_cast<std::size_t>(std::bit_cast<std::uint64_t>(value) >> 47);
  }
  static constexpr std::size_t first_cell = (1023 - 2) * 32, cells = 10 * 32;  // from 1/4 up to 256
  struct Table {
    Table() {
      std::size_t i = 0;
      for (std::size_t c = 0; c < cells; ++c) {
        const auto least = std::bit_cast<double>(static_cast<std::uint64_t>(first_cell + c) << 47);
        while (edges[i] < least) ++i;
        from[c] = static_cast<std::uint8_t>(i);
      }
    }
    Edges edges = make_edges();
    std::array<std::uint8_t, cells> from{};  // the bin of the least value of a cell
  };
  static const Table& table() {
    static const Table all;
    return all;
  }

  std::array<float, bins> counts_{};
  float count_ = 0, unit_ = 1;
  TimePoint newest_;
};

// The chance to lie beyond each edge of a Spread's bins.
class Tail {
 public:
  // `expected_by(i)` in [0, 1]: what to expect beyond edge i before anything ran; counts as `weight` runs.
  template <typename Prior>
  void find(const Spread& spread, double weight, Prior&& prior) {
    double beyond = 0;
    const double all = spread.count() + weight;
    for (std::size_t i = Spread::bins; i-- > 0;) {
      beyond_[i] = static_cast<float>(all > 0 ? (beyond + weight * prior(i)) / all : 0);
      beyond += spread.at(i);
    }
  }
  double beyond(std::size_t edge) const { return beyond_[edge]; }

 private:
  std::array<float, Spread::bins> beyond_{};
};

// By the chances beyond each edge: the chance to lie beyond a value.
template <typename Beyond>
double chance_beyond(double value, Beyond&& beyond) {
  const auto& edges = Spread::edges();
  const std::size_t i = Spread::bin(value);
  const double here = beyond(i);
  if (i == 0) return value >= edges[0] ? here : here + (1 - here) * (1 - std::max(0.0, value) / edges[0]);
  if (i + 1 == Spread::bins) {
    // No bin tells how far: as under Pareto's law of exponent 1.
    return beyond(i - 1) * edges[i - 1] / value;
  }
  // Far out the bins are wide, and a tail falls as a power.
  if (i > Spread::odd_bin() && here > 0)
    return here *
           std::pow(beyond(i - 1) / here, std::log(edges[i] / value) / std::log(edges[i] / edges[i - 1]));
  const double share = (edges[i] - value) / (edges[i] - edges[i - 1]);
  return here + (beyond(i - 1) - here) * share;
}
// The least edge beyond which no more than `chance` lies.
template <typename Beyond>
double edge_with(double chance, Beyond&& beyond) {
  std::size_t low = 0, high = Spread::bins - 2;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (beyond(middle) <= chance)
      high = middle;
    else
      low = middle + 1;
  }
  return Spread::edges()[low];
}

}  // namespace carillon::ledger
