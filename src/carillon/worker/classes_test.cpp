// Streams by class: what real-time runs evict answers as if it had not been disturbed, and once.
#include <atomic>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/worker/fake_model.h"
#include "carillon/worker/watched_model.h"

namespace carillon::worker {
namespace {

using device::ClassStreams;
using device::Yielding;
using schedule::ActionStatus;
using testing::chain;
using testing::Row;
using testing::Watched;
constexpr Window any_time{TimePoint::min(), TimePoint::max()};

Options options(Yielding yielding, int cores = 2) {
  return {.page_cache = page_size * 4,
          .io_cache = mib(1),
          .workspace = mib(1),
          .exec_threads = cores,
          .classes = ClassStreams{.yielding = yielding, .units = cores, .best_effort = cores}};
}

// A worker with models that are loaded.
class Served {
 public:
  explicit Served(Options options) : engine_(engine::make_cpu_engine({.threads = options.exec_threads})) {
    options.make_team = [this](const engine::TeamOptions& wanted) { return engine_->make_team(wanted); };
    auto made = make_worker(options, clock, results);
    EXPECT_TRUE(made) << made.error().message;
    worker = std::move(*made);
  }
  std::shared_ptr<const engine::CompiledModel> compile(std::int64_t width, bool parts) {
    engine::CompileOptions how{.batch_sizes = {1}};
    if (parts) how.stop_cost = 0.5;
    auto compiled = engine_->compile(
        engine::testing::MadeModel([=](std::int64_t batch) { return chain(batch, width, 7); }), how);
    EXPECT_TRUE(compiled) << compiled.error().message;
    return *compiled;
  }
  void serve(std::shared_ptr<const engine::CompiledModel> model) {
    const ModelId id{models_++};
    EXPECT_TRUE(worker->add_model(id, std::move(model)));
    EXPECT_TRUE(worker->submit(LoadCommand{.id = {id.value}, .model = id, .window = any_time}));
    EXPECT_EQ(results.wait({id.value}).status, ActionStatus::success);
  }

  SteadyClock clock;
  testing::Results results;
  std::unique_ptr<Worker> worker;

