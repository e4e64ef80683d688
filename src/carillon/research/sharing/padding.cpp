#include "carillon/research/sharing/padding.h"

#include <algorithm>

namespace carillon::research {

std::optional<Padding> pad(const KernelPlan& plan, const KernelPlan::Kernel& kernel, int blocks,
                           std::span<const Room> rooms, TimePoint now, Duration overhead, double margin,
                           int rivals) {
  if (rooms.empty()) return std::nullopt;
  std::optional<Padding> best;
  bool ends = false;
  Duration longest = Duration::max();  // of those that end the kernel
  int free = rooms.front().free;
  std::size_t next = 1;
  const std::span<const Duration> rounds = plan.rounds(kernel);
  for (int depth = 1; depth <= kernel.deepest; ++depth) {
    const Duration time = rounds[static_cast<std::size_t>(depth) - 1];
    if (time > longest) break;
    const TimePoint end =
        now + overhead + time + from_ns(static_cast<double>((overhead + time).count()) * margin);
    for (; next < rooms.size() && rooms[next].from < end; ++next) free = std::min(free, rooms[next].free);
    if (free <= 0) break;
    const int fit = std::min(blocks, free * depth);
    const Spread spread{.units = (fit + depth - 1) / depth, .depth = depth, .time = time};
    if (fit == blocks) {
      if (!ends) longest = time * rivals;
      if (!ends || time * spread.units < best->spread.time * best->spread.units) best = Padding{fit, spread};
      ends = true;
    } else if (!ends && (!best || time.count() * best->blocks < best->spread.time.count() * fit)) {
      best = Padding{fit, spread};
    }
    if (depth >= blocks) break;
  }
  return best;
}

Spread frugal(const KernelPlan& plan, const KernelPlan::Kernel& kernel, int blocks, int units, int rivals) {
  Spread best = kernel.alone;
  best.time = plan.time(kernel, blocks, best.units, best.depth);
  const Duration longest = best.time * rivals;
  const std::span<const Duration> rounds = plan.rounds(kernel);
  for (int depth = best.depth; depth <= std::min(kernel.deepest, blocks); ++depth) {
    const Spread spread{.units = (blocks + depth - 1) / depth,
                        .depth = depth,
                        .time = rounds[static_cast<std::size_t>(depth) - 1]};
    if (spread.units > units) continue;
    if (spread.time > longest) break;
    if (spread.time * spread.units < best.time * best.units) best = spread;
  }
  return best;
}

}  // namespace carillon::research
