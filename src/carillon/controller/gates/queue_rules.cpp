#include "carillon/controller/gates/queue_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

void set_due(const repository::QueuePolicy& policy, InferCall& call) {
  const TimePoint due = policy.due ? saturating_add(call.arrival, *policy.due) : TimePoint::max();
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

bool WaitingByLevel::enter(std::uint64_t level, std::uint64_t most) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& waiting = waiting_[level];
  if (most > 0 && waiting >= most) return false;
  ++waiting;
  return true;
}

void WaitingByLevel::enter(std::uint64_t level) {
  enter(level, 0);
}

void WaitingByLevel::leave(std::uint64_t level) {
  const std::lock_guard lock(mutex_);
  const auto at = waiting_.find(level);
  CARILLON_ASSERT(at != waiting_.end() && at->second > 0);
  if (--at->second == 0) waiting_.erase(at);
}

void QueuePlace::waits(bool waits) {
  const std::lock_guard lock(mutex_);
  if (left_ || counted_ == waits) return;
  counted_ = waits;
  if (waits)
    queue_->enter(level_);
  else
    queue_->leave(level_);
}

void QueuePlace::leaves() {
  waits(false);
  const std::lock_guard lock(mutex_);
  left_ = true;
}

Result<> QueueRules::enter(InferCall& call, const std::optional<Duration>& slo) {
  const std::uint64_t level = policies_->level_of(call.priority);
  // Which class it is follows from what the request said.
  if (policies_->levels > 0) call.priority = static_cast<std::uint32_t>(level);
  const repository::QueuePolicy& policy = policies_->policy_of(level);
  if (!slo) set_due(policy, call);
  if (!waiting_->enter(level, policy.most_waiting))
    return fail(ErrorCode::unavailable,
                "Exceeds maximum queue size: " + std::to_string(policy.most_waiting) +
                    " requests of the model" +
                    (level > 0 ? " and of priority " + std::to_string(level) : "") +
                    " wait, as many as its config's max_queue_size says; try again later");
  call.place = std::make_shared<QueuePlace>(waiting_, level);
  return {};
}

}  // namespace carillon::controller
