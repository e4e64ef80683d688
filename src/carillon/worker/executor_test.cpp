#include "carillon/worker/executor.h"

#include <condition_variable>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/worker/fake_model.h"

namespace carillon::worker {
namespace {

constexpr Window open_window{TimePoint::min(), TimePoint::max()};

struct Recorder final : Executor::Handler {
  void run(const Entry& entry, TimePoint now) override {
    if (gate != nullptr) gate->pass();
    add("run", entry, now);
  }
  void refuse(const Entry& entry, TimePoint now) override { add("refuse", entry, now); }
  void abandon(const Entry& entry) override { add("abandon", entry, {}); }

  void add(const std::string& what, const Entry& entry, TimePoint now) {
    {
      const std::lock_guard lock(mutex);
      seen.push_back(what + " " + std::to_string(entry.id.value));
      in_window.push_back(entry.window.contains(now));
    }
    changed.notify_all();
  }
  void wait(std::size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return seen.size() >= count; });
  }

  testing::Gate* gate = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> seen;
  std::vector<bool> in_window;
};

TEST(Executor, KeepsTheOrderOfTheQueue) {
  SteadyClock clock;
  testing::Gate gate;
  Recorder recorder;
  recorder.gate = &gate;
  Executor executor(8, clock, recorder);
  ASSERT_TRUE(executor.start("test"));
  ASSERT_TRUE(executor.push({.id = {9}, .window = open_window}));
  gate.wait_reached();  // busy: the others pile up
  ASSERT_TRUE(executor.push({.order = TimePoint{3ms}, .id = {1}, .window = open_window}));
  ASSERT_TRUE(executor.push({.order = TimePoint{2ms}, .id = {2}, .window = open_window}));
  ASSERT_TRUE(
      executor.push({.order = TimePoint{1ms}, .id = {3}, .window = {TimePoint{1ms}, TimePoint{2ms}}}));
  gate.open();
  recorder.wait(4);
  EXPECT_EQ(recorder.seen, (std::vector<std::string>{"run 9", "refuse 3", "run 2", "run 1"}));
}

TEST(Executor, WaitsForTheWindowByTheClock) {
  SteadyClock clock;
  Recorder recorder;
  Executor executor(8, clock, recorder);
  ASSERT_TRUE(executor.start("test"));
  const TimePoint start = clock.now();
  // Pushed in the wrong order: the second cuts the wait for the first short.
  for (const int step : {3, 1, 2}) {
    const TimePoint earliest = start + step * 2ms;
    ASSERT_TRUE(executor.push({.order = earliest,
                               .id = {static_cast<std::uint64_t>(step)},
                               .window = {earliest, TimePoint::max()}}));
  }
  recorder.wait(3);
  EXPECT_EQ(recorder.in_window, (std::vector<bool>{true, true, true}));  // none before its time
  EXPECT_EQ(recorder.seen.back(), "run 3");
}

TEST(Executor, AnActionFarAwayDoesNotHoldUpANewOneNorTheEnd) {
  SteadyClock clock;
  Recorder recorder;
  Executor executor(8, clock, recorder);
  ASSERT_TRUE(executor.start("test"));
  for (const TimePoint far : {TimePoint::max(), clock.now() + std::chrono::hours(5)})
    ASSERT_TRUE(executor.push({.order = far,
                               .id = {static_cast<std::uint64_t>(far == TimePoint::max())},
                               .window = {far, TimePoint::max()}}));
  ASSERT_TRUE(executor.push({.order = {}, .id = {7}, .window = open_window}));
  recorder.wait(1);
  executor.stop(Executor::Pending::abandon);
  EXPECT_EQ(recorder.seen, (std::vector<std::string>{"run 7", "abandon 0", "abandon 1"}));
  EXPECT_FALSE(executor.push({.id = {8}, .window = open_window}));
}

TEST(Executor, FinishesWhatRunsAndRunsThePendingIfTold) {
  for (const bool run : {false, true}) {
    SteadyClock clock;
    testing::Gate gate;
    Recorder recorder;
    recorder.gate = &gate;
    Executor executor(2, clock, recorder);
    ASSERT_TRUE(executor.start("test"));
    ASSERT_TRUE(executor.push({.id = {1}, .window = open_window}));
    gate.wait_reached();
    ASSERT_TRUE(executor.push({.id = {2}, .window = open_window}));
    ASSERT_TRUE(executor.push({.id = {3}, .window = open_window}));
    EXPECT_FALSE(executor.push({.id = {4}, .window = open_window}));  // full
    std::thread opener([&] { gate.open(); });
    executor.stop(run ? Executor::Pending::run : Executor::Pending::abandon);
    opener.join();
    // Without `run` the thread may have taken 2, and 3, before it heard of the end.
    ASSERT_EQ(recorder.seen.size(), 3U);
    EXPECT_EQ(recorder.seen[0], "run 1");
    for (const std::size_t i : {1U, 2U}) {
      const std::string id = std::to_string(i + 1);
      EXPECT_TRUE(recorder.seen[i] == "run " + id || (!run && recorder.seen[i] == "abandon " + id))
          << recorder.seen[i];
    }
  }
}

TEST(Executor, CallsBetweenActionsAndNotAfterTheEnd) {
  SteadyClock clock;
  Recorder recorder;
  Executor executor(2, clock, recorder);
  EXPECT_FALSE(executor.call([] {}));  // not started
  ASSERT_TRUE(executor.start("test"));
  std::thread::id there;
  std::vector<std::thread> callers;
  int count = 0;  // only ever touched on the executor's thread
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int j = 0; j < 50; ++j) EXPECT_TRUE(executor.call([&] { ++count; }));
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(executor.call([&] { there = std::this_thread::get_id(); }));
  EXPECT_NE(there, std::this_thread::get_id());
  EXPECT_EQ(count, 200);
  executor.stop(Executor::Pending::abandon);
  EXPECT_FALSE(executor.call([&] { ++count; }));
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace carillon::worker
