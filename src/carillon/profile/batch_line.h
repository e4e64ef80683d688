#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <ranges>

#include "carillon/base/time.h"

namespace carillon::profile {

// What a batch of `batch` >= 1 takes by a table of batch sizes and times (`size_of` and `time_of` of its
// entries; ascending by size, one entry at least): on the line between the sizes beside it, or, outside of
// them all, on the line through the two nearest, and never less than 1 ns. One entry alone counts in
// proportion.
template <std::ranges::bidirectional_range Table, typename SizeOf, typename TimeOf>
Duration on_batch_line(const Table& table, int batch, SizeOf size_of, TimeOf time_of) {
  const auto size_at = [&](auto at) -> int { return std::invoke(size_of, *at); };
  const auto time_at = [&](auto at) -> Duration { return std::invoke(time_of, *at); };
  const auto first = std::ranges::begin(table), end = std::ranges::end(table);
  auto above = std::ranges::lower_bound(table, batch, {}, size_of);
  if (above != end && size_at(above) == batch) return time_at(above);
  if (std::next(first) == end) return time_at(first) * batch / size_at(first);
  if (above == first) ++above;
  if (above == end) --above;
  const auto below = std::prev(above);
  const double slope =
      static_cast<double>((time_at(above) - time_at(below)).count()) / (size_at(above) - size_at(below));
  return std::max(Duration{1}, time_at(below) + from_ns(slope * (batch - size_at(below))));
}

}  // namespace carillon::profile
