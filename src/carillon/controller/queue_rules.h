#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "carillon/controller/service.h"
#include "carillon/repository/queue_policies.h"

namespace carillon::controller {

// What a model's config says of its queue (repository::QueuePolicies), carried out on its calls: a level, a
// deadline, and how many may be open. Knows no time. Safe from any thread.
class QueueRules {
 public:
  explicit QueueRules(std::shared_ptr<const repository::QueuePolicies> policies)
      : policies_(std::move(policies)) {}

  // Gives the call what its level says: a priority, where it names none that there is; a deadline so long
  // after its arrival, where it has no nearer one and the model no SLO (of a level that delays:
  // InferCall::due). Then counts it, and returns its level. Error (resource_exhausted): as many as may be
  // open are. Otherwise leave() has to follow, once it is answered.
  Result<std::uint64_t> enter(InferCall& call, const std::optional<Duration>& slo);
  void leave(std::uint64_t level);

 private:
  const std::shared_ptr<const repository::QueuePolicies> policies_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> open_;  // by level, of those that have any
};

}  // namespace carillon::controller
