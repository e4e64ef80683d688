#include "carillon/engine/processor_wait.h"

#include <array>
#include <atomic>
#include <semaphore>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

namespace carillon::engine {
namespace {

TEST(ProcessorWait, BetweenTwoLooks) {
  const struct {
    const char* what;
    ThreadTimes before, after;
    Duration waits;
  } rows[] = {
      {"it sleeps", {}, {}, 0ms},
      {"it runs", {.ran = 1s}, {.ran = 1100ms, .runnable = true}, 0ms},
      {"it waits, which is counted once it runs", {}, {.runnable = true}, 100ms},
      {"it ran for a while, and waits", {}, {.ran = 30ms, .runnable = true}, 70ms},
      {"it waited, ran and sleeps", {.waited = 5ms}, {.ran = 30ms, .waited = 45ms}, 40ms},
      {"what it waited before is counted now", {}, {.ran = 30ms, .waited = 10s}, 70ms},
      {"it ran before what is counted now", {}, {.ran = 10s, .waited = 10s}, 0ms},
      {"its number is another's now", {.ran = 9s, .waited = 9s}, {}, 0ms},
  };
  for (const auto& row : rows) EXPECT_EQ(wait_between(row.before, row.after, 100ms), row.waits) << row.what;
}

TEST(ProcessorWait, TextsOfTheSystem) {
  const std::string stat =
      "17 (a ) R (b) S 1 17 17 0 -1 4194304 88 0 0 0 250 50 0 0 20 0 1 0 900 2461696 222 "
      "18446744073709551615";
  const auto counted = parse_times("3000000 4000000 9\n", stat);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->ran, 3ms);
  EXPECT_EQ(counted->waited, 4ms);
  EXPECT_FALSE(counted->runnable);
  const auto by_ticks = parse_times("", stat);
  ASSERT_TRUE(by_ticks);
  EXPECT_EQ(by_ticks->ran, 300 * (Duration(1s) / ::sysconf(_SC_CLK_TCK)));
  EXPECT_EQ(by_ticks->waited, 0ms);
  EXPECT_TRUE(parse_times("1 2 3", "17 (x) R 1")->runnable);
  for (const char* bad :
       {"", "17", "17 (x)", "17 (x) S 1 2", "17 (x) S 1 17 17 0 -1 4 8 0 0 0 -5 9999999999999999999 0"})
    EXPECT_FALSE(parse_times("", bad)) << bad;
}

TEST(ProcessorWait, AThreadThatSleepsWaitsForNothing) {
  std::binary_semaphore end(0);
  std::atomic<pid_t> number{0};
  std::thread sleeper([&] {
    number = ::gettid();
    number.notify_one();
    end.acquire();
  });
  number.wait(0);
  const std::array<pid_t, 2> threads{number, 0};  // the second is none
  // It may be seen on its way to sleep.
  while ([&] {
    ProcessorWait wait;
    EXPECT_EQ(wait.longest(threads, TimePoint{1s}), 0ms) << "nothing is known yet";
    return wait.longest(threads, TimePoint{2s}) > 0ms;
  }())
    std::this_thread::yield();
  end.release();
  sleeper.join();
}

// This thread runs while it looks: by the looks' times, which are made up, it had no processor for long.
TEST(ProcessorWait, AThreadThatIsRunnableAndDoesNotRunWaits) {
  const pid_t self = ::gettid();
  for (const bool by_name : {true, false}) {
    ProcessorWait wait(by_name ? 0 : ::getpid());
    const auto look = [&](TimePoint now) {
      return by_name ? wait.longest({&self, 1}, now) : wait.longest_of_all(now);
    };
    EXPECT_EQ(look(TimePoint{0s}), 0ms);
    const Duration waited = look(TimePoint{1000h});
    EXPECT_GT(waited, 999h);
    EXPECT_LE(waited, 1000h);
  }
}

}  // namespace
}  // namespace carillon::engine
