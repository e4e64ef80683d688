#include "carillon/profile/distribution.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::profile {
namespace {

std::vector<Duration> normal_samples(Random& random, int count, double mean_ms, double deviation_ms) {
  std::vector<Duration> samples;
  for (int i = 0; i < count; ++i)
    samples.push_back(from_ms(std::max(0.01, mean_ms + deviation_ms * random.normal())));
  return samples;
}

void expect_valid(const Distribution& d) {
  double total = 0;
  for (std::size_t i = 0; i < d.bins().size(); ++i) {
    const auto& bin = d.bins()[i];
    EXPECT_GE(bin.low, 0);
    EXPECT_LT(bin.low, bin.high);
    EXPECT_GT(bin.probability, 0);
    if (i > 0) {
      EXPECT_LE(d.bins()[i - 1].high, bin.low);
    }
    total += bin.probability;
  }
  EXPECT_NEAR(total, 1, 1e-9);
}

double cdf(const Distribution& d, double at) {
  double below = 0;
  for (const auto& bin : d.bins())
    below += bin.probability * std::clamp((at - bin.low) / (bin.high - bin.low), 0.0, 1.0);
  return below;
}

Duration mean(const Distribution& d) {
  double sum = 0;
  for (const auto& bin : d.bins()) sum += bin.probability * (bin.low + bin.high) / 2;
  return from_ns(sum);
}

TEST(Distribution, SaysWhatItsSamplesSay) {
  Random random(1);
  auto samples = normal_samples(random, 10000, 50, 5);
  const Distribution d = Distribution::from_samples(samples, 32);  // leaves them sorted
  expect_valid(d);
  EXPECT_LE(d.bins().size(), 32U);
  EXPECT_NEAR(to_ms(mean(d)), 50, 0.3);
  for (const double q : {0.01, 0.1, 0.5, 0.9, 0.99}) {
    const Duration at = samples[static_cast<std::size_t>(q * 10000)];
    EXPECT_LE(cdf(d, static_cast<double>((at - 1500us).count())), q);
    EXPECT_GE(cdf(d, static_cast<double>((at + 1500us).count())), q);
  }
  EXPECT_NEAR(cdf(d, static_cast<double>(from_ms(50).count())), 0.5, 0.02);
}

TEST(Distribution, KeepsModesApart) {
  Random random(2);
  auto samples = normal_samples(random, 950, 10, 0.5);
  const auto rare = normal_samples(random, 50, 100, 2);
  samples.insert(samples.end(), rare.begin(), rare.end());
  const Distribution d = Distribution::from_samples(samples, 12);
  expect_valid(d);
  EXPECT_NEAR(cdf(d, static_cast<double>(from_ms(15).count())), 0.95, 1e-9)
      << "nothing lies between the modes";
  EXPECT_NEAR(cdf(d, static_cast<double>(from_ms(85).count())), 0.95, 1e-9);
}

TEST(Distribution, OfFewOrEqualSamples) {
  std::vector<Duration> one{7ms};
  EXPECT_NEAR(to_ms(mean(Distribution::from_samples(one, 8))), 7, 1e-5);
  std::vector<Duration> equal(100, 3ms);
  EXPECT_EQ(Distribution::from_samples(equal, 8).bins().size(), 1U);
  std::vector<Duration> two{5ms, 0ms};
  expect_valid(Distribution::from_samples(two, 8));
  std::vector<Duration> many{1ms, 2ms, 3ms, 4ms, 5ms};
  EXPECT_EQ(Distribution::from_samples(many, 1).bins().size(), 1U);
}

TEST(PaddedCost, IsFoundFromBatches) {
  Random random(6);
  std::vector<MeasuredBatch> batches;
  for (int i = 0; i < 200; ++i) {
    MeasuredBatch b{.size = 1 + static_cast<int>(random.below(16)),
                    .longest = from_ms(5 + 50 * random.uniform())};
    b.took = from_ms(3 + 0.4 * b.size * to_ms(b.longest) + 0.2 * random.normal());
    batches.push_back(b);
  }
  const PaddedCost cost = fit_padded_cost(batches);
  EXPECT_NEAR(to_ms(cost.c0), 3, 0.1);
  EXPECT_NEAR(cost.c1, 0.4, 0.002);
  EXPECT_NEAR(to_ms(cost.of(4, 10ms)), 19, 0.2);
  const MeasuredBatch one{.size = 2, .longest = 10ms, .took = 30ms};
  EXPECT_DOUBLE_EQ(fit_padded_cost({&one, 1}).c1, 1.5);
  EXPECT_EQ(fit_padded_cost({&one, 1}).c0, 0ms);
  const MeasuredBatch flat[] = {{1, 10ms, 30ms}, {8, 10ms, 29ms}};
  EXPECT_GT(fit_padded_cost(flat).c1, 0);
  EXPECT_NEAR(to_ms(fit_padded_cost(flat).c0), 29.5, 0.1);
}

}  // namespace
}  // namespace carillon::profile
