#include "carillon/schedule/state/margins.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule {
namespace {

constexpr Environment told{
    .dispatch = 300us, .answer = 1ms, .overrun = 0.05, .measured = true, .client = 200us};
constexpr DeviceId first{0}, second{1};

// An execution of 10 ms that was expected to take as long, but for what is said.
Margins::Execution execution(Duration dispatch, double stretch, Duration answer, bool at_once = true) {
  const TimePoint decided{1s};
  const TimePoint start = decided + dispatch;
  const TimePoint end = start + from_ns(1e7 * stretch);
  return {.decided = decided,
          .at_once = at_once,
          .estimate = 10ms,
          .start = start,
          .end = end,
          .took = end - start,
          .heard = end + answer};
}

Margins started() {
  Margins margins(told);
  margins.start(first, true);
  return margins;
}

TEST(TailWindow, IsTheLargestButForThoseThatMayBeExceeded) {
  Random random(1);
  TailWindow window(0.0025);
  std::vector<double> values;
  for (int i = 0; i < 2000; ++i) {
    values.push_back(random.uniform());
    window.add(values.back(), TimePoint{i * 1us});
    if (i % 16 != 15 || i < 600) continue;
    std::vector<double> last(values.end() - 512, values.end());
    std::sort(last.begin(), last.end());
    // Between two searches values above the tail are let in at once; those that left linger for 16.
    EXPECT_GE(window.tail(), last[505]) << i;
    EXPECT_LE(window.tail(), *std::max_element(values.end() - 528, values.end())) << i;
  }
}

TEST(TailWindow, ForgetsWhatIsTenSecondsOld) {
  TailWindow window(0.0025);
  window.add(50, TimePoint{1s});
  for (int i = 1; i < 20; ++i) window.add(1, TimePoint{1s + i * 500ms});
  EXPECT_EQ(window.tail(), 50);
  EXPECT_FALSE(window.known());
  EXPECT_TRUE(window.add(1, TimePoint{11s}));
  EXPECT_EQ(window.tail(), 1);
  for (int i = 0; i < 100; ++i) window.add(1, TimePoint{11s});
  EXPECT_TRUE(window.known());
  for (int i = 0; i < 16; ++i) window.add(1, TimePoint{30s});
  EXPECT_FALSE(window.known()) << "what is as old counts for nothing";
}

TEST(Margins, WhatWasToldCountsUntilItWasMeasured) {
  auto m = started();
  for (std::size_t i = 0; i + 1 < TailWindow::enough; ++i) m.observe(first, execution(50us, 1, 100us));
  EXPECT_EQ(m.at(first).answer, told.answer);
  EXPECT_EQ(m.at(first).dispatch, told.dispatch);
  EXPECT_EQ(m.at(first).overrun, told.overrun);
  for (int i = 0; i < 32; ++i) m.observe(first, execution(50us, 1, 100us));
  EXPECT_EQ(m.at(first).answer, 300us) << "what was seen, and what cannot be";
  EXPECT_EQ(m.at(first).dispatch, 50us);
  EXPECT_EQ(m.at(first).overrun, 0);
  EXPECT_EQ(m.worst().answer, 300us);
}

TEST(Margins, WhatIsWorseThanToldCountsAtOnce) {
  auto m = started();
  EXPECT_TRUE(m.observe(first, execution(300us, 1.5, 4ms)));
  EXPECT_EQ(m.at(first).answer, 4200us);
  EXPECT_NEAR(m.at(first).overrun, 0.5, 1e-6);
}

TEST(Margins, OneOfManyMayBreakThePromise) {
  auto m = started();
  for (int i = 0; i < 512; ++i) m.observe(first, execution(100us, 1.02, i == 100 ? 400ms : 200us));
  EXPECT_EQ(m.at(first).answer, 400us) << "a lone stall rules nothing";
  for (int i = 0; i < 512; ++i) m.observe(first, execution(100us, 1.02, i % 100 == 0 ? 5ms : 200us));
  EXPECT_EQ(m.at(first).answer, 5200us) << "one of a hundred is more than was promised";
}

TEST(Margins, ExecutionsThatHadToWaitSayNothingOfTheWay) {
  auto m = started();
  for (int i = 0; i < 200; ++i) m.observe(first, execution(20ms, 1, 200us, false));
  EXPECT_EQ(m.at(first).dispatch, told.dispatch);
}

TEST(Margins, AreKeptByDevice) {
  auto m = started();
  m.start(second, true);
  for (int i = 0; i < 128; ++i) {
    m.observe(first, execution(50us, 1, 100us));
    m.observe(second, execution(80us, 1.3, 50us));
  }
  EXPECT_EQ(m.at(first).answer, 300us);
  EXPECT_EQ(m.at(second).answer, 250us);
  EXPECT_EQ(m.worst().answer, 300us);
  EXPECT_EQ(m.worst().dispatch, 80us);
  EXPECT_NEAR(m.worst().overrun, 0.3, 1e-6);
  m.start(second, false);
  EXPECT_EQ(m.worst().overrun, 0) << "a device that has gone keeps nobody";
  m.start(second, true);
  EXPECT_EQ(m.at(second).overrun, told.overrun) << "and starts anew when it comes back";
}

TEST(Margins, StayAsToldWhereTheyAreKnown) {
  Environment known = told;
  known.measured = false;
  Margins m(known);
  m.start(first, true);
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(m.observe(first, execution(5ms, 2, 9ms)));
  EXPECT_EQ(m.at(first).answer, told.answer);
  EXPECT_EQ(m.at(first).overrun, told.overrun);
}

// What is kept is what was promised: on a device whose times have a heavy tail, the share of executions
// beyond the margins that were in force.
TEST(Margins, KeepWhatTheyPromise) {
  Random random(7);
  auto m = started();
  int beyond = 0;
  constexpr int runs = 40'000;
  for (int i = 0; i < runs; ++i) {
    double stretch = 1 + 0.03 * std::abs(random.normal());
    if (random.uniform() < 0.02) stretch *= 1 + random.uniform();
    const Environment before = m.at(first);
    beyond += stretch - 1 > before.overrun ? 1 : 0;
    m.observe(first, execution(100us, stretch, 200us));
  }
  EXPECT_LT(beyond, runs * Margins::promised);
}

// Runs of microseconds and of a second on one device, whose threads lose their processor for milliseconds now
// and then: what that does to the short ones says nothing of the long ones. Both are kept within what was
// promised, and a long one is not taken to last many times as long.
TEST(Margins, WhatShortRunsSufferIsNotForetoldOfLongOnes) {
  for (const Duration shortest : {Duration{0}, Duration{4ms}}) {
    Environment live = told;
    live.shortest = shortest;
    Margins m(live);
    m.start(first, true);
    Random random(3);
    TimePoint now{1s};
    int beyond = 0, runs = 0;
    Duration longest{0};
    for (; runs < 20'000; ++runs) {
      const Duration exec = runs % 100 == 0 ? Duration{1s} : Duration{30us};
      Duration took = exec + from_ns(0.01 * std::abs(random.normal()) * static_cast<double>(exec.count()));
      if (random.uniform() < 0.01) took += from_ms(1 + 3 * random.uniform());
      if (runs > 1000) {
        if (took > m.at(first).with_overrun(exec)) ++beyond;
        longest = std::max(longest, m.at(first).with_overrun(1s));
      }
      m.observe(first, {.decided = now,
                        .at_once = false,
                        .estimate = exec,
                        .start = now,
                        .end = now + took,
                        .took = took,
                        .heard = now + took + 100us});
      now += took + 200us;
    }
    EXPECT_LT(beyond, runs * Margins::promised) << to_ms(shortest);
    if (shortest > Duration{0})
      EXPECT_LT(longest, 3s);
    else
      EXPECT_GT(longest, 100s) << "without it there is nothing to test";
  }
}

TEST(Margins, TheLongestExecOfASpan) {
  Environment e = told;
  for (const Duration shortest : {Duration{0}, Duration{4ms}})
    for (const double overrun : {0.0, 0.05, 3.0})
      for (const Duration exec : {Duration{10us}, Duration{3999us}, Duration{4ms}, Duration{50ms}}) {
        e.shortest = shortest;
        e.overrun = overrun;
        EXPECT_NEAR(to_us(e.exec_within(e.span(exec))), to_us(exec), 0.01) << to_us(exec) << " " << overrun;
      }
}

// A stall early on, and then nothing but requests that it keeps out: they are not measured, so they are
// tried.
TEST(Margins, AreDoubtedWhereNothingIsHeard) {
  auto m = started();
  const auto at = [](TimePoint when, Duration answer) {
    auto e = execution(100us, 1, answer);
    e.start += when - e.decided;
    e.end += when - e.decided;
    e.heard += when - e.decided;
    e.decided = when;
    return e;
  };
  m.observe(first, at(TimePoint{1s}, 50ms));
  const TimePoint heard = TimePoint{1s} + 100us + 10ms + 50ms;
  EXPECT_FALSE(m.doubt(30ms, 10ms, heard + 99ms)) << "heard of just now";
  EXPECT_FALSE(m.doubt(11ms, 10ms, heard + 100ms)) << "could not be on time with what was told, either";
  EXPECT_EQ(m.worst().answer, 50ms + 200us);
  EXPECT_TRUE(m.doubt(30ms, 10ms, heard + 100ms));
  EXPECT_EQ(m.at(first).answer, told.answer);
  EXPECT_EQ(m.worst().answer, told.answer);
  // Stalled again: the next trial is twice as far away, and so on up to a second.
  TimePoint now = heard + 100ms;
  for (const Duration pause : {200ms, 400ms, 800ms, 1000ms, 1000ms}) {
    m.observe(first, at(now, 50ms));
    now += 100us + 10ms + 50ms;
    EXPECT_FALSE(m.doubt(30ms, 10ms, now + pause - 1ms));
    EXPECT_TRUE(m.doubt(30ms, 10ms, now += pause)) << to_ms(pause);
  }
  // Where EXEC takes longer, something may be running.
  auto slow = started();
  Margins::Execution e = at(TimePoint{1s}, 50ms);
  e.estimate = e.took = 400ms;
  slow.observe(first, e);
  EXPECT_FALSE(slow.doubt(2s, 400ms, e.heard + 799ms));
  EXPECT_TRUE(slow.doubt(2s, 400ms, e.heard + 800ms));
  // Measured again, a tenth of a second is enough.
  for (std::size_t i = 0; i < TailWindow::enough; ++i) m.observe(first, at(now, 200us));
  m.observe(first, at(now += 100ms, 50ms));
  EXPECT_TRUE(m.doubt(30ms, 10ms, now + 100us + 10ms + 50ms + 100ms));
}

// Rows of a batch with bad data were run again by themselves: that is no news of how long batches take.
TEST(Margins, WhatElseWasDoneBesideTheBatchIsNotItsOverrun) {
  Margins m = started();
  for (int i = 0; i < 512; ++i) {
    Margins::Execution odd = execution(100us, 1, 200us);
    odd.end += 300ms;
    odd.heard += 300ms;
    m.observe(first, odd);
  }
  EXPECT_LT(m.at(first).overrun, 0.001);
  EXPECT_LT(m.at(first).answer, 1ms);
}

// Medians: what is odd does not count, and what is usual does once it was seen a few times.
TEST(Margins, WhatIsUsual) {
  Margins margins = started();
  EXPECT_EQ(margins.usual(first).dispatch, told.dispatch) << "as told";
  for (int i = 0; i < 3; ++i) margins.observe(first, execution(2ms, 1.2, 3ms));
  EXPECT_EQ(margins.usual(first).dispatch, told.dispatch) << "three may all be odd";
  margins.observe(first, execution(2ms, 1.2, 3ms));
  EXPECT_EQ(margins.usual(first).dispatch, 2ms);
  EXPECT_EQ(margins.usual(first).answer, 200us + 3ms);
  EXPECT_NEAR(margins.usual(first).overrun, 0.2, 1e-6);
  for (int i = 0; i < 100; ++i) margins.observe(first, execution(i % 5 == 0 ? 90ms : 100us, 1, 300us));
  EXPECT_EQ(margins.usual(first).dispatch, 100us);
  EXPECT_EQ(margins.usual(first).answer, 200us + 300us);
  EXPECT_EQ(margins.at(first).dispatch, 90ms);
  // A doubt forgets the tails. The medians stay.
  ASSERT_TRUE(margins.doubt(50ms, 1ms, TimePoint{10s}));
  EXPECT_EQ(margins.at(first).dispatch, told.dispatch);
  EXPECT_EQ(margins.usual(first).dispatch, 100us);
}

}  // namespace
}  // namespace carillon::schedule
