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

}  // namespace
}  // namespace carillon::provision
