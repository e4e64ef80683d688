// Many small worlds, each from a seed: faults, cancels, devices that come and go. What must hold after every
// step is checked by SimWorld; here, what must hold of the outcomes.
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/testing/seeds.h"
#include "carillon/schedule/classes.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/audit.h"
#include "carillon/schedule/testing/minimal_policy.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"
#include "carillon/schedule/testing/test_name.h"

namespace carillon::schedule {
namespace {

using testing::Outcome;
using testing::SimWorld;

struct World {
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<testing::Shadowed> shadowed;
  std::unique_ptr<SimWorld> sim;
  bool faults = false;
};

// All policies; those that take Admission once more behind it; and the minimal policy.
constexpr std::string_view admitted = "admitted ";
std::vector<std::string> policies() {
  std::vector<std::string> names = scheduler_names();
  for (const char* policy : {"clockwork", "symphony"}) names.push_back(std::string(admitted) + policy);
  names.emplace_back("minimal");
  return names;
}
std::unique_ptr<Scheduler> make(const std::string& policy, bool preempts, bool classes) {
  const bool admission = policy.starts_with(admitted);
  const Environment environment{.preemption = preempts ? Preemption::deadline : Preemption::none,
                                .classes = classes,
                                .admission = admission};
  if (policy != "minimal")
    return *make_scheduler(policy.substr(admission ? admitted.size() : 0), environment);
  std::unique_ptr<Scheduler> minimal = std::make_unique<testing::MinimalPolicy>();
  if (classes) minimal = std::make_unique<Classed>(std::move(minimal), environment);
  return minimal;
}

ModelInfo some_model(std::uint32_t id, Random& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random.below(n)); };
  auto model =
      testing::linear_model(id, Duration{below(4'000'000)}, Duration{1 + below(10'000'000)},
                            static_cast<std::uint64_t>(1 + below(3)), Duration{1 + below(20'000'000)});
  model.batches.resize(static_cast<std::size_t>(1 + below(5)));
  return model;
}

// Plans are made or dropped: a batch without a plan of its own takes as long as the smaller plans that run
// its rows. Or the devices are others, and any size takes any time.
void retime(std::uint64_t seed, std::vector<BatchProfile>& batches) {
  Random random(seed);
  const bool plans = random.below(3) != 0;
  for (std::size_t i = plans ? 1 : 0; i < batches.size(); ++i) {
    BatchProfile& b = batches[i];
    const Duration apart = b.batch * batches.front().exec;
    const auto share = static_cast<std::uint64_t>(apart.count()) + 1;
    if (random.below(3) == 0) continue;
    if (!plans)
      b.exec = Duration{static_cast<std::int64_t>(random.below(50'000'000))};
    else
      b.exec = random.below(2) == 0 ? apart : Duration{static_cast<std::int64_t>(random.below(share))};
  }
}

