#include "carillon/base/turns.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace carillon {
namespace {

// A loop that adds up what it finds in its inbox. It counts who had the turns.
class Adder {
 public:
  Adder() : thread_([this] { run(); }) {}
  ~Adder() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      turns_.nudge();
    }
    thread_.join();
  }
  // `here`: by the caller, if nobody has the turn.
  void add(int number, bool here) {
    std::unique_lock lock(mutex_);
    inbox_.push_back(number);
    if (!here)
      turns_.nudge();
    else if (turns_.take())
      work(lock, true);
  }
  void wake_at(TimePoint at) {
    std::unique_lock lock(mutex_);
    if (!turns_.take()) return;
    wake_at_ = at;
    work(lock, true);
  }
  std::atomic<int> sum = 0;
  std::atomic<int> woken = 0;      // after wake_at_ was reached
  std::atomic<int> by_others = 0;  // turns
  std::atomic<bool> two_at_once = false;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      if (!turns_.take()) {
        turns_.sleep(lock);
      } else if (inbox_.empty() && wake_at_ > clock_.now()) {
        turns_.give_back();
        turns_.sleep(lock, wake_at_);
      } else {
        work(lock, false);
      }
    }
  }
  void work(std::unique_lock<std::mutex>& lock, bool by_another) {
    std::vector<int> found;
    std::swap(found, inbox_);
    lock.unlock();
    two_at_once = two_at_once || std::exchange(at_work_, true);
    if (by_another) ++by_others;
    for (const int number : found) sum += number;
    if (wake_at_ <= clock_.now()) {
      wake_at_ = TimePoint::max();
      ++woken;
    }
    at_work_ = false;
    const TimePoint next = wake_at_;
    lock.lock();
    turns_.give_back(ending_ || !inbox_.empty(), next);
  }

  const SteadyClock clock_;
  std::mutex mutex_;
  Turns turns_{clock_};
  std::vector<int> inbox_;
  bool ending_ = false;
  // Of whoever has the turn.
  bool at_work_ = false;
  TimePoint wake_at_ = TimePoint::max();
  std::thread thread_;
};

template <typename Condition>
void wait_for(const Condition& condition) {
  while (!condition()) std::this_thread::yield();
}

TEST(Turns, WhoeverBringsWorkDoesItWhileTheThreadSleeps) {
  Adder adder;
  // The thread may be on its way to sleep, and have the turn, the first times.
  wait_for([&] {
    adder.add(1, true);
    return adder.by_others > 0;
  });
  EXPECT_GE(adder.sum, 1);
}

TEST(Turns, TheThreadDoesWhatIsLeftToIt) {
  Adder adder;
  for (int i = 1; i <= 100; ++i) {
    adder.add(1, false);
    wait_for([&] { return adder.sum == i; });
  }
  EXPECT_EQ(adder.by_others, 0);
}

TEST(Turns, ATimeThatAnotherThreadsTurnSetsWakesTheThread) {
  Adder adder;
  for (int i = 1; i <= 20; ++i)
    wait_for([&] {
      adder.wake_at(SteadyClock().now() + std::chrono::microseconds{200});
      std::this_thread::sleep_for(std::chrono::microseconds{300});
      return adder.woken >= i;
    });
}

TEST(Turns, NothingIsLostAndNobodyIsAtItTwice) {
  Adder adder;
  constexpr int threads = 4, each = 5000;
  {
    std::vector<std::jthread> callers;
    for (int t = 0; t < threads; ++t)
      callers.emplace_back([&, t] {
        for (int i = 0; i < each; ++i) adder.add(1, (i + t) % 3 != 0);
      });
  }
  wait_for([&] { return adder.sum == threads * each; });
  EXPECT_FALSE(adder.two_at_once);
}

}  // namespace
}  // namespace carillon
