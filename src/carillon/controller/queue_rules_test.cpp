#include "carillon/controller/queue_rules.h"

#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

class QueueRulesTest : public ::testing::Test {
 protected:
  QueueRulesTest()
      : rules(std::make_shared<const repository::QueuePolicies>(
            repository::QueuePolicies{.levels = 3,
                                      .default_level = 2,
                                      .others = {.due = 5ms, .most_open = 2},
                                      .by_level = {{1, {.due = {}, .most_open = 1}}}})) {
    call.arrival = TimePoint{1s};
    call.deadline = TimePoint::max();
  }
  Result<std::uint64_t> enter(std::uint32_t priority, std::optional<Duration> slo = {}) {
    call.priority = priority;
    return rules.enter(call, slo);
  }
  InferCall call;
  QueueRules rules;
};

TEST_F(QueueRulesTest, ALevelSaysWhenItsRequestsAreDue) {
  EXPECT_EQ(enter(0).value(), 2U);
  EXPECT_EQ(call.priority, 2U);
  EXPECT_EQ(call.deadline, call.arrival + 5ms);
  call.deadline = call.arrival + 1ms;
  EXPECT_EQ(enter(3).value(), 3U);
  EXPECT_EQ(call.deadline, call.arrival + 1ms) << "the nearer one";
  call.deadline = call.arrival + 1s;
  EXPECT_EQ(enter(9).value(), 2U) << "there is none of that name";
  EXPECT_EQ(call.deadline, call.arrival + 5ms);
  call.deadline = TimePoint::max();
  EXPECT_TRUE(enter(1));
  EXPECT_EQ(call.deadline, TimePoint::max());
  EXPECT_TRUE(enter(3, 20ms));
  EXPECT_EQ(call.deadline, TimePoint::max()) << "the model's SLO goes before";
}

TEST(QueueRules, WhatIsDelayedHasNoDeadlineButItsOwn) {
  using explain::DeadlineFrom;
  const auto rules = [](bool takes_timeout) {
    return QueueRules(std::make_shared<const repository::QueuePolicies>(
        repository::QueuePolicies{.others = {.due = 5ms, .delays = true, .takes_timeout = takes_timeout}}));
  };
  const TimePoint arrival{1s}, never = TimePoint::max();
  const struct {
    const char* what;
    bool takes_timeout;
    DeadlineFrom from;
    TimePoint own, due, deadline;
  } rows[] = {
      {"none of its own", false, DeadlineFrom::none, never, arrival + 5ms, never},
      {"a timeout is a deadline", false, DeadlineFrom::timeout, arrival + 3ms, arrival + 5ms, arrival + 3ms},
      {"a timeout is one of the queue", true, DeadlineFrom::timeout, arrival + 3ms, arrival + 3ms, never},
      {"a longer one is not", true, DeadlineFrom::timeout, arrival + 9ms, arrival + 5ms, arrival + 9ms},
      {"the client goes by then", true, DeadlineFrom::grpc, arrival + 3ms, arrival + 5ms, arrival + 3ms},
  };
  for (const auto& row : rows) {
    InferCall call;
    call.arrival = arrival;
    call.deadline = row.own;
    call.deadline_from = row.from;
    ASSERT_TRUE(rules(row.takes_timeout).enter(call, {})) << row.what;
    EXPECT_EQ(call.due, row.due) << row.what;
    EXPECT_EQ(call.deadline, row.deadline) << row.what;
  }
  InferCall call;
  call.deadline = never;
  ASSERT_TRUE(rules(true).enter(call, 20ms));
  EXPECT_EQ(call.due, never) << "the model's SLO goes before";
}

TEST_F(QueueRulesTest, OnlySoManyOfALevelAreOpen) {
  EXPECT_TRUE(enter(1));
  const auto refused = enter(1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(
      refused.error().message,
      "1 requests of the model and of priority 1 are open, as many as its config's max_queue_size says; try "
      "again later");
  EXPECT_TRUE(enter(2));
  EXPECT_TRUE(enter(2));
  EXPECT_FALSE(enter(2));
  EXPECT_TRUE(enter(3)) << "each level has its own";
  rules.leave(1);
  EXPECT_TRUE(enter(1));
}

}  // namespace
}  // namespace carillon::controller
