#include "carillon/provision/observed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace carillon::provision {
namespace {

using ::testing::HasSubstr;

TEST(Observed, RatesAndSlosOfARunningServer) {
  const auto first = parse_metrics(
      "# HELP carillon_rows_total Requests\n"
      "carillon_rows_total{model=\"a\",version=\"1\"} 100\n"
      "carillon_rows_total{model=\"quiet\",version=\"1\"} 7\n"
      "carillon_slo_seconds{model=\"a\",version=\"1\"} 0.025\n",
      "url");
  const auto second = parse_metrics(
      "carillon_rows_total{model=\"a\",version=\"1\"} 250\n"
      "carillon_rows_total{model=\"a\",version=\"2\"} 50\n"
      "carillon_rows_total{model=\"quiet\",version=\"1\"} 7\n"
      "carillon_rows_total{model=\"b \\\"x\\\"\",version=\"2\"} 5\n"
      "nv_inference_count{model=\"z\"} 9\n"
      "carillon_slo_seconds{model=\"a\",version=\"1\"} 0.025\n",
      "url");
  ASSERT_TRUE(first && second);
  const auto text = observed_workloads(*first, *second, 10, 40ms);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  const auto json = nlohmann::json::parse(*text)["workloads"];
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["id"], "a");
  EXPECT_EQ(json[0]["slo_ms"], 25);
  EXPECT_EQ(json[0]["rate_rps"], 20);
  EXPECT_EQ(json[1]["model"], "b \"x\"");
  EXPECT_EQ(json[1]["slo_ms"], 40);
  EXPECT_EQ(json[1]["rate_rps"], 0.5);
  const auto without = observed_workloads(*first, *second, 10, std::nullopt);
  ASSERT_FALSE(without.has_value());
  EXPECT_THAT(without.error().message, HasSubstr("model 'b \"x\"' has no SLO"));
  const auto anew = observed_workloads(*second, *first, 10, std::nullopt);
  ASSERT_FALSE(anew.has_value());
  EXPECT_THAT(anew.error().message, HasSubstr("the counter of model 'a' went back"));
  const auto none = observed_workloads(*second, *second, 10, std::nullopt);
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().message, HasSubstr("no request came"));
}

TEST(Observed, OtherTextIsNotMetrics) {
  for (const char* text : {"", "<html>", "carillon_rows_total{", "carillon_rows_total{model=\"a",
                           "carillon_rows_total{model=\"a\"} nan"}) {
    const auto read = parse_metrics(text, "http://x");
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_THAT(read.error().message, HasSubstr("http://x: tells no carillon_rows_total"));
  }
}

}  // namespace
}  // namespace carillon::provision
