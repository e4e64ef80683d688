#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "carillon/base/time.h"

namespace carillon::research {

// A kernel as whoever shares a device sees it: `blocks` that may run in any order and beside each other. A
// compute unit runs up to rounds.size() of them at a time; rounds[k-1] is how long it takes for k at once.
struct KernelShape {
  int blocks = 1;                // >= 1
  std::vector<Duration> rounds;  // above 0; not empty
};

// How a kernel is spread: `depth` blocks at a time on each of `units`.
struct Spread {
  int units = 0;
  int depth = 0;
  Duration time{0};

  friend bool operator==(const Spread&, const Spread&) = default;
};

// The kernels of a plan, in order, with what is asked of them again and again worked out for a device of so
// many compute units. Immutable.
class KernelPlan {
 public:
  struct Kernel {
    int blocks = 1;
    int deepest = 1;  // blocks that a unit runs at a time, at most
    Spread alone;     // as hardware spreads it over an idle device: over all units first
    std::uint32_t first_round = 0;
  };

  // Measured times of rounds may fall with their depth, by noise: the plan's never do. Every time is
  // multiplied by `scale`, above 0. Needs units >= 1 and a kernel.
  KernelPlan(std::span<const KernelShape> kernels, int units, double scale = 1);

  int kernels() const { return static_cast<int>(kernels_.size()); }
  const Kernel& kernel(int index) const { return kernels_[static_cast<std::size_t>(index)]; }
  // Of `depth` blocks on a unit; 1 <= depth <= kernel.deepest.
  Duration round(const Kernel& kernel, int depth) const {
    return rounds_[kernel.first_round + static_cast<std::size_t>(depth) - 1];
  }
  // By depth, from 1 on.
  std::span<const Duration> rounds(const Kernel& kernel) const {
    return {rounds_.data() + kernel.first_round, static_cast<std::size_t>(kernel.deepest)};
  }
  // How long `blocks` of the kernel take on `units`, up to `depth` at a time on each. All above 0.
  Duration time(const Kernel& kernel, int blocks, int units, int depth) const;
  // All kernels, one after the other, alone on the device.
  Duration alone() const { return alone_; }

 private:
  std::vector<Kernel> kernels_;
  std::vector<Duration> rounds_;
  Duration alone_{0};
};

}  // namespace carillon::research
