#include "carillon/simulate/report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/simulate/plot.h"

namespace carillon::simulate {
namespace {

Figures figures() {
  Figures f;
  f.span = 10s;
  f.models = {{.name = "a", .slo = 10ms, .offered = 100, .on_time = 90, .late = 4, .refused = 6},
              {.name = "b<&>", .slo = 10ms, .offered = 50, .on_time = 50}};
  for (int i = 1; i <= 94; ++i) f.models[0].latencies.push_back(i * 1ms);
  for (int i = 1; i <= 50; ++i) f.models[1].latencies.push_back(2ms);
  f.models[0].batches = 20;
  f.models[0].batched = 94;
  f.models[1].batches = 10;
  f.models[1].batched = 50;
  f.batch_sizes = {0, 4, 0, 0, 10, 20};  // 4 + 40 + 100 requests
  f.busy = {5s, 0s};
  f.timeline = {{DeviceId{0}, ModelId{1}, 3, TimePoint{1s}, TimePoint{2s}}};
  return f;
}

workload::Scenario two_models() {
  workload::Scenario s;
  s.name = "t";
  s.seed = 3;
  s.models = {{.name = "a", .slo = 10ms}, {.name = "b", .slo = 10ms}};
  return s;
}

TEST(Report, CountsAndRates) {
  Figures f = figures();
  const Report r = make_report(two_models(), "symphony", f);
  EXPECT_DOUBLE_EQ(r.offered_rps, 15);
  EXPECT_DOUBLE_EQ(r.goodput_rps, 14);
  EXPECT_DOUBLE_EQ(r.finish_rate, 140.0 / 150);
  EXPECT_DOUBLE_EQ(r.worst_finish_rate, 0.9);
  EXPECT_EQ(r.median_batch, 5);
  EXPECT_NEAR(r.mean_batch, 144.0 / 30, 1e-9);
  EXPECT_EQ(r.devices_used, 1);
  EXPECT_DOUBLE_EQ(r.utilization, 0.25);
  EXPECT_DOUBLE_EQ(r.max_ms, 94);
}

TEST(Report, JsonHasTheContractsFields) {
  Figures f = figures();
  const auto json = to_json(make_report(two_models(), "symphony", f));
  for (const char* field :
       {"scenario",     "scheduler",   "seed",   "offered_rps", "goodput_rps", "finish_rate", "refused",
        "late",         "p50_ms",      "p99_ms", "p9999_ms",    "max_ms",      "mean_batch",  "median_batch",
        "devices_used", "utilization", "wall_s", "events",      "models",      "advice"})
    EXPECT_TRUE(json.contains(field)) << field;
  for (const char* field : {"name", "offered_rps", "finish_rate", "p99_ms", "mean_batch"})
    EXPECT_TRUE(json["models"][0].contains(field)) << field;
  EXPECT_EQ(json["advice"]["add_devices"], 1);  // a bad rate of 6.7% of two devices
}

TEST(Plot, IsWellFormedAndNamesItsAxes) {
  Figures f = figures();
  auto s = two_models();
  s.name = "a<b";
  const std::string svg = to_svg(s, "symphony", f);
  EXPECT_NE(svg.find("a&lt;b"), std::string::npos);
  EXPECT_NE(svg.find("latency (ms)"), std::string::npos);
  EXPECT_NE(svg.find("batch size"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  Figures none;
  none.span = 1s;
  EXPECT_TRUE(to_svg(s, "symphony", none).ends_with("</svg>\n"));
}

}  // namespace
}  // namespace carillon::simulate
