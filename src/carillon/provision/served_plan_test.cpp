#include "carillon/provision/served_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::provision {
namespace {

using ::testing::HasSubstr;

std::string workload(const std::string& model, double share) {
  return R"({"id": "W-)" + model + R"(", "model": ")" + model + R"(", "share_pct": )" +
         std::to_string(share) + R"(, "batch": 4, "half_slo_ms": 12.5, "predicted_rps": 7})";
}
std::string device(int number, const std::string& workloads) {
  return R"({"device": )" + std::to_string(number) + R"(, "type": "cpu", "workloads": [)" + workloads + "]}";
}
std::string plan(const std::string& devices) {
  return R"({"strategy": "best", "devices": [)" + devices + "]}";
}

TEST(ServedPlan, GivesTheWorkloadsOfOneDevice) {
  const std::string text =
      plan(device(1, workload("a", 30)) + "," + device(2, workload("b", 60) + "," + workload("c", 35)));
  const auto read = parse_served_device(text, "plan.json", 2);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->number, 2);
  EXPECT_EQ(read->type, "cpu");
  ASSERT_EQ(read->workloads.size(), 2U);
  EXPECT_EQ(read->workloads[0].id, "W-b");
  EXPECT_EQ(read->workloads[0].model, "b");
  EXPECT_EQ(read->workloads[0].share_pct, 60);
  EXPECT_EQ(read->workloads[0].batch, 4);
  EXPECT_EQ(read->workloads[0].slo, 25ms);
  EXPECT_EQ(read->workloads[0].standby_share_pct, 65) << "what is left";
  const auto first = parse_served_device(text, "plan.json", 1);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->workloads[0].standby_share_pct, 40) << "10 more";
  const auto full = parse_served_device(plan(device(1, workload("a", 100))), "plan.json", std::nullopt);
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->workloads[0].standby_share_pct, 0) << "nothing is left";
}

TEST(ServedPlan, ErrorsSayWhereAndWhatWouldBeRight) {
  const auto error_of = [](const std::string& text, std::optional<int> number = std::nullopt) {
    const auto read = parse_served_device(text, "plan.json", number);
    return read ? std::string("read") : read.error().message;
  };
  const std::string two = device(1, workload("a", 30)) + "," + device(2, workload("b", 60));
  EXPECT_THAT(error_of("{"), HasSubstr("plan.json"));
  EXPECT_THAT(error_of("{}"), HasSubstr("\"devices\""));
  EXPECT_THAT(error_of(plan("")), HasSubstr("devices: is empty"));
  EXPECT_THAT(error_of(plan(two)), HasSubstr("has 2 devices; say which of them this server is: 1, 2"));
  EXPECT_THAT(error_of(plan(two), 3), HasSubstr("has no device 3; there is: 1, 2"));
  EXPECT_THAT(error_of(plan(device(1, ""))), HasSubstr("devices[0].workloads: has 0 entries"));
  EXPECT_THAT(error_of(plan(device(1, workload("a", 60) + "," + workload("b", 50)))),
              HasSubstr("have shares that sum to 110"));
  EXPECT_THAT(error_of(plan(device(1, workload("a", 60) + "," + workload("a", 20)))),
              HasSubstr("devices[0].workloads[1].model: is 'a' like that of another"));
  EXPECT_THAT(error_of(plan(device(1, workload("a", 0)))), HasSubstr("share_pct"));
  EXPECT_THAT(error_of(plan(
                  device(1, R"({"id": "x", "model": "a", "share_pct": 5, "batch": 1.5, "half_slo_ms": 1})"))),
              HasSubstr("batch: is not whole"));
  EXPECT_THAT(error_of(plan(device(1, R"({"id": "x", "model": "a", "share_pct": 5, "batch": 1})"))),
              HasSubstr("half_slo_ms"));
}

}  // namespace
}  // namespace carillon::provision
