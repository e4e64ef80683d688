#include "carillon/simulate/report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

TEST(Report, JsonHasAllFiguresByTheirNames) {
  Figures f = figures();
  f.loads = 7;
  f.unloads = 6;
  f.stopped = 5;
  f.events = 1234;
  f.decisions = 321;
  f.wall_s = 1.5;
  f.models[0].cancelled = 2;
  f.models[0].offered = 102;
  f.models[0].promised = 94;
  f.models[0].expected_late = 3.5;
  f.models[0].promised_late = 4;
  f.models[0].avoidable_late = 1;
  const auto json = to_json(make_report(two_models(), "symphony", f));
  // 94 answers of 1 to 94 ms, and 50 of 2 ms; a device that is busy for half of ten seconds, and an idle one;
  // ten of 152 requests late or refused: 2 devices * 10/142 more are 1.
  const auto expected = nlohmann::ordered_json::parse(R"({
    "scenario": "t", "scheduler": "symphony", "seed": 3,
    "offered_rps": 15.2, "goodput_rps": 14.0, "finish_rate": 0.9210526315789473,
    "offered": 152, "on_time": 140, "refused": 6, "late": 4, "cancelled": 2, "shed": 0,
    "p50_ms": 22.0, "p99_ms": 93.0, "p9999_ms": 94.0, "max_ms": 94.0,
    "mean_batch": 4.8, "median_batch": 5, "devices": 2, "devices_used": 1, "utilization": 0.25,
    "loads": 7, "unloads": 6, "stopped": 5, "wall_s": 1.5, "events": 1234,
    "advice": {"add_devices": 1, "release_devices": 0, "bad_rate": 0.06578947368421052, "idle_fraction": 0.75},
    "models": [
      {"name": "a", "offered_rps": 10.2, "finish_rate": 0.8823529411764706, "p99_ms": 94.0, "mean_batch": 4.7,
       "late": {"of": 94, "expected": 3.5, "were": 4, "avoidable": 1}},
      {"name": "b<&>", "offered_rps": 5.0, "finish_rate": 1.0, "p99_ms": 2.0, "mean_batch": 5.0,
       "late": {"of": 0, "expected": 0.0, "were": 0, "avoidable": 0}}]})");
  EXPECT_EQ(json.dump(1), expected.dump(1));
}

TEST(Report, ShowsNothingAsAllOnTime) {
  Figures f = figures();
  for (ModelFigures& m : f.models) m = {.name = m.name, .slo = m.slo};
  f.batch_sizes.clear();
  f.busy = {0s, 0s};
  const auto json = to_json(make_report(two_models(), "eager", f));
  for (const char* zero : {"offered_rps", "goodput_rps", "p50_ms", "max_ms", "mean_batch", "median_batch",
                           "devices_used", "utilization"})
    EXPECT_EQ(json[zero], 0) << zero;
  EXPECT_EQ(json["finish_rate"], 1);
  EXPECT_EQ(json["advice"]["bad_rate"], 0);
  EXPECT_EQ(json["advice"]["release_devices"], 1) << "never all";
  EXPECT_EQ(json["models"][0]["finish_rate"], 1);
  EXPECT_EQ(json["models"][0]["mean_batch"], 0);
}

TEST(Report, TheMedianBatchIsThatOfHalfTheRequests) {
  const struct {
    std::vector<std::uint64_t> sizes;
    int median = 0;
  } rows[] = {
      {{0, 4, 2}, 1},           // four of eight ran alone
      {{0, 3, 2}, 2},           // three of seven did
      {{0, 100, 0, 0, 25}, 1},  // as many alone as in batches of four
      {{0, 99, 0, 0, 25}, 4},  {{0, 0, 0, 1}, 3},
  };
  for (const auto& [sizes, median] : rows) {
    Figures f = figures();
    f.batch_sizes = sizes;
    f.models[0].batched = f.models[1].batched = f.models[0].batches = f.models[1].batches = 0;
    for (std::size_t b = 1; b < sizes.size(); ++b) {
      f.models[0].batches += sizes[b];
      f.models[0].batched += sizes[b] * b;
    }
    EXPECT_EQ(make_report(two_models(), "x", f).median_batch, median);
  }
}

