#include "carillon/engine/memory_planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "carillon/base/assert.h"
#include "carillon/base/bytes.h"

namespace carillon::engine {

MemoryPlan plan_memory(std::span<const BufferNeed> buffers) {
  MemoryPlan plan{.offsets = std::vector<std::uint64_t>(buffers.size(), 0)};
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return std::tuple(buffers[b].size, buffers[a].first, a) <
           std::tuple(buffers[a].size, buffers[b].first, b);
  });

  struct Placed {
    std::uint64_t begin, end;
    int first, last;
  };
  std::vector<Placed> placed;  // by begin
  for (const std::size_t i : order) {
    const BufferNeed& need = buffers[i];
    CARILLON_ASSERT(need.first <= need.last);
    const std::uint64_t size = round_up(need.size, buffer_alignment);
    if (size == 0) continue;
    std::uint64_t best = 0, best_gap = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t cursor = 0;  // end of what lies below, among those alive with this one
    for (const Placed& p : placed) {
      if (p.last < need.first || need.last < p.first) continue;
      if (p.begin >= cursor + size && p.begin - cursor < best_gap) {
        best = cursor;
        best_gap = p.begin - cursor;
      }
      cursor = std::max(cursor, p.end);
    }
    if (best_gap == std::numeric_limits<std::uint64_t>::max()) best = cursor;
    plan.offsets[i] = best;
    plan.total = std::max(plan.total, best + size);
    const Placed entry{best, best + size, need.first, need.last};
    placed.insert(std::ranges::upper_bound(placed, entry.begin, {}, &Placed::begin), entry);
  }
  return plan;
}

std::uint64_t memory_lower_bound(std::span<const BufferNeed> buffers) {
  std::map<int, std::int64_t> change;  // at a kernel: bytes taken minus bytes given back
  for (const BufferNeed& need : buffers) {
    const auto size = static_cast<std::int64_t>(round_up(need.size, buffer_alignment));
    change[need.first] += size;
    change[need.last + 1] -= size;
  }
  std::int64_t now = 0, most = 0;
  for (const auto& [kernel, delta] : change) most = std::max(most, now += delta);
  return static_cast<std::uint64_t>(most);
}

}  // namespace carillon::engine
