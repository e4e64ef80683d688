#include "carillon/controller/queue_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

void set_due(const repository::QueuePolicy& policy, InferCall& call) {
  const TimePoint due = saturating_add(call.arrival, *policy.due);
  if (!policy.delays) {
    call.deadline = std::min(call.deadline, due);
    return;
  }
  call.due = due;
  if (!policy.takes_timeout || call.deadline_from != explain::DeadlineFrom::timeout || call.deadline > due)
    return;
  // Only what the client's transport says is left of its own; where that is, the client goes by then.
  call.due = std::exchange(call.deadline, TimePoint::max());
  call.deadline_from = explain::DeadlineFrom::none;
}

}  // namespace

Result<std::uint64_t> QueueRules::enter(InferCall& call, const std::optional<Duration>& slo) {
  const std::uint64_t level = policies_->level_of(call.priority);
  // Which class it is follows from what the request said.
  if (policies_->levels > 0) call.priority = static_cast<std::uint32_t>(level);
  const repository::QueuePolicy& policy = policies_->policy_of(level);
  if (policy.due && !slo) set_due(policy, call);
  const std::lock_guard lock(mutex_);
  std::uint64_t& open = open_[level];
  if (policy.most_open > 0 && open >= policy.most_open)
    return fail(ErrorCode::resource_exhausted,
                std::to_string(open) + " requests of the model" +
                    (level > 0 ? " and of priority " + std::to_string(level) : "") +
                    " are open, as many as its config's max_queue_size says; try again later");
  ++open;
  return level;
}

void QueueRules::leave(std::uint64_t level) {
  const std::lock_guard lock(mutex_);
  const auto at = open_.find(level);
  CARILLON_ASSERT(at != open_.end() && at->second > 0);
  if (--at->second == 0) open_.erase(at);
}

}  // namespace carillon::controller
