#include "carillon/profile/interference_fit.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::profile {
namespace {

using testing::Contains;
using testing::HasSubstr;

const std::string folder = CARILLON_SOURCE_DIR "/profiles/igniter/";

InterferenceMeasurements published() {
  InterferenceMeasurements m;
  for (const char* file : {"profile_samples.json", "workloads.json", "v100.json"})
    EXPECT_TRUE(add_measurements(folder + file, m)) << file;
  return m;
}

CoefficientSet stored() {
  return *read_coefficients(folder + "workloads.json");
}
HardwareCoefficients v100() {
  return read_hardware(folder + "v100.json")->coefficients;
}

// Every set of one to four of the models, at many batch sizes and shares: the largest and the mean of the
// relative differences of the latencies that two sets of coefficients predict.
struct Difference {
  double mean = 0, max = 0;
};
Difference difference(const CoefficientSet& a, const HardwareCoefficients& on_a, const CoefficientSet& b,
                      const HardwareCoefficients& on_b) {
  Difference d;
  std::size_t count = 0;
  std::vector<std::string> names;
  for (const auto& [name, model] : b.models) names.push_back(name);
  for (std::size_t set = 1; set < (std::size_t{1} << names.size()); ++set)
    for (const int batch : {1, 2, 4, 8, 12, 16, 24, 32})
      for (const double share : {10.0, 15.0, 20.0, 25.0, 50.0, 80.0, 100.0}) {
        std::vector<Resident> first, second;
        for (std::size_t i = 0; i < names.size(); ++i)
          if (set >> i & 1) {
            first.push_back({&a.models.at(names[i]), batch, share});
            second.push_back({&b.models.at(names[i]), batch, share});
          }
        if (share * static_cast<double>(first.size()) > 100) continue;
        const auto ours = predict(on_a, first), theirs = predict(on_b, second);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          const double error = std::abs(ours[i].latency_ms / theirs[i].latency_ms - 1);
          d.mean += error;
          d.max = std::max(d.max, error);
          ++count;
        }
      }
  d.mean /= static_cast<double>(count);
  return d;
}

TEST(InterferenceFit, ThePapersFitsLandOnThePublishedCoefficients) {
  const auto fit = fit_interference(published(), FitMethod::igniter);
  ASSERT_TRUE(fit) << fit.error().message;
  const Difference d = difference(fit->coefficients, fit->hardware.coefficients, stored(), v100());
  EXPECT_LT(d.max, 1e-4);
  EXPECT_NEAR(fit->hardware.coefficients.alpha_f, v100().alpha_f, 1e-7);
  EXPECT_NEAR(fit->hardware.coefficients.alpha_sch, v100().alpha_sch, 1e-9);
  EXPECT_NEAR(fit->hardware.coefficients.beta_sch, v100().beta_sch, 1e-9);
  EXPECT_GT(*fit->models.at("vgg19").time.r2, 0.999);
}

// The 750 pairs, which no fit sees. The published coefficients miss them by 3.66% in the mean.
TEST(InterferenceFit, PredictsThePublishedPairs) {
  const InterferenceMeasurements m = published();
  ASSERT_EQ(m.checks.size(), 750u);
  const CheckErrors of_stored = check_predictions(stored(), v100(), m.checks);
  EXPECT_EQ(of_stored.all.samples, 1500u);
  EXPECT_NEAR(of_stored.all.mean, 0.0366, 5e-5);
  EXPECT_NEAR(of_stored.all.median, 0.0272, 5e-5);
  EXPECT_NEAR(of_stored.by_model.at("alexnet").mean, 0.0506, 5e-5);
  const auto paper = fit_interference(m, FitMethod::igniter), ours = fit_interference(m, FitMethod::robust);
  ASSERT_TRUE(paper && ours);
  EXPECT_NEAR(paper->checks.all.mean, 0.0366, 1e-4);
  EXPECT_LT(ours->checks.all.mean, 0.0345);
  EXPECT_LT(ours->checks.all.max, paper->checks.all.max);
  EXPECT_EQ(ours->checks.by_set.size(), 6u);
  // Nothing in the published samples is far from the rest, and times are met within a few percent where plain
  // least squares miss one by 27%.
  for (const auto& [name, model] : ours->models) {
    EXPECT_TRUE(model.time.outliers.empty() && model.power.outliers.empty()) << name;
    EXPECT_LT(model.time.max_error, 0.08) << name;
  }
  EXPECT_GT(paper->models.at("ssd").time.max_error, 0.2);
}

