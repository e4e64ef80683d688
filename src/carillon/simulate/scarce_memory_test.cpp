// More models than the devices' memory holds: every policy that is meant for it serves what can be served.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/checker.h"

namespace carillon::simulate {
namespace {

// ResNet50 on an A100: 102.3 MB, which is 7 pages, and a LOAD of 8 ms.
workload::ScenarioModel resnet50(std::string name, Duration slo, double rate) {
  workload::ScenarioModel m{.name = std::move(name), .slo = slo, .max_batch = 64};
  m.latency.linear = true;
  m.latency.alpha = 1053us;
  m.latency.beta = 5072us;
  m.weights = Bytes{102'300'000};
  m.rate = {{.at = 0s, .requests_per_s = rate}};
  return m;
}

workload::Scenario cluster(std::size_t devices, double gigabytes) {
  workload::Scenario s;
  s.name = "scarce-memory";
  s.devices = static_cast<int>(devices);
  s.memory = Bytes{static_cast<std::uint64_t>(gigabytes * 1e9)};
  s.duration = 7s;
  s.warmup = 2s;
  return s;
}

// 40 models of Zipf popularity on 8 devices of which each holds 17; the popular ones are named last.
workload::Scenario popular_last() {
  workload::Scenario s = cluster(8, 2);
  constexpr int models = 40;
  double all = 0;
  for (int i = 1; i <= models; ++i) all += std::pow(i, -0.9);
  for (int i = models; i >= 1; --i)
    s.models.push_back(resnet50("popular-" + std::to_string(i), 50ms, 2000 * std::pow(i, -0.9) / all));
  return s;
}

// 200 equally popular models on 8 devices of which each holds 34.
workload::Scenario many_models() {
  workload::Scenario s = cluster(8, 4);
  for (int i = 0; i < 200; ++i) s.models.push_back(resnet50("equal-" + std::to_string(i), 250ms, 5));
  return s;
}

struct Result {
  double finish_rate = 0;
  Figures figures;
};
Result serve(const workload::Scenario& scenario, const std::string& policy, Options options = {}) {
  const auto scheduler = *schedule::make_scheduler(policy, environment(scenario));
  testing::Checker checker(scenario, options);
  if (options.observer == nullptr) options.observer = &checker;
  Result result{.figures = run(scenario, *scheduler, options)};
  if (options.observer == &checker) checker.finish(result.figures);
  EXPECT_TRUE(checker.problems().empty()) << checker.text();
  double offered = 0, on_time = 0;
  for (const ModelFigures& m : result.figures.models) {
    offered += static_cast<double>(m.offered);
    on_time += static_cast<double>(m.on_time);
  }
  result.finish_rate = on_time / offered;
  return result;
}

TEST(ScarceMemory, IsSharedByWhatIsAskedFor) {
  for (const char* policy : {"symphony", "eager", "orloj", "clockwork"}) {
    EXPECT_GE(serve(popular_last(), policy).finish_rate, 0.99) << policy;
    EXPECT_GE(serve(many_models(), policy).finish_rate, 0.99) << policy;
  }
}

workload::ScenarioModel of_kind(std::string name, Duration alpha, Duration beta, int pages,
                                std::vector<Duration> slos, double rate) {
  workload::ScenarioModel m = resnet50(std::move(name), slos.front(), rate);
  if (slos.size() > 1) m.slos = std::move(slos);
  m.latency.alpha = alpha;
  m.latency.beta = beta;
  m.weights = mib(16) * static_cast<std::uint64_t>(pages);
  return m;
}

// Bursts of a few requests that have little more time than they need, and three models a device: rates tell
// too late who needs another copy, requests that wait tell in time.
TEST(ScarceMemory, CopiesAreLoadedForWhatWaits) {
  for (const char* policy : {"symphony", "eager", "orloj", "clockwork"}) {
    workload::Scenario s = cluster(22, 0.17);  // ten pages
    s.process = {.kind = workload::ArrivalKind::gamma, .shape = 0.36};
    for (const double share : {0.40, 0.20, 0.14})
      s.models.push_back(of_kind("a", 2430us, 3650us, 3, {17800us}, 5400 * share));
    for (const double share : {0.10, 0.08})
      s.models.push_back(of_kind("b", 2ms, 10800us, 5, {108ms}, 5400 * share));
    s.models.push_back(of_kind("c", 1030us, 6340us, 4, {19700us, 39300us, 98300us}, 5400 * 0.08));
    for (std::size_t i = 0; i < s.models.size(); ++i) s.models[i].name += std::to_string(i);
    EXPECT_GE(serve(s, policy).finish_rate, 0.99) << policy;
  }
}

// Slow models have two places on each of these devices, and quick ones some pages beside them. A copy of a
// slow one for requests that wait is no help where quick ones are that cannot wait for it.
TEST(ScarceMemory, SlowModelsKeepAwayFromThoseInAHurry) {
  workload::Scenario s = cluster(21, 0.81);  // 48 pages
  for (int i = 0; i < 7; ++i)
    s.models.push_back(of_kind("slow-" + std::to_string(i), 2610us, 40ms, 24, {94300us}, 55));
  for (int i = 0; i < 2; ++i)
    s.models.push_back(
        of_kind("quick-" + std::to_string(i), 1520us, 162us, 4, {6750us, 13500us, 33700us}, 55));
  EXPECT_GE(serve(s, "symphony").finish_rate, 0.995);
}

// Where requests can wait for 250 ms, copies for what waits for less only push out what is asked for next.
TEST(ScarceMemory, CopiesAreForWhatCannotWait) {
  workload::Scenario s = many_models();
  for (workload::ScenarioModel& model : s.models) model.rate.front().requests_per_s = 15;
  const Result result = serve(s, "clockwork");
  EXPECT_GE(result.finish_rate, 0.99);
  EXPECT_LT(result.figures.loads, 4500) << "of 6,900 that there is time for";
}

// 40 models that are hardly asked for, and one that becomes popular: most of its requests have 50 ms, and
// some a minute, which is no reason to keep the others waiting.
TEST(ScarceMemory, OneThatCanWaitIsNoReasonToKeepOthersWaiting) {
  workload::Scenario s = cluster(4, 1);
  s.duration = 17s;
  for (int i = 0; i < 40; ++i) s.models.push_back(resnet50("cold-" + std::to_string(i), 100ms, 2));
  workload::ScenarioModel hot = resnet50("hot", 50ms, 1);
  hot.latency.alpha = 4ms;
  hot.latency.beta = 500us;
  hot.slos.assign(9, 50ms);
  hot.slos.push_back(60s);
  hot.rate.push_back({.at = 5s, .requests_per_s = 750});
  s.models.push_back(std::move(hot));
  EXPECT_GE(serve(s, "clockwork").finish_rate, 0.995);
}

// Two requests in three have no chance: they do not count as asked for.
TEST(ScarceMemory, HopelessRequestsLoadNothing) {
  workload::Scenario s = cluster(4, 1);
  for (int i = 0; i < 60; ++i) {
    s.models.push_back(resnet50("equal-" + std::to_string(i), 250ms, 24));
    s.models.back().slos = {250ms, 1ms, 1ms};
  }
  const Result result = serve(s, "clockwork");
  EXPECT_GE(result.finish_rate, 0.32) << "of which a third is all";
  EXPECT_LT(result.figures.loads, 2500) << "of 3,400 that there is time for";
}

// Whoever is asked for changes: half of the models for three seconds, then the other half, which nothing was
// loaded for but what is left over. What is loaded follows within about a second.
TEST(ScarceMemory, FollowsADriftOfPopularity) {
  for (const char* policy : {"eager", "clockwork"}) {
    workload::Scenario s = cluster(6, 2);
    s.duration = 10s;
    for (int i = 0; i < 60; ++i) {
      const double first = i % 2 == 0 ? 60 : 0;
      auto model = resnet50("half-" + std::to_string(i), 100ms, first);
      model.rate.push_back({.at = 5s, .requests_per_s = 60 - first});
      s.models.push_back(std::move(model));
    }
    const Result result = serve(s, policy, {.interval = 1s});
    for (std::size_t i = 2; i < 10; ++i) {
      if (i == 5) continue;
      const IntervalFigures& in = result.figures.intervals[i];
      EXPECT_GE(static_cast<double>(in.on_time), 0.97 * static_cast<double>(in.offered))
          << policy << ", second " << i;
    }
  }
}

// Counts LOADs by device and by model.
class Loads final : public Observer {
 public:
  void on_decision(const schedule::Event&, TimePoint, const schedule::Actions& actions, TimePoint) override {
    for (const schedule::Action& action : actions)
      if (const auto* load = std::get_if<schedule::Load>(&action)) {
        ++by_device[load->device.index()];
        ++by_model[load->model.index()];
      }
  }
  std::map<std::size_t, int> by_device, by_model;
};

// At the start nothing is known of what will be asked for: every model has a place before any has two more
// than another, and no device takes the LOADs of all.
TEST(ScarceMemory, IsFilledEvenly) {
  for (const char* policy : {"symphony", "eager", "nexus", "shepherd", "clipper", "orloj"}) {
    workload::Scenario s = many_models();
    for (auto& m : s.models) m.rate.front().requests_per_s = 1e-3;
    s.duration = 3s;
    s.warmup = 1s;
    Loads loads;
    serve(s, policy, {.observer = &loads});
    ASSERT_EQ(loads.by_model.size(), 200U) << policy;
    for (const auto& [model, count] : loads.by_model) EXPECT_LE(count, 2) << policy << ", model " << model;
    for (const auto& [device, count] : loads.by_device)
      EXPECT_EQ(count, 34) << policy << ", device " << device;
  }
}

// Of four devices one dies now and then. Those that stay take its models over, and it is filled anew with
// what is asked for when it comes back.
TEST(ScarceMemory, OutlivesTheDeathOfDevices) {
  for (const char* policy : {"eager", "clockwork"}) {
    workload::Scenario s = cluster(4, 1);  // 8 places each
    s.duration = 22s;
    for (int i = 0; i < 20; ++i)
      s.models.push_back(resnet50(std::string("m").append(std::to_string(i)), 100ms, 10));
    Options options;
    options.faults.deaths_per_s = 0.05;
    EXPECT_GT(serve(s, policy, options).finish_rate, 0.98) << policy;
  }
}

}  // namespace
}  // namespace carillon::simulate
