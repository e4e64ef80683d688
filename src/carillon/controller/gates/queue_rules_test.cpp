#include "carillon/controller/gates/queue_rules.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

class QueueRulesTest : public ::testing::Test {
 protected:
  QueueRulesTest()
      : rules(std::make_shared<const repository::QueuePolicies>(
            repository::QueuePolicies{.levels = 3,
                                      .default_level = 2,
                                      .others = {.due = 5ms, .most_waiting = 2},
                                      .by_level = {{1, {.due = {}, .most_waiting = 1}}}})) {
    call.arrival = TimePoint{1s};
    call.deadline = TimePoint::max();
  }
  // The level that it was given.
  std::uint64_t enter(std::uint32_t priority, std::optional<Duration> slo = {}) {
    call.priority = priority;
    const auto entered = rules.enter(call, slo);
    EXPECT_TRUE(entered) << entered.error().message;
    places.push_back(call.place);
    return call.place->level();
  }
  std::string refusal(std::uint32_t priority) {
    call.priority = priority;
    const auto entered = rules.enter(call, {});
    if (entered) return "";
    EXPECT_EQ(entered.error().code, ErrorCode::unavailable);
    return entered.error().message;
  }
  InferCall call;
  QueueRules rules;
  std::vector<std::shared_ptr<QueuePlace>> places;
};

TEST_F(QueueRulesTest, ALevelSaysWhenItsRequestsAreDue) {
  EXPECT_EQ(enter(0), 2U);
  EXPECT_EQ(call.priority, 2U);
  EXPECT_EQ(call.deadline, call.arrival + 5ms);
  call.deadline = call.arrival + 1ms;
  EXPECT_EQ(enter(3), 3U);
  EXPECT_EQ(call.deadline, call.arrival + 1ms) << "the nearer one";
  call.deadline = call.arrival + 1s;
  EXPECT_EQ(enter(9), 2U) << "there is none of that name";
  EXPECT_EQ(call.deadline, call.arrival + 5ms);
  call.deadline = TimePoint::max();
  EXPECT_EQ(enter(1), 1U);
  EXPECT_EQ(call.deadline, TimePoint::max());
  EXPECT_EQ(enter(3, 20ms), 3U);
  EXPECT_EQ(call.deadline, TimePoint::max()) << "the model's SLO goes before";
}

TEST_F(QueueRulesTest, OnlySoManyOfALevelWait) {
  enter(1);
  EXPECT_EQ(refusal(1),
            "Exceeds maximum queue size: 1 requests of the model and of priority 1 wait, as many as its "
            "config's max_queue_size says; try again later");
  enter(2);
  enter(2);
  EXPECT_THAT(refusal(2), ::testing::StartsWith("Exceeds maximum queue size: 2 requests"));
  enter(3);  // each level has its own
}

// What a device has does not wait, as in Triton; what waits again is not turned away.
TEST_F(QueueRulesTest, WhatRunsIsNotInTheQueue) {
  for (int i = 0; i < 100; ++i) {
    enter(1);
    EXPECT_NE(refusal(1), "");
    places.back()->waits(false);
  }
  enter(1);
  places.front()->waits(true);
  EXPECT_NE(refusal(1), "");
  places.back()->waits(false);
  EXPECT_NE(refusal(1), "") << "the one that came back waits";
  places.front()->leaves();
  places.front()->waits(true);  // too late: it is answered
  EXPECT_EQ(refusal(1), "");
}

TEST_F(QueueRulesTest, WhateverBecomesOfARequestItLeaves) {
  for (const bool answered : {false, true}) {
    enter(1);
    EXPECT_NE(refusal(1), "");
    if (answered) places.back()->leaves();
    places.clear();
    call.place.reset();
  }
  EXPECT_EQ(refusal(1), "");
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

TEST(QueueRules, WithoutADefaultATimeoutDelaysAlone) {
  QueueRules rules(std::make_shared<const repository::QueuePolicies>(
      repository::QueuePolicies{.others = {.due = {}, .delays = true, .takes_timeout = true}}));
  const TimePoint arrival{1s}, never = TimePoint::max();
  const struct {
    const char* what;
    explain::DeadlineFrom from;
    TimePoint own, due, deadline;
  } rows[] = {
      {"a timeout", explain::DeadlineFrom::timeout, arrival + 3ms, arrival + 3ms, never},
      {"the client goes by then", explain::DeadlineFrom::grpc, arrival + 3ms, never, arrival + 3ms},
      {"none", explain::DeadlineFrom::none, never, never, never},
  };
  for (const auto& row : rows) {
    InferCall call;
    call.arrival = arrival;
    call.deadline = row.own;
    call.deadline_from = row.from;
    ASSERT_TRUE(rules.enter(call, {})) << row.what;
    EXPECT_EQ(call.due, row.due) << row.what;
    EXPECT_EQ(call.deadline, row.deadline) << row.what;
  }
}

}  // namespace
}  // namespace carillon::controller
