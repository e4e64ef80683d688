#include "carillon/engine/second/restarts.h"

#include <gtest/gtest.h>

#include "carillon/engine/second/line_limit.h"

namespace carillon::engine::second {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since) {
  return TimePoint{since};
}

TEST(Restarts, PausesGrowAndThenItIsOver) {
  Restarts restarts({.most = 3, .window = 10min, .pause = 1s});
  EXPECT_EQ(restarts.ended(at(0s)), 1s);
  EXPECT_EQ(restarts.ended(at(5s)), 2s);
  EXPECT_EQ(restarts.ended(at(10s)), 4s);
  EXPECT_EQ(restarts.ended(at(20s)), std::nullopt);
}

TEST(Restarts, WhatIsLongAgoIsForgotten) {
  Restarts restarts({.most = 2, .window = 10min, .pause = 1s});
  EXPECT_EQ(restarts.ended(at(0min)), 1s);
  EXPECT_EQ(restarts.ended(at(6min)), 2s);
  EXPECT_EQ(restarts.ended(at(10min)), 2s) << "the first is 10 minutes ago, the second is not";
  EXPECT_EQ(restarts.ended(at(30min)), 1s);
}

TEST(Restarts, NoneAtAll) {
  EXPECT_EQ(Restarts({.most = 0}).ended(at(0s)), std::nullopt);
}

TEST(LineLimit, WhatIsLeftOutIsCounted) {
  LineLimit limit({.most = 2, .window = 1min});
  EXPECT_EQ(limit.line(at(0s)), 0U);
  EXPECT_EQ(limit.line(at(1s)), 0U);
  EXPECT_EQ(limit.line(at(2s)), std::nullopt);
  EXPECT_EQ(limit.line(at(59s)), std::nullopt);
  EXPECT_EQ(limit.line(at(60s)), 2U);
  EXPECT_EQ(limit.line(at(60s)), std::nullopt) << "that of 1 s counts still";
  EXPECT_EQ(limit.line(at(5min)), 1U);
}

}  // namespace
}  // namespace carillon::engine::second
