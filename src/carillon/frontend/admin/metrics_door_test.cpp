#include "carillon/frontend/admin/metrics_door.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/frontend/admin/metrics.h"
#include "carillon/frontend/testing/test_client.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

TEST(MetricsDoor, GivesTheMetricsAndNothingElse) {
  const auto door = MetricsDoor::open(
      "127.0.0.1:0", [] { return wanted_text({{.group = "0", .wanted = 3, .present = 2, .coming = 1}}); },
      {});
  ASSERT_TRUE(door) << door.error().message;
  TestClient client((*door)->port());
  const auto answer = client.ask("GET", "/metrics");
  EXPECT_EQ(answer.result_int(), 200U);
  EXPECT_EQ(answer["Content-Type"], "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(answer.body(), HasSubstr("\ncarillon_devices_wanted{subcluster=\"0\"} 3\n"));
  EXPECT_THAT(answer.body(), HasSubstr("\ncarillon_devices_present{subcluster=\"0\"} 2\n"));
  EXPECT_EQ(client.ask("GET", "/v2/health/ready").result_int(), 404U);
  EXPECT_EQ(client.ask("POST", "/metrics", "x").result_int(), 405U);
}

TEST(MetricsDoor, WhoeverKnowsNothingSaysNothing) {
  EXPECT_EQ(wanted_text({}), "");
  const auto door = MetricsDoor::open("127.0.0.1:0", [] { return wanted_text({}); }, {});
  ASSERT_TRUE(door);
  TestClient client((*door)->port());
  const auto answer = client.ask("GET", "/metrics");
  EXPECT_EQ(answer.result_int(), 200U);
  EXPECT_EQ(answer.body(), "");
}

TEST(MetricsDoor, ErrorsNameTheOption) {
  const auto door = MetricsDoor::open("127.0.0.1:0", [] { return std::string(); }, {});
  ASSERT_TRUE(door);
  const std::string taken = "127.0.0.1:" + std::to_string((*door)->port());
  for (const std::string& address : {taken, std::string("nowhere")}) {
    const auto failed = MetricsDoor::open(address, [] { return std::string(); }, {});
    ASSERT_FALSE(failed);
    EXPECT_THAT(failed.error().message, HasSubstr("--metrics"));
  }
}

}  // namespace
}  // namespace carillon::frontend
