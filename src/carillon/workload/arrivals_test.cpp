#include "carillon/workload/arrivals.h"

#include <cmath>

#include <gtest/gtest.h>

namespace carillon::workload {
namespace {

TEST(ParseArrivals, ReadsWhatItWrites) {
  for (const char* text : {"poisson", "gamma:0.1", "gamma:20", "uniform", "closed:16"}) {
    const auto spec = parse_arrivals(text);
    ASSERT_TRUE(spec.has_value()) << spec.error().message;
    EXPECT_EQ(to_text(*spec), text);
  }
  EXPECT_EQ(parse_arrivals("gamma:0.1")->shape, 0.1);
  EXPECT_EQ(parse_arrivals("closed:16")->clients, 16);
}

TEST(ParseArrivals, ErrorsNameTheTextAndWhatWouldBeRight) {
  for (const char* text :
       {"", "Poisson", "poisson:", "poisson:1", "uniform:2", "gamma", "gamma:", "gamma:0", "gamma:-1",
        "gamma:nan", "gamma:inf", "gamma:1e300", "gamma:1x", "closed", "closed:0", "closed:-3", "closed:1.5",
        "closed:9999999", "closed:99999999999999999999"}) {
    const auto spec = parse_arrivals(text);
    ASSERT_FALSE(spec.has_value()) << text;
    EXPECT_EQ(spec.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(spec.error().message.find(std::string("'") + text + "'"), std::string::npos);
    EXPECT_NE(spec.error().message.find("closed:16"), std::string::npos);
  }
}

TEST(ArrivalProcess, SameSeedGivesTheSameGaps) {
  for (const char* text : {"poisson", "gamma:0.1", "uniform"}) {
    ArrivalProcess a(*parse_arrivals(text), 1000, 7), b(*parse_arrivals(text), 1000, 7);
    ArrivalProcess other(*parse_arrivals(text), 1000, 8);
    bool differs = false;
    for (int i = 0; i < 1000; ++i) {
      const Duration gap = a.next_gap();
      ASSERT_EQ(gap, b.next_gap());
      ASSERT_GE(gap.count(), 0);
      differs |= gap != other.next_gap();
    }
    EXPECT_EQ(differs, std::string_view(text) != "uniform");
  }
}

TEST(ArrivalProcess, GapsHaveTheirMoments) {
  const struct {
    const char* text;
    double variation;  // standard deviation over mean
  } rows[] = {
      {"poisson", 1},
      {"gamma:0.1", std::sqrt(10)},
      {"gamma:4", 0.5},
      {"uniform", 0},
  };
  for (const auto& row : rows) {
    const int n = 400'000;
    ArrivalProcess arrivals(*parse_arrivals(row.text), 300, 11);
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) {
      const double gap = to_seconds(arrivals.next_gap());
      sum += gap;
      squares += gap * gap;
    }
    const double mean = sum / n;
    EXPECT_NEAR(mean * 300, 1, row.variation * 4 / std::sqrt(n) + 1e-6) << row.text;
    EXPECT_NEAR(std::sqrt(std::max(0.0, squares / n - mean * mean)) * 300, row.variation,
                0.03 * row.variation + 1e-4)
        << row.text;
  }
}

TEST(ArrivalProcess, UniformKeepsItsRateOverALongRun) {
  ArrivalProcess arrivals(*parse_arrivals("uniform"), 3, 0);
  Duration total{0};
  for (int i = 0; i < 3'000'000; ++i) total += arrivals.next_gap();
  EXPECT_NEAR(to_seconds(total), 1e6, 1e-6);
}

}  // namespace
}  // namespace carillon::workload
