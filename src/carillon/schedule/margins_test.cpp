#include "carillon/schedule/margins.h"

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
    window.add(values.back());
    if (i % 16 != 15 || i < 600) continue;
    std::vector<double> last(values.end() - 512, values.end());
    std::sort(last.begin(), last.end());
    // Between two searches values above the tail are let in at once; those that left linger for 16.
    EXPECT_GE(window.tail(), last[505]) << i;
    EXPECT_LE(window.tail(), *std::max_element(values.end() - 528, values.end())) << i;
  }
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

}  // namespace
}  // namespace carillon::schedule
