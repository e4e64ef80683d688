// What the policies are worth, in virtual time: useful throughput under overload, and more models than
// memory.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"
#include "carillon/schedule/testing/test_name.h"
#include "carillon/workload/arrivals.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;
using testing::SimWorld;

struct Figures {
  double on_time_per_s = 0;
  int late = 0, offered = 0;
};

// One device, Poisson arrivals at `load` times what batches of four could do, deadlines ten times batch 1.
Figures serve(const std::string& policy, const std::vector<ModelInfo>& models, double load, double noise) {
  const auto scheduler = *make_scheduler(policy);
  SimWorld world(*scheduler, {.seed = 5, .noise = noise}, models);
  double seconds_a_round = 0;
  for (const ModelInfo& m : models) seconds_a_round += to_seconds(m.batches[2].exec) / 4;
  const TimePoint from{1s}, to{61s};
  for (const ModelInfo& m : models) {
    workload::ArrivalProcess arrivals({}, load / seconds_a_round, m.id.value + 1);
    for (TimePoint t{100ms}; t < to; t += arrivals.next_gap())
      world.arrive({.model = m.id, .deadline = t + 10 * m.batches[0].exec}, t);
  }
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  const auto counts = world.count(from, to);
  return {counts.on_time / to_seconds(to - from), counts.late, counts.on_time + counts.late + counts.refused};
}

struct Pair {
  const char* name;
  std::vector<ModelInfo> models;
};
std::vector<Pair> pairs() {
  return {
      {"a device on which batches gain little, as a CPU: ResNet-50 and MobileNet",
       {linear_model(0, 34ms, 6ms), linear_model(1, 4ms, 1500us)}},
      {"a device on which they gain much, as a GPU: ResNet-50 and MobileNet",
       {linear_model(0, 1053us, 5072us), linear_model(1, 300us, 1200us)}},
      {"ResNet-50 alone on a CPU", {linear_model(0, 34ms, 6ms)}},
      {"MobileNet alone on a CPU", {linear_model(0, 4ms, 1500us)}},
  };
}

TEST(Goodput, HoldsUnderOverload) {
  for (const Pair& pair : pairs())
    for (const double noise : {0.0, 0.03}) {
      const Figures half = serve("clockwork", pair.models, 0.5, noise);
      const Figures full = serve("clockwork", pair.models, 1, noise);
      const Figures twice = serve("clockwork", pair.models, 2, noise);
      EXPECT_GE(half.on_time_per_s * 60, 0.96 * half.offered) << pair.name;
      EXPECT_GE(twice.on_time_per_s, 0.9 * full.on_time_per_s) << pair.name << ", noise " << noise;
      for (const Figures& f : {half, full, twice}) {
        if (noise == 0) {
          EXPECT_EQ(f.late, 0) << pair.name;
        }
        EXPECT_LT(f.late, 0.001 * f.offered) << pair.name;
      }
    }
}

TEST(Goodput, OfFirstComeFirstServedCollapses) {
  for (const Pair& pair : pairs()) {
    const Figures fcfs = serve("fcfs", pair.models, 2, 0);
    const Figures clockwork = serve("clockwork", pair.models, 2, 0);
    EXPECT_LT(fcfs.on_time_per_s, 0.1 * clockwork.on_time_per_s) << pair.name;
    EXPECT_GT(fcfs.late, fcfs.offered / 2) << pair.name;
  }
}

TEST(Goodput, OneModelsOverloadLeavesTheOtherItsShare) {
  // ResNet-50's long batches must not starve MobileNet, whose deadline is shorter than they are.
  const auto scheduler = *make_scheduler("clockwork");
  const std::vector<ModelInfo> models{linear_model(0, 34ms, 6ms), linear_model(1, 4ms, 1500us)};
  SimWorld world(*scheduler, {}, models);
  for (const ModelInfo& m : models) {
    workload::ArrivalProcess arrivals({}, 50, m.id.value + 1);
    for (TimePoint t{100ms}; t < TimePoint{30s}; t += arrivals.next_gap())
      world.arrive({.model = m.id, .deadline = t + 10 * m.batches[0].exec}, t);
  }
  world.run();
  int on_time[2] = {}, all[2] = {};
  for (const auto& log : world.requests()) {
    ++all[log.request.model.index()];
    on_time[log.request.model.index()] += log.outcome == testing::Outcome::on_time ? 1 : 0;
  }
  EXPECT_GT(on_time[0], 0.3 * all[0]);
  EXPECT_GT(on_time[1], 0.2 * all[1]);
}

class MoreModelsThanMemory : public ::testing::TestWithParam<std::string> {};

TEST_P(MoreModelsThanMemory, AllAreAnswered) {
  const auto scheduler = *make_scheduler(GetParam());
  std::vector<ModelInfo> models;
  for (std::uint32_t m = 0; m < 200; ++m) models.push_back(linear_model(m, 500us, 1500us));
  SimWorld world(*scheduler, {.seed = 2, .pages = {20}, .noise = 0.02}, models);
  Random random(4);
  workload::ArrivalProcess arrivals({}, 60, 1);
  int n = 0;
  for (TimePoint t{10ms}; t < TimePoint{60s}; t += arrivals.next_gap(), ++n) {
    const ModelId model{static_cast<std::uint32_t>(n < 200 ? n : random.below(200))};
    world.arrive({.model = model, .deadline = random.below(2) == 0 ? TimePoint::max() : t + 1s}, t);
  }
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  const auto counts = world.count();
  EXPECT_EQ(counts.on_time, n);
  EXPECT_GT(world.unloads(), 180);
  EXPECT_EQ(world.loads() - world.unloads(), 20);
}

TEST_P(MoreModelsThanMemory, NobodyStarvesBehindHotModels) {
  const auto scheduler = *make_scheduler(GetParam());
  std::vector<ModelInfo> models;
  for (std::uint32_t m = 0; m < 12; ++m) models.push_back(linear_model(m, 500us, 1500us));
  SimWorld world(*scheduler, {.pages = {4}}, models);
  for (int i = 0; i < 6000; ++i)  // four hot models keep the device busy at 90%
    world.arrive({.model = ModelId{static_cast<std::uint32_t>(i % 4)}, .deadline = TimePoint::max()},
                 TimePoint{50ms + i * 2200us});
  for (std::uint32_t m = 4; m < 12; ++m)
    world.arrive({.model = ModelId{m}, .deadline = TimePoint::max()}, TimePoint{1s + m * 100ms});
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_EQ(world.count().on_time, 6008);
  for (const auto& log : world.requests())
    if (log.request.model >= ModelId{4}) {
      EXPECT_LT(log.answered - log.request.arrival, 5s);
    }
}

INSTANTIATE_TEST_SUITE_P(All, MoreModelsThanMemory, ::testing::ValuesIn(scheduler_names()),
                         [](const auto& tested) { return testing::test_name(tested.param); });

}  // namespace
}  // namespace carillon::schedule
