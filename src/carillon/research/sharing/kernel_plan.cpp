#include "carillon/research/sharing/kernel_plan.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::research {
namespace {

int parts(int whole, int part) {
  return (whole + part - 1) / part;
}

}  // namespace

KernelPlan::KernelPlan(std::span<const KernelShape> kernels, int units, double scale) {
  CARILLON_ASSERT(!kernels.empty() && units >= 1 && scale > 0);
  kernels_.reserve(kernels.size());
  for (const KernelShape& shape : kernels) {
    CARILLON_ASSERT(shape.blocks >= 1 && !shape.rounds.empty());
    Kernel kernel{.blocks = shape.blocks,
                  .deepest = static_cast<int>(shape.rounds.size()),
                  .alone = {},
                  .first_round = static_cast<std::uint32_t>(rounds_.size())};
    Duration longest{1};
    for (const Duration round : shape.rounds) {
      longest = std::max(longest, from_ns(static_cast<double>(round.count()) * scale));
      rounds_.push_back(longest);
    }
    kernel.alone.depth = std::min(kernel.deepest, parts(kernel.blocks, units));
    kernel.alone.units = std::min(units, parts(kernel.blocks, kernel.alone.depth));
    kernel.alone.time = time(kernel, kernel.blocks, kernel.alone.units, kernel.alone.depth);
    alone_ += kernel.alone.time;
    kernels_.push_back(kernel);
  }
}

Duration KernelPlan::time(const Kernel& kernel, int blocks, int units, int depth) const {
  const int at_once = units * depth;
  Duration time = round(kernel, depth) * (blocks / at_once);
  const int rest = blocks % at_once;
  if (rest > 0) time += round(kernel, parts(rest, units));
  return time;
}

}  // namespace carillon::research
