#include "carillon/schedule/decaying_tail.h"

#include <gtest/gtest.h>

namespace carillon::schedule {
namespace {

TEST(DecayingTail, IsZeroAsLongAsNothingWaited) {
  DecayingTail tail(0.01, 10s);
  EXPECT_EQ(tail.tail(TimePoint{} + 1s), Duration{0});
  for (int i = 0; i < 1000; ++i) tail.add(500ns, 1, TimePoint{} + 1s);
  EXPECT_EQ(tail.tail(TimePoint{} + 1s), Duration{0});
  EXPECT_EQ(tail.cases(TimePoint{} + 1s), 1000);
}

TEST(DecayingTail, IsWhatTheShareExceeds) {
  DecayingTail tail(0.01, 10s);
  const TimePoint now = TimePoint{} + 1s;
  for (int i = 1; i <= 1000; ++i) tail.add(i * 1ms, 1, now);
  // Ten of a thousand may take longer; a bucket is 4.5% wide.
  EXPECT_GE(tail.tail(now), 990ms);
  EXPECT_LE(tail.tail(now), 1040ms);
}

TEST(DecayingTail, WeighsCases) {
  DecayingTail tail(0.01, 10s);
  const TimePoint now = TimePoint{} + 1s;
  tail.add(1ms, 99, now);
  tail.add(50ms, 1, now);
  EXPECT_LE(tail.tail(now), 1050us);  // exactly the share may exceed it
  tail.add(50ms, 1, now);
  EXPECT_GE(tail.tail(now), 50ms);
}

TEST(DecayingTail, IsTheLongestOfFew) {
  DecayingTail tail(0.01, 10s);
  const TimePoint now = TimePoint{} + 1s;
  for (const Duration d : {3ms, 80ms, 20ms}) tail.add(d, 1, now);
  EXPECT_GE(tail.tail(now), 80ms);
  EXPECT_LE(tail.tail(now), 84ms);
}

TEST(DecayingTail, ForgetsWithTime) {
  DecayingTail tail(0.01, 10s);
  TimePoint now = TimePoint{} + 1s;
  for (int i = 0; i < 100; ++i) tail.add(1s, 1, now);
  // A hundred cases a second that took a millisecond: the old ones are 1% of all after some horizons.
  Duration before = tail.tail(now);
  EXPECT_GE(before, 1s);
  for (int i = 0; i < 60; ++i) {
    now += 1s;
    for (int k = 0; k < 100; ++k) tail.add(1ms, 1, now);
    EXPECT_LE(tail.tail(now), before);
    before = tail.tail(now);
  }
  EXPECT_LE(before, 1050us);
  EXPECT_NEAR(tail.cases(now), 1000, 60);  // the rate times the horizon
  // And where nothing comes any more, what was is forgotten in the end.
  EXPECT_EQ(tail.tail(now + 1h), Duration{0});
}

TEST(DecayingTail, TakesWhatIsOutOfItsRange) {
  DecayingTail tail(0.5, 10s);
  const TimePoint now = TimePoint{} + 1s;
  tail.add(Duration::max(), 1, now);
  EXPECT_GE(tail.tail(now), 4000s);
  EXPECT_LE(tail.tail(now), 5000s);
}

TEST(DecayingTail, WhereAllMayExceedItIsZero) {
  DecayingTail tail(1, 10s);
  tail.add(1s, 5, TimePoint{} + 1s);
  EXPECT_EQ(tail.tail(TimePoint{} + 1s), Duration{0});
  for (int i = 1; i < 50; ++i) {
    tail.add(1s, 5, TimePoint{} + i * 3s);
    EXPECT_EQ(tail.tail(TimePoint{} + i * 3s), Duration{0}) << i;
  }
}

}  // namespace
}  // namespace carillon::schedule
