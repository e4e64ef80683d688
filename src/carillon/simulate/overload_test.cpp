// Decisions that take their time: what comes faster than it can be decided on is turned away, and what is
// left is served as if it had come alone.
#include <cmath>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/checker.h"

namespace carillon::simulate {
namespace {

// Devices enough for all that comes: thirty models of 1 ms and a little for each request, 20 ms for the
// answer.
workload::Scenario quick_models(double rate) {
  workload::Scenario s;
  s.name = "quick-models";
  s.devices = 48;
  s.duration = 400ms;
  s.warmup = 200ms;
  s.rate = rate;
  for (int i = 0; i < 30; ++i) {
    workload::ScenarioModel m{.name = "m" + std::to_string(i), .slo = 20ms, .max_batch = 32};
    m.latency.linear = true;
    m.latency.alpha = 50us;
    m.latency.beta = 1ms;
    s.models.push_back(std::move(m));
  }
  return s;
}

struct Served {
  double on_time = 0;  // requests a second
  double share = 0;    // of the offered
  Figures figures;
};
Served serve(const std::string& policy, const workload::Scenario& s, Duration decision) {
  const auto scheduler = *schedule::make_scheduler(policy, environment(s));
  Options options{.decision_time = decision};
  testing::Checker checker(s, options);
  options.observer = &checker;
  Served served;
  served.figures = run(s, *scheduler, options);
  checker.finish(served.figures);
  EXPECT_EQ(checker.text(), "") << policy;
  std::uint64_t on_time = 0, offered = 0;
  for (const ModelFigures& m : served.figures.models) {
    on_time += m.on_time;
    offered += m.offered;
  }
  served.on_time = static_cast<double>(on_time) / to_seconds(served.figures.span);
  served.share = static_cast<double>(on_time) / static_cast<double>(offered);
  return served;
}

class OverloadTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OverloadTest, OfTheCoreLeavesWhatItCanDecide) {
  for (const Duration decision : {5us, 20us}) {
    // The most of which nearly all are on time, by tenths: between what is too much and a tenth of a decision's rate.
    const auto rate = [&](int tenths) { return std::pow(0.9, tenths) / to_seconds(decision); };
    int too_much = -1, enough = 22;
    Served best;
    while (enough - too_much > 1) {
      const int tenths = (too_much + enough) / 2;
      Served served = serve(GetParam(), quick_models(rate(tenths)), decision);
      (served.share < 0.99 ? too_much : enough) = tenths;
      if (served.share >= 0.99) best = std::move(served);
    }
    ASSERT_LT(enough, 22) << "a request takes ten decisions";
    const double can = rate(enough);
    for (const double times : {1.2, 2.0, 5.0}) {
      const Served over = serve(GetParam(), quick_models(times * can), decision);
      EXPECT_GE(over.on_time, 0.9 * best.on_time)
          << times << " times what can be decided at " << to_us(decision) << " us each";
      if (times < 2) continue;
      // Where a policy loses requests before the core is busy, twice as many may be few.
      if (times * can * to_seconds(decision) > 1) {
        EXPECT_GT(over.figures.shed, 0U);
      }
      // No model pays for the others.
      for (const ModelFigures& m : over.figures.models)
        EXPECT_NEAR(static_cast<double>(m.on_time) / static_cast<double>(m.offered), over.share,
                    0.25 * over.share)
            << m.name;
    }
  }
}

TEST_P(OverloadTest, TurnsNobodyAwayWhileDecisionsKeepUp) {
  const Served served = serve(GetParam(), quick_models(5000), 20us);
  EXPECT_EQ(served.figures.shed, 0U);
  EXPECT_GT(served.share, 0.99);
}

INSTANTIATE_TEST_SUITE_P(All, OverloadTest, ::testing::ValuesIn(schedule::scheduler_names()),
                         [](const auto& tested) { return schedule::testing::test_name(tested.param); });

TEST(Overload, OfOneModelIsNotTheOthers) {
  workload::Scenario s = quick_models(0);
  for (std::size_t i = 0; i < s.models.size(); ++i)
    s.models[i].rate = {{.at = 0s, .requests_per_s = i == 0 ? 100'000.0 : 200.0}};
  const Served served = serve("symphony", s, 20us);
  EXPECT_GT(served.figures.shed, 0U);
  for (std::size_t i = 1; i < s.models.size(); ++i) {
    const ModelFigures& m = served.figures.models[i];
    EXPECT_GE(m.on_time + 2, m.offered) << m.name;
  }
}

}  // namespace
}  // namespace carillon::simulate