// Measurements as the stored coefficients would have them, on the configurations of the paper and two more.
InterferenceMeasurements invented(const std::function<double()>& noise) {
  const CoefficientSet truth = stored();
  const HardwareCoefficients h = v100();
  InterferenceMeasurements m = published();
  m.checks.clear();
  for (auto& [name, model] : m.models) {
    const ModelCoefficients& c = truth.models.at(name);
    model.solo.clear();
    for (const auto& [batch, share] : std::vector<std::pair<int, double>>{{1, 10},
                                                                          {1, 50},
                                                                          {1, 100},
                                                                          {16, 10},
                                                                          {16, 50},
                                                                          {16, 100},
                                                                          {32, 10},
                                                                          {32, 50},
                                                                          {32, 100},
                                                                          {8, 30},
                                                                          {4, 70}}) {
      const SoloUse use = solo_use(c, batch, share);
      const double f = frequency_ratio(h, h.idle_power_w + use.power_w);
      model.solo.push_back({batch, share, (use.active_ms + c.schedule_ms) / f * noise(),
                            std::min(h.max_power_w, h.idle_power_w + use.power_w) * noise(),
                            f * h.max_frequency_mhz, use.cache_pct * noise()});
    }
    model.growth.clear();
    for (const double others : {8.0, 15.0, 25.0})
      model.growth.push_back({20 * noise(), 20 * (1 + c.alpha_cache * others) * noise(), others, {}});
  }
  for (SeriesSample& s : m.series) {
    s.power_w = std::min(h.max_power_w, 53.5 + 70 * s.workloads);
    s.frequency_mhz = frequency_ratio(h, 53.5 + 70 * s.workloads) * h.max_frequency_mhz;
    s.schedule_per_kernel_ms = (0.0015 + schedule_increase_ms(h, static_cast<std::size_t>(s.workloads))) /
                               frequency_ratio(h, 53.5 + 70 * s.workloads);
  }
  return m;
}

TEST(InterferenceFit, WithoutNoiseFindsTheTruth) {
  for (const FitMethod method : {FitMethod::igniter, FitMethod::robust}) {
    const auto fit = fit_interference(invented([] { return 1.0; }), method);
    ASSERT_TRUE(fit) << fit.error().message;
    const Difference d = difference(fit->coefficients, fit->hardware.coefficients, stored(), v100());
    EXPECT_LT(d.max, method == FitMethod::igniter ? 1e-3 : 0.01);
  }
}

TEST(InterferenceFit, NoisePredictsWithinItsOwnSize) {
  const struct { double noise, mean, max; } rows[] = {{0.02, 0.02, 0.12}, {0.05, 0.05, 0.3}};
  for (const auto& row : rows)
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Random random(seed);
      const auto fit = fit_interference(invented([&] { return 1 + row.noise * random.normal(); }));
      ASSERT_TRUE(fit) << fit.error().message;
      const Difference d = difference(fit->coefficients, fit->hardware.coefficients, stored(), v100());
      EXPECT_LT(d.mean, row.mean) << "noise " << row.noise << ", seed " << seed;
      EXPECT_LT(d.max, row.max) << "noise " << row.noise << ", seed " << seed;
    }
}

// One solo sample of each model, another each time, is off by a factor of 1.6 to 3 or its inverse.
TEST(InterferenceFit, AWildSampleIsNamedAndLeftOut) {
  std::size_t found = 0, wrongly = 0, all = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    InterferenceMeasurements m = invented([&] { return 1 + 0.02 * random.normal(); });
    std::map<std::string, std::string> wild;
    for (auto& [name, model] : m.models) {
      SoloSample& sample = model.solo[random.below(model.solo.size())];
      const double factor = 1.6 + 1.4 * random.uniform();
      sample.gpu_ms *= random.below(2) == 0 ? factor : 1 / factor;
      wild[name] = "batch " + std::to_string(sample.batch) + ", share " +
                   std::to_string(static_cast<int>(sample.share_pct)) + "%: ";
    }
    const auto fit = fit_interference(m);
    ASSERT_TRUE(fit) << fit.error().message;
    for (const auto& [name, model] : fit->models) {
      ++all;
      const auto& told = model.time.outliers;
      const bool named =
          std::ranges::any_of(told, [&](const auto& each) { return each.starts_with(wild[name]); });
      found += named;
      wrongly += told.size() - named;
    }
    const Difference d = difference(fit->coefficients, fit->hardware.coefficients, stored(), v100());
    EXPECT_LT(d.mean, 0.06) << "seed " << seed;
  }
  EXPECT_GE(found, all * 9 / 10);
  EXPECT_LE(wrongly, all / 20);
}

