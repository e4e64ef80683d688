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

TEST(AutoscaleWindow, KnowsTheDevicesThatThereWere) {
  const auto at = [](int seconds) { return TimePoint{} + std::chrono::seconds{seconds}; };
  AutoscaleWindow window(20s);
  EXPECT_EQ(window.observe(at(0), 2, {}).period, 0s) << "nothing is known yet";
  AutoscaleAdvice advice = window.observe(at(10), 2, {.requests = 50, .bad = 0, .busy = 10s});
  EXPECT_EQ(advice.period, 10s);
  EXPECT_EQ(advice.requests, 50U);
  EXPECT_DOUBLE_EQ(advice.devices, 2);
  EXPECT_DOUBLE_EQ(advice.idle_fraction, 0.5);
  // Six more came: they count from now on.
  advice = window.observe(at(20), 8, {.requests = 100, .bad = 0, .busy = 30s});
  EXPECT_DOUBLE_EQ(advice.devices, 2);
  EXPECT_DOUBLE_EQ(advice.idle_fraction, 0.25);
  EXPECT_EQ(advice.release_devices, 2) << "of the eight that are there";
  advice = window.observe(at(30), 8, {.requests = 100, .bad = 0, .busy = 80s});
  EXPECT_EQ(advice.period, 20s);
  EXPECT_DOUBLE_EQ(advice.devices, 5);
  EXPECT_DOUBLE_EQ(advice.idle_fraction, 0.3);
}

TEST(AutoscaleWindow, CountersThatDoNotAgreeMakeShares) {
  const auto at = [](int seconds) { return TimePoint{} + std::chrono::seconds{seconds}; };
  AutoscaleWindow window(20s);
  window.observe(at(0), 1, {.requests = 10, .bad = 5, .busy = 5s});
  EXPECT_EQ(window.observe(at(1), 1, {.requests = 10, .bad = 4, .busy = 3s}).bad_rate, 0);
  EXPECT_EQ(window.observe(at(2), 1, {.requests = 11, .bad = 9, .busy = 3s}).bad_rate, 1);
  EXPECT_EQ(window.observe(at(3), 1, {.requests = 11, .bad = 9, .busy = 50s}).idle_fraction, 0);
}

}  // namespace
}  // namespace carillon::provision
