#include "carillon/cluster/clock/peer_clock.h"

#include <cmath>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::cluster {
namespace {

using Sample = PeerClock::Sample;
using Verdict = PeerClock::Verdict;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

// Two clocks that run by a third, the true one.
struct Clocks {
  double our_ppm = 0, peer_ppm = 0;
  Duration difference{0};  // of the peer's at 0
  TimePoint ours(Duration t) const { return run(t, our_ppm); }
  TimePoint peers(Duration t) const { return run(t, peer_ppm) + difference; }
  // The peer's less ours.
  Duration true_difference(Duration t) const { return peers(t) - ours(t); }
  Sample sample(Duration t, Duration there, Duration work, Duration back) const {
    return {ours(t), peers(t + there), peers(t + there + work), ours(t + there + work + back)};
  }
  static TimePoint run(Duration t, double ppm) {
    return TimePoint{t + Duration{std::llround(static_cast<double>(t.count()) * ppm * 1e-6)}};
  }
};

Duration off(const PeerClock& clock, const Clocks& clocks, Duration t) {
  const Duration error = clock.at(clocks.ours(t))->offset - clocks.true_difference(t);
  return error < Duration{0} ? -error : error;
}

TEST(PeerClock, KnowsNothingBeforeTheFirstSample) {
  const PeerClock clock;
  EXPECT_FALSE(clock.settled());
  EXPECT_EQ(clock.at(at(1s)), std::nullopt);
  EXPECT_FALSE(clock.drift());
  EXPECT_FALSE(clock.inside({at(0s), at(1s)}));
}

TEST(PeerClock, ASampleBoundsTheDifferenceByHalfOfTheWay) {
  PeerClock clock({.max_drift_ppm = 0});
  EXPECT_EQ(clock.add({at(100us), at(5s + 110us), at(5s + 113us), at(123us)}), Verdict::agrees);
  const auto found = *clock.at(at(123us));
  EXPECT_EQ(found.offset, 5s);
  EXPECT_EQ(found.bound, 10us + 2ns);
}

// Where one way takes longer, the middle is off by half of that, and the bound says so.
TEST(PeerClock, NothingIsAssumedOfTheTwoWays) {
  PeerClock clock({.max_drift_ppm = 0});
  clock.add({at(0us), at(1010us), at(1010us), at(1020us)});  // there 1010 us, and back 10
  const auto found = *clock.at(at(1020us));
  EXPECT_EQ(found.offset, 500us);
  EXPECT_EQ(found.bound, 510us + 2ns);
  clock.add({at(2ms), at(2ms + 12us), at(2ms + 12us), at(2ms + 20us)});  // a quick one
  EXPECT_EQ(clock.at(at(2020us))->offset, 2us);
  EXPECT_EQ(clock.at(at(2020us))->bound, 10us + 2ns);
}

TEST(PeerClock, TheBoundGrowsByTheDrift) {
  PeerClock clock({.max_drift_ppm = 200});
  clock.add({at(0us), at(10us), at(10us), at(20us)});
  EXPECT_EQ(clock.at(at(1s + 20us))->bound, 10us + 200us + 6ns);
  EXPECT_EQ(clock.at(at(1s + 20us))->offset, 0us);
}

// An earlier time: the difference may have been another then.
TEST(PeerClock, TheBoundGrowsBackwardsToo) {
  PeerClock clock({.max_drift_ppm = 200});
  clock.add({at(10s), at(10s + 10us), at(10s + 10us), at(10s + 20us)});
  EXPECT_GE(clock.at(at(9s))->bound, 10us + 200us);
  EXPECT_LE(clock.at(at(9s))->bound, 10us + 201us);
}

TEST(PeerClock, SettlesOnceSamplesAgree) {
  PeerClock clock({.settle_samples = 3});
  const Clocks clocks{.difference = 7s};
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(clock.settled());
    EXPECT_EQ(clock.add(clocks.sample(i * 5ms, 10us, 1us, 10us)), Verdict::agrees);
  }
  EXPECT_TRUE(clock.settled());
}

