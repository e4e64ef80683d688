#include "carillon/simulate/usual_signals.h"

#include <gtest/gtest.h>

namespace carillon::simulate {
namespace {

TimePoint at_second(int seconds) {
  return TimePoint{} + std::chrono::seconds{seconds};
}

TEST(UsualSignals, AreReadFromText) {
  const auto queue = parse_usual("queue:20");
  ASSERT_TRUE(queue.has_value());
  EXPECT_EQ(queue->signal, UsualSignal::queue_time);
  EXPECT_DOUBLE_EQ(queue->target, 0.02);
  EXPECT_DOUBLE_EQ(parse_usual("utilization:0.7")->target, 0.7);
  for (const char* wrong :
       {"", "queue", "queue:", "queue:x", "queue:0", "queue:-1", "latency:3", "queue:1s", "queue:nan"})
    EXPECT_FALSE(parse_usual(wrong).has_value()) << wrong;
  for (const char* beyond : {"queue:5e-324", "concurrency:1000001", "utilization:inf"}) {
    const auto read = parse_usual(beyond);
    ASSERT_FALSE(read.has_value()) << beyond;
    EXPECT_TRUE(read.error().message.ends_with("with a number from 1e-6 to 1e6")) << read.error().message;
  }
}

// HPA's published example: 200 seen for a target of 100 doubles the replicas, 50 halves them.
TEST(UsualSignals, TheFormulaIsHpas) {
  UsualScaler scaler({.signal = UsualSignal::utilization, .target = 0.5, .most = 10, .quiet = 0s});
  EXPECT_EQ(scaler.look(at_second(0), 2, 2, {}), 2);
  EXPECT_EQ(scaler.look(at_second(10), 2, 2, {.busy_seconds = 20}), 4);
  EXPECT_EQ(scaler.look(at_second(20), 2, 4, {.busy_seconds = 40}), 4) << "two have yet to come";
  EXPECT_EQ(scaler.look(at_second(30), 4, 4, {.busy_seconds = 61.5}), 4) << "2.15 of 2: within a tenth";
  EXPECT_EQ(scaler.look(at_second(40), 4, 4, {.busy_seconds = 84}), 5);
  EXPECT_EQ(scaler.look(at_second(50), 5, 5, {.busy_seconds = 94}), 2);
  EXPECT_EQ(scaler.look(at_second(60), 2, 2, {.busy_seconds = 94}), 1);
  EXPECT_EQ(scaler.look(at_second(70), 1, 1, {.busy_seconds = 194}), 10) << "the most";
}

TEST(UsualSignals, ConcurrencyIsTheMeanAndQueueTimeThatOfAnsweredRequests) {
  UsualScaler open({.signal = UsualSignal::concurrency, .target = 4, .most = 10, .quiet = 0s});
  open.look(at_second(0), 1, 1, {});
  EXPECT_EQ(open.look(at_second(10), 1, 1, {.open_seconds = 90}), 3);
  UsualScaler queue({.signal = UsualSignal::queue_time, .target = 0.01, .most = 10, .quiet = 0s});
  queue.look(at_second(0), 2, 2, {});
  EXPECT_EQ(queue.look(at_second(10), 2, 2, {.waited_seconds = 3, .answered = 100}), 6);
  EXPECT_EQ(queue.look(at_second(20), 6, 6, {.waited_seconds = 3, .answered = 100}), 1) << "nobody asked";
}

TEST(UsualSignals, FewerAreWantedOnceTheyWereEnoughForTheQuietTime) {
  UsualScaler scaler({.signal = UsualSignal::concurrency, .target = 1, .most = 10, .quiet = 30s});
  scaler.look(at_second(0), 1, 1, {});
  EXPECT_EQ(scaler.look(at_second(10), 1, 1, {.open_seconds = 50}), 5);
  EXPECT_EQ(scaler.look(at_second(20), 5, 5, {.open_seconds = 70}), 5);
  EXPECT_EQ(scaler.look(at_second(40), 5, 5, {.open_seconds = 90}), 5);
  EXPECT_EQ(scaler.look(at_second(50), 5, 5, {.open_seconds = 100}), 2);
  EXPECT_EQ(scaler.look(at_second(80), 2, 2, {.open_seconds = 130}), 1);
}

}  // namespace
}  // namespace carillon::simulate
