#include "carillon/cli/interference/measure.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/profile/interference_fit.h"

namespace carillon::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;

// A device whose truth is the interference model: times by batch and share, and a delay a kernel.
class FakeProbe final : public InterferenceProbe {
 public:
  DeviceFacts device() override {
    return {.name = "fake",
            .copy_bytes_per_ms = 1e6,
            .max_frequency_mhz = {},
            .max_power_w = {},
            .idle_power_w = {},
            .missing = {"power: none"}};
  }
  std::vector<ModelFacts> models() override {
    return {{"a", 1e5, 1e3, 20, {1, 2, 4, 8, 16}}, {"b", 1e5, 1e3, 50, {1, 4, 16, 64}}};
  }
  Result<Seen> run(std::span<const Placed> placed) override {
    ++runs;
    if (runs == fail_at) return fail(ErrorCode::unavailable, "gone");
    Seen seen;
    for (const Placed& p : placed) {
      const auto& model = p.model == "a" ? a : b;
      seen.gpu_ms.push_back(profile::active_ms(model, p.batch, p.share_pct) +
                            model.kernels * 0.002 * static_cast<double>(placed.size() - 1));
    }
    return seen;
  }

  profile::ModelCoefficients a{.kernels = 20, .k1 = 0.2, .k2 = 30, .k3 = 10, .k4 = 1, .k5 = 0.3};
  profile::ModelCoefficients b{.kernels = 50, .k1 = 0, .k2 = 90, .k3 = 40, .k4 = 0.5, .k5 = 1};
  int runs = 0, fail_at = 0;
};

TEST(MeasureInterference, AloneIsElevenConfigurations) {
  const ModelFacts model{.name = "m", .batch_sizes = {1, 2, 4, 8, 16, 64}};
  const auto placed = alone(model, 32);
  ASSERT_EQ(placed.size(), 11u);
  std::set<int> batches;
  std::set<double> shares;
  for (const Placed& p : placed) batches.insert(p.batch), shares.insert(p.share_pct);
  EXPECT_EQ(batches, (std::set{1, 4, 16}));
  EXPECT_EQ(shares, (std::set{25.0, 35.0, 50.0, 75.0, 100.0}));
  // Fewer batch sizes than three.
  EXPECT_EQ(alone({.name = "m", .batch_sizes = {1}}, 32).size(), 5u);
  EXPECT_EQ(alone({.name = "m", .batch_sizes = {64}}, 32).size(), 5u);
}

TEST(MeasureInterference, SharesTogetherAreWithinTheDevice) {
  FakeProbe probe;
  const auto models = probe.models();
  const Together runs = together(models, {.most_together = 4});
  EXPECT_EQ(runs.fit.size(), 12u);
  EXPECT_EQ(runs.check.size(), 6u);
  for (const auto& placed : runs.fit) {
    double sum = 0;
    for (const Placed& p : placed) sum += p.share_pct;
    EXPECT_NEAR(sum, 100, 1e-9);
  }
  for (const auto& placed : runs.check) EXPECT_THAT(runs.fit, testing::Not(Contains(placed)));
  EXPECT_TRUE(together(models, {.most_together = 1}).fit.empty());
}

TEST(MeasureInterference, WhatIsMeasuredFitsTheTruth) {
  FakeProbe probe;
  const auto measured = measure_interference(probe, {});
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_THAT(measured->not_measured, Contains("power: none"));
  profile::InterferenceMeasurements again;
  ASSERT_TRUE(profile::add_measurements(std::string_view(profile::to_json(*measured)), "again", again));
  EXPECT_EQ(again, *measured);
  const auto fit = profile::fit_interference(*measured);
  ASSERT_TRUE(fit) << fit.error().message;
  EXPECT_GT(fit->checks.all.samples, 0u);
  EXPECT_LT(fit->checks.all.max, 0.005);
  EXPECT_NEAR(fit->hardware.coefficients.alpha_sch, 0.002, 1e-4);
  EXPECT_NEAR(fit->hardware.coefficients.beta_sch, -0.002, 1e-4);
}

TEST(MeasureInterference, AFailureNamesTheConfiguration) {
  FakeProbe probe;
  probe.fail_at = 2;
  const auto measured = measure_interference(probe, {});
  ASSERT_FALSE(measured);
  EXPECT_THAT(measured.error().message, HasSubstr("a batch 1 at 50%: gone"));
}

}  // namespace
}  // namespace carillon::cli
