#include "carillon/roles/device_order.h"

#include <gtest/gtest.h>

namespace carillon::roles {
namespace {

TEST(DeviceOrder, AWorkersPlaceIsTheNumberAtTheEndOfItsId) {
  const struct {
    std::string_view id;
    std::optional<std::uint32_t> order;
  } rows[] = {
      {"carillon-worker-0", 0},
      {"carillon-worker-12", 12},
      {"w007", 7},
      {"3", 3},
      {"carillon-worker", {}},
      {"w1-a", {}},
      {"", {}},
      {"w999999999", 999999999},
      {"w1000000000", {}},
  };
  for (const auto& [id, order] : rows) EXPECT_EQ(worker_order(id), order) << id;
}

TEST(DeviceOrder, DevicesOfEarlierWorkersComeFirst) {
  EXPECT_EQ(device_order(0, 1, DeviceId{0}), 0U);
  EXPECT_EQ(device_order(5, 1, DeviceId{0}), 5U);
  EXPECT_EQ(device_order(0, 4, DeviceId{3}), 3U);
  EXPECT_EQ(device_order(1, 4, DeviceId{0}), 4U);
  EXPECT_EQ(device_order(999'999'999, 5, DeviceId{0}), std::nullopt);
}

}  // namespace
}  // namespace carillon::roles
