#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace carillon::engine {

// A buffer of a plan: kernels [first, last], both included, need its contents.
struct BufferNeed {
  std::uint64_t size = 0;  // bytes; 0 takes no room
  int first = 0;           // requires first <= last
  int last = 0;
};

// Where every buffer lies in one workspace. Buffers whose kernels overlap never share a byte.
struct MemoryPlan {
  std::vector<std::uint64_t> offsets;  // of each buffer, in the order given, multiples of the alignment
  std::uint64_t total = 0;             // bytes of the workspace
};

inline constexpr std::uint64_t buffer_alignment = 64;  // a cache line, and what the widest vector loads like

// Places the largest buffer first, each at the tightest gap that its neighbours in time leave (greedy by
// size; Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2).
// Ties go to the earlier, then to the one that comes first in `buffers`, so the same list gives the same
// plan. O(n^2).
MemoryPlan plan_memory(std::span<const BufferNeed> buffers);

}  // namespace carillon::engine
