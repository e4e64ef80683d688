#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"
#include "carillon/base/random.h"
#include "carillon/base/replace_file.h"
#include "carillon/base/statistics.h"
#include "carillon/base/time.h"
#include "carillon/base/xml.h"

namespace carillon {
namespace {

TEST(Bytes, ParsesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096")->count, 4096U);
  EXPECT_EQ(parse_bytes("16 GB")->count, 16'000'000'000U);
  EXPECT_EQ(parse_bytes("1.5GiB")->count, (3ULL << 30) / 2);
  for (const char* wrong : {"", "-1", "1 parsec", "nan", "1e40 TB", "MiB"})
    EXPECT_FALSE(parse_bytes(wrong).has_value()) << wrong;
  EXPECT_EQ(to_text(mib(16)), "16.0 MiB");
}

TEST(ReplaceFile, PutsTheWholeInPlaceAndLeavesNothingBeside) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "carillon_replace";
  std::filesystem::remove_all(folder);
  const auto file = folder / "kept";
  EXPECT_TRUE(replace_file(file, {"a"})) << "there is no such folder";
  std::filesystem::create_directory(folder);
  for (const std::string whole : {"first", "2", ""}) {
    EXPECT_FALSE(replace_file(file, {whole, "\n", whole}));
    std::ifstream in(file, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), whole + "\n" + whole);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  }
  std::filesystem::remove(file);
  std::filesystem::create_directories(file / "is a folder");
  EXPECT_TRUE(replace_file(file, {"a"})) << "a folder stands there";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(Random, SameSeedGivesTheSameStream) {
  Random a(7), b(7), c(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const auto drawn = a.bits();
    EXPECT_EQ(drawn, b.bits());
    differs |= drawn != c.bits();
  }
  EXPECT_TRUE(differs);
}

TEST(Random, DistributionsHaveTheirMoments) {
  Random random(1);
  const int n = 200'000;
  double exponential = 0, normal = 0, normal2 = 0, gamma = 0, gamma2 = 0;
  for (int i = 0; i < n; ++i) {
    exponential += random.exponential(3);
    const double z = random.normal();
    normal += z;
    normal2 += z * z;
    const double g = random.gamma(0.1, 10);
    gamma += g;
    gamma2 += g * g;
  }
  EXPECT_NEAR(exponential / n, 3, 0.05);
  EXPECT_NEAR(normal / n, 0, 0.02);
  EXPECT_NEAR(normal2 / n, 1, 0.02);
  EXPECT_NEAR(gamma / n, 1, 0.05);     // shape * scale
  EXPECT_NEAR(gamma2 / n - 1, 10, 1);  // shape * scale^2
}

TEST(Random, BelowStaysBelowAndReachesAll) {
  Random random(3);
  std::vector<int> seen(7);
  for (int i = 0; i < 7000; ++i) ++seen.at(random.below(7));
  for (int count : seen) EXPECT_NEAR(count, 1000, 150);
}

TEST(Percentile, IsTheNearestRank) {
  std::vector<Duration> values{5ms, 1ms, 4ms, 2ms, 3ms};
  EXPECT_EQ(percentile(values, 0), 1ms);
  EXPECT_EQ(percentile(values, 0.5), 3ms);
  EXPECT_EQ(percentile(values, 0.99), 5ms);
  EXPECT_EQ(percentile({}, 0.5), 0ms);
}

TEST(LatencyHistogram, IsSmallBeforeItsFirstValue) {
  EXPECT_LE(sizeof(LatencyHistogram), 48U) << "who copies those of many models copies this";
  LatencyHistogram empty, some;
  EXPECT_EQ(empty.count_at_most(1s), 0U);
  EXPECT_EQ(empty.percentile(0.5), Duration{0});
  empty.each_bin([](Duration, std::uint64_t) { ADD_FAILURE() << "it has no bins"; });
  some.add(3ms);
  some.merge(empty);
  EXPECT_EQ(some.count(), 1U);
  empty.merge(some);
  EXPECT_EQ(empty.count_at_most(4ms), 1U);
  EXPECT_EQ(empty.max(), 3ms);
}

TEST(LatencyHistogram, AgreesWithSortingWithinItsBins) {
  Random random(11);
  LatencyHistogram histogram;
  std::vector<Duration> values;
  for (int i = 0; i < 20'000; ++i) {
    const Duration d = from_ms(random.exponential(4));
    values.push_back(d);
    histogram.add(d);
  }
  for (double q : {0.0, 0.01, 0.5, 0.9, 0.99, 0.9999, 1.0}) {
    const Duration exact = percentile(values, q);
    const Duration binned = histogram.percentile(q);
    EXPECT_GE(binned, exact);
    EXPECT_LE(to_ms(binned), to_ms(exact) * (1 + 1.0 / 32) + 1e-6);
  }
  EXPECT_EQ(histogram.max(), *std::max_element(values.begin(), values.end()));
  EXPECT_EQ(histogram.count_at_most(histogram.max()), histogram.count());
  histogram.add(Duration::max());
  EXPECT_EQ(histogram.percentile(1), Duration::max());
}

TEST(Time, SaturatesInsteadOfOverflowing) {
  EXPECT_EQ(saturating_add(TimePoint::max(), 1ns), TimePoint::max());
  EXPECT_EQ(saturating_add(TimePoint{5ms}, Duration::max()), TimePoint::max());
  EXPECT_EQ(saturating_add(TimePoint{5ms}, 1ms), TimePoint{6ms});
  EXPECT_EQ(from_ms(1.5), 1500us);
}

TEST(Xml, IsEscaped) {
  EXPECT_EQ(xml_escaped("a<b> & \x01\"c\""), "a&lt;b&gt; &amp; \"c\"");
}

}  // namespace
}  // namespace carillon