 private:
  std::shared_ptr<engine::Engine> engine_;
  std::uint32_t models_ = 0;
};

class ByYielding : public ::testing::TestWithParam<Yielding> {};

TEST_P(ByYielding, AllClassesAnswerBitForBitAndOnce) {
  constexpr std::int64_t width = 384;
  Served served(options(GetParam()));
  served.serve(served.compile(width, true));
  served.serve(served.compile(32, false));
  std::vector<Row> undisturbed;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    undisturbed.emplace_back(width, seed);
    ASSERT_TRUE(served.worker->submit(undisturbed.back().command(100 + seed, {0})));
    ASSERT_EQ(served.results.wait({100 + seed}).status, ActionStatus::success);
  }
  Random random(3);
  std::uint64_t next = 1000;
  int paused = 0;
  for (int round = 0; round < 60; ++round) {
    std::deque<Row> rows, urgent;
    std::vector<std::pair<std::uint64_t, std::size_t>> open;  // action, seed
    std::vector<std::uint64_t> open_urgent;
    for (int i = 0; i < 6; ++i) {
      const std::uint64_t seed = random.below(8);
      rows.emplace_back(width, seed);
      open.emplace_back(next, seed);
      const Class cls = random.below(4) == 0 ? Class::normal : Class::best_effort;
      ASSERT_TRUE(served.worker->submit(rows.back().command(next++, {0}, cls)));
    }
    for (int i = 0; i < 4; ++i) {
      const TimePoint until = served.clock.now() + Duration(random.below(300'000));
      while (served.clock.now() < until) {
      }
      urgent.emplace_back(32, static_cast<std::uint64_t>(i));
      open_urgent.push_back(next);
      ASSERT_TRUE(served.worker->submit(urgent.back().command(next++, {1}, Class::real_time)));
    }
    for (const std::uint64_t id : open_urgent)
      ASSERT_EQ(served.results.wait({id}).status, ActionStatus::success);
    for (std::size_t i = 0; i < open.size(); ++i) {
      const ActionResult result = served.results.wait({open[i].first});
      ASSERT_EQ(result.status, ActionStatus::success) << result.error;
      paused += result.times.paused > Duration{0} ? 1 : 0;
      EXPECT_EQ(result.times.paused > Duration{0}, result.times.preemptions > 0);
      EXPECT_GE(result.times.lost, Duration{0});
      EXPECT_LE(result.times.lost, result.times.ran());
      EXPECT_LE(result.times.padded, result.times.ran());
      ASSERT_EQ(std::memcmp(rows[i].output.data(), undisturbed[open[i].second].output.data(),
                            rows[i].output.size() * sizeof(float)),
                0);
    }
  }
  EXPECT_EQ(served.results.doubles(), 0);
  const bool yields = GetParam() == Yielding::inside || GetParam() == Yielding::boundaries;
  if (yields)
    EXPECT_GT(paused, 0);
  else
    EXPECT_EQ(paused, 0);
}
std::string name_of_yielding(const ::testing::TestParamInfo<Yielding>& tested) {
  static constexpr const char* names[] = {"inside", "boundaries", "none", "turns"};
  return names[static_cast<std::size_t>(tested.param)];
}
INSTANTIATE_TEST_SUITE_P(Classes, ByYielding,
                         ::testing::Values(Yielding::inside, Yielding::boundaries, Yielding::none,
                                           Yielding::turns),
                         name_of_yielding);

// A best-effort run that stands still at a kernel until a real-time one has come.
struct Suspended : Served {
  explicit Suspended(const Options& options) : Served(options), row(48, 1), urgent(48, 2) {
    watched = std::make_shared<Watched>(compile(48, false));
    blocking = std::make_shared<Watched>(compile(48, false));
    serve(watched);
    serve(blocking);
    bool first = true;
    watched->before = [this, first](int kernel) mutable {
      if (kernel != 2 || !std::exchange(first, false)) return;
      at_kernel.set_value();
      go_on.get_future().wait();
    };
    blocking->before = [this](int kernel) {
      if (kernel != 0) return;
      running.set_value();
      finish.get_future().wait();
    };
    EXPECT_TRUE(worker->submit(row.command(10, {0}, Class::best_effort)));
    at_kernel.get_future().wait();
    EXPECT_TRUE(worker->submit(urgent.command(11, {1}, Class::real_time)));
    go_on.set_value();
    running.get_future().wait();
  }
  Row row, urgent;
  std::shared_ptr<Watched> watched, blocking;
  std::promise<void> at_kernel, go_on, running, finish;
};

TEST(Classes, UnloadWaitsForARunThatIsSuspended) {
  Suspended served(options(Yielding::inside, 1));
  ASSERT_TRUE(served.worker->submit(UnloadCommand{.id = {20}, .model = {0}}));
  EXPECT_LT(served.worker->free_pages(), served.worker->total_pages() - 1);
  served.finish.set_value();
  const ActionResult urgent = served.results.wait({11}), evicted = served.results.wait({10});
  EXPECT_EQ(urgent.status, ActionStatus::success);
  EXPECT_TRUE(urgent.times.preempts);
  EXPECT_EQ(urgent.times.preemptions, 0);
  EXPECT_EQ(evicted.status, ActionStatus::success);
  EXPECT_FALSE(evicted.times.preempts);
  EXPECT_EQ(evicted.times.preemptions, 1);
  EXPECT_EQ(evicted.times.lost, Duration{0}) << "it ended at a kernel's end";
  EXPECT_EQ(served.results.wait({20}).status, ActionStatus::success);
}

TEST(Classes, AClientThatGoesDropsItsSuspendedRun) {
  Suspended served(options(Yielding::inside, 1));
  ASSERT_TRUE(served.worker->submit(UnloadCommand{.id = {20}, .model = {0}}));
  served.worker->stop({10});
  // While the real-time run is under way: nothing waits for it.
  EXPECT_EQ(served.results.wait({10}).status, ActionStatus::stopped);
  EXPECT_EQ(served.results.wait({20}).status, ActionStatus::success);
  served.finish.set_value();
  EXPECT_EQ(served.results.wait({11}).status, ActionStatus::success);
}

TEST(Classes, ALifeEndsWithRunsThatAreSuspended) {
  Suspended served(options(Yielding::inside, 1));
  EXPECT_EQ(served.worker->retire(), 1U);
  std::memset(served.row.output.data(), 0, 48 * sizeof(float));
  served.worker->probe();
  EXPECT_TRUE(served.worker->busy());
  served.finish.set_value();
  EXPECT_TRUE(served.results.wait_probe().found);
  EXPECT_EQ(served.worker->free_pages(), served.worker->total_pages());
  for (const float x : served.row.output) EXPECT_EQ(x, 0);
  served.watched->before = served.blocking->before = nullptr;
  ASSERT_TRUE(served.worker->submit(LoadCommand{.id = {30}, .model = {0}, .window = any_time}));
  ASSERT_EQ(served.results.wait({30}).status, ActionStatus::success);
  for (const Class cls : {Class::real_time, Class::normal, Class::best_effort}) {
    const std::uint64_t id = 31 + static_cast<std::uint64_t>(cls);
    ASSERT_TRUE(served.worker->submit(served.row.command(id, {0}, cls)));
    EXPECT_EQ(served.results.wait({id}).status, ActionStatus::success);
  }
}

TEST(Classes, OnOneStreamARealTimeRunIsTheNext) {
  Served served(options(Yielding::turns, 1));
  const auto watched = std::make_shared<Watched>(served.compile(48, false));
  served.serve(watched);
  std::promise<void> running, go_on;
  bool first = true;
  watched->before = [&](int) {
    if (!std::exchange(first, false)) return;
    running.set_value();
    go_on.get_future().wait();
  };
  Row rows[] = {{48, 1}, {48, 2}, {48, 3}};
  ASSERT_TRUE(served.worker->submit(rows[0].command(10, {0}, Class::best_effort)));
  running.get_future().wait();
  InferCommand later = rows[1].command(11, {0}, Class::best_effort);
  later.window.earliest = TimePoint{};
  ASSERT_TRUE(served.worker->submit(later));
  InferCommand urgent = rows[2].command(12, {0}, Class::real_time);
  urgent.window.earliest = served.clock.now();
  ASSERT_TRUE(served.worker->submit(urgent));
  InferCommand none = rows[1].command(13, {0});  // once it was refused the others wait for EXEC
  none.window.earliest = served.clock.now();
  none.batch = 3;
  ASSERT_TRUE(served.worker->submit(none));
  EXPECT_EQ(served.results.wait({13}).status, ActionStatus::failed);
  go_on.set_value();
  const ActionTimes urgent_times = served.results.wait({12}).times;
  const ActionTimes later_times = served.results.wait({11}).times;
  EXPECT_LT(urgent_times.exec_start, later_times.exec_start);
  EXPECT_EQ(served.worker->best_effort(), 1);
}

// Narrow real-time work leaves the best-effort run of the other core alone.
TEST(Classes, ANarrowRunEvictsOnItsOwnCoreOnly) {
  Options narrow = options(Yielding::inside, 2);
  narrow.classes->real_time_units = 1;
  Served served(narrow);
  EXPECT_EQ(served.worker->best_effort(), 2);
  const auto watched = std::make_shared<Watched>(served.compile(48, false));
  served.serve(watched);
  const auto urgent = std::make_shared<Watched>(served.compile(48, false));
  served.serve(urgent);
  // Both best-effort runs stand at their third kernel until the real-time one is in its last.
  std::promise<void> released;
  const std::shared_future<void> release = released.get_future().share();
  std::atomic<int> there{0};
  watched->before = [&](int kernel) {
    if (kernel == 2 && there.fetch_add(1) < 2) release.wait();
  };
  bool told = false;
  std::promise<void> done;
  urgent->before = [&](int kernel) {
    if (kernel == 1 && !std::exchange(told, true)) {
      released.set_value();
      done.get_future().wait();
    }
  };
  Row a(48, 1), b(48, 2), c(48, 3);
  ASSERT_TRUE(served.worker->submit(a.command(10, {0}, Class::best_effort)));
  ASSERT_TRUE(served.worker->submit(b.command(11, {0}, Class::best_effort)));
  while (there.load() < 2) std::this_thread::yield();
  ASSERT_TRUE(served.worker->submit(c.command(12, {1}, Class::real_time)));
  const ActionResult beside = served.results.wait({11});
  EXPECT_EQ(beside.status, ActionStatus::success) << "of the other core, meanwhile";
  EXPECT_EQ(beside.times.preemptions, 0);
  EXPECT_GT(beside.times.padded, Duration{0});
  done.set_value();
  EXPECT_EQ(served.results.wait({12}).status, ActionStatus::success);
  const ActionResult evicted = served.results.wait({10});
  EXPECT_EQ(evicted.status, ActionStatus::success);
  EXPECT_GT(evicted.times.paused, Duration{0});
}

TEST(Classes, AModelThatNobodyKnowsFailsInEveryClass) {
  for (const Yielding yielding : {Yielding::inside, Yielding::turns}) {
    Served served(options(yielding));
    Row row(48, 1);
    for (const Class cls : {Class::real_time, Class::normal, Class::best_effort}) {
      const std::uint64_t id = 10 + static_cast<std::uint64_t>(cls);
      ASSERT_TRUE(served.worker->submit(row.command(id, {7}, cls)));
      const ActionResult result = served.results.wait({id});
      EXPECT_EQ(result.status, ActionStatus::failed);
      EXPECT_EQ(result.error, "model 7 is not registered");
    }
  }
}

TEST(Classes, RefusesStreamsThatCannotBe) {
  SteadyClock clock;
  testing::Results results;
  const auto refused = [&](ClassStreams classes, const char* why) {
    Options bad = options(Yielding::inside);
    bad.classes = classes;
    const auto made = make_worker(bad, clock, results);
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message.find(why), std::string::npos) << made.error().message;
  };
  refused({.units = 0}, "0 units: there can be 1 to 64");
  refused({.units = 65}, "65 units");
  refused({.units = 2, .best_effort = 0}, "0 best-effort streams: there can be 1 to 32");
  refused({.units = 2, .best_effort = 33}, "33 best-effort streams");
  refused({.units = 2, .best_effort = 3}, "3 best-effort streams on 2 units");
  refused({.units = 2, .real_time_units = 3}, "cannot use 3 of 2 units");
}

}  // namespace
}  // namespace carillon::worker
