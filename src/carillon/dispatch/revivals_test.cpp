#include "carillon/dispatch/revivals.h"

#include <gtest/gtest.h>

namespace carillon::dispatch {
namespace {

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

class RevivalsTest : public ::testing::Test {
 protected:
  RevivalsTest() {
    for (int i = 0; i < 2; ++i) revivals.add_device();
  }
  Revivals revivals{RevivalOptions{}};
};

TEST_F(RevivalsTest, ADeviceThatWentIsProbedUntilItIsWell) {
  EXPECT_EQ(revivals.wake_at(), TimePoint::max());
  revivals.down({0}, at(1s));
  EXPECT_EQ(revivals.wake_at(), at(1100ms));
  EXPECT_TRUE(revivals.due(at(1099ms)).empty());
  EXPECT_EQ(revivals.due(at(1100ms)), std::vector<DeviceId>{{0}});
  EXPECT_EQ(revivals.wake_at(), TimePoint::max());  // until there is an answer
  revivals.probed({0}, false, at(2s));
  EXPECT_EQ(revivals.wake_at(), at(2100ms));
  EXPECT_EQ(revivals.due(at(2100ms)).size(), 1U);
  revivals.probed({0}, true, at(2200ms));
  EXPECT_EQ(revivals.wake_at(), TimePoint::max());
}

TEST_F(RevivalsTest, ADeviceThatComesBackByItselfIsNotProbed) {
  revivals.down({0}, at(1s));
  revivals.probed({0}, true, at(1050ms));
  EXPECT_EQ(revivals.wake_at(), TimePoint::max());
  EXPECT_TRUE(revivals.due(at(2s)).empty());
}

TEST_F(RevivalsTest, OneThatGoesAgainAndAgainWaitsLonger) {
  TimePoint now = at(0ms);
  std::vector<Duration> waits;
  for (int i = 0; i < 10; ++i) {
    revivals.down({0}, now);
    waits.push_back(revivals.wake_at() - now);
    now = revivals.wake_at();
    EXPECT_EQ(revivals.due(now).size(), 1U);
    revivals.probed({0}, true, now);
    now += 1s;
  }
  EXPECT_EQ(waits,
            (std::vector<Duration>{100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 6400ms, 10s, 10s, 10s}));
  now += 60s;  // it was well for long
  revivals.down({0}, now);
  EXPECT_EQ(revivals.wake_at(), now + 100ms);
}

TEST_F(RevivalsTest, ADeviceThatStaysFor30SecondsBeginsAnew) {
  for (const DeviceId device : {DeviceId{0}, DeviceId{1}}) {
    revivals.down(device, at(1s));
    revivals.probed(device, true, at(2s));
  }
  revivals.down({0}, at(32s) - 1ns);
  EXPECT_EQ(revivals.wake_at(), at(32200ms) - 1ns);
  revivals.down({1}, at(32s));
  EXPECT_EQ(revivals.wake_at(), at(32100ms));
}

TEST_F(RevivalsTest, ADeviceThatWasNotThereAtFirstComesBackLikeAnyOther) {
  revivals.add_device(false);
  revivals.probed({2}, true, at(1s));
  revivals.down({2}, at(2s));
  EXPECT_EQ(revivals.wake_at(), at(2200ms));
}

TEST_F(RevivalsTest, EachIsNamedWhenItsOwnTimeHasCome) {
  revivals.down({1}, at(0ms));
  revivals.down({0}, at(50ms));
  EXPECT_EQ(revivals.due(at(100ms)), std::vector<DeviceId>{{1}});
  EXPECT_EQ(revivals.wake_at(), at(150ms));
  revivals.probed({1}, false, at(120ms));
  EXPECT_EQ(revivals.due(at(300ms)), (std::vector<DeviceId>{{0}, {1}}));
}

}  // namespace
}  // namespace carillon::dispatch
