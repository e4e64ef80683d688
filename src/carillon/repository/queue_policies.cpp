#include "carillon/repository/queue_policies.h"

#include <algorithm>
#include <limits>
#include <string>

#include "model_config.pb.h"

namespace carillon::repository {
namespace {

using inference::ModelQueuePolicy;
using std::to_string;

QueuePolicy read_policy(const ModelQueuePolicy& message, const std::string& where,
                        std::vector<std::string>& ignored) {
  constexpr std::uint64_t day_us = 86'400'000'000;
  QueuePolicy out{
      .due = {}, .takes_timeout = message.allow_timeout_override(), .most_waiting = message.max_queue_size()};
  const std::uint64_t timeout = std::min(message.default_timeout_microseconds(), day_us);
  if (timeout < message.default_timeout_microseconds())
    ignored.push_back(where + "default_timeout_microseconds: " +
                      to_string(message.default_timeout_microseconds()) + " is taken for a day");
  // Without either timeout nothing is ever late.
  out.delays = message.timeout_action() == ModelQueuePolicy::DELAY && (timeout > 0 || out.takes_timeout);
  if (timeout == 0) return out;
  out.due = std::chrono::microseconds(timeout);
  if (!message.allow_timeout_override())
    ignored.push_back(where +
                      "allow_timeout_override: false: a request's own timeout is heeded where it is nearer");
  return out;
}

}  // namespace

Result<std::optional<QueuePolicies>> read_queue_policies(const inference::ModelDynamicBatching& message,
                                                         std::vector<std::string>& ignored) {
  const std::string where = "dynamic_batching: ";
  if (message.priority_levels() == 0 && message.default_priority_level() == 0 &&
      !message.has_default_queue_policy() && message.priority_queue_policy_size() == 0)
    return std::nullopt;
  QueuePolicies out;
  out.levels = message.priority_levels();
  out.default_level = message.default_priority_level();
  if (out.levels > std::numeric_limits<std::uint32_t>::max())
    return invalid(where + "priority_levels is " + to_string(out.levels) + "; at most " +
                   to_string(std::numeric_limits<std::uint32_t>::max()));
  if (out.levels > 0 && (out.default_level == 0 || out.default_level > out.levels))
    return invalid(where + "default_priority_level is " + to_string(out.default_level) +
                   "; it is 1 to priority_levels, here " + to_string(out.levels));
  if (out.levels == 0 && (out.default_level > 0 || message.priority_queue_policy_size() > 0))
    return invalid(where + (out.default_level > 0 ? "default_priority_level" : "priority_queue_policy") +
                   " needs priority_levels, which says how many there are");
  if (message.has_default_queue_policy())
    out.others = read_policy(message.default_queue_policy(), where + "default_queue_policy: ", ignored);
  // In order: protobuf's maps have none.
  const std::map<std::uint64_t, ModelQueuePolicy> policies(message.priority_queue_policy().begin(),
                                                           message.priority_queue_policy().end());
  for (const auto& [level, policy] : policies) {
    const std::string place = where + "priority_queue_policy " + to_string(level) + ": ";
    if (level == 0 || level > out.levels)
      return invalid(place + "levels are 1 to priority_levels, here " + to_string(out.levels));
    out.by_level[level] = read_policy(policy, place, ignored);
  }
  return out;
}

}  // namespace carillon::repository
