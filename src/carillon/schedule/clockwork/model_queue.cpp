#include "carillon/schedule/clockwork/model_queue.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {

std::optional<Strategy> ModelQueue::best(std::span<const BatchCost> costs, TimePoint start) const {
  // A batch of k can be filled if the k-th request from the end is in time: one walk back over the requests
  // tries all sizes.
  std::size_t found = costs.size(), passed = 1;
  auto member = waiting_.end();
  if (!waiting_.empty()) --member;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const auto batch = static_cast<std::size_t>(costs[i].batch);
    if (waiting_.size() < batch) break;
    if (!deadlines_) {
      found = i;
      continue;
    }
    for (; passed < batch; ++passed) --member;
    if (member->due >= saturating_add(start, costs[i].span)) found = i;
  }
  if (found == costs.size()) return std::nullopt;
  const auto first = deadlines_
                         ? waiting_.lower_bound(Waiting{.due = saturating_add(start, costs[found].span)})
                         : waiting_.begin();
  return Strategy{.start = deadlines_ ? saturating_add(first->due, -costs[found].span) : first->due,
                  .batch_index = static_cast<int>(found),
                  .first = *first};
}

TimePoint ModelQueue::bound(std::span<const BatchCost> costs) const {
  const TimePoint due = head().due;
  if (!deadlines_) return due;
  Duration longest{0};
  for (const BatchCost& cost : costs)
    if (waiting_.size() >= static_cast<std::size_t>(cost.batch)) longest = std::max(longest, cost.span);
  return saturating_add(due, -longest);
}

void ModelQueue::take(const Waiting& first, int count, std::vector<RequestId>& out) {
  auto member = waiting_.find(first);
  for (int i = 0; i < count; ++i) {
    CARILLON_ASSERT(member != waiting_.end());
    out.push_back(member->id);
    member = waiting_.erase(member);
  }
}

}  // namespace carillon::schedule
