// Runs that are ended between kernels and resume, on real plans: the answers are those of an undisturbed run,
// bit for bit, and each comes once.
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/worker/fake_model.h"
#include "carillon/worker/watched_model.h"

namespace carillon::worker {
namespace {

using schedule::ActionStatus;
using testing::chain;
using testing::Row;
using testing::Watched;
constexpr Window any_time{TimePoint::min(), TimePoint::max()};

TEST(Preempt, ARunThatResumesAnswersBitForBitAndOnce) {
  constexpr std::int64_t widths[] = {48, 64};
  SteadyClock clock;
  testing::Results results;
  // Room for several workspaces, so that runs wait beside each other.
  auto made =
      make_worker({.page_cache = page_size * 4, .io_cache = mib(1), .workspace = mib(1), .exec_threads = 1},
                  clock, results);
  ASSERT_TRUE(made) << made.error().message;
  Worker& worker = **made;
  const auto engine = engine::make_cpu_engine({.threads = 1});
  std::vector<std::shared_ptr<Watched>> models;
  for (std::uint32_t m = 0; m < 2; ++m) {
    const auto compiled = engine->compile(
        engine::testing::MadeModel([&, m](std::int64_t batch) { return chain(batch, widths[m], m); }),
        {.batch_sizes = {1}});
    ASSERT_TRUE(compiled) << compiled.error().message;
    models.push_back(std::make_shared<Watched>(*compiled));
    ASSERT_TRUE(worker.add_model({m}, models[m]));
    ASSERT_TRUE(worker.submit(LoadCommand{.id = {m}, .model = {m}, .window = any_time}));
    ASSERT_EQ(results.wait({m}).status, ActionStatus::success);
  }
  const int kernels = models[0]->plan(1, 0)->kernels();
  ASSERT_GE(kernels, 5);

  std::uint64_t next = 10;
  std::uint64_t evictions = 0, resumed_elsewhere = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const ModelId model{static_cast<std::uint32_t>(seed % 2)};
    const std::int64_t width = widths[model.index()];
    Row undisturbed(width, seed);
    ASSERT_TRUE(worker.submit(undisturbed.command(next, model)));
    ASSERT_EQ(results.wait({next}).status, ActionStatus::success);
    ++next;

    Random random(seed);
    Row row(width, seed);
    const std::uint64_t id = next++;
    std::deque<Row> others;
    std::vector<std::uint64_t> others_ids;
    int left = 1 + static_cast<int>(random.below(4));  // evictions of this run
    std::vector<int> began;
    bool alone = true;  // so far: another's kernels do not count
    models[model.index()]->before = [&](int kernel) {
      if (!alone) return;
      began.push_back(kernel);
      if (left == 0 || random.below(3) != 0) return;
      --left;
      ++evictions;
      if (random.below(2) == 0) {  // another of the same plan or of the other model runs in between
        const ModelId of{static_cast<std::uint32_t>(random.below(2))};
        others.emplace_back(widths[of.index()], seed + 1000);
        others_ids.push_back(next++);
        alone = false;
        EXPECT_TRUE(worker.submit(others.back().command(others_ids.back(), of)));
        ++resumed_elsewhere;
      }
      worker.preempt({id}, clock.now() + 1s);
    };
    ASSERT_TRUE(worker.submit(row.command(id, model)));
    const ActionResult result = results.wait({id});
    for (const std::uint64_t other : others_ids)
      ASSERT_EQ(results.wait({other}).status, ActionStatus::success);
    models[0]->before = models[1]->before = nullptr;
    ASSERT_EQ(result.status, ActionStatus::success) << "seed " << seed << ": " << result.error;
    ASSERT_EQ(std::memcmp(row.output.data(), undisturbed.output.data(), row.output.size() * sizeof(float)), 0)
        << "seed " << seed;
    // No kernel was left out: each began where the one before ended.
    for (std::size_t i = 1; i < began.size(); ++i) ASSERT_EQ(began[i], began[i - 1] + 1) << "seed " << seed;
    EXPECT_GE(result.times.paused, Duration{0});
    EXPECT_LE(result.times.paused, result.times.exec_end - result.times.exec_start);
  }
  EXPECT_GT(evictions, 300U);
  EXPECT_GT(resumed_elsewhere, 50U);
  EXPECT_EQ(results.doubles(), 0);
}

TEST(Preempt, AStopDropsWhatWaitsToResume) {
  SteadyClock clock;
  testing::Results results;
  auto made =
      make_worker({.page_cache = page_size * 4, .io_cache = mib(1), .workspace = mib(1), .exec_threads = 1},
                  clock, results);
  ASSERT_TRUE(made);
  Worker& worker = **made;
  const auto engine = engine::make_cpu_engine({.threads = 1});
  const auto compiled =
      engine->compile(engine::testing::MadeModel([](std::int64_t batch) { return chain(batch, 48, 1); }),
                      {.batch_sizes = {1}});
  ASSERT_TRUE(compiled);
  const auto model = std::make_shared<Watched>(*compiled);
  ASSERT_TRUE(worker.add_model({0}, model));
  ASSERT_TRUE(worker.submit(LoadCommand{.id = {0}, .model = {0}, .window = any_time}));
  ASSERT_EQ(results.wait({0}).status, ActionStatus::success);
  Row row(48, 1), other(48, 2);
  bool first = true;
  model->before = [&](int kernel) {
    if (kernel == 3 && first) {
      first = false;
      EXPECT_TRUE(worker.submit(other.command(2, {0})));
      // INPUT takes them in order: once it has refused this one, the other waits for EXEC.
      InferCommand none = other.command(4, {0});
      none.batch = 3;
      EXPECT_TRUE(worker.submit(none));
      EXPECT_EQ(results.wait({4}).status, ActionStatus::failed);
      worker.preempt({1}, clock.now() + 1s);
    } else if (kernel == 2 && !first) {
      worker.stop({1});  // while the other runs
      EXPECT_TRUE(worker.submit(UnloadCommand{.id = {3}, .model = {0}}));
    }
  };
  ASSERT_TRUE(worker.submit(row.command(1, {0})));
  EXPECT_EQ(results.wait({1}).status, ActionStatus::stopped);
  EXPECT_EQ(results.wait({2}).status, ActionStatus::success);
  EXPECT_EQ(results.wait({3}).status, ActionStatus::success) << "nobody keeps its pages any more";
  EXPECT_EQ(worker.free_pages(), worker.total_pages());
}

}  // namespace
}  // namespace carillon::worker
