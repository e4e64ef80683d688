#include "carillon/simulate/study.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/simulate/study_report.h"

namespace carillon::simulate {
namespace {

using ::testing::HasSubstr;
using workload::Study;
using workload::StudyAlgorithm;

Study on(std::size_t devices) {
  Study study;
  study.name = "study";
  study.devices.assign(devices, {.speed = 1, .memory = device::most_job_bytes, .supply = {}});
  return study;
}
Study listed(std::size_t devices, std::vector<double> seconds) {
  Study study = on(devices);
  study.trials = static_cast<std::uint32_t>(seconds.size());
  study.seconds = std::move(seconds);
  study.iterations = 0;
  return study;
}
// Curves that rise to their own end, `epochs` long, of 10 s each.
std::vector<workload::LearningCurve> rising(std::size_t count, std::size_t epochs) {
  std::vector<workload::LearningCurve> curves;
  for (std::size_t c = 0; c < count; ++c) {
    workload::LearningCurve curve;
    for (std::size_t e = 1; e <= epochs; ++e) {
      curve.epoch.push_back(from_seconds(10));
      curve.metric.push_back(static_cast<double>(c + 1) / static_cast<double>(count) *
                             (1 - 1 / (1 + static_cast<double>(e))));
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

StudyFigures run(const Study& study, std::string_view policy, bool timeline = false) {
  const auto tuning = tune::make_tuning(policy, tune_options(study));
  const auto figures = run_study(study, **tuning, {.timeline = timeline, .progress = {}});
  EXPECT_TRUE(figures) << figures.error().message;
  return figures ? *figures : StudyFigures{};
}
double makespan(const Study& study, std::string_view policy) {
  return to_seconds(run(study, policy).last - TimePoint{});
}

TEST(StudyRun, Figure3_5) {
  Study study = listed(5, {4, 4, 12, 30});
  study.c = 2;
  study.d = 4;
  EXPECT_DOUBLE_EQ(makespan(study, "fifo"), 30);
  EXPECT_DOUBLE_EQ(makespan(study, "static"), 12);
  EXPECT_LT(makespan(study, "dynamic"), 12);
  EXPECT_LE(makespan(study, "best"), 10 + 1e-6);
}

// As experiments with Theorem 1 found: StaticFluid takes more than twice the best plan.
TEST(StudyRun, Theorem1Fails) {
  Study study = listed(4, {10, 5, 3, 2.86});
  study.c = 3;
  study.d = 4;
  EXPECT_DOUBLE_EQ(makespan(study, "static"), 10);
  EXPECT_LT(makespan(study, "best"), 4.6);
}

TEST(StudyRun, TrialsTakeWhatEquation3_2Says) {
  Study study = listed(1, {10, 10});
  study.alpha = 1.2;
  study.c = 2;
  EXPECT_NEAR(makespan(study, "static"), 12, 1e-6);
  study = listed(4, {10});
  study.beta = 1.1;
  study.d = 4;
  EXPECT_NEAR(makespan(study, "static"), 10 * 1.1 * 1.1 * 1.1 / 4, 1e-6);
  // One packed trial ends: the other is alone from then on.
  study = listed(1, {10, 20});
  study.alpha = 1.5;
  study.c = 2;
  EXPECT_NEAR(makespan(study, "static"), 15 + 10, 1e-6);
}

TEST(StudyRun, DevicesHaveTheirSpeedAndSupply) {
  Study study = listed(1, {10});
  study.devices[0].speed = 2;
  EXPECT_NEAR(makespan(study, "fifo"), 5, 1e-6);
  study.devices[0].supply = {{TimePoint{} + from_seconds(2), 0.5},
                             {TimePoint{} + from_seconds(4), 0},
                             {TimePoint{} + from_seconds(9), 1}};
  // 4 s of work by 2 s, 2 by 4 s, none until 9 s, 4 are left.
  for (const char* policy : {"fifo", "static", "dynamic", "best"})
    EXPECT_NEAR(makespan(study, policy), 11, 1e-6) << policy;
}

TEST(StudyRun, ChangesComeAtBoundariesAndCostAMove) {
  Study study = listed(2, {10, 4});
  study.iterations = 10;
  study.move = from_seconds(1);
  study.c = 1;
  study.d = 2;
  // At 4 s the long one has 6 s left: 3 s on two devices, and a second for the move.
  const StudyFigures figures = run(study, "dynamic");
  EXPECT_EQ(figures.resizes, 1U);
  EXPECT_NEAR(to_seconds(figures.last - TimePoint{}), 8, 1e-6);
  EXPECT_EQ(figures.trials[0].stood, from_seconds(1));
}

TEST(StudyRun, HalvingOfTable3_2) {
  Study study = on(32);
  study.algorithm = StudyAlgorithm::halving;
  study.rungs = {{81, 1}, {27, 2}, {9, 6}, {3, 18}};
  study.epoch = from_seconds(15.15);
  study.alpha = 1.1;
  study.beta = 1.05;
  study.c = 2;
  study.d = 4;
  study.move = from_seconds(0.1);
  const StudyFigures fifo = run(study, "fifo"), best = run(study, "best");
  EXPECT_NEAR(to_seconds(fifo.work), 243 * 15.15, 0.1);
  EXPECT_NEAR(to_seconds(best.work), 243 * 15.15, 0.1);
  EXPECT_NEAR(to_seconds(fifo.last - TimePoint{}), 432, 43);
  EXPECT_LT(2 * (best.last - TimePoint{}), fifo.last - TimePoint{});
  for (const TrialFigures& t : best.trials) EXPECT_TRUE(t.finished);
}

// Whatever is changed on the way, each trial does its iterations once.
TEST(StudyRun, NoIterationIsDoneTwiceOrForNothing) {
  Study study = on(5);
  study.algorithm = StudyAlgorithm::halving;
  study.rungs = {{12, 2}, {4, 4}, {1, 8}};
  study.epoch = from_seconds(10);
  study.sigma = 0.5;
  study.beta = 1.05;
  for (const char* policy : {"fifo", "static", "dynamic", "best"}) {
    const StudyFigures figures = run(study, policy);
    double work = 0;
    for (const TrialFigures& t : figures.trials) work += t.epochs;
    EXPECT_EQ(work, 12 * 2 + 4 * 4 + 8) << policy;
    // Nobody was faster than all devices together.
    EXPECT_GE(to_seconds(figures.device_time) * 2, to_seconds(figures.work)) << policy;
    EXPECT_NEAR(to_seconds(figures.work), to_seconds(run(study, "fifo").work), 1e-3) << policy;
  }
}

// Nothing is told: alpha, beta and the cost of a move are found as the study runs.
TEST(StudyRun, WhatIsNotToldIsMeasured) {
  Study study = on(4);
  study.algorithm = StudyAlgorithm::halving;
  study.rungs = {{16, 2}, {4, 4}, {1, 8}};
  study.curves = rising(16, 14);
  study.epochs = 14;
  study.alpha = 1.2;
  study.beta = 1.1;
  study.c = 3;
  study.d = 4;
  study.move = from_seconds(0.5);
  study.tells_seconds = study.tells_overheads = study.tells_move = false;
  const tune::TuneModel model = run(study, "best").model;
  ASSERT_TRUE(model.alpha.known && model.beta.known && model.move.known);
  EXPECT_NEAR(model.alpha.value, 1.2, 0.02);
  EXPECT_NEAR(model.beta.value, 1.1, 0.02);
  EXPECT_NEAR(model.move.value, 0.5, 1e-9);
  EXPECT_EQ(model.c, 3);
  EXPECT_EQ(model.d, 4);
}

class EveryTuner : public ::testing::TestWithParam<StudyAlgorithm> {};

TEST_P(EveryTuner, EndsUnderEveryPolicyAndStopsAtItsTarget) {
  Study study = on(4);
  study.algorithm = GetParam();
  study.rungs = {{9, 1}, {3, 2}, {1, 6}};
  study.trials = 12;
  study.epochs = 9;
  study.curves = rising(30, 9);
  study.curves[3].metric[0] = std::numeric_limits<double>::quiet_NaN();
  study.alpha = 1.1;
  study.beta = 1.05;
  study.move = from_seconds(0.5);
  for (const char* policy : {"fifo", "static", "dynamic", "best"}) {
    SCOPED_TRACE(policy);
    study.target.reset();
    const StudyFigures all = run(study, policy);
    for (const TrialFigures& t : all.trials) {
      EXPECT_TRUE(t.finished);
      EXPECT_GE(t.epochs, 1U);
    }
    EXPECT_EQ(all.refused, 0U);
    const StudyFigures again = run(study, policy);
    EXPECT_EQ(all.last, again.last);
    EXPECT_EQ(all.events, again.events);
    study.target = 0.4;
    const StudyFigures early = run(study, policy);
    ASSERT_TRUE(early.target);
    EXPECT_EQ(early.last, *early.target);
    EXPECT_LE(early.last, all.last);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryTuner,
                         ::testing::Values(StudyAlgorithm::grid, StudyAlgorithm::halving,
                                           StudyAlgorithm::hyperband, StudyAlgorithm::syncbohb,
                                           StudyAlgorithm::asha, StudyAlgorithm::bohb, StudyAlgorithm::pbt),
                         [](const auto& tuner) { return std::string(name_of(tuner.param)); });

// Paused trials keep their memory where it is; where it is short they let go of it, and nobody is stuck.
TEST(StudyRun, ShortMemoryIsGivenUpByThosePaused) {
  Study study = on(2);
  study.algorithm = StudyAlgorithm::halving;
  study.rungs = {{9, 1}, {3, 2}, {1, 6}};
  study.epoch = from_seconds(10);
  study.epochs = 9;
  study.move = from_seconds(1);
  for (workload::StudyDevice& d : study.devices) d.memory = Bytes{100};
  study.persistent = Bytes{40};
  study.ephemeral = Bytes{10};
  for (const char* policy : {"fifo", "static", "dynamic", "best"}) {
    const StudyFigures figures = run(study, policy);
    EXPECT_GT(figures.releases, 0U) << policy;
    for (const TrialFigures& t : figures.trials) EXPECT_TRUE(t.finished) << policy;
  }
}

TEST(StudyRun, SaysWhereTrialsAreLeftThatNobodyRuns) {
  Study study = listed(1, {10});
  study.devices[0].supply = {{TimePoint{} + from_seconds(5), 0}};
  const auto tuning = tune::make_tuning("best", tune_options(study));
  const auto figures = run_study(study, **tuning);
  ASSERT_FALSE(figures);
  EXPECT_THAT(figures.error().message, HasSubstr("1 trials are left that nobody runs"));
}

// One event may take a policy seconds, and there is one for each of thousands of trials at the same instant.
TEST(StudyRun, EndsBetweenTwoEventsWhereItIsInterrupted) {
  const Study study = listed(100, std::vector<double>(1000, 5.0));
  const auto tuning = tune::make_tuning("best", tune_options(study));
  int left = 10;
  const auto figures = run_study(study, **tuning, {.progress = {}, .go_on = [&] { return left-- > 0; }});
  ASSERT_FALSE(figures);
  EXPECT_EQ(figures.error().code, ErrorCode::cancelled);
  EXPECT_EQ(left, -1) << "it was asked again";
}

TEST(StudyRun, RefusesIterationsThatTakeLessThanANanosecond) {
  const auto says = [](const Study& study) {
    const auto tuning = tune::make_tuning("best", tune_options(study));
    const auto figures = run_study(study, **tuning, {});
    if (!figures) {
      EXPECT_EQ(figures.error().code, ErrorCode::invalid_argument);
    }
    return figures ? "nothing" : figures.error().message;
  };
  Study study = on(2);
  study.trials = 4;
  study.epoch = from_seconds(1e-6);
  study.iterations = 500;
  EXPECT_EQ(says(study), "nothing");
  study.iterations = 100'000;
  EXPECT_THAT(says(study), HasSubstr("would take 1e-11 s"));
  EXPECT_THAT(says(study),
              HasSubstr("trial.iterations is 100000, and must be at most 1000 for an epoch of 1e-06 s"));
  study.iterations = 20;
  for (auto& device : study.devices) device.speed = 1000;
  EXPECT_THAT(says(study), HasSubstr("trial.iterations is 20, and must be at most 1 "));
  study.iterations = 1;
  study.sigma = 9;  // the mean is longer than nearly all
  EXPECT_THAT(says(study), HasSubstr("trial.epoch_s must be longer, or the devices' speed lower"));
  study = listed(2, {1e-6, 1e-6});
  for (auto& device : study.devices) device.speed = 1e6;
  EXPECT_THAT(says(study), HasSubstr("the seconds in study.trials must be longer"));
}

TEST(StudyReport, HasWhatIsPromised) {
  Study study = listed(2, {10, 4});
  const StudyReport report = make_study_report(study, "fifo", run(study, "fifo"));
  const nlohmann::ordered_json json = to_json(report, true);
  for (const char* key : {"study", "scheduler", "seed", "devices", "makespan_s", "time_to_target_s",
                          "device_seconds", "utilization", "resizes", "moves", "trials"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["trials"], 2);
  EXPECT_TRUE(json["time_to_target_s"].is_null());
  EXPECT_DOUBLE_EQ(json["utilization"].get<double>(), 0.7);
  EXPECT_DOUBLE_EQ(json["device_seconds"].get<double>(), 14);
  EXPECT_EQ(json["each"].size(), 2U);
  EXPECT_THAT(to_table(std::vector{report}), HasSubstr("70.0%"));
}

TEST(StudyPlot, DrawsDevicesTrialsAndTheMetric) {
  Study study = on(2);
  study.algorithm = StudyAlgorithm::grid;
  study.trials = 4;
  study.epochs = 3;
  study.curves = rising(4, 3);
  const std::string svg = to_svg(study, "best", run(study, "best", true));
  for (const char* text :
       {"How busy each device was", "Trials, a colour each, 4 of them", "Best metric so far"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

}  // namespace
}  // namespace carillon::simulate
