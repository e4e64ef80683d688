// One model whose requests take long, and gain nothing by batches, among many that are cheap: together they
// are served as well as if the devices were dealt out among them.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/checker.h"

namespace carillon::simulate {
namespace {

struct Load {
  int devices = 0;
  double long_rate = 0;   // requests a second of the long model
  double cheap_rate = 0;  // of each of the twelve cheap ones
};

// Of the A100 zoo's kinds: SSDMobilenet, 19.4 ms a request with 164 ms for the answer; and a small network of
// 4.4 ms, of which one more in a batch takes 0.4 ms, with 30 ms.
workload::Scenario scenario(const Load& load) {
  workload::Scenario s;
  s.name = "long-among-cheap";
  s.devices = load.devices;
  s.duration = 14s;
  s.warmup = 4s;
  const auto add = [&s](std::string name, Duration slo, Duration alpha, Duration beta, double rate) {
    workload::ScenarioModel m{.name = std::move(name), .slo = slo, .max_batch = 64};
    m.latency.linear = true;
    m.latency.alpha = alpha;
    m.latency.beta = beta;
    m.rate = {{.at = 0s, .requests_per_s = rate}};
    s.models.push_back(std::move(m));
  };
  if (load.long_rate > 0) add("long", 164ms, 19400us, 4400us, load.long_rate);
  for (int i = 0; i < 12 && load.cheap_rate > 0; ++i)
    add("cheap-" + std::to_string(i), 30ms, 400us, 4ms, load.cheap_rate);
  return s;
}

struct OnTime {
  double worst_long = 1, worst_cheap = 1;  // share of a model's requests
};
OnTime serve(const Load& load) {
  const workload::Scenario s = scenario(load);
  const auto scheduler = *schedule::make_scheduler("clockwork", environment(s));
  Options options;
  testing::Checker checker(s, options);
  options.observer = &checker;
  const Figures figures = run(s, *scheduler, options);
  checker.finish(figures);
  EXPECT_EQ(checker.text(), "");
  OnTime result;
  for (const ModelFigures& m : figures.models) {
    double& worst = m.name == "long" ? result.worst_long : result.worst_cheap;
    worst = std::min(worst, static_cast<double>(m.on_time) / static_cast<double>(m.offered));
  }
  return result;
}

TEST(LongModels, AreServedAmongCheapOnesAsWellAsApart) {
  const struct {
    Load together;
    int for_the_long;  // devices, where they are dealt out
  } rows[] = {
      {{.devices = 4, .long_rate = 35, .cheap_rate = 100}, 1},
      {{.devices = 4, .long_rate = 35, .cheap_rate = 120}, 1},
      {{.devices = 8, .long_rate = 75, .cheap_rate = 300}, 2},
  };
  for (const auto& [together, for_the_long] : rows) {
    const OnTime apart{
        serve({.devices = for_the_long, .long_rate = together.long_rate}).worst_long,
        serve({.devices = together.devices - for_the_long, .cheap_rate = together.cheap_rate}).worst_cheap};
    EXPECT_GT(apart.worst_long, 0.98) << "the devices are enough";
    EXPECT_GT(apart.worst_cheap, 0.98);
    const OnTime shared = serve(together);
    EXPECT_GE(shared.worst_long, 0.98 * apart.worst_long) << together.devices << ", " << together.cheap_rate;
    EXPECT_GE(shared.worst_cheap, 0.98 * apart.worst_cheap)
        << together.devices << ", " << together.cheap_rate;
  }
}

}  // namespace
}  // namespace carillon::simulate
