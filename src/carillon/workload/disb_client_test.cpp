#include "carillon/workload/disb_client.h"

#include <gtest/gtest.h>

namespace carillon::workload {
namespace {

TimePoint after(Duration since_start) {
  return TimePoint{} + since_start;
}

TEST(DisbArrivals, AsTheClientPlansThem) {
  DisbClient client{.arrivals = DisbClient::Arrivals::periodic, .rate = 100, .phase = 3ms};
  DisbArrivals periodic(client, Random(1));
  EXPECT_EQ(periodic.next(), after(3ms));
  EXPECT_EQ(periodic.next(), after(13ms));

  DisbClient traced{.arrivals = DisbClient::Arrivals::trace, .trace = {1ms, 5ms}};
  DisbArrivals trace(traced, Random(1));
  EXPECT_EQ(trace.next(), after(1ms));
  EXPECT_EQ(trace.next(), after(5ms));
  EXPECT_EQ(trace.next(), TimePoint::max());

  DisbClient looped{.arrivals = DisbClient::Arrivals::closed_loop};
  DisbArrivals loop(looped, Random(1));
  EXPECT_EQ(loop.next(), after(0ms));
  EXPECT_EQ(loop.next(), TimePoint::max());

  DisbClient random{.arrivals = DisbClient::Arrivals::poisson, .rate = 1000};
  DisbArrivals poisson(random, Random(1));
  TimePoint last, next;
  for (int i = 0; i < 10'000; ++i, last = next) {
    next = poisson.next();
    ASSERT_GT(next, last);
  }
  EXPECT_NEAR(to_seconds(last - TimePoint{}), 10, 0.5);
}

TEST(DisbSender, OneIsUnderWayAndOneWaits) {
  DisbSender sender(false);
  EXPECT_TRUE(sender.planned(after(0ms)));
  EXPECT_FALSE(sender.planned(after(10ms)));  // waits
  EXPECT_FALSE(sender.planned(after(20ms)));  // takes its place
  EXPECT_EQ(sender.dropped(), 1U);
  EXPECT_EQ(sender.unfinished(), 2U);
  EXPECT_EQ(sender.answered(after(25ms)), after(20ms));  // counts from when it was planned
  EXPECT_TRUE(sender.busy());
  EXPECT_EQ(sender.answered(after(30ms)), std::nullopt);
  EXPECT_FALSE(sender.busy());
  EXPECT_EQ(sender.requests(), 3U);
  EXPECT_EQ(sender.unfinished(), 0U);
}

TEST(DisbSender, AClosedLoopSendsAsItIsAnswered) {
  DisbSender sender(true);
  EXPECT_TRUE(sender.planned(after(0ms)));
  EXPECT_EQ(sender.answered(after(7ms)), after(7ms));
  EXPECT_EQ(sender.requests(), 2U);
  EXPECT_EQ(sender.unfinished(), 1U);
  EXPECT_EQ(sender.dropped(), 0U);
}

}  // namespace
}  // namespace carillon::workload