TEST(PeerClock, AJumpIsSeenAtOnceAndTheClockSettlesAnew) {
  for (const Duration jump : {Duration{-1h}, Duration{-100us}, Duration{100us}, Duration{1000s}}) {
    SCOPED_TRACE(jump.count());
    PeerClock clock({.settle_samples = 3});
    Clocks clocks{.difference = 7s};
    for (int i = 0; i < 10; ++i) clock.add(clocks.sample(i * 5ms, 10us, 1us, 10us));
    ASSERT_TRUE(clock.settled());
    clocks.difference += jump;
    EXPECT_EQ(clock.add(clocks.sample(50ms, 10us, 1us, 10us)), Verdict::jumped);
    EXPECT_FALSE(clock.settled());
    EXPECT_LE(off(clock, clocks, 51ms), clock.at(clocks.ours(51ms))->bound);
    EXPECT_EQ(clock.add(clocks.sample(55ms, 10us, 1us, 10us)), Verdict::agrees);
    EXPECT_FALSE(clock.settled());
    EXPECT_EQ(clock.add(clocks.sample(60ms, 10us, 1us, 10us)), Verdict::agrees);
    EXPECT_TRUE(clock.settled());
  }
}

// It stays unseen while old samples allow it, and not for longer than they count.
TEST(PeerClock, ASmallJumpIsRightAgainAfterTheMemory) {
  PeerClock clock({.max_drift_ppm = 1});
  Clocks clocks;
  Duration t{0};
  for (; t < 100ms; t += 5ms) clock.add(clocks.sample(t, 10us, 0us, 10us));
  clocks.difference = 15us;
  for (; t < 1200ms; t += 5ms) EXPECT_EQ(clock.add(clocks.sample(t, 10us, 0us, 10us)), Verdict::agrees);
  EXPECT_LE(off(clock, clocks, t), clock.at(clocks.ours(t))->bound);
  EXPECT_LE(clock.at(clocks.ours(t))->bound, 11us);
}

// An answer from another time line each time is never believed.
TEST(PeerClock, TwoWhoAnswerInTurnsNeverSettle) {
  PeerClock clock;
  const Clocks one{.difference = 7s}, other{.difference = 8s};
  for (int i = 0; i < 100; ++i) clock.add((i % 2 == 0 ? one : other).sample(i * 5ms, 10us, 1us, 10us));
  EXPECT_FALSE(clock.settled());
}

TEST(PeerClock, WhatCannotBeIsLeftOut) {
  PeerClock clock;
  EXPECT_EQ(clock.add({at(2s), at(1s), at(1s), at(1s)}), Verdict::impossible) << "heard before it was sent";
  EXPECT_EQ(clock.add({at(1s), at(2s), at(1s), at(2s)}), Verdict::impossible) << "replied before received";
  EXPECT_EQ(clock.add({at(1s), at(1s), at(3s), at(2s)}), Verdict::impossible) << "the reply took 2 s of 1 s";
  for (const TimePoint end : {TimePoint::min(), TimePoint::max()}) {
    EXPECT_EQ(clock.add({at(1s), end, end, at(2s)}), Verdict::impossible);
    EXPECT_EQ(clock.add({end, at(1s), at(1s), end}), Verdict::impossible);
  }
  EXPECT_FALSE(clock.at(at(1s)));
  clock.add({at(1s), at(5s), at(5s), at(1s + 20us)});
  EXPECT_EQ(clock.add({at(2s), TimePoint::max(), TimePoint::max(), at(2s)}), Verdict::impossible);
  EXPECT_LE(clock.at(at(1s + 20us))->bound, 11us) << "and changes nothing";
}

// The farthest times that are taken: nothing overflows.
TEST(PeerClock, ClocksMayBeYearsApart) {
  constexpr Duration far{(std::int64_t{1} << 60) - 1};
  for (const Duration sign : {far, -far}) {
    PeerClock clock;
    EXPECT_EQ(clock.add({at(-sign), at(sign), at(sign), at(-sign)}), Verdict::agrees);
    EXPECT_EQ(clock.at(at(-sign))->offset, 2 * sign);
    EXPECT_GE(clock.at(TimePoint::max())->bound, Duration{0});
    EXPECT_GE(clock.at(TimePoint::min())->bound, Duration{0});
    EXPECT_EQ(clock.add({at(sign), at(-sign), at(-sign), at(sign)}), Verdict::jumped);
  }
}

