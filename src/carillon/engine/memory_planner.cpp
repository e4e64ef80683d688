#include "carillon/engine/memory_planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/base/bytes.h"

namespace carillon::engine {

namespace {

struct Placed {
  std::uint64_t begin, end;
  int first, last;
};

// Buffers that have a place, by it, and by when they are alive: in a plan of thousands of kernels most
// buffers live for a few kernels only, so that to find who is alive with one must not look at all.
class PlacedBuffers {
 public:
  void add(const Placed& placed) {
    all_.push_back(placed);
    for (int s = placed.first / stretch; s <= placed.last / stretch; ++s) {
      std::vector<Placed>& of = stretches_[s];
      of.insert(std::ranges::upper_bound(of, placed.begin, {}, &Placed::begin), placed);
    }
  }

  // Calls see(placed) for those alive at one of the kernels [first, last], in the order of where they begin.
  template <typename See>
  void for_each_alive(int first, int last, const See& see) {
    const auto is_alive = [&](const Placed& p) { return p.first <= last && first <= p.last; };
    const int from = first / stretch, to = last / stretch;
    if (from == to) {
      if (const auto found = stretches_.find(from); found != stretches_.end())
        for (const Placed& p : found->second)
          if (is_alive(p)) see(p);
      return;
    }
    if (to - from >= few) {
      sort_all();
      for (const Placed& p : all_)
        if (is_alive(p)) see(p);
      return;
    }
    std::vector<Placed> alive;
    for (int s = from; s <= to; ++s) {
      const auto found = stretches_.find(s);
      if (found == stretches_.end()) continue;
      // In the first stretch in which both are alive only.
      for (const Placed& p : found->second)
        if (is_alive(p) && std::max(p.first, first) / stretch == s) alive.push_back(p);
    }
    std::ranges::stable_sort(alive, {}, &Placed::begin);
    for (const Placed& p : alive) see(p);
  }

 private:
  static constexpr int stretch = 64;  // kernels: more than most buffers live for
  static constexpr int few = 4;  // stretches that are sorted together: beyond, to look at all is as quick

  void sort_all() {
    const auto middle = all_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    std::ranges::stable_sort(middle, all_.end(), {}, &Placed::begin);
    std::ranges::inplace_merge(all_.begin(), middle, all_.end(), {}, &Placed::begin);
    sorted_ = all_.size();
  }

  std::vector<Placed> all_;
  std::size_t sorted_ = 0;                        // so many of them are in order; the others came since
  std::map<int, std::vector<Placed>> stretches_;  // in order; a buffer is in each in which it is alive
};

}  // namespace

MemoryPlan plan_memory(std::span<const BufferNeed> buffers) {
  MemoryPlan plan{.offsets = std::vector<std::uint64_t>(buffers.size(), 0)};
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return std::tuple(buffers[b].size, buffers[a].first, a) <
           std::tuple(buffers[a].size, buffers[b].first, b);
  });

  PlacedBuffers placed;
  for (const std::size_t i : order) {
    const BufferNeed& need = buffers[i];
    CARILLON_ASSERT(need.first <= need.last);
    const std::uint64_t size = round_up(need.size, buffer_alignment);
    if (size == 0) continue;
    std::uint64_t best = 0, best_gap = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t cursor = 0;  // end of what lies below, among those alive with this one
    placed.for_each_alive(need.first, need.last, [&](const Placed& p) {
      if (p.begin >= cursor + size && p.begin - cursor < best_gap) {
        best = cursor;
        best_gap = p.begin - cursor;
      }
      cursor = std::max(cursor, p.end);
    });
    if (best_gap == std::numeric_limits<std::uint64_t>::max()) best = cursor;
    plan.offsets[i] = best;
    plan.total = std::max(plan.total, best + size);
    placed.add({best, best + size, need.first, need.last});
  }
  return plan;
}

}  // namespace carillon::engine
