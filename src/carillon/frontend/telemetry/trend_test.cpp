#include "carillon/frontend/telemetry/trend.h"

#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

constexpr TimePoint moment(Duration d) {
  return TimePoint{d};
}

TEST(Trend, ASampleIsWhatCameInTenSeconds) {
  Trend trend;
  trend.look(moment(1s), {.on_time = 1000, .refused = 7, .exec = 90s}, 2, mib(1));  // long ago
  trend.look(moment(10s), {.on_time = 1500, .refused = 8}, 2, mib(2));
  EXPECT_EQ(trend.next(), 0U) << "nine seconds are no sample";
  trend.look(moment(11s),
             {.on_time = 1600, .late = 2, .refused = 9, .failed = 4, .invalid = 3, .exec = 94s, .load = 1s},
             2, mib(3));
  ASSERT_EQ(trend.next(), 1U);
  const Trend::Sample sample = trend.samples(0)[0];
  EXPECT_EQ(sample.end, moment(11s));
  EXPECT_EQ(sample.span, 10s);
  EXPECT_EQ(sample.in.on_time, 600U);
  EXPECT_EQ(sample.in.late, 2U);
  EXPECT_EQ(sample.in.refused, 2U);
  EXPECT_EQ(sample.in.failed, 4U);
  EXPECT_EQ(sample.in.invalid, 3U);
  EXPECT_EQ(sample.in.exec, 4s);
  EXPECT_EQ(sample.in.load, 1s);
  EXPECT_EQ(sample.devices, 2U);
  EXPECT_EQ(sample.resident, mib(3));
}

TEST(Trend, RareLooksMakeLongSamples) {
  Trend trend;
  trend.look(moment(0s), {}, 1, {});
  trend.look(moment(30s), {.on_time = 30}, 1, {});
  trend.look(moment(35s), {.on_time = 40}, 1, {});
  ASSERT_EQ(trend.samples(0).size(), 1U);
  EXPECT_EQ(trend.samples(0)[0].span, 30s);
  EXPECT_EQ(trend.samples(0)[0].in.on_time, 30U);
}

TEST(Trend, KeepsAnHour) {
  Trend trend;
  std::uint64_t sum = 0;
  const int steps = 1000;
  for (int i = 0; i <= steps; ++i)
    trend.look(moment(10s * i), {.on_time = sum += static_cast<std::uint64_t>(i)}, 1, {});
  EXPECT_EQ(trend.next(), 1000U);
  const auto all = trend.samples(0);
  ASSERT_EQ(all.size(), Trend::capacity);
  for (std::size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i].in.on_time, steps - Trend::capacity + 1 + i) << "the oldest comes first";
  EXPECT_EQ(all.back().end - all.front().end, 3590s);
  EXPECT_EQ(trend.samples(998).size(), 2U);
  EXPECT_EQ(trend.samples(998)[0].in.on_time, 999U);
  EXPECT_TRUE(trend.samples(1000).empty());
  EXPECT_TRUE(trend.samples(5000).empty());
  EXPECT_LE(sizeof(Trend), std::size_t{48} << 10);
}

TEST(Trend, WhatWasForgottenCountsNothing) {
  Trend trend;
  trend.look(moment(0s), {.on_time = 500, .late = 1}, 1, {});
  trend.look(moment(10s), {.on_time = 20, .late = 3}, 1, {});
  trend.look(moment(20s), {.on_time = 25, .late = 3}, 1, {});
  const auto samples = trend.samples(0);
  EXPECT_EQ(samples[0].in.on_time, 0U);
  EXPECT_EQ(samples[0].in.late, 2U);
  EXPECT_EQ(samples[1].in.on_time, 5U);
}

}  // namespace
}  // namespace carillon::frontend
