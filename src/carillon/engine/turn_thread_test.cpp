#include "carillon/engine/turn_thread.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::engine {
namespace {

// Turns that are planned; each is noted when it is taken.
struct Plan {
  TimePoint turn() {
    const std::lock_guard lock(mutex);
    while (!due.empty() && due.front() <= clock.now()) {
      taken.push_back(due.front());
      due.erase(due.begin());
    }
    ++turns;
    changed.notify_all();
    return due.empty() ? TimePoint::max() : due.front();
  }
  void wait_taken(std::size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return taken.size() >= count; });
  }
  void wait_turns(int count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return turns >= count; });
  }

  SteadyClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<TimePoint> due, taken;
  int turns = 0;
};

TEST(TurnThread, TakesTurnsWhenTheyAreDueByTheClock) {
  Plan plan;
  const TimePoint start = plan.clock.now();
  plan.due = {start + 2ms, start + 4ms, start + 6ms};
  TurnThread thread(plan.clock, [&] { return plan.turn(); });
  ASSERT_TRUE(thread.start("test"));
  plan.wait_taken(3);
  EXPECT_GE(plan.clock.now(), start + 6ms);  // none before its time: turn() takes what is due only
}

TEST(TurnThread, AWakeCutsAWaitShort) {
  Plan plan;
  for (const TimePoint far : {TimePoint::max(), plan.clock.now() + std::chrono::hours(5)}) {
    plan.due = {far};
    plan.taken.clear();
    plan.turns = 0;
    TurnThread thread(plan.clock, [&] { return plan.turn(); });
    ASSERT_TRUE(thread.start("test"));
    plan.wait_turns(1);
    {
      const std::lock_guard lock(plan.mutex);
      plan.due.insert(plan.due.begin(), plan.clock.now());
    }
    thread.wake();
    plan.wait_taken(1);
    thread.stop(false);  // nor does it hold up the end
  }
}

TEST(TurnThread, NoWakeIsLost) {
  SteadyClock clock;
  std::atomic<int> given{0}, seen{0};
  TurnThread thread(clock, [&] {
    seen.store(given.load());
    return TimePoint::max();
  });
  ASSERT_TRUE(thread.start("test"));
  for (int i = 1; i <= 2000; ++i) {
    given.store(i);
    thread.wake();
    while (seen.load() < i) std::this_thread::yield();
  }
}

TEST(TurnThread, FinishesWhatIsLeftIfTold) {
  for (const bool finish : {false, true}) {
    SteadyClock clock;
    std::atomic<int> left{100};
    std::atomic<bool> begun{false}, go{false};
    TurnThread thread(clock, [&] {
      begun = true;
      while (!go) std::this_thread::yield();
      return --left > 0 ? TimePoint::min() : TimePoint::max();
    });
    ASSERT_TRUE(thread.start("test"));
    while (!begun) std::this_thread::yield();
    std::thread opener([&] {
      std::this_thread::yield();
      go = true;
    });
    thread.stop(finish);
    opener.join();
    if (finish) {
      EXPECT_EQ(left, 0);
    } else {
      EXPECT_GE(left, 0);
    }
    thread.stop(finish);  // again
  }
}

TEST(TurnThread, CallsBetweenTurnsAndNotAfterTheEnd) {
  SteadyClock clock;
  TurnThread thread(clock, [] { return TimePoint::max(); });
  EXPECT_FALSE(thread.call([] {}));  // not started
  ASSERT_TRUE(thread.start("test"));
  std::thread::id there;
  std::vector<std::thread> callers;
  int count = 0;  // only ever touched on the thread
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int j = 0; j < 50; ++j) EXPECT_TRUE(thread.call([&] { ++count; }));
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(thread.call([&] { there = std::this_thread::get_id(); }));
  EXPECT_NE(there, std::this_thread::get_id());
  EXPECT_EQ(count, 200);
  std::atomic<bool> posted{false};
  EXPECT_TRUE(thread.post([&] { posted = true; }));
  while (!posted) std::this_thread::yield();
  thread.stop(false);
  EXPECT_FALSE(thread.call([&] { ++count; }));
  EXPECT_FALSE(thread.post([] {}));
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace carillon::engine