World make_world(std::uint64_t seed, const std::string& policy, bool models_change = false,
                 bool classes = false, bool sizes = false, bool together = false, bool times_change = false,
                 double keeps = 0, double keeps_not = 0, bool applications = false) {
  Random random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random.below(n)); };
  World world;
  world.scheduler = make(policy, seed % 2 == 1, classes);
  world.faults = below(3) != 0;
  SimWorld::Options options{.seed = seed, .keeps = keeps, .keeps_not = keeps_not, .by_app = applications};
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
  const auto some_class = [&] {
    return below(3) != 0 ? Class::normal : below(2) == 0 ? Class::real_time : Class::best_effort;
  };
  for (int m = 0; m < count; ++m) models.push_back(some_model(static_cast<std::uint32_t>(m), random));
  if (classes) {
    options.classes = true;
    options.best_effort = 1 + below(3);
    for (ModelInfo& model : models) {
      model.cls = some_class();
      if (below(6) == 0) model.pages = 0;
    }
  }
  const auto reference = [&](ModelInfo& model) {
    const Effort row{.operations = 1'000'000, .bytes = 100'000};
    for (const BatchProfile& b : model.batches)
      if (below(2) == 0)
        model.sizes.push_back({.row = row, .batch = b.batch, .exec = std::max(Duration{1}, b.exec)});
  };
  if (sizes)
    for (ModelInfo& model : models) {
      reference(model);
      if (below(4) == 0) model.pages = 0;
    }
  // Of a copy that a device lacks, whoever ran there hears first (ledger/README.md).
  const bool audited =
      keeps_not == 0 && (carillon::testing::seeds_from("CARILLON_AUDIT", {0, 0}).last > 0 || seed % 16 == 0);
  world.shadowed = std::make_unique<testing::Shadowed>(*world.scheduler, audited ? 1 : 0);
  world.sim = std::make_unique<SimWorld>(*world.shadowed, options, models);
  const int requests = (20 + below(200)) * (applications ? 3 : 1);
  const Duration spread{(1 + below(10)) * 50'000'000};
  TimePoint came;
  for (int i = 0, left = 0; i < requests; ++i) {
    if (left == 0)
      came = TimePoint{
          Duration{static_cast<std::int64_t>(random.uniform() * static_cast<double>(spread.count()))}};
    if (together && left == 0) left = 1 + below(20);
    left = std::max(0, left - 1);
    Request request{.model = ModelId{static_cast<std::uint32_t>(below(static_cast<std::uint64_t>(count)))}};
    request.deadline = below(5) == 0 ? TimePoint::max() : came + Duration{below(200'000'000)};
    request.cls = below(4) != 0 ? Class::normal : below(2) == 0 ? Class::real_time : Class::best_effort;
    request.priority = static_cast<std::uint32_t>(below(3));
    if (sizes && below(10) != 0) {
      const auto scale = static_cast<std::uint64_t>(1) << below(14);
      request.effort = {.operations = 1000 * scale * (1 + random.below(2)), .bytes = 100 * scale};
    }
    if (applications) {  // mostly of one model
      if (below(4) != 0) request.model = ModelId{0};
      request.app = AppId{static_cast<std::uint32_t>(below(5))};
      if (below(20) == 0) request.app = AppId{static_cast<std::uint32_t>(below(1000))};
    }
    const RequestId id = world.sim->next_id();
    world.sim->arrive(request, came, together && below(10) != 0);
    if (below(10) == 0) world.sim->cancel(id, came + Duration{below(100'000'000)});
  }
  if (world.faults)
    for (int i = below(4); i > 0; --i) {
      const DeviceId device{static_cast<std::uint32_t>(random.below(options.pages.size()))};
      const TimePoint t{Duration{below(static_cast<std::uint64_t>(spread.count()))}};
      world.sim->device(device, false, t);
      if (below(3) != 0) world.sim->device(device, true, t + Duration{below(100'000'000)});
    }
  // Models come in other versions, with other times and pages (some with none), go, and come again.
  for (int i = models_change ? 1 + below(8) : 0; i > 0; --i) {
    ModelInfo model =
        some_model(static_cast<std::uint32_t>(below(static_cast<std::uint64_t>(count))), random);
    if (below(4) == 0) model.pages = 0;
    if (classes) model.cls = some_class();
    if (sizes && below(4) != 0) reference(model);
    const TimePoint t{Duration{below(static_cast<std::uint64_t>(spread.count()))}};
    if (below(2) == 0) world.sim->model({model.id, nullptr}, t);
    if (below(4) != 0) world.sim->model(model_comes(model), t + Duration{below(30'000'000)});
  }
  for (int i = times_change ? 1 + below(12) : 0; i > 0; --i) {
    const ModelId model{static_cast<std::uint32_t>(below(static_cast<std::uint64_t>(count)))};
    world.sim->times(
        model, [of = random.bits()](std::vector<BatchProfile>& batches) { retime(of, batches); },
        TimePoint{Duration{below(static_cast<std::uint64_t>(spread.count()))}});
  }
  return world;
}

