#include "carillon/repository/queue_policies.h"

#include <string>

#include <gtest/gtest.h>

#include "carillon/repository/config.h"

namespace carillon::repository {
namespace {

Result<ConfigFile> with_batching(const std::string& batching) {
  return parse_config("max_batch_size: 4 dynamic_batching { " + batching + " }", "m");
}

TEST(QueuePolicies, SayWhatALevelsRequestsAreHeldTo) {
  const auto config = with_batching(
      "priority_levels: 3 default_priority_level: 2 "
      "default_queue_policy { default_timeout_microseconds: 5000 allow_timeout_override: true "
      "max_queue_size: 7 } "
      "priority_queue_policy { key: 1 value { max_queue_size: 2 } }");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_TRUE(config->config.ignored.empty());
  ASSERT_NE(config->config.queue, nullptr);
  const QueuePolicies& queue = *config->config.queue;
  EXPECT_EQ(queue.level_of(0), 2U);
  EXPECT_EQ(queue.level_of(1), 1U);
  EXPECT_EQ(queue.level_of(4), 2U);
  EXPECT_EQ(queue.policy_of(2), (QueuePolicy{.due = 5ms, .takes_timeout = true, .most_waiting = 7}));
  EXPECT_EQ(queue.policy_of(1), (QueuePolicy{.due = {}, .most_waiting = 2}));
  EXPECT_EQ(with_batching("max_queue_delay_microseconds: 1")->config.queue, nullptr);
}

TEST(QueuePolicies, SayWhatIsNotHeeded) {
  const auto config = with_batching(
      "default_queue_policy { default_timeout_microseconds: 5000 } priority_levels: 2 "
      "default_priority_level: 1 "
      "priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 9 } }");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  ASSERT_EQ(config->config.ignored.size(), 2U);
  EXPECT_EQ(
      config->config.ignored[0],
      "dynamic_batching: default_queue_policy: allow_timeout_override: false: a request's own timeout is "
      "heeded where it is nearer");
  EXPECT_EQ(config->config.ignored[1].substr(0, 69),
            "dynamic_batching: priority_queue_policy 2: allow_timeout_override: fa");
}

TEST(QueuePolicies, MayDelayWhatIsLate) {
  const auto config = with_batching(
      "default_queue_policy { timeout_action: DELAY } priority_levels: 2 default_priority_level: 1 "
      "priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 9 "
      "allow_timeout_override: true } }");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_TRUE(config->config.ignored.empty());
  EXPECT_EQ(config->config.queue->policy_of(2),
            (QueuePolicy{.due = 9us, .delays = true, .takes_timeout = true}));
  EXPECT_EQ(config->config.queue->policy_of(1), QueuePolicy{}) << "no timeout: nothing is ever late";
}

TEST(QueuePolicies, MayDelayByTheRequestsTimeoutAlone) {
  const auto config =
      with_batching("default_queue_policy { timeout_action: DELAY allow_timeout_override: true }");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_TRUE(config->config.ignored.empty());
  ASSERT_NE(config->config.queue, nullptr);
  EXPECT_EQ(config->config.queue->policy_of(0),
            (QueuePolicy{.due = {}, .delays = true, .takes_timeout = true}));
}

TEST(QueuePolicies, LevelsMustBeThere) {
  const struct {
    const char* batching;
    const char* message;
  } rows[] = {
      {"priority_levels: 2",
       "dynamic_batching: default_priority_level is 0; it is 1 to priority_levels, here 2"},
      {"priority_levels: 2 default_priority_level: 3",
       "dynamic_batching: default_priority_level is 3; it is 1"},
      {"default_priority_level: 1", "dynamic_batching: default_priority_level needs priority_levels"},
      {"priority_queue_policy { key: 1 value { } }",
       "dynamic_batching: priority_queue_policy needs priority_levels"},
      {"priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }",
       "dynamic_batching: priority_queue_policy 3: levels are 1 to priority_levels, here 2"},
      {"priority_levels: 9999999999 default_priority_level: 1",
       "dynamic_batching: priority_levels is 9999999999"},
  };
  for (const auto& row : rows) {
    const auto config = with_batching(row.batching);
    ASSERT_FALSE(config.has_value()) << row.batching;
    EXPECT_EQ(config.error().message.substr(0, std::string_view(row.message).size()), row.message);
  }
}

}  // namespace
}  // namespace carillon::repository
