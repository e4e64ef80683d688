#include "carillon/profile/distribution.h"

#include <cmath>

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

Distribution some(Random& random, double mean_ms, double deviation_ms, int bins = 16) {
  auto samples = normal_samples(random, 2000, mean_ms, deviation_ms);
  return Distribution::from_samples(samples, bins);
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

TEST(Distribution, SaysWhatItsSamplesSay) {
  Random random(1);
  auto samples = normal_samples(random, 10000, 50, 5);
  const Distribution d = Distribution::from_samples(samples, 32);  // leaves them sorted
  expect_valid(d);
  EXPECT_LE(d.bins().size(), 32U);
  EXPECT_NEAR(to_ms(d.mean()), 50, 0.3);
  for (const double q : {0.01, 0.1, 0.5, 0.9, 0.99})
    EXPECT_NEAR(to_ms(d.quantile(q)), to_ms(samples[static_cast<std::size_t>(q * 10000)]), 1.5) << q;
  EXPECT_NEAR(d.cdf(static_cast<double>(from_ms(50).count())), 0.5, 0.02);
  EXPECT_EQ(d.cdf(0), 0);
  EXPECT_EQ(d.cdf(1e12), 1);
}

TEST(Distribution, KeepsModesApart) {
  Random random(2);
  auto samples = normal_samples(random, 950, 10, 0.5);
  const auto rare = normal_samples(random, 50, 100, 2);
  samples.insert(samples.end(), rare.begin(), rare.end());
  const Distribution d = Distribution::from_samples(samples, 12);
  expect_valid(d);
  EXPECT_NEAR(d.cdf(static_cast<double>(from_ms(15).count())), 0.95, 1e-9)
      << "nothing lies between the modes";
  EXPECT_NEAR(d.cdf(static_cast<double>(from_ms(85).count())), 0.95, 1e-9);
}

TEST(Distribution, OfFewOrEqualSamples) {
  std::vector<Duration> one{7ms};
  EXPECT_NEAR(to_ms(Distribution::from_samples(one, 8).mean()), 7, 1e-5);
  std::vector<Duration> equal(100, 3ms);
  EXPECT_EQ(Distribution::from_samples(equal, 8).bins().size(), 1U);
  std::vector<Duration> two{5ms, 0ms};
  expect_valid(Distribution::from_samples(two, 8));
  EXPECT_EQ(Distribution::constant(3ms).quantile(0), 3ms);
  std::vector<Duration> many{1ms, 2ms, 3ms, 4ms, 5ms};
  EXPECT_EQ(Distribution::from_samples(many, 1).bins().size(), 1U);
}

TEST(Distribution, MixturesWeighTheirParts) {
  const Distribution a = Distribution::constant(10ms), b = Distribution::constant(30ms);
  const std::pair<const Distribution*, double> parts[] = {{&a, 3.0}, {&b, 1.0}};
  const Distribution d = Distribution::mixture(parts);
  expect_valid(d);
  EXPECT_NEAR(to_ms(d.mean()), 15, 1e-3);
  EXPECT_NEAR(d.cdf(static_cast<double>(from_ms(20).count())), 0.75, 1e-9);
  const std::pair<const Distribution*, double> alone[] = {{&a, 0.0}, {&b, 0.1}};
  EXPECT_EQ(Distribution::mixture(alone).mean(), b.mean());
}

TEST(Distribution, TheLargestAgreesWithDrawing) {
  Random random(3);
  const Distribution a = some(random, 20, 4), b = some(random, 35, 10);
  const std::pair<const Distribution*, int> parts[] = {{&a, 3}, {&b, 2}};
  const Distribution largest = Distribution::largest_of(parts);
  expect_valid(largest);
  const auto draw = [&](const Distribution& d) { return to_ms(d.quantile(random.uniform())); };
  double sum = 0;
  int below = 0;
  constexpr int draws = 200000;
  for (int i = 0; i < draws; ++i) {
    double most = 0;
    for (int k = 0; k < 3; ++k) most = std::max(most, draw(a));
    for (int k = 0; k < 2; ++k) most = std::max(most, draw(b));
    sum += most;
    below += most <= 40 ? 1 : 0;
  }
  EXPECT_NEAR(to_ms(largest.mean()), sum / draws, 0.1);
  EXPECT_NEAR(largest.cdf(static_cast<double>(from_ms(40).count())), static_cast<double>(below) / draws,
              0.01);
}

// Equation 4.8 as the paper has it: the density of the largest of k independent times as a sum over all
// subsets, with the subsets' mean CDFs. Its integral is the CDF: f = sum (-1)^(k-n) n^k/k! k F^(k-1) f
// integrates to sum (-1)^(k-n) n^k/k! F^k.
double cdf_by_subsets(const std::vector<const Distribution*>& times, double at) {
  const auto k = static_cast<int>(times.size());
  double sum = 0;
  for (unsigned subset = 1; subset < (1U << k); ++subset) {
    double mean = 0;
    int n = 0;
    for (int i = 0; i < k; ++i)
      if ((subset >> i & 1) != 0) {
        mean += times[static_cast<std::size_t>(i)]->cdf(at);
        ++n;
      }
    mean /= n;
    sum += ((k - n) % 2 == 0 ? 1 : -1) * std::pow(n, k) / std::tgamma(k + 1) * std::pow(mean, k);
  }
  return sum;
}

TEST(Distribution, TheProductOfCdfsIsEquation48) {
  Random random(4);
  for (int k = 1; k <= 6; ++k) {
    std::vector<Distribution> times;
    for (int i = 0; i < k; ++i)
      times.push_back(some(random, 20 + 10 * random.uniform(), 1 + 5 * random.uniform()));
    std::vector<const Distribution*> pointers;
    std::vector<std::pair<const Distribution*, int>> parts;
    for (const Distribution& d : times) {
      pointers.push_back(&d);
      parts.emplace_back(&d, 1);
    }
    const Distribution largest = Distribution::largest_of(parts);
    for (double ms = 10; ms < 60; ms += 1.7) {
      const auto at = static_cast<double>(from_ms(ms).count());
      double product = 1;
      for (const Distribution* d : pointers) product *= d->cdf(at);
      EXPECT_NEAR(product, cdf_by_subsets(pointers, at), 1e-9) << k << " at " << ms;
      EXPECT_NEAR(largest.cdf(at), product, 0.02) << k << " at " << ms;
    }
  }
}

TEST(Distribution, ScalesAndMerges) {
  Random random(5);
  const Distribution d = some(random, 20, 4, 32);
  const Distribution scaled = d.scaled(2ms, 3);
  expect_valid(scaled);
  EXPECT_NEAR(to_ms(scaled.mean()), 2 + 3 * to_ms(d.mean()), 1e-3);
  EXPECT_NEAR(to_ms(scaled.quantile(0.9)), 2 + 3 * to_ms(d.quantile(0.9)), 1e-3);
  const Distribution coarse = d.coarser(6);
  expect_valid(coarse);
  EXPECT_LE(coarse.bins().size(), 6U);
  EXPECT_NEAR(to_ms(coarse.mean()), to_ms(d.mean()), 0.5);
  EXPECT_EQ(d.coarser(100), d);
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