class Policies : public ::testing::TestWithParam<std::string> {
 protected:
  // Every promise is kept, and every request has its outcome.
  static void run_to_rest(World& world, std::uint64_t seed) {
    world.sim->run(TimePoint{3600s});
    ASSERT_TRUE(world.sim->problems().empty()) << GetParam() << ", seed " << seed << "\n"
                                               << world.sim->problems_text();
    ASSERT_TRUE(world.shadowed->findings().all().empty()) << GetParam() << ", seed " << seed << "\n"
                                                          << world.shadowed->findings().text();
    ASSERT_LT(world.sim->decisions(), 100'000U) << "seed " << seed << ": it never comes to rest";
    ASSERT_EQ(world.sim->count().open, 0) << "seed " << seed;
  }
};

TEST_P(Policies, HoldTheirPromisesInManyWorlds) {
  int late = 0, on_time = 0, refused = 0, decisions = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    World world = make_world(seed, GetParam());
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    const auto counts = world.sim->count();
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

TEST_P(Policies, HoldTheirPromisesWhileModelsComeAndGo) {
  int on_time = 0, without_model = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    World world = make_world(seed, GetParam(), true);
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    const auto counts = world.sim->count();
    on_time += counts.on_time;
    for (const auto& log : world.sim->requests())
      without_model += log.outcome == Outcome::refused && log.reason == Reason::no_model ? 1 : 0;
  }
  EXPECT_GT(on_time, 3'000);
  EXPECT_GT(without_model, 1'000);
}

// What batches take changes while they wait and run, of models that come and go, too.
TEST_P(Policies, HoldTheirPromisesWhileTimesChange) {
  int on_time = 0, refused = 0;
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_TIMES_SEEDS", {0, 2999});
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    World world =
        make_world(seed, GetParam(), seed % 3 == 0, seed % 4 == 1, seed % 5 == 2, seed % 2 == 0, true);
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    const auto counts = world.sim->count();
    on_time += counts.on_time;
    refused += counts.refused;
    if (GetParam() != "clockwork") continue;
    const bool apart =
        seed % 4 == 1 || seed % 5 == 2;  // else real-time runs, or rows of other sizes, come between
    if (!world.faults && !apart) {
      ASSERT_EQ(counts.late, 0) << "seed " << seed;
    }
    for (const auto& log : world.sim->requests()) {
      if (log.outcome != Outcome::refused || log.request.deadline == log.request.arrival || apart) continue;
      if (log.reason != Reason::cannot_finish && log.reason != Reason::deadline_passed) continue;
      ASSERT_LE(log.answered, log.request.deadline) << "seed " << seed << ": told too late";
      ASSERT_GT(log.would_finish, log.request.deadline) << "seed " << seed;
    }
  }
  EXPECT_GT(on_time, 5'000);
  EXPECT_GT(refused, 100);
}

// Requests of many sizes, more than are told apart, of models that share weights with themselves, as it were.
TEST_P(Policies, HoldTheirPromisesWithSizes) {
  int on_time = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    World world = make_world(seed, GetParam(), seed % 3 == 0, seed % 5 == 0, true);
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    const auto counts = world.sim->count();
    on_time += counts.on_time;
    refused += counts.refused;
  }
  EXPECT_GT(on_time, 5'000);
  EXPECT_GT(refused, 100);
}

// Of few applications that take unlike times, and of many that come once; while models come and go. Some are
// tenants of carillon.
TEST_P(Policies, HoldTheirPromisesWithApplications) {
  int on_time = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const bool tenants = GetParam() == "carillon" && seed % 8 >= 4;
    World world = make_world(seed, tenants ? "carillon:fair=1,tenants=1" : GetParam(), seed % 3 == 0,
                             seed % 4 == 0, false, false, seed % 5 == 0, 0, 0, true);
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    on_time += world.sim->count().on_time;
  }
  EXPECT_GT(on_time, 3'000);
}

// Requests that come together, of one model and of several, some of them decided on by themselves.
TEST_P(Policies, HoldTheirPromisesToThoseThatComeTogether) {
  int on_time = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    World world = make_world(seed, GetParam(), seed % 3 == 0, seed % 4 == 0, seed % 5 == 0, true);
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    const auto counts = world.sim->count();
    on_time += counts.on_time;
    refused += counts.refused;
  }
  EXPECT_GT(on_time, 5'000);
  EXPECT_GT(refused, 100);
}

// The same on devices with streams by class: what is kept from the policy comes to its one outcome, and what
// it does not know of does not make it break its promises.
TEST_P(Policies, HoldTheirPromisesBesideOtherClasses) {
  int on_time[3] = {}, late[3] = {}, refused[3] = {};
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_CLASSES_SEEDS", {0, 1999});
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    World world = make_world(seed, GetParam(), seed % 2 == 1, true);
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    for (const auto& log : world.sim->requests()) {
      const auto cls = static_cast<std::size_t>(log.request.cls);
      on_time[cls] += log.outcome == Outcome::on_time ? 1 : 0;
      late[cls] += log.outcome == Outcome::late ? 1 : 0;
      refused[cls] += log.outcome == Outcome::refused ? 1 : 0;
      if (GetParam() == "clockwork" && log.outcome == Outcome::refused &&
          log.would_finish != TimePoint::max() && log.request.deadline != TimePoint::max() &&
          log.request.cls != Class::normal &&
          (log.reason == Reason::cannot_finish || log.reason == Reason::deadline_passed)) {
        ASSERT_GT(log.would_finish, log.request.deadline) << "seed " << seed;
      }
    }
  }
  for (const Class cls : {Class::real_time, Class::normal, Class::best_effort}) {
    EXPECT_GT(on_time[static_cast<std::size_t>(cls)], 1'000);
    EXPECT_GT(refused[static_cast<std::size_t>(cls)], 100);
  }
}

// Devices come with weights, at the start and when they are back: what they bring is used, and unloaded, as
// what was loaded; and where a device lacks what it told of, its refusal says so.
TEST_P(Policies, HoldTheirPromisesOnDevicesThatComeWithWeights) {
  int on_time = 0, refused = 0, not_loaded = 0;
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_KEEPS_SEEDS", {0, 1499});
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const double lacks = seed % 2 == 0 ? 0 : 0.3;
    World world = make_world(seed, GetParam(), seed % 3 == 0, seed % 4 < 2, seed % 5 == 0, false,
                             seed % 7 == 0, 0.7, lacks);
    ASSERT_NO_FATAL_FAILURE(run_to_rest(world, seed));
    const auto counts = world.sim->count();
    on_time += counts.on_time;
    refused += counts.refused;
    not_loaded += lacks > 0 ? world.sim->not_loaded() : 0;
  }
  EXPECT_GT(on_time, 5'000);
  EXPECT_GT(refused, 100);
  EXPECT_GT(not_loaded, 100);
}

TEST_P(Policies, LoadNothingThatADeviceHas) {
  for (const bool classes : {false, true}) {
    const auto scheduler = make(GetParam(), false, classes);
    std::vector<ModelInfo> models;
    for (std::uint32_t m = 0; m < 6; ++m) models.push_back(testing::linear_model(m, 1ms, 2ms, 2));
    if (classes) models[0].cls = Class::real_time;
    SimWorld world(*scheduler, {.pages = {12, 12}, .keeps = 1, .classes = classes}, models);
    world.device(DeviceId{0}, false, TimePoint{500ms});
    world.device(DeviceId{0}, true, TimePoint{700ms});
    for (TimePoint t{1ms}; t < TimePoint{1s}; t += 10ms)
      for (std::uint32_t m = 0; m < 6; m += 2)
        world.arrive({.model = ModelId{m}, .cls = models[m].cls, .deadline = t + 100ms}, t);
    world.run();
    ASSERT_TRUE(world.problems().empty()) << world.problems_text();
    EXPECT_EQ(world.loads(), 0);
    EXPECT_EQ(world.unloads(), 0);
    EXPECT_EQ(world.count().on_time, 300);
  }
}

// A model that comes again is served as one that was always there.
TEST_P(Policies, ServeAModelThatComesAgain) {
  for (const std::uint64_t pages : {0, 2, 5}) {
    const auto scheduler = make(GetParam(), true, false);
    const std::vector<ModelInfo> models{testing::linear_model(0, 1ms, 2ms, 2),
                                        testing::linear_model(1, 1ms, 2ms, 2)};
    SimWorld world(*scheduler, {.pages = {6, 6}}, models);
    ModelInfo renewed = testing::linear_model(0, 1ms, 8ms, pages);
    renewed.batches.resize(2);
    const auto ask = [&](TimePoint from, TimePoint to) {
      for (TimePoint t = from; t < to; t += 20ms)
        for (std::uint32_t m = 0; m < 2; ++m) world.arrive({.model = ModelId{m}, .deadline = t + 200ms}, t);
    };
    ask(TimePoint{}, TimePoint{3s});
    world.model(model_comes(renewed), TimePoint{990ms});     // while it serves
    world.model({ModelId{0}, nullptr}, TimePoint{1490ms});   // goes
    world.model(model_comes(models[0]), TimePoint{1990ms});  // comes again, as it was at first
    world.run();
    ASSERT_TRUE(world.problems().empty()) << "pages " << pages << "\n" << world.problems_text();
    EXPECT_EQ(world.count().open, 0);
    int refused = 0, late = 0;
    for (const auto& log : world.requests()) {
      const bool gone = log.request.model == ModelId{0} && log.request.arrival >= TimePoint{1500ms} &&
                        log.request.arrival < TimePoint{2s};
      if (gone) {
        EXPECT_EQ(log.outcome, Outcome::refused);
        EXPECT_EQ(log.reason, Reason::no_model);
      } else {
        refused += log.outcome == Outcome::refused ? 1 : 0;
        late += log.outcome == Outcome::late ? 1 : 0;
      }
    }
    EXPECT_LE(refused + late, 8) << "pages " << pages << ": those that came when it changed";
  }
}

// Twice as much is asked for as there is time for, in rows that run one after the other; then larger batches
// have plans. In between nobody asks: some policies, once their heads are almost late, make no larger
// batches.
TEST_P(Policies, MoreIsServedOnceLargerBatchesHavePlans) {
  const auto scheduler = make(GetParam(), false, false);
  SimWorld world(*scheduler, {}, {testing::linear_model(0, 10ms, 0ms, 1, 8ms, {1, 2, 4, 8})});
  for (int i = 0; i < 1200; ++i)
    if (const TimePoint came{i * 5ms}; came < TimePoint{2s} || came >= TimePoint{3s})
      world.arrive({.deadline = came + 100ms}, came);
  world.times(
      ModelId{0},
      [](std::vector<BatchProfile>& b) {
        b = {{1, 10ms}, {2, 12ms}, {4, 15ms}, {8, 20ms}};
      },
      TimePoint{2s});
  world.run();
  ASSERT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_LT(world.count(TimePoint{1s}, TimePoint{2s}).on_time, 120);
  EXPECT_GT(world.count(TimePoint{4s}, TimePoint{5s}).on_time, 180);
}

// As where another host does not have the model.
TEST_P(Policies, WhatOneDeviceCannotLoadRunsOnAnother) {
  const auto scheduler = make(GetParam(), false, false);
  const std::vector<ModelInfo> models{testing::linear_model(0, 1ms, 1ms), testing::linear_model(1, 1ms, 1ms)};
  SimWorld world(*scheduler, {.pages = {20, 20, 20}, .lacks = {{{0}, {0}}, {{1}, {0}}}}, models);
  for (int i = 0; i < 200; ++i) {
    const TimePoint came{i * 10ms};
    world.arrive({.deadline = i % 3 == 0 ? TimePoint::max() : came + 100ms}, came);
    world.arrive({.model = ModelId{1}, .deadline = came + 100ms}, came);
  }
  world.run(TimePoint{4s});
  ASSERT_TRUE(world.problems().empty()) << world.problems_text();
  const auto counts = world.count();
  EXPECT_EQ(std::tuple(counts.on_time, counts.late, counts.refused, counts.open), std::tuple(400, 0, 0, 0));
}

// It may have the model a little later.
TEST_P(Policies, ADeviceThatFailedToLoadIsTriedAgain) {
  const auto scheduler = make(GetParam(), false, false);
  SimWorld world(*scheduler, {.pages = {20, 20}, .lacks = {{{0}, {0}}}, .lacks_until = TimePoint{1s}},
                 {testing::linear_model(0, 1ms, 0ms, 1, 8ms, {1})});
  for (int i = 0; i < 4500; ++i) {  // one device can do 1,000 a second
    const TimePoint came{i * 667us};
    world.arrive({.deadline = came + 50ms}, came);
  }
  world.run(TimePoint{4s});
  ASSERT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_GT(world.count(TimePoint{2500ms}).on_time, 700);
}

TEST_P(Policies, RepeatARunExactly) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const bool classes = seed % 2 == 1;
    World a = make_world(seed, GetParam(), false, classes), b = make_world(seed, GetParam(), false, classes);
    a.sim->run(TimePoint{3600s});
    b.sim->run(TimePoint{3600s});
    ASSERT_EQ(a.sim->digest(), b.sim->digest()) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Policies, ::testing::ValuesIn(policies()),
                         [](const auto& tested) { return testing::test_name(tested.param); });

}  // namespace
}  // namespace carillon::schedule
