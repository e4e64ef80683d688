#include "carillon/provision/autoscale.h"

#include <gtest/gtest.h>

namespace carillon::provision {
namespace {

TEST(Autoscale, AddsForBadRequestsAndReleasesIdleDevices) {
  EXPECT_EQ(autoscale_advice(24, 0.2, 0).add_devices, 6);  // 24 * 0.2 / 0.8
  EXPECT_EQ(autoscale_advice(24, 0.2, 0.9).release_devices, 0);
  EXPECT_EQ(autoscale_advice(10, 0.011, 0).add_devices, 1);
  EXPECT_EQ(autoscale_advice(10, 0.009, 0.35).add_devices, 0);
  EXPECT_EQ(autoscale_advice(10, 0.009, 0.35).release_devices, 3);
  EXPECT_EQ(autoscale_advice(1, 0, 1).release_devices, 0);
  EXPECT_EQ(autoscale_advice(4, 0, 1).release_devices, 3);
  EXPECT_EQ(autoscale_advice(8, 1, 0).add_devices, 16);  // at most twice as many
}

TEST(AutoscaleWindow, AdvisesFromTheLastMinute) {
  const auto at = [](int seconds) { return TimePoint{} + std::chrono::seconds{seconds}; };
  AutoscaleWindow window(60s);
  EXPECT_EQ(window.observe(at(0), 4, {}).release_devices, 0) << "nothing is known yet";
  // Half of the requests are bad for a minute, then none and devices idle.
  EXPECT_EQ(window.observe(at(30), 4, {.requests = 100, .bad = 50, .busy = 120s}).add_devices, 4);
  EXPECT_EQ(window.observe(at(60), 4, {.requests = 200, .bad = 100, .busy = 240s}).add_devices, 4);
  AutoscaleAdvice advice;
  for (int t = 61; t <= 130; ++t)
    advice = window.observe(at(t), 4, {.requests = 1000, .bad = 100, .busy = 240s});
  EXPECT_EQ(advice.add_devices, 0);
  EXPECT_EQ(advice.release_devices, 3);
  EXPECT_DOUBLE_EQ(advice.idle_fraction, 1);
  EXPECT_DOUBLE_EQ(advice.bad_rate, 0);
  // Looked at after an hour: the whole hour counts.
  advice = window.observe(at(3730), 4, {.requests = 2000, .bad = 100, .busy = 240s + 7200s});
  EXPECT_NEAR(advice.idle_fraction, 0.5, 0.01);
}

}  // namespace
}  // namespace carillon::provision
