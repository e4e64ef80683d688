#include "carillon/engine/pacer.h"

#include <chrono>

#include <gtest/gtest.h>

#include "carillon/base/cpu_time.h"

namespace carillon::engine {
namespace {

void use(Duration cpu) {
  const Duration until = thread_cpu_time() + cpu;
  while (thread_cpu_time() < until) {
  }
}

constexpr auto never = [] { return false; };

// Only what cannot fail on a busy machine: a run never takes less than its share says.
TEST(Pacer, ARunTakesAtLeastItsCpuTimeOverItsShare) {
  Pacer pacer(0.25);
  const auto start = std::chrono::steady_clock::now();
  const Duration before = thread_cpu_time();
  Duration used{0};
  pacer.begin();
  for (int kernel = 0; kernel < 20; ++kernel) {
    const Duration begin = thread_cpu_time();
    use(200us);
    used += thread_cpu_time() - begin;
    pacer.rest(never);
  }
  pacer.end(never);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 4 * used - 100us);
  EXPECT_LT(thread_cpu_time() - before, used + 4ms) << "rests are not spent spinning";
}

TEST(Pacer, AStopEndsTheRest) {
  Pacer pacer(1e-4);
  pacer.begin();
  use(20ms);  // 200 s are due
  const auto start = std::chrono::steady_clock::now();
  int asked = 0;
  pacer.rest([&] { return ++asked > 3; });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 60s);
}

// At this share, each look at the clock would ask for a longer rest than it ends.
TEST(Pacer, ASmallShareEnds) {
  Pacer pacer(1e-4);
  pacer.begin();
  use(2us);
  pacer.rest(never);
  pacer.end(never);
}

// Two seconds. If its rests counted, each would be longer than all before it, and it would take days.
TEST(Pacer, ManyKernelsAtASmallShareEnd) {
  Pacer pacer(1e-3);
  pacer.begin();
  for (int kernel = 0; kernel < 200; ++kernel) {
    use(10us);
    pacer.rest(never);
  }
  pacer.end(never);
}

TEST(Pacer, AWholeShareNeverRests) {
  Pacer pacer;
  EXPECT_EQ(pacer.share(), 1);
  pacer.begin();
  use(1ms);
  const auto start = std::chrono::steady_clock::now();
  for (int kernel = 0; kernel < 1000; ++kernel) pacer.rest(never);
  pacer.end(never);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
  pacer.set_share(0.5);
  EXPECT_EQ(pacer.share(), 0.5);
}

}  // namespace
}  // namespace carillon::engine
