#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "carillon/controller/calls/service.h"
#include "carillon/repository/queue_policies.h"

namespace carillon::controller {

// How many requests wait, by priority level. Safe from any thread.
class WaitingByLevel {
 public:
  // One more, unless `most` (0: any number) wait already.
  bool enter(std::uint64_t level, std::uint64_t most);
  void enter(std::uint64_t level);
  void leave(std::uint64_t level);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> waiting_;  // of levels where any do
};

// A request's place in its model's queue, from its arrival until it is answered. It counts while it waits:
// not while a device has it. Safe from any thread.
class QueuePlace {
 public:
  // Counted already.
  QueuePlace(std::shared_ptr<WaitingByLevel> queue, std::uint64_t level)
      : queue_(std::move(queue)), level_(level) {}
  ~QueuePlace() { leaves(); }
  QueuePlace(const QueuePlace&) = delete;
  QueuePlace& operator=(const QueuePlace&) = delete;

  std::uint64_t level() const { return level_; }
  // It waits, or does not any more. What waits again after a failed run is never turned away.
  void waits(bool waits);
  // It is answered, and never waits again.
  void leaves();

 private:
  const std::shared_ptr<WaitingByLevel> queue_;
  const std::uint64_t level_;
  std::mutex mutex_;  // of what follows
  bool counted_ = true;
  bool left_ = false;
};

// What a model's config says of its queue (repository::QueuePolicies), carried out on its calls: a level, a
// deadline, and how many may wait. Knows no time. Safe from any thread.
class QueueRules {
 public:
  explicit QueueRules(std::shared_ptr<const repository::QueuePolicies> policies)
      : policies_(std::move(policies)) {}

  // Gives the call what its level says: a priority, where it names none that there is; a deadline so long
  // after its arrival, where it has no nearer one and the model no SLO (of a level that delays:
  // InferCall::due); and a place, which counts. Error (unavailable, as Triton has it): as many wait as may.
  Result<> enter(InferCall& call, const std::optional<Duration>& slo);

 private:
  const std::shared_ptr<const repository::QueuePolicies> policies_;
  const std::shared_ptr<WaitingByLevel> waiting_ = std::make_shared<WaitingByLevel>();
};

}  // namespace carillon::controller
