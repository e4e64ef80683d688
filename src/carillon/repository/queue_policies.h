#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace inference {
class ModelDynamicBatching;
}

namespace carillon::repository {

// What a priority level's requests are held to (Triton's ModelQueuePolicy).
struct QueuePolicy {
  // After arrival, where nothing nearer is asked for; none: by slo_ms and the rest.
  std::optional<Duration> due;
  // What cannot be answered by then is not refused: it waits until what has a nearer deadline is done
  // (DELAY).
  bool delays = false;
  // The request's own timeout is one like `due`, where it is nearer or there is none.
  bool takes_timeout = false;
  std::uint64_t most_waiting = 0;  // requests that no device has yet; 0: no bound of its own

  friend bool operator==(const QueuePolicy&, const QueuePolicy&) = default;
};

// The priorities of a model, and what its requests are held to.
struct QueuePolicies {
  std::uint64_t levels = 0;         // 0: priorities are as elsewhere, and there is one level
  std::uint64_t default_level = 0;  // of requests that name none, or one that there is not
  QueuePolicy others;               // of levels that by_level does not have
  std::map<std::uint64_t, QueuePolicy> by_level;

  std::uint64_t level_of(std::uint64_t priority) const {
    if (levels == 0) return 0;
    return priority == 0 || priority > levels ? default_level : priority;
  }
  const QueuePolicy& policy_of(std::uint64_t level) const {
    const auto at = by_level.find(level);
    return at == by_level.end() ? others : at->second;
  }
};

// Nothing where the message says nothing of them. `ignored` gets what is not heeded. Errors
// (invalid_argument): a default level that is none of the levels, a policy for one that is none.
Result<std::optional<QueuePolicies>> read_queue_policies(const inference::ModelDynamicBatching& message,
                                                         std::vector<std::string>& ignored);

}  // namespace carillon::repository
