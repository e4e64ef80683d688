#include "carillon/research/disb_report.h"

#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace carillon::research {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two real-time clients of 600 and 400 requests, and one best-effort.
DisbFigures figures(Duration slower) {
  DisbFigures f{.length = 10s};
  DisbClientFigures a{
      .name = "a_rt", .model = "vgg19", .cls = Class::real_time, .requests = 605, .dropped = 5};
  DisbClientFigures b{.name = "b_rt", .model = "bert", .cls = Class::real_time, .requests = 400};
  DisbClientFigures c{
      .name = "c<_be", .model = "vgg19", .cls = Class::best_effort, .requests = 201, .unfinished = 1};
  for (int i = 600; i > 0; --i) a.latencies.push_back(i * 10us + slower);
  for (int i = 1; i <= 400; ++i) b.latencies.push_back(6ms + i * 10us + slower);
  for (int i = 0; i < 200; ++i) c.latencies.push_back(50ms);
  f.clients = {a, b, c};
  f.models = {
      {.model = "vgg19", .real_time = 2s, .best_effort = 3s, .padded = 1s, .lost = 10ms, .killed = 7}};
  for (int i = 100; i > 0; --i) f.preemptions.push_back(i * 1us);
  f.busy = 12s;
  return f;
}

TEST(DisbReport, AddsUpClients) {
  const DisbReport r = make_disb_report("A", "reef", 3, 2, figures(0ms));
  EXPECT_EQ(r.seconds, 10);
  EXPECT_EQ(r.real_time.requests, 1005u);
  EXPECT_EQ(r.real_time.answered, 1000u);
  EXPECT_EQ(r.real_time.dropped, 5u);
  EXPECT_DOUBLE_EQ(r.real_time.rps, 100);
  EXPECT_NEAR(r.real_time.mean_ms, 5.005, 1e-9);
  EXPECT_DOUBLE_EQ(r.real_time.p50_ms, 5);
  EXPECT_DOUBLE_EQ(r.real_time.p99_ms, 9.9);
  EXPECT_DOUBLE_EQ(r.real_time.p999_ms, 9.99);
  EXPECT_DOUBLE_EQ(r.best_effort.rps, 20);
  EXPECT_DOUBLE_EQ(r.total_rps, 120);
  EXPECT_EQ(r.preemptions, 100u);
  EXPECT_DOUBLE_EQ(r.preemption_p50_us, 50);
  EXPECT_DOUBLE_EQ(r.preemption_p99_us, 99);
  EXPECT_DOUBLE_EQ(r.utilization, 0.6);
  ASSERT_EQ(r.clients.size(), 3u);
  EXPECT_EQ(r.clients[0].requests.answered, 600u);
  EXPECT_DOUBLE_EQ(r.clients[0].requests.p50_ms, 3);
  EXPECT_TRUE(std::ranges::is_sorted(r.real_time_latencies));
}

TEST(DisbReport, AsJson) {
  const auto json = to_json(make_disb_report("A", "reef", 3, 2, figures(0ms)));
  EXPECT_EQ(json["workload"], "A");
  EXPECT_EQ(json["scheduler"], "reef");
  EXPECT_EQ(json["total_rps"], 120);
  for (const char* cls : {"rt", "be"}) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : json[cls].items()) keys.push_back(key);
    EXPECT_THAT(keys, ::testing::ElementsAre("requests", "answered", "dropped", "unfinished", "rps",
                                             "mean_ms", "p50_ms", "p99_ms", "p999_ms"));
  }
  EXPECT_EQ(json["clients"][2]["class"], "best_effort");
  EXPECT_EQ(json["clients"][2]["answered"], 200);
  EXPECT_EQ(json["models"][0]["padded_ms"], 1000);
  EXPECT_EQ(json["models"][0]["killed"], 7);
}

TEST(DisbReport, NothingAnsweredIsNothing) {
  const DisbReport r = make_disb_report("A", "wait", 1, 60, DisbFigures{.length = 1s});
  const std::string json = to_json(r).dump();
  EXPECT_THAT(json, Not(HasSubstr("null")));  // what is no number
  EXPECT_EQ(r.real_time.p99_ms, 0);
  const std::string svg = to_svg({&r, 1});
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(to_table({&r, 1}), HasSubstr("0.000"));
}

std::vector<DisbReport> three() {
  return {make_disb_report("A", "reef", 1, 2, figures(50us)),
          make_disb_report("A", "streams", 1, 2, figures(5ms)),
          make_disb_report("A", "rt-only", 1, 2, figures(0us))};
}

TEST(DisbReport, ATableCompares) {
  const auto runs = three();
  const std::string all = to_table(runs);
  EXPECT_THAT(all, HasSubstr("+1.0%"));  // 5.055 over 5.005
  EXPECT_THAT(all, HasSubstr("+99.9%"));
  EXPECT_THAT(all, HasSubstr("x 1.00"));
  EXPECT_THAT(all, Not(HasSubstr("a_rt")));
  const std::string one = to_table(std::span(runs).last(1));
  EXPECT_THAT(one, HasSubstr("a_rt"));
  EXPECT_THAT(one, Not(HasSubstr("%  ")));
  EXPECT_THAT(to_table(std::span(runs).first(2)), Not(HasSubstr("x 1.00"))) << "nothing to compare with";
}

// The picture that was looked at. Where a change of it is meant: run the test, look at what it wrote, and put
// it in this one's place.
TEST(DisbReport, ThePictureThatWasLookedAt) {
  const std::string svg = to_svg(three());
  std::ifstream in(CARILLON_SOURCE_DIR "/src/carillon/simulate/testing/disb_plot.svg");
  const std::string expected{std::istreambuf_iterator<char>(in), {}};
  if (svg != expected) std::ofstream(::testing::TempDir() + "disb_plot.svg") << svg;
  EXPECT_EQ(svg, expected) << "written to " << ::testing::TempDir() << "disb_plot.svg";
}

}  // namespace
}  // namespace carillon::research
