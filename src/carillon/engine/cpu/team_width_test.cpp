#include "carillon/engine/cpu/team_width.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::engine::cpu {
namespace {

constexpr Duration usual = 5ms;

// Runs one after another for `time`; `takes(width)` is what the next one does. How long all of them took.
struct Machine {
  TeamWidth width;
  TimePoint now{};
  int runs = 0, widest = 0;

  void run(Duration time, const std::function<Duration(int)>& takes) {
    for (const TimePoint until = now + time; now < until; ++runs) {
      const int threads = width.now();
      widest += threads;
      const Duration took = takes(threads);
      now += took;
      width.ran(took, usual, now);
    }
  }
};

// As many threads as cores, nobody else there.
Duration quiet(int threads) {
  return 2 * usual / threads;
}

TEST(TeamWidth, StaysWholeWhereNothingDisturbs) {
  Machine machine{TeamWidth(2)};
  machine.run(60s, quiet);
  EXPECT_EQ(machine.widest, 2 * machine.runs) << "nothing was tried";
}

TEST(TeamWidth, OneThreadHasNothingToTry) {
  Machine machine{TeamWidth(1)};
  machine.run(10s, [](int) { return 40ms; });
  EXPECT_EQ(machine.widest, machine.runs);
}

TEST(TeamWidth, IsHalvedWhereHalfIsQuickerAndSoonWholeAgainWhereItIsNot) {
  Machine machine{TeamWidth(2)};
  const auto neighbour = [](int threads) { return threads == 2 ? 4 * usual : 2 * usual; };
  machine.run(2s, neighbour);
  EXPECT_EQ(machine.width.now(), 1);
  const int before = machine.runs;
  machine.widest = 0;
  machine.run(60s, neighbour);
  const int tried = machine.widest - (machine.runs - before);
  EXPECT_LT(tried, (machine.runs - before) / 30)
      << "runs on both threads, to see whether they are better now";
  EXPECT_GT(tried, 0);
  machine.run(20s, quiet);
  EXPECT_EQ(machine.width.now(), 2);
}

// It costs more than it saves: one thread takes twice as long, both a half more.
TEST(TeamWidth, StaysWholeWhereHalfIsNoBetter) {
  Machine machine{TeamWidth(2)};
  machine.run(60s, [](int threads) { return threads == 2 ? usual + usual / 2 : 2 * usual; });
  EXPECT_EQ(machine.width.now(), 2);
  EXPECT_GT(machine.widest, machine.runs * 19 / 10) << "trials become rare";
}

// Both take as long on average, the team now half and now twice as long.
TEST(TeamWidth, SteadyRunsAreBetterThanUnsteadyOnes) {
  Random random(3);
  Machine machine{TeamWidth(2)};
  machine.run(4s, [&](int threads) {
    return threads == 1 ? 2 * usual : random.below(2) == 0 ? usual / 2 : usual * 7 / 2;
  });
  EXPECT_EQ(machine.width.now(), 1);
}

TEST(TeamWidth, GoesDownStepByStepAndUpAgain) {
  Machine machine{TeamWidth(8)};
  const auto crowded = [](int threads) { return usual * (1 + threads); };
  machine.run(10s, crowded);
  EXPECT_EQ(machine.width.now(), 1);
  machine.run(100s, [](int threads) { return 8 * usual / threads; });
  EXPECT_EQ(machine.width.now(), 8);
}

TEST(TeamWidth, BeginsAnewWithAnotherNumberOfProcessors) {
  Machine machine{TeamWidth(4)};
  // Half of them are no better: one alone is tried, too.
  machine.run(6s, [](int threads) { return threads == 1 ? usual : 10 * usual; });
  ASSERT_EQ(machine.width.now(), 1);
  machine.width.set_most(4);
  EXPECT_EQ(machine.width.now(), 1) << "the same number is no news";
  machine.width.set_most(3);
  EXPECT_EQ(machine.width.now(), 3);
  machine.width.set_most(1);
  EXPECT_EQ(machine.width.now(), 1);
}

// A server that neighbours disturb refuses most requests: what little runs must be enough to decide by.
TEST(TeamWidth, FewLongRunsAreEnough) {
  TeamWidth width(2);
  TimePoint now{};
  const auto run = [&] {
    const Duration took = width.now() == 2 ? 8 * 40ms : 2 * 2 * 40ms;
    now += 500ms;
    width.ran(took, 40ms, now);
  };
  for (int i = 0; i < 2 * TeamWidth::runs_judged; ++i) run();
  EXPECT_EQ(width.now(), 1) << "judged, and a trial";
}

TEST(TeamWidth, NoMoreThreadsAreTriedThanThereIsRoomFor) {
  bool room = false;
  int asked = 0;
  Machine machine{TeamWidth(4, [&](int threads) {
    asked = threads;
    return room;
  })};
  const auto crowded = [](int threads) { return usual * (1 + threads); };
  machine.run(10s, crowded);
  ASSERT_EQ(machine.width.now(), 1);
  machine.runs = machine.widest = 0;
  machine.run(60s, crowded);
  EXPECT_EQ(machine.widest, machine.runs) << "no run on more than one thread";
  EXPECT_EQ(asked, 2);
  room = true;
  machine.run(60s, quiet);
  EXPECT_EQ(machine.width.now(), 4);
}

TEST(TeamWidth, ATrialOfMoreThreadsEndsWithTheSecondRunThatIsWorse) {
  Machine machine{TeamWidth(2)};
  int wide = 0, longest = 0;
  const auto crowded = [&](int threads) {
    wide = threads == 2 ? wide + 1 : 0;
    longest = std::max(longest, wide);
    return threads == 2 ? 5 * usual : 2 * usual;
  };
  machine.run(10s, crowded);
  ASSERT_EQ(machine.width.now(), 1);
  longest = 0;
  machine.run(60s, crowded);
  EXPECT_EQ(longest, 2);
}

// One run that takes very long, as memory is touched or a thread woken, is no neighbour.
TEST(TeamWidth, OneOddRunDecidesNothing) {
  Machine machine{TeamWidth(2)};
  int n = 0;
  machine.run(30s, [&](int threads) { return ++n % 100 == 0 ? 1s : quiet(threads); });
  EXPECT_GT(machine.widest, machine.runs * 19 / 10);
}

}  // namespace
}  // namespace carillon::engine::cpu
