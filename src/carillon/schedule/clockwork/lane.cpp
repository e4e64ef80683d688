#include "carillon/schedule/clockwork/lane.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {

std::optional<Strategy> Lane::best(std::span<const BatchCost> costs, TimePoint start) const {
  for (std::size_t i = costs.size(); i-- > 0;) {
    const auto batch = static_cast<std::size_t>(costs[i].batch);
    if (waiting_.size() < batch) continue;
    const auto first = deadlines_ ? waiting_.lower_bound(Waiting{.due = saturating_add(start, costs[i].span)})
                                  : waiting_.begin();
    auto member = first;
    std::size_t enough = 0;
    while (enough < batch && member != waiting_.end()) ++member, ++enough;
    if (enough < batch) continue;
    return Strategy{.start = deadlines_ ? saturating_add(first->due, -costs[i].span) : first->due,
                    .batch_index = static_cast<int>(i),
                    .first = *first};
  }
  return std::nullopt;
}

TimePoint Lane::bound(std::span<const BatchCost> costs) const {
  const TimePoint due = head().due;
  if (!deadlines_) return due;
  Duration longest{0};
  for (const BatchCost& cost : costs)
    if (waiting_.size() >= static_cast<std::size_t>(cost.batch)) longest = std::max(longest, cost.span);
  return saturating_add(due, -longest);
}

void Lane::take(const Waiting& first, int count, std::vector<RequestId>& out) {
  auto member = waiting_.find(first);
  for (int i = 0; i < count; ++i) {
    CARILLON_ASSERT(member != waiting_.end());
    out.push_back(member->id);
    member = waiting_.erase(member);
  }
}

}  // namespace carillon::schedule
