#include "carillon/simulate/plan_simulation.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/provision/best.h"
#include "carillon/provision/strategies.h"
#include "carillon/provision/testing/sets.h"

namespace carillon::simulate {
namespace {

using provision::Plan;
using provision::Workload;
using provision::testing::table3;

const std::vector<provision::DeviceType> v100s{provision::testing::v100()};

// All workloads on one device, with these shares in units and these batches.
Plan one_device(const std::vector<Workload>& workloads, const std::vector<std::pair<int, int>>& shares) {
  Plan plan;
  plan.devices = {{.number = 1}};
  for (std::size_t i = 0; i < workloads.size(); ++i)
    plan.devices[0].placements.push_back({.workload = i,
                                          .units = shares[i].first,
                                          .batch = shares[i].second,
                                          .rate_rps = workloads[i].rate_rps});
  return plan;
}

double predicted_ms(const Plan& plan, const std::vector<Workload>& workloads) {
  return provision::forecast(plan.devices[0], workloads, v100s)[0].latency_ms;
}

PlanSimulation simulated(const Plan& plan, const std::vector<Workload>& workloads,
                         const PlanSimulationOptions& options) {
  auto result = simulate_plan(plan, workloads, v100s, options);
  EXPECT_TRUE(result) << result.error().message;
  return *std::move(result);
}

TEST(PlanSimulation, OneAtATimeTakesWhatIsPredicted) {
  const std::vector<Workload> workloads = {{"a", "resnet50", 40, 20}, {"b", "vgg19", 60, 5}};
  const Plan plan = one_device(workloads, {{20, 1}, {10, 1}});
  for (const auto arrivals : {workload::ArrivalKind::uniform, workload::ArrivalKind::poisson}) {
    const auto result = simulated(plan, workloads, {.span = 100s, .noise = 0, .arrivals = arrivals});
    ASSERT_EQ(result.workloads.size(), 2u);
    const SimulatedWorkload& a = result.workloads[0];
    EXPECT_NEAR(to_ms(a.p50), predicted_ms(plan, workloads), 2e-6);
    EXPECT_EQ(a.mean_batch, 1);
    EXPECT_FALSE(a.violated());
    if (arrivals == workload::ArrivalKind::uniform) {
      EXPECT_EQ(a.p99, a.p50);
      EXPECT_EQ(a.requests, 2000u);
      EXPECT_NEAR(a.achieved_rps, 20, 0.1);
    }
  }
}

TEST(PlanSimulation, FullBatchesWaitForTheirLastRequest) {
  const std::vector<Workload> workloads = {{"a", "resnet50", 40, 100}};
  const Plan plan = one_device(workloads, {{30, 4}});
  const auto result = simulated(plan, workloads, {.span = 10s, .noise = 0, .batching = PlanBatching::full});
  const SimulatedWorkload& a = result.workloads[0];
  // Of four, 10 ms apart, the first waits 30 ms; half wait at most 10.
  EXPECT_NEAR(to_ms(a.p99), 30 + predicted_ms(plan, workloads), 1e-5);
  EXPECT_NEAR(to_ms(a.p50), 10 + predicted_ms(plan, workloads), 1e-5);
  EXPECT_NEAR(a.mean_batch, 4, 0.02);
  EXPECT_EQ(a.late, to_ms(a.p99) > 40);
}

TEST(PlanSimulation, ShowsAPredictedViolation) {
  // 400 requests a second need 30% of the device; with 20% it falls ever farther behind.
  const std::vector<Workload> workloads = {{"W4", "resnet50", 20, 400}};
  for (const auto batching : {PlanBatching::available, PlanBatching::full}) {
    const auto right =
        simulated(one_device(workloads, {{14, 4}}), workloads, {.noise = 0, .batching = batching});
    EXPECT_EQ(right.violations, 0u);
    EXPECT_EQ(right.on_time, right.requests);
    const auto wrong = simulated(one_device(workloads, {{8, 4}}), workloads, {.batching = batching});
    EXPECT_EQ(wrong.violations, 1u);
    EXPECT_TRUE(wrong.workloads[0].late);
    EXPECT_TRUE(wrong.workloads[0].slow);
    EXPECT_LT(wrong.workloads[0].achieved_rps, 330);
    EXPECT_EQ(wrong.workloads[0].requests, right.workloads[0].requests) << "all are answered and counted";
  }
}

TEST(PlanSimulation, AchievesWhatIsPredictedWhereItIsTooSlow) {
  const auto workloads = table3();
  const Plan plan = provision::plan_ffd(workloads, v100s);
  const auto result = simulated(plan, workloads, {.span = 100s, .noise = 0.03});
  for (const auto& device : plan.devices) {
    const auto forecasts = provision::forecast(device, workloads, v100s);
    for (std::size_t i = 0; i < forecasts.size(); ++i) {
      const auto& p = device.placements[i];
      if (forecasts[i].throughput_rps < 0.99 * p.rate_rps) {
        const SimulatedWorkload& w = result.workloads[p.workload];
        EXPECT_TRUE(w.late && w.slow) << workloads[p.workload].id;
        EXPECT_NEAR(w.achieved_rps, forecasts[i].throughput_rps, 0.003 * p.rate_rps)
            << workloads[p.workload].id;
      }
    }
  }
}

TEST(PlanSimulation, TheStandbyTakesOver) {
  const std::vector<Workload> workloads = {{"W4", "resnet50", 20, 400}};
  PlanSimulationOptions options{.standby = true};
  const auto mended = simulated(one_device(workloads, {{10, 4}}), workloads, options);
  EXPECT_EQ(mended.violations, 0u);
  EXPECT_TRUE(mended.workloads[0].standby);
  options.standby = false;
  EXPECT_EQ(simulated(one_device(workloads, {{10, 4}}), workloads, options).violations, 1u);
  // Where nothing is wrong there is nothing to take over.
  options.standby = true;
  EXPECT_FALSE(simulated(one_device(workloads, {{16, 4}}), workloads, options).workloads[0].standby);
}

TEST(PlanSimulation, NeverEndsWhereTheModelSaysSo) {
  // Far above the power cap the frequency falls to zero.
  auto types = v100s;
  types[0].hardware.coefficients.max_power_w = 1;
  types[0].hardware.coefficients.alpha_f = -1000;
  const std::vector<Workload> workloads = {{"a", "ssd", 55, 100}};
  const auto result = simulate_plan(one_device(workloads, {{40, 4}}), workloads, types, {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->workloads[0].p50, Duration::max());
  EXPECT_EQ(result->workloads[0].achieved_rps, 0);
  EXPECT_EQ(result->on_time, 0u);
  EXPECT_TRUE(result->workloads[0].violated());
  const auto told = nlohmann::json::parse(to_json(*result, workloads, {}));
  EXPECT_TRUE(told["workloads"][0]["p99_ms"].is_null());
}

TEST(PlanSimulation, AnErrorLastsAndNoiseDoesNot) {
  const std::vector<Workload> workloads = {{"a", "resnet50", 40, 20}};
  const Plan plan = one_device(workloads, {{20, 1}});
  double sum = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto a =
        simulated(plan, workloads, {.span = 10s, .noise = 0, .error = 0.1, .seed = seed}).workloads[0];
    EXPECT_EQ(a.p50, a.p99);
    sum += to_ms(a.p50) / predicted_ms(plan, workloads);
  }
  EXPECT_NEAR(sum / 200, 1, 0.03);
  const auto noisy = simulated(plan, workloads, {.span = 1000s, .noise = 0.1}).workloads[0];
  EXPECT_NEAR(to_ms(noisy.p50) / predicted_ms(plan, workloads), 0.995, 0.005);
  EXPECT_NEAR(to_ms(noisy.p99) / predicted_ms(plan, workloads), 1.255, 0.01);
}

TEST(PlanSimulation, PartsOfAWorkloadCountTogether) {
  const std::vector<Workload> workloads = {{"a", "resnet50", 40, 60}};
  Plan plan = one_device(workloads, {{20, 1}});
  plan.devices.push_back(plan.devices[0]);
  plan.devices[1].number = 2;
  plan.devices[0].placements[0].rate_rps = 20;
  plan.devices[1].placements[0].rate_rps = 40;
  const auto result = simulated(plan, workloads, {.span = 10s});
  ASSERT_EQ(result.workloads.size(), 1u);
  EXPECT_EQ(result.workloads[0].requests, 600u);
  EXPECT_EQ(result.violations, 0u);
}

TEST(PlanSimulation, AgreesWithWhatAPlanForArrivalsExpects) {
  const auto workloads = table3();
  const struct {
    const char* text;
    workload::ArrivalKind kind;
    double shape;
  } rows[] = {{"constant", workload::ArrivalKind::uniform, 1},
              {"poisson", workload::ArrivalKind::poisson, 1},
              {"gamma:0.5", workload::ArrivalKind::gamma, 0.5}};
  for (const auto& [text, kind, shape] : rows) {
    const provision::QueueRule rule{.arrivals = *provision::read_arrivals(text)};
    provision::BestOptions options;
    options.queue = &rule;
    const Plan plan = provision::plan_best(workloads, v100s, options).plan;
    const auto seen = simulated(plan, workloads, {.span = 200s, .arrivals = kind, .shape = shape, .seed = 3});
    EXPECT_EQ(seen.violations, 0u) << text;
    const auto expected = provision::expected_on_time(plan);
    for (const SimulatedWorkload& w : seen.workloads)
      EXPECT_NEAR(static_cast<double>(w.on_time) / static_cast<double>(w.requests), expected.at(w.workload),
                  0.004)
          << text << " " << workloads[w.workload].id;
  }
}

TEST(PlanSimulation, OverloadIsSlowHoweverItArrives) {
  const std::vector<Workload> workloads = {{"W4", "resnet50", 20, 400}};
  const Plan plan = one_device(workloads, {{8, 4}});
  PlanSimulationOptions options{.arrivals = workload::ArrivalKind::gamma, .shape = 0.5};
  const auto much = simulated(plan, workloads, options);
  EXPECT_TRUE(much.workloads[0].slow);
  EXPECT_TRUE(much.workloads[0].late);
  options.load = 0.25;
  const auto little = simulated(plan, workloads, options);
  EXPECT_FALSE(little.workloads[0].slow);
  EXPECT_NEAR(static_cast<double>(little.requests) / static_cast<double>(much.requests), 0.25, 0.02);
  // A laxer percentile forgives what P99 does not.
  options.load = 0.5;
  options.percentile = 0.99;
  const bool late = simulated(plan, workloads, options).workloads[0].late;
  options.percentile = 0.5;
  EXPECT_TRUE(late);
  EXPECT_FALSE(simulated(plan, workloads, options).workloads[0].late);
}

TEST(PlanSimulation, TheSameSeedGivesTheSameBytes) {
  const auto workloads = table3();
  const Plan plan = provision::plan_igniter(workloads, v100s);
  PlanSimulationOptions options{.span = 5s, .arrivals = workload::ArrivalKind::poisson, .seed = 7};
  const std::string first = to_json(simulated(plan, workloads, options), workloads, options);
  EXPECT_EQ(to_json(simulated(plan, workloads, options), workloads, options), first);
  options.seed = 8;
  EXPECT_NE(to_json(simulated(plan, workloads, options), workloads, options), first);
  const auto told = nlohmann::json::parse(first);
  EXPECT_EQ(told["workloads"].size(), 12u);
  EXPECT_EQ(told["arrivals"], "poisson");
}

TEST(PlanSimulation, IsToldAsJsonAndAsATable) {
  const std::vector<Workload> workloads = {{"first", "resnet50", 40, 20},
                                           {"second, of a long name indeed: 34", "vgg19", 60, 5}};
  PlanSimulation s{.workloads = {{.workload = 1,
                                  .requests = 100,
                                  .on_time = 75,
                                  .p50 = 12ms,
                                  .p99 = 70ms,
                                  .offered_rps = 10,
                                  .achieved_rps = 9.5,
                                  .mean_batch = 1.5,
                                  .late = true,
                                  .slow = true,
                                  .standby = true},
                                 {.workload = 0, .p50 = 1500us, .p99 = Duration::max()}},
                   .requests = 100,
                   .on_time = 75,
                   .violations = 1};
  const PlanSimulationOptions options{.span = 10s,
                                      .noise = 0.05,
                                      .error = 0.02,
                                      .arrivals = workload::ArrivalKind::poisson,
                                      .batching = PlanBatching::full,
                                      .standby = true,
                                      .seed = 9};
  const auto expected = nlohmann::ordered_json::parse(R"({
    "seconds": 10.0, "noise": 0.05, "error": 0.02, "arrivals": "poisson", "batching": "full", "standby": true, "seed": 9,
    "workloads": [
      {"id": "second, of a long name indeed: 34", "model": "vgg19", "slo_ms": 60.0, "rate_rps": 5.0, "p50_ms": 12.0,
       "p99_ms": 70.0, "achieved_rps": 9.5, "mean_batch": 1.5, "on_time_fraction": 0.75, "late": true, "slow": true,
       "standby": true, "violated": true},
      {"id": "first", "model": "resnet50", "slo_ms": 40.0, "rate_rps": 20.0, "p50_ms": 1.5,
       "p99_ms": null, "achieved_rps": 0.0, "mean_batch": 0.0, "on_time_fraction": 1.0, "late": false, "slow": false,
       "standby": false, "violated": false}],
    "requests": 100, "on_time": 75, "violations": 1})");
  EXPECT_EQ(nlohmann::ordered_json::parse(to_json(s, workloads, options)).dump(1), expected.dump(1));
  EXPECT_EQ(
      to_table(s, workloads, options),
      "Simulated for 10 s, poisson arrivals, noise 0.05, error 0.02, batches when full, seed 9:\n"
      "workload                             p50 ms     p99 ms     SLO ms  requests/s     of rate  mean "
      "batch\n"
      "second, of a long name indeed: 34      12.00      70.00         60         9.5        10.0        1.50"
      "  late  slow  (standby)\n"
      "first                                  1.50      never         40         0.0         0.0        "
      "0.00\n"
      "1 of 2 workloads violated; 75.000% of 100 requests on time\n");
  PlanSimulationOptions plain;
  EXPECT_NE(to_table(s, workloads, plain).find("constant arrivals"), std::string::npos);
  EXPECT_NE(to_table(s, workloads, plain).find("batches with what is there"), std::string::npos);
  const auto told = nlohmann::json::parse(to_json(s, workloads, plain));
  EXPECT_EQ(told["arrivals"], "constant");
  EXPECT_EQ(told["batching"], "available");
}

TEST(PlanSimulation, RefusesWhatMakesNoSense) {
  const std::vector<Workload> workloads = {{"a", "resnet50", 40, 60}};
  const Plan plan = one_device(workloads, {{20, 1}});
  const struct {
    PlanSimulationOptions options;
    const char* words;
  } rows[] = {
      {{.span = 0s}, "above 0 s"},
      {{.noise = 1.5}, "the noise is 1.5, but should be in 0..1"},
      {{.noise = NAN}, "but should be in 0..1"},
      {{.error = -0.1}, "the error is -0.1, but should be in 0..1"},
      {{.arrivals = workload::ArrivalKind::closed}, "constant, Poisson or Gamma"},
      {{.arrivals = workload::ArrivalKind::gamma, .shape = 0},
       "the shape is 0, but should be in 0.001..1000000"},
      {{.load = NAN}, "the load is nan, but should be in 0.01..1"},
      {{.load = 2}, "the load is 2, but should be in 0.01..1"},
      {{.percentile = 1}, "the percentile is 1, but should be in 0.5..1"},
      {{.span = 10'000'000s}, "simulate 3.33e+05 s or less"},
  };
  for (const auto& [options, words] : rows) {
    const auto result = simulate_plan(plan, workloads, v100s, options);
    ASSERT_FALSE(result) << words;
    EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
  }
}

}  // namespace
}  // namespace carillon::simulate
