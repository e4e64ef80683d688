#include "carillon/schedule/symphony/device_waits.h"

#include <gtest/gtest.h>

namespace carillon::schedule::symphony {
namespace {

constexpr ModelId busy{0}, idle{1};

// A world in which every hundredth request of a model waits for 20 ms and the others for 1 ms.
struct TwoModels {
  DeviceWaits waits{0.005, 10s, 4};
  TimePoint now = TimePoint{} + 1s;
  TwoModels() {
    waits.add_model();
    waits.add_model();
  }
  void wait(ModelId model, Duration time, int requests = 1) {
    waits.asks(model, now, now);
    now += time;
    waits.answered(model, requests, now);
  }
  void serve(ModelId model, int requests) {
    for (int i = 0; i < requests; ++i) wait(model, i % 100 == 0 ? 20ms : 1ms);
  }
  Duration lead(ModelId model, Duration guess = Duration::max()) { return waits.lead(model, guess, now); }
};

TEST(DeviceWaits, NoBatchAsksEarlyWhereDevicesAreAlwaysFree) {
  TwoModels world;
  EXPECT_EQ(world.lead(busy), Duration{0});
  for (int i = 0; i < 10; ++i) world.wait(busy, Duration{0});
  EXPECT_EQ(world.lead(busy), Duration{0});
}

TEST(DeviceWaits, TheLeadIsTheTailOnceItIsKnown) {
  TwoModels world;
  world.serve(busy, 1200);  // 4 requests beyond 0.5% are 800, and some have aged
  EXPECT_GE(world.lead(busy), 20ms);
  EXPECT_LE(world.lead(busy), 21ms);
}

TEST(DeviceWaits, ABurstIsForgottenWhereNothingComesAnyMore) {
  TwoModels world;
  world.serve(busy, 1200);
  ASSERT_GE(world.lead(busy, Duration{0}), 20ms);
  world.now += 1h;
  EXPECT_EQ(world.lead(busy, Duration{0}), Duration{0});
}

TEST(DeviceWaits, AModelOfFewRequestsGoesByTheGuessWhereThatIsLonger) {
  TwoModels world;
  world.serve(busy, 1200);
  world.serve(idle, 10);
  EXPECT_EQ(world.lead(idle), Duration::max());
  EXPECT_EQ(world.lead(idle, 300ms), 300ms);
  EXPECT_GE(world.lead(idle, 1ms), 20ms);  // what the other has seen
}

TEST(DeviceWaits, AWaitIsFromTheFirstAskingToTheAnswer) {
  TwoModels world;
  const TimePoint begin = world.now;
  world.waits.asks(busy, begin + 5ms, begin);         // in the future
  world.waits.asks(busy, begin + 2ms, begin + 1ms);   // a request came: sooner
  world.waits.asks(busy, begin + 30ms, begin + 3ms);  // it asks since 2 ms, and goes on
  world.waits.answered(busy, 4, begin + 34ms);
  EXPECT_EQ(world.waits.mean(busy), 1ms);  // 32 ms, one of 32
  // An answer without asking counts for nothing.
  world.waits.answered(busy, 4, begin + 99ms);
  EXPECT_EQ(world.waits.mean(busy), 1ms);
}

TEST(DeviceWaits, WhatWasLostCountsUntilADeviceWouldHaveCome) {
  TwoModels world;
  const TimePoint begin = world.now;
  world.waits.asks(busy, begin, begin);
  world.waits.lost(busy, begin + 64ms, begin + 1ms);
  EXPECT_EQ(world.waits.mean(busy), 2ms);  // one of 32
  EXPECT_GE(world.waits.lead(busy, Duration{0}, begin + 1ms), 64ms);
  // One that could have come long ago is no help.
  world.waits.asks(idle, begin, begin);
  world.waits.lost(idle, begin, begin + 32ms);
  EXPECT_EQ(world.waits.mean(idle), 1ms);
}

TEST(DeviceWaits, ToTheLetterNothingAsksEarly) {
  TwoModels world;
  world.waits = DeviceWaits(1, 10s, 4);
  world.waits.add_model();
  world.waits.add_model();
  world.serve(busy, 300);
  EXPECT_EQ(world.lead(busy), Duration{0});
}

}  // namespace
}  // namespace carillon::schedule::symphony
