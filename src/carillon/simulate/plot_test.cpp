#include "carillon/simulate/plot.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace carillon::simulate {
namespace {

workload::Scenario two_models() {
  workload::Scenario s;
  s.name = "a<b";
  s.seed = 3;
  s.models = {{.name = "a", .slo = 10ms}, {.name = "b", .slo = 25ms}};
  return s;
}

Figures figures() {
  Figures f;
  f.span = 10s;
  f.models = {{.name = "a", .slo = 10ms, .offered = 40}, {.name = "b", .slo = 25ms, .offered = 10}};
  for (int i = 40; i > 10; --i) f.models[0].latencies.push_back(i * 500us);
  for (int i = 1; i <= 10; ++i) f.models[1].latencies.push_back(i * 3ms);
  f.batch_sizes = {0, 4, 0, 5, 6, 0};
  f.busy = {5s, 1s};
  f.timeline = {{DeviceId{0}, ModelId{1}, 3, TimePoint{1s}, TimePoint{1040ms}},
                {DeviceId{1}, ModelId{0}, 4, TimePoint{1010ms}, TimePoint{1030ms}},
                {DeviceId{0}, ModelId{0}, 1, TimePoint{1040ms}, TimePoint{1041ms}}};
  f.intervals = {{.length = 2s, .offered = 80, .on_time = 70, .busy = 3s, .devices_used = 2},
                 {.length = 2s, .offered = 20, .on_time = 20, .busy = 1s, .devices_used = 1},
                 {.length = 1s, .offered = 30, .on_time = 0}};
  return f;
}

// The picture that was looked at. Where a change of it is meant: run the test, look at what it wrote, and put
// it in this one's place.
TEST(Plot, IsThePictureThatWasLookedAt) {
  Figures f = figures();
  const std::string svg = to_svg(two_models(), "symphony", f, 2s);
  std::ifstream in(CARILLON_SOURCE_DIR "/src/carillon/simulate/testing/plot.svg");
  const std::string expected{std::istreambuf_iterator<char>(in), {}};
  if (svg != expected) std::ofstream(::testing::TempDir() + "plot.svg") << svg;
  EXPECT_EQ(svg, expected) << "written to " << ::testing::TempDir() << "plot.svg";
}

TEST(Plot, IsWellFormedAndNamesItsAxes) {
  Figures f = figures();
  const std::string svg = to_svg(two_models(), "symphony", f);
  EXPECT_NE(svg.find("a&lt;b under symphony, seed 3"), std::string::npos);
  EXPECT_NE(svg.find("latency (ms)"), std::string::npos);
  EXPECT_NE(svg.find("batch size"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  Figures none;
  none.span = 1s;
  const std::string empty = to_svg(two_models(), "symphony", none);
  EXPECT_TRUE(empty.ends_with("</svg>\n"));
  EXPECT_NE(empty.find("nothing ran"), std::string::npos);
  EXPECT_EQ(empty.find("nan"), std::string::npos);
  EXPECT_EQ(empty.find("inf"), std::string::npos);
  EXPECT_EQ(empty.find("SLO"), std::string::npos) << "beyond what is shown";
}

TEST(Plot, MarksTheSlosOfAFewModels) {
  for (const int slos : {1, 5, 6}) {
    Figures f = figures();
    auto s = two_models();
    s.models.clear();
    for (int i = 0; i < 2 * slos; ++i) s.models.push_back({.name = "m", .slo = (i % slos + 1) * 5ms});
    const std::string svg = to_svg(s, "x", f);
    int marks = 0;
    for (auto at = svg.find(">SLO<"); at != std::string::npos; at = svg.find(">SLO<", at + 1)) ++marks;
    EXPECT_EQ(marks, slos <= 5 ? slos : 0);
  }
}

TEST(Plot, HasRoundSteps) {
  // The steps of the axis of latencies, for answers of up to so many milliseconds.
  const struct {
    double most;
    std::string second;  // label
  } rows[] = {{1, "0.2"}, {4, "1"},   {5, "1"},    {7, "2"},     {24, "5"},
              {30, "10"}, {99, "20"}, {100, "20"}, {1000, "200"}};
  for (const auto& [most, second] : rows) {
    Figures f = figures();
    for (ModelFigures& m : f.models) m.latencies = {from_ms(most)};
    const std::string svg = to_svg(two_models(), "x", f);
    const auto zero = svg.find(">0</text>");
    const auto next = svg.find(" font-size=\"12\">", zero);
    const auto from = next + std::string(" font-size=\"12\">").size();
    EXPECT_EQ(svg.substr(from, svg.find('<', from) - from), second) << most;
  }
}

TEST(Plot, ShowsMinutesWhereItIsLong) {
  for (const auto& [interval, label] :
       {std::pair{Duration{200s}, "seconds"}, std::pair{Duration{201s}, "minutes"}}) {
    Figures f = figures();
    EXPECT_NE(to_svg(two_models(), "x", f, interval).find(label), std::string::npos);
  }
}

}  // namespace
}  // namespace carillon::simulate