TEST(Report, TellsWhatHappenedByInterval) {
  Figures f = figures();
  f.intervals = {{.length = 2s,
                  .offered = 80,
                  .on_time = 70,
                  .late = 3,
                  .refused = 1,
                  .loads = 2,
                  .busy = 3s,
                  .devices_used = 2,
                  .longest = 12ms},
                 {.length = 1s, .offered = 0, .busy = 1s, .devices_used = 1, .longest = 0ms}};
  f.models[0].offered_by = {50, 0};
  f.models[0].on_time_by = {45, 0};
  f.models[1].offered_by = {30, 0};
  f.models[1].on_time_by = {25, 0};
  const auto json = to_json(make_report(two_models(), "symphony", f, 2s));
  // 4 of 80 bad: 2 * 0.05/0.95, so one more; then nothing bad and half idle: one fewer.
  const auto expected = nlohmann::ordered_json::parse(R"({
    "interval_s": 2.0, "offered": [80, 0], "on_time": [70, 0], "late": [3, 0], "refused": [1, 0],
    "loads": [2, 0], "max_ms": [12.0, 0.0], "busy_devices": [1.5, 1.0], "devices_used": [2, 1],
    "add_devices": [1, 0], "release_devices": [0, 1]})");
  EXPECT_EQ(json["series"].dump(1), expected.dump(1));
  EXPECT_EQ(json["models"][0]["series"].dump(), R"({"offered":[50,0],"on_time":[45,0]})");
  EXPECT_EQ(json["models"][1]["series"].dump(), R"({"offered":[30,0],"on_time":[25,0]})");
}

TEST(Report, TellsWhatDecisionsTook) {
  Figures f = figures();
  f.decisions = 4;
  for (const Duration d : {1us, 2us, 3us, 14us}) f.decision_times.add(d);
  const auto json = to_json(make_report(two_models(), "symphony", f))["decisions"];
  EXPECT_EQ(json["count"], 4);
  EXPECT_NEAR(json["mean_us"].get<double>(), 5, 1e-9);
  EXPECT_NEAR(json["p50_us"].get<double>(), 2, 0.07);
  EXPECT_NEAR(json["p99_us"].get<double>(), 14, 1e-9);
  EXPECT_NEAR(json["max_us"].get<double>(), 14, 1e-9);
}

TEST(Report, TheTableHasTheModelsThatFareWorst) {
  Figures f = figures();
  f.events = 99;
  f.wall_s = 0.25;
  EXPECT_EQ(to_table(make_report(two_models(), "symphony", f)),
            "t under symphony, seed 3\n"
            "  offered 15.0/s, on time 14.0/s (93.333%), refused 6, late 4\n"
            "  latency p50 22.00 ms, p99 93.00 ms, p99.99 94.00 ms, max 94.00 ms\n"
            "  batch mean 4.8, median 5; 1 of 2 devices used, 25.0% busy; 99 events in 0.25 s\n"
            "  model                          offered/s     on time    p99 ms   batch\n"
            "  a                                   10.0     90.000%     94.00     4.7\n"
            "  b<&>                                 5.0    100.000%      2.00     5.0\n");
  f.decisions = 1;
  f.decision_times.add(4us);
  EXPECT_NE(to_table(make_report(two_models(), "symphony", f))
                .find("1 decisions took 4.0 us each, p99 4.0 us, max 4.0 us"),
            std::string::npos);
  // 25 models, each a little better than the one before it: the last twenty come in another order.
  Figures many = figures();
  many.models.clear();
  for (std::uint64_t i = 0; i < 25; ++i)
    many.models.push_back({.name = "m" + std::to_string(i), .offered = 100, .on_time = 50 + (i * 7) % 25});
  const std::string table = to_table(make_report(two_models(), "x", many));
  EXPECT_NE(table.find("and 5 models that fare better"), std::string::npos);
  for (std::uint64_t i = 0; i < 25; ++i)
    EXPECT_EQ(table.find("  m" + std::to_string(i) + " ") != std::string::npos, (i * 7) % 25 < 20) << i;
  EXPECT_LT(table.find("50.000%"), table.find("51.000%"));
}

}  // namespace
}  // namespace carillon::simulate
