// Many small worlds, each from a seed: faults, cancels, devices that come and go. What must hold after every
// step is checked by SimWorld; here, what must hold of the outcomes.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"
#include "carillon/schedule/testing/test_name.h"

namespace carillon::schedule {
namespace {

using testing::Outcome;
using testing::SimWorld;

struct World {
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<SimWorld> sim;
  bool faults = false;
};

World make_world(std::uint64_t seed, const std::string& policy) {
  Random random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random.below(n)); };
  World world;
  world.scheduler = *make_scheduler(policy);
  world.faults = below(3) != 0;
  SimWorld::Options options{.seed = seed};
  options.pages.assign(static_cast<std::size_t>(1 + below(3)), 0);
  for (auto& pages : options.pages) pages = static_cast<std::uint64_t>(2 + below(6));
  if (world.faults) {
    options.latency = Duration{below(4) * 100'000};
    options.noise = 0.1 * below(4);
    options.hiccups = 0.02 * below(3);
    options.infer_failures = 0.1 * below(3);
    options.load_failures = 0.2 * below(3);
    options.not_started = 0.05 * below(3);
    options.speed = 0.5 + 0.5 * below(4);
  }
  std::vector<ModelInfo> models;
  const int count = 1 + below(8);
  for (int m = 0; m < count; ++m) {
    auto model = testing::linear_model(
        static_cast<std::uint32_t>(m), Duration{below(4'000'000)}, Duration{1 + below(10'000'000)},
        static_cast<std::uint64_t>(1 + below(3)), Duration{1 + below(20'000'000)});
    model.batches.resize(static_cast<std::size_t>(1 + below(5)));
    models.push_back(std::move(model));
  }
  world.sim = std::make_unique<SimWorld>(*world.scheduler, options, models);
  const int requests = 20 + below(200);
  const Duration spread{(1 + below(10)) * 50'000'000};
  for (int i = 0; i < requests; ++i) {
    const TimePoint t = TimePoint{
        Duration{static_cast<std::int64_t>(random.uniform() * static_cast<double>(spread.count()))}};
    Request request{.model = ModelId{static_cast<std::uint32_t>(below(static_cast<std::uint64_t>(count)))}};
    request.deadline = below(5) == 0 ? TimePoint::max() : t + Duration{below(200'000'000)};
    request.cls = below(4) != 0 ? Class::normal : below(2) == 0 ? Class::real_time : Class::best_effort;
    request.priority = static_cast<std::uint32_t>(below(3));
    const RequestId id = world.sim->next_id();
    world.sim->arrive(request, t);
    if (below(10) == 0) world.sim->cancel(id, t + Duration{below(100'000'000)});
  }
  if (world.faults)
    for (int i = below(4); i > 0; --i) {
      const DeviceId device{static_cast<std::uint32_t>(random.below(options.pages.size()))};
      const TimePoint t{Duration{below(static_cast<std::uint64_t>(spread.count()))}};
      world.sim->device(device, false, t);
      if (below(3) != 0) world.sim->device(device, true, t + Duration{below(100'000'000)});
    }
  return world;
}

class Policies : public ::testing::TestWithParam<std::string> {};

TEST_P(Policies, HoldTheirPromisesInManyWorlds) {
  int late = 0, on_time = 0, refused = 0, decisions = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    World world = make_world(seed, GetParam());
    world.sim->run(TimePoint{3600s});
    ASSERT_TRUE(world.sim->problems().empty()) << GetParam() << ", seed " << seed << "\n"
                                               << world.sim->problems_text();
    ASSERT_LT(world.sim->decisions(), 100'000U) << "seed " << seed << ": it never comes to rest";
    const auto counts = world.sim->count();
    ASSERT_EQ(counts.open, 0) << "seed " << seed;
    late += counts.late;
    on_time += counts.on_time;
    refused += counts.refused;
    decisions += static_cast<int>(world.sim->decisions());
    if (GetParam() != "clockwork") continue;
    if (!world.faults) {
      ASSERT_EQ(counts.late, 0) << "seed " << seed;
    }
    for (const auto& log : world.sim->requests()) {
      if (log.outcome != Outcome::refused || log.request.deadline == log.request.arrival) continue;
      const bool by_time = log.reason == Reason::cannot_finish || log.reason == Reason::deadline_passed;
      if (by_time) {
        ASSERT_LE(log.answered, log.request.deadline)
            << "seed " << seed << ", request " << log.request.id.value << ": told too late";
        ASSERT_GT(log.would_finish, log.request.deadline) << "seed " << seed;
        ASSERT_NE(log.request.deadline, TimePoint::max()) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(on_time, 10'000);
  EXPECT_GT(refused, 100);
  EXPECT_GT(decisions, 100'000);
}

TEST_P(Policies, RepeatARunExactly) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World a = make_world(seed, GetParam()), b = make_world(seed, GetParam());
    a.sim->run(TimePoint{3600s});
    b.sim->run(TimePoint{3600s});
    ASSERT_EQ(a.sim->digest(), b.sim->digest()) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Policies, ::testing::ValuesIn(scheduler_names()),
                         [](const auto& tested) { return testing::test_name(tested.param); });

}  // namespace
}  // namespace carillon::schedule
