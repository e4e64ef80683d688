#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carillon/provision/parts.h"

namespace carillon::provision {

struct WindowOptions {
  double move_cost = 0;
  bool count_moves = false;              // parts have homes, and leaving them costs `move_cost`
  std::uint64_t most_steps = 2'000'000;  // sets looked at; beyond this there is no answer
  bool any_cheapest = false;             // ends with the first of equally cheap partitions
};

// The largest number of parts that may be packed at once.
inline constexpr std::size_t largest_window = 20;

// The cheapest partition of the chosen parts into sets that fit on one device each, over all types; of
// equally cheap ones the one that leaves the room on as few devices as possible. Exact: sets are enumerated
// by adding parts (a set that does not fit has no superset that does), and the partition is found by dynamic
// programming over subsets. Whether a set fits is not a linear condition, so that a mixed-integer program
// would need the sets, too; these windows are small enough to look at all. Nothing if it takes more than
// `most_steps`. `homes` are the types of an existing plan's devices. At most largest_window parts.
std::optional<std::vector<Packed>> pack_exactly(std::span<const Part> parts,
                                                std::span<const std::size_t> chosen,
                                                std::span<const DeviceType> types,
                                                std::span<const std::size_t> homes,
                                                const WindowOptions& options);

}  // namespace carillon::provision
