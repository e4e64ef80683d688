#include "carillon/simulate/goodput.h"

#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"

namespace carillon::simulate {
namespace {

// One device that takes 10 ms for a request, one at a time, and requests at equal gaps with as long to be
// answered: up to 100 a second all are on time, above that ever more wait.
workload::Scenario hundred(double rate) {
  workload::Scenario s;
  s.name = "hundred";
  s.duration = 40s;
  s.warmup = 10s;
  s.rate = rate;
  s.process = {.kind = workload::ArrivalKind::uniform};
  workload::ScenarioModel m{.name = "m", .slo = 10ms, .max_batch = 1};
  m.latency.linear = true;
  m.latency.beta = 10ms;
  s.models.push_back(std::move(m));
  return s;
}

Goodput searched(const workload::Scenario& s, const GoodputOptions& options, const char* policy = "fcfs") {
  const auto make = [&] { return *schedule::make_scheduler(policy, environment(s)); };
  return find_goodput(s, make, policy, options);
}

TEST(Goodput, IsTheHighestRateThatPasses) {
  for (const double start : {0.0, 7.0, 100.0, 101.0, 3000.0})
    for (const int jobs : {1, 2, 3}) {
      const Goodput found = searched(hundred(start), {.precision = 0.004, .jobs = jobs});
      EXPECT_LE(found.rate, 100.001) << start << " " << jobs;
      EXPECT_GT(found.rate, 100 / 1.004 - 0.001) << start << " " << jobs;
      EXPECT_FALSE(found.interrupted);
      EXPECT_EQ(found.report.worst_finish_rate, 1);
      EXPECT_NEAR(found.report.offered_rps, found.rate, 0.05) << "the report is of the run at that rate";
      EXPECT_EQ(found.fewest_requests, found.report.offered);
    }
}

TEST(Goodput, IsBracketedAndThenCut) {
  for (const int jobs : {1, 3}) {
    std::vector<double> rates;
    std::vector<std::pair<double, double>> brackets;
    std::vector<bool> passes;
    const Goodput found = searched(
        hundred(30),
        {.precision = 0.1, .jobs = jobs, .progress = [&](double rate, bool passed, double low, double high) {
           rates.push_back(rate);
           passes.push_back(passed);
           brackets.emplace_back(low, high);
           return true;
         }});
    if (jobs == 1) {
      EXPECT_EQ(rates, (std::vector<double>{30, 60, 120, 90, 105, 97.5}));
    } else {
      const std::vector<double> expected{30, 40, 50, 60, 80, 100, 120, 105, 110, 115};
      ASSERT_GE(rates.size(), expected.size() - 3);
      for (std::size_t i = 0; i < std::min(rates.size(), expected.size()); ++i)
        EXPECT_NEAR(rates[i], expected[i], 1e-9) << i;
    }
    EXPECT_EQ(static_cast<std::size_t>(found.runs), rates.size());
    double low = 0, high = 0;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      EXPECT_EQ(passes[i], rates[i] <= 100.0001) << rates[i];
      if (passes[i]) low = rates[i];
      if (!passes[i] && (high == 0 || rates[i] < high)) high = rates[i];
      EXPECT_EQ(brackets[i], (std::pair{low, high})) << i;
    }
    EXPECT_EQ(found.rate, low);
  }
}

TEST(Goodput, IsOfTheModelThatFaresWorst) {
  auto s = hundred(100);
  s.devices = 3;
  s.models.push_back(s.models[0]);
  s.models[1].name = "n";
  s.models[0].rate = {{Duration{0}, 60}};  // whatever the load
  const Goodput found = searched(s, {.precision = 0.01}, "eager");
  EXPECT_GE(found.rate, 90);
  EXPECT_NEAR(static_cast<double>(found.fewest_requests), 1800, 1) << "of the model that keeps its rate";
  s.models[0].slo = 9ms;  // never on time
  EXPECT_EQ(searched(s, {.precision = 0.1}, "eager").rate, 0);
}

TEST(Goodput, HasTheShareOnTimeThatIsAskedFor) {
  // From 100 to 200 a second every other request finds the device free, where the rest is refused.
  const auto s = hundred(100);
  const auto make = [&] { return *schedule::make_scheduler("clockwork", environment(s)); };
  const Goodput all = find_goodput(s, make, "clockwork", {.on_time_share = 0.999});
  const Goodput half = find_goodput(s, make, "clockwork", {.on_time_share = 0.45});
  EXPECT_NEAR(all.rate, 100, 1);
  EXPECT_NEAR(half.rate, 200, 2);
  EXPECT_GE(half.report.worst_finish_rate, 0.45);
}

TEST(Goodput, EndsWhenItIsToldTo) {
  for (const int stop_at : {1, 2, 4}) {
    int calls = 0;
    const Goodput found =
        searched(hundred(30), {.progress = [&](double, bool, double, double) { return ++calls < stop_at; }});
    EXPECT_TRUE(found.interrupted);
    EXPECT_EQ(found.runs, stop_at);
    EXPECT_EQ(found.rate, stop_at == 1 ? 30 : stop_at == 2 ? 60 : 90);
  }
  // On the way down too.
  int calls = 0;
  const Goodput found =
      searched(hundred(1000), {.progress = [&](double, bool, double, double) { return ++calls < 2; }});
  EXPECT_EQ(found.runs, 2);
  EXPECT_TRUE(found.interrupted);
  EXPECT_EQ(found.rate, 0);
}

TEST(Goodput, IsZeroWhereNoRateIsAnswered) {
  auto s = hundred(1);
  s.models[0].slo = 5ms;
  const Goodput found = searched(s, {});
  EXPECT_EQ(found.rate, 0);
  EXPECT_FALSE(found.interrupted);
  EXPECT_EQ(found.runs, 11) << "from one a second down to a thousandth, by halves";
}

}  // namespace
}  // namespace carillon::simulate
