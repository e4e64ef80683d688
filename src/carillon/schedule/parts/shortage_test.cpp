#include "carillon/schedule/parts/shortage.h"

#include <gtest/gtest.h>

namespace carillon::schedule::parts {
namespace {

TEST(Shortage, MoreWaitsThanDevicesCanDoInItsTime) {
  const Plan plan(Environment{.dispatch = {}, .answer = {}, .overrun = 0});  // of no rates
  Shortage shortage(plan);
  const TimePoint now{1s};
  shortage.waits(3, 10, 2.0, now + 1s, now);  // 2 s of work have 1 s
  struct Case {
    std::size_t devices;
    bool is;
    double contention;
  };
  for (const auto& [devices, is, contention] : {Case{1, true, 1}, Case{4, false, 0}}) {
    shortage.find(devices, now);
    EXPECT_EQ(shortage.pressed(), is) << devices;
    EXPECT_EQ(shortage.contention(), contention) << devices;
  }
  shortage.find(1, now);
  EXPECT_DOUBLE_EQ(shortage.each(), 0.2) << "of a request that waits";
  shortage.waits(3, 0, 0, TimePoint::max(), now);
  EXPECT_TRUE(shortage.pressed()) << "until find()";
  shortage.find(1, now);
  EXPECT_FALSE(shortage.pressed());
}

}  // namespace
}  // namespace carillon::schedule::parts