TEST(PeerClock, AWindowShrinksByTheBoundOnBothSides) {
  PeerClock clock({.max_drift_ppm = 0});
  clock.add({at(0us), at(5s + 10us), at(5s + 10us), at(20us)});
  const Duration bound = clock.at(at(20us))->bound;
  EXPECT_EQ(clock.inside({at(5s + 1ms), at(5s + 2ms)}), (Window{at(1ms + bound), at(2ms - bound)}));
  EXPECT_EQ(clock.inside({TimePoint::min(), TimePoint::max()}), (Window{TimePoint::min(), TimePoint::max()}));
  EXPECT_FALSE(clock.inside({at(5s + 1ms), at(5s + 1ms + 2 * bound - 1ns)}));
  EXPECT_TRUE(clock.inside({at(5s + 1ms), at(5s + 1ms + 2 * bound)}));
}

// The difference has changed by then, and with it when a time of the peer's is by our clock.
TEST(PeerClock, AWindowAllowsForWhatClocksDriftUntilThen) {
  for (const double ppm : {-700.0, 700.0})
    for (const bool there : {false, true})
      for (const Duration then : {Duration{-100s}, Duration{100s}}) {
        const Clocks clocks{.peer_ppm = ppm};
        PeerClock clock;
        clock.add(clocks.sample(0s, there ? 20us : 0us, 0us, there ? 0us : 20us));
        const auto inside = clock.inside({clocks.peers(then), clocks.peers(then + 10s)});
        ASSERT_TRUE(inside);
        EXPECT_GE(inside->earliest, clocks.ours(then)) << ppm << there << then.count();
        EXPECT_LE(inside->latest, clocks.ours(then + 10s)) << ppm << there << then.count();
      }
}

TEST(PeerClock, TellsTheDrift) {
  PeerClock clock;
  const Clocks clocks{.our_ppm = -40, .peer_ppm = 60, .difference = 3s};
  for (Duration t{0}; t < 20s; t += 5ms) clock.add(clocks.sample(t, 15us, 2us, 10us));
  const auto drift = clock.drift();
  ASSERT_TRUE(drift);
  EXPECT_NEAR(drift->ppm, 100, drift->bound_ppm);
  EXPECT_LT(drift->bound_ppm, 10);
}

// Ways of any length with a tail, of which one may take a millisecond longer; samples that are lost or come
// late; clocks that drift by 100 ppm each. The truth is always within the bound, of windows, too.
TEST(PeerClock, TheBoundHoldsWhateverTheWaysAre) {
  Duration largest{0};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const auto ppm = [&] { return random.uniform() * 200 - 100; };
    const Clocks clocks{
        .our_ppm = ppm(),
        .peer_ppm = ppm(),
        .difference = Duration{static_cast<std::int64_t>(random.below(2'000'000'000'000))} - 1000s};
    const Duration more_there = random.below(2) == 0 ? 1ms : 0ms,
                   more_back = random.below(2) == 0 ? 1ms : 0ms;
    const auto way = [&](Duration more) {
      return 7us + more + from_ns(random.exponential(1.0 / 20'000)) + (random.below(50) == 0 ? 3ms : 0ms);
    };
    PeerClock clock;
    std::optional<Sample> late;
    for (Duration t{0}; t < 5s; t += 1ms + Duration{static_cast<std::int64_t>(random.below(4'000'000))}) {
      const Sample sample =
          clocks.sample(t, way(more_there), from_ns(random.exponential(1.0 / 5'000)), way(more_back));
      switch (random.below(10)) {
        case 0:
          break;  // lost
        case 1:
          late = sample;
          break;
        default:
          ASSERT_EQ(clock.add(sample), Verdict::agrees) << "seed " << seed;
          if (late) {
            ASSERT_EQ(clock.add(*std::exchange(late, std::nullopt)), Verdict::agrees) << "seed " << seed;
          }
      }
      for (const Duration later : {Duration{5ms}, Duration{300ms}}) {
        const auto found = clock.at(clocks.ours(t + later));
        if (!found) continue;
        ASSERT_LE(off(clock, clocks, t + later), found->bound) << "seed " << seed << " at " << to_ms(t);
        if (later == 5ms && t > 1s) largest = std::max(largest, found->bound);
        const Window window{clocks.peers(t + later), clocks.peers(t + later + 10ms)};
        if (const auto inside = clock.inside(window)) {
          ASSERT_GE(inside->earliest, clocks.ours(t + later));
          ASSERT_LE(inside->latest, clocks.ours(t + later + 10ms) + 1ns) << "a clock's rounding";
        }
      }
    }
    EXPECT_TRUE(clock.settled());
  }
  EXPECT_LT(largest, 1200us);
}

}  // namespace
}  // namespace carillon::cluster
