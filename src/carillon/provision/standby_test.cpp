#include "carillon/provision/standby.h"

#include <gtest/gtest.h>

namespace carillon::provision {
namespace {

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

struct StandbyTest : ::testing::Test {
  StandbyWatch watch{{.slo = 10ms, .least = 20}};
  void answer(int times, Duration latency) {
    for (int i = 0; i < times; ++i) watch.answered(latency);
  }
};

// Figure 17: broken in the first second, still broken half a second later: taken over at 1.5 s.
TEST_F(StandbyTest, TakesOverWhenTheSloIsBrokenTwice) {
  EXPECT_FALSE(watch.look(at(0ms)));
  EXPECT_EQ(watch.next_look(), at(1s));
  answer(500, 15ms);
  EXPECT_FALSE(watch.look(at(900ms))) << "not yet";
  EXPECT_FALSE(watch.look(at(1s)));
  EXPECT_TRUE(watch.suspicious());
  EXPECT_EQ(watch.next_look(), at(1500ms));
  answer(250, 15ms);
  EXPECT_TRUE(watch.look(at(1500ms)));
  EXPECT_TRUE(watch.taken_over());
  answer(500, 15ms);
  EXPECT_FALSE(watch.look(at(3s))) << "once";
}

TEST_F(StandbyTest, OneBadSecondIsForgiven) {
  watch.look(at(0ms));
  answer(100, 15ms);
  EXPECT_FALSE(watch.look(at(1s)));
  answer(100, 5ms);
  EXPECT_FALSE(watch.look(at(1500ms)));
  EXPECT_FALSE(watch.suspicious());
  EXPECT_EQ(watch.next_look(), at(2500ms));
  answer(100, 15ms);
  EXPECT_FALSE(watch.look(at(2500ms)));
}

TEST_F(StandbyTest, OneInAHundredMayBeLate) {
  watch.look(at(0ms));
  answer(990, 10ms);
  answer(10, Duration::max());
  EXPECT_FALSE(watch.look(at(1s)));
  EXPECT_FALSE(watch.suspicious());
  answer(990, 10ms);
  answer(11, Duration::max());
  EXPECT_FALSE(watch.look(at(2s)));
  EXPECT_TRUE(watch.suspicious());
}

TEST_F(StandbyTest, AFewRequestsProveNothing) {
  watch.look(at(0ms));
  answer(19, 15ms);
  EXPECT_FALSE(watch.look(at(1s)));
  EXPECT_FALSE(watch.suspicious());
  answer(1, 15ms);  // with those before
  EXPECT_FALSE(watch.look(at(1100ms)));
  EXPECT_TRUE(watch.suspicious());
}

TEST_F(StandbyTest, WhatWasLongAgoDoesNotCount) {
  watch.look(at(0ms));
  answer(19, 15ms);
  EXPECT_FALSE(watch.look(at(1s)));
  answer(1, 15ms);
  EXPECT_FALSE(watch.look(at(1h)));
  EXPECT_FALSE(watch.suspicious());
  answer(20, 5ms);
  EXPECT_FALSE(watch.look(at(1h + 1s)));
  EXPECT_FALSE(watch.suspicious());
}

}  // namespace
}  // namespace carillon::provision