TEST(InterferenceFit, CoefficientsStayWithinWhatCanBe) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const auto fit = fit_interference(invented([&] { return std::exp(0.3 * random.normal()); }));
    ASSERT_TRUE(fit) << fit.error().message;
    for (const auto& [name, c] : fit->coefficients.models) {
      EXPECT_GE(c.k5, 0);
      EXPECT_GE(c.alpha_power, 0);
      EXPECT_GE(c.alpha_cacheutil, 0);
      EXPECT_GE(c.alpha_cache, 0);
      EXPECT_GE(largest_batch(c), 32);
      for (const double share : {2.5, 10.0, 100.0})
        for (int batch = 1; batch <= 32; ++batch) {
          const double time = active_ms(c, batch, share);
          EXPECT_TRUE(std::isfinite(time) && time > 0) << name << " " << batch << " " << share;
          if (batch > 1) {
            EXPECT_GE(time, active_ms(c, batch - 1, share) * (1 - 1e-12));
          }
        }
    }
    EXPECT_LE(fit->hardware.coefficients.alpha_f, 0);
    EXPECT_EQ(*parse_coefficients(to_json(fit->coefficients), "again"), fit->coefficients);
    EXPECT_EQ(*parse_hardware(to_json(fit->hardware), "again"), fit->hardware);
  }
}

// A CPU without counters: two shares, and times together that tell no delays. What is left of the model is
// times by batch and share, and a delay a kernel.
TEST(InterferenceFit, WhatWasNotMeasuredFallsAway) {
  ModelCoefficients truth{.kernels = 40, .schedule_ms = 0.1, .k1 = 0.5, .k2 = 80, .k3 = 30, .k5 = 0.4};
  InterferenceMeasurements m;
  m.device = "cores";
  m.not_measured = {"power: no RAPL"};
  for (const char* name : {"a", "b"}) {
    auto& model = m.models[name];
    model.kernels = truth.kernels;
    model.schedule_ms = truth.schedule_ms;
    for (const int batch : {1, 4, 8, 16})
      for (const double share : {50.0, 100.0})
        model.solo.push_back({batch, share, active_ms(truth, batch, share) + truth.schedule_ms, {}, {}, {}});
  }
  for (const int batch : {1, 4, 8})
    for (const int workloads : {2, 3}) {
      ColocatedRun run;
      for (int i = 0; i < workloads; ++i)
        run.members.push_back({i == 0 ? "a" : "b",
                               batch,
                               50,
                               active_ms(truth, batch, 50) + truth.schedule_ms + 40 * 0.005 * (workloads - 1),
                               {}});
      m.colocated.push_back(run);
    }
  const auto fit = fit_interference(m);
  ASSERT_TRUE(fit) << fit.error().message;
  EXPECT_NEAR(fit->hardware.coefficients.alpha_sch, 0.005, 1e-6);
  EXPECT_NEAR(fit->hardware.coefficients.beta_sch, -0.005, 1e-6);
  const ModelCoefficients& c = fit->coefficients.models.at("a");
  EXPECT_EQ(c.k4, 0);
  EXPECT_EQ(c.alpha_cache, 0);
  EXPECT_EQ(c.alpha_power, 0);
  EXPECT_NEAR(active_ms(c, 12, 50), active_ms(truth, 12, 50), 1e-6);
  EXPECT_EQ(frequency_ratio(fit->hardware.coefficients, 1e5), 1);
  EXPECT_THAT(fit->notes, Contains(HasSubstr("power: no RAPL")));
  EXPECT_THAT(fit->notes, Contains(HasSubstr("frequency: not measured")));
  EXPECT_THAT(fit->notes, Contains(HasSubstr("model 'a': cache use")));
  EXPECT_EQ(*parse_hardware(to_json(fit->hardware), "again"), fit->hardware);

  m.colocated[0].members[1].model = "c";
  const auto unknown = fit_interference(m);
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("colocated[0]: model 'c' ran with others"));
}

TEST(InterferenceFit, ItsFilesAreRead) {
  InterferenceMeasurements m = published();
  m.models["ssd"].solo[4].gpu_ms *= 3;
  const auto fit = fit_interference(m);
  ASSERT_TRUE(fit);
  EXPECT_EQ(*parse_coefficients(coefficients_json(*fit), "again"), fit->coefficients);
  EXPECT_EQ(fit->coefficients.models.at("ssd").measured_batch, 32) << "the largest of the samples";
  EXPECT_EQ(*parse_hardware(hardware_json(*fit), "again"), fit->hardware);
  EXPECT_THAT(coefficients_json(*fit), HasSubstr("batch 16, share 50%: 232.2 ms, by the others "));
  EXPECT_THAT(to_json(*fit), HasSubstr("\"alexnet + resnet50\""));
}

TEST(InterferenceFit, SaysWhatIsWrongWithTheSamples) {
  const auto nothing = fit_interference({});
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message, HasSubstr("no model has samples alone"));

  InterferenceMeasurements m = published();
  auto& solo = m.models["alexnet"].solo;
  solo = {solo[0], solo[4], solo[8]};
  const auto few = fit_interference(m);
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().message,
              HasSubstr("model 'alexnet': has 3 samples alone, but should have at least 5"));

  m = published();
  m.models["ssd"].schedule_ms = 30;
  const auto late = fit_interference(m);
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().message, HasSubstr("model 'ssd': batch 1, share 10%: gpu_latency_ms is 25.24"));
}

}  // namespace
}  // namespace carillon::profile
