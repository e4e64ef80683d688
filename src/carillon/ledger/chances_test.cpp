#include "carillon/ledger/chances.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::ledger {
namespace {

constexpr DeviceId the_device{0};
constexpr ModelId the_model{0}, another_model{1};

Environment told_live(double miss_rate = 0.005) {
  Environment told = live_environment();
  told.shortest = Duration{0};
  told.miss_rate = miss_rate;
  return told;
}

// A device that runs one batch every 10 ms.
struct ChanceRuns {
  explicit ChanceRuns(const Environment& told) : chances(told) {
    const ModelInfo info{
        .id = the_model, .name = "m", .load = 1ms, .batches = {{1, 10ms}, {2, 15ms}, {4, 25ms}}};
    chances.model_changed(the_model, std::make_shared<const ModelInfo>(info), false);
    chances.model_changed(another_model, std::make_shared<const ModelInfo>(info), false);
    chances.start(the_device, true);
  }
  void run(Duration took, std::size_t index = 0, Duration answer = 100us) {
    run(the_model, took, index, answer);
  }
  void run(ModelId model, Duration took, std::size_t index = 0, Duration answer = 100us) {
    now += 10ms;
    chances.observe(the_device, {.model = model,
                                 .index = index,
                                 .sent = now,
                                 .at_once = true,
                                 .start = now + 200us,
                                 .took = took,
                                 .heard = now + 200us + took + answer});
    now += took;
  }
  void run(int times, Duration took) {
    for (int i = 0; i < times; ++i) run(took);
  }
  Duration exec(std::size_t index = 0) const { return chances.exec(the_device, the_model, index); }
  double late(Duration slack) const { return chances.late(the_device, the_model, 0, slack); }
  double longest() const { return to_ms(chances.most(the_device, the_model, 0)); }
  bool doubt(Duration left) {
    return chances.doubt(the_model, left, now, [](DeviceId) { return true; });
  }
  Chances chances;
  TimePoint now{1s};
};

TEST(Chances, FixedTimesAreWhatTheySay) {
  const Environment told{.dispatch = 300us, .answer = 100us, .overrun = 0};
  ChanceRuns runs(told);
  for (int i = 0; i < 200; ++i) {
    runs.run(i % 3 == 0 ? 10ms : i % 3 == 1 ? 15ms : 25ms, static_cast<std::size_t>(i % 3));
    EXPECT_EQ(runs.exec(0), 10ms);
    EXPECT_EQ(runs.exec(1), 15ms);
    EXPECT_EQ(runs.exec(2), 25ms);
    EXPECT_EQ(runs.chances.most(the_device, the_model, 1), told.span(15ms));
    EXPECT_EQ(runs.chances.most(the_device, the_model, 1, 1, 0.5), told.span(15ms));
  }
  EXPECT_EQ(runs.chances.least(the_model), told.dispatch + told.span(10ms));
  EXPECT_LT(runs.late(10ms + 100us), 1e-6);
  EXPECT_GT(runs.late(9ms), 0.99);
}

TEST(Chances, AnUnlikePaceIsExactToo) {
  const Environment told{.dispatch = 300us, .answer = 100us, .overrun = 0};
  ChanceRuns runs(told);
  for (int i = 0; i < 100; ++i)
    runs.run(i % 2 == 0 ? 7'777'777ns : 11'666'666ns, static_cast<std::size_t>(i % 2));
  EXPECT_NEAR(to_ms(runs.exec(0)), 7.777777, 1e-5);
  EXPECT_NEAR(runs.longest(), 7.777777 + 0.1, 0.2);
}

// Two of a hundred runs take ten times as long: nobody allows for them, and everybody knows of them.
TEST(Chances, OutliersAreAChanceAndNoMargin) {
  ChanceRuns runs(told_live());
  for (int i = 0; i < 3000; ++i) runs.run(i % 50 == 7 ? 100ms : 10ms);
  EXPECT_LT(runs.longest(), 12);
  EXPECT_NEAR(runs.late(20ms), 0.02, 0.004);
  EXPECT_LT(runs.late(200ms), 0.004);
  EXPECT_NEAR(runs.chances.outliers(the_device, the_model), 0.02, 0.004);
}

// Where outliers are no more than is promised, the body has what they leave.
TEST(Chances, WhatIsPromisedHolds) {
  Random random(1);
  for (const double promised : {0.001, 0.01, 0.1}) {
    ChanceRuns runs(told_live(promised));
    int late = 0, all = 0;
    double expected = 0;
    for (int i = 0; i < 40'000; ++i) {
      const Duration took = from_ns(1e7 * std::exp(0.3 * random.normal()));
      if (i > 5000) {
        const Duration most = runs.chances.most(the_device, the_model, 0) - told_live().client;
        expected += runs.late(most);
        late += took + 100us > most ? 1 : 0;
        ++all;
      }
      runs.run(took);
    }
    EXPECT_LT(late, 2 * promised * all) << promised;
    EXPECT_GT(late, promised * all / 4) << promised;
    EXPECT_LT(late, 2 * expected) << promised;
    EXPECT_GT(late, expected / 2) << promised;
  }
}

TEST(Chances, OneStallIsNotBelievedAndTwoRunsAre) {
  ChanceRuns runs(told_live());
  runs.run(200, 10ms);
  const double before = runs.longest();
  runs.run(400ms);
  EXPECT_EQ(runs.exec(), 10ms);
  EXPECT_LT(runs.longest(), before * 1.1);
  runs.run(10ms);
  EXPECT_EQ(runs.exec(), 10ms);
  runs.run(2, 400ms);
  EXPECT_GT(runs.exec(), 300ms) << "it became slow";
  runs.run(10ms);
  EXPECT_LT(runs.exec(), 15ms) << "it is as it was";
}

TEST(Chances, TimesMayJumpAHundredfoldAndBack) {
  ChanceRuns runs(told_live());
  for (int round = 0; round < 5; ++round) {
    runs.run(100, 10ms);
    runs.run(3, 1s);
    EXPECT_GT(runs.exec(), 900ms) << round;
    runs.run(100, 1s);
    EXPECT_LT(runs.longest(), 1500) << round;
    runs.run(3, 10ms);
    EXPECT_LT(runs.exec(), 20ms) << round;
  }
  runs.run(100, 10ms);
  EXPECT_LT(runs.longest(), 20);
}

// What seems too slow gets a trial: soon on a device that idles, and then ever later; long ones cost a tenth
// of the time where there is another use for it.
TEST(Chances, WhatIsTooSlowIsTriedAgain) {
  ChanceRuns runs(told_live());
  runs.run(100, 10ms);
  runs.run(3, 200ms);
  EXPECT_FALSE(runs.doubt(50ms)) << "it ran just now";
  int trials = 0;
  const TimePoint begin = runs.now;
  for (int i = 0; i < 1000; ++i) {  // ten seconds and more
    runs.run(another_model, 10ms);
    if (!runs.doubt(50ms)) continue;
    ++trials;
    EXPECT_EQ(runs.exec(), 10ms);
    runs.run(200ms);
    EXPECT_GT(runs.exec(), 150ms) << "one run of a trial tells";
  }
  EXPECT_GE(trials, 5);
  EXPECT_LE((trials - 2) * 200ms, (runs.now - begin) / 10) << "but for the first and the last";
  runs.now += 1s;
  trials = 0;
  for (int i = 0; i < 1000; ++i) {
    runs.now += 10ms;
    if (!runs.doubt(50ms)) continue;
    ++trials;
    runs.run(200ms);
  }
  EXPECT_NEAR(trials, 10, 1) << "the device has no other use: a second after each";
  runs.now += 2s;
  EXPECT_FALSE(runs.doubt(5ms)) << "by its seed it would be late, too";
  EXPECT_TRUE(runs.doubt(50ms));
  runs.run(2, 10ms);
  EXPECT_EQ(runs.exec(), 10ms);
}

// A server measured the model while its machine was busy: 10 ms for what takes 2.
TEST(Chances, ASeedThatIsTooLongIsFoundOut) {
  ChanceRuns runs(told_live());
  EXPECT_FALSE(runs.doubt(5ms)) << "the first may have waited for something else";
  runs.now += 1s;
  EXPECT_FALSE(runs.doubt(1ms)) << "too far from its seed";
  EXPECT_TRUE(runs.doubt(5ms));
  EXPECT_LT(runs.chances.least(the_model), 5ms);
  EXPECT_LT(runs.longest(), 5);
  runs.run(2ms);
  EXPECT_EQ(runs.exec(), 2ms);
  EXPECT_FALSE(runs.doubt(5ms)) << "it is in time";
}

TEST(Chances, ATrueSeedIsNotDoubtedWhereItRanLately) {
  ChanceRuns runs(told_live());
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(runs.doubt(5ms));
    runs.run(10ms);
  }
}

TEST(Chances, ATrueSeedIsSeldomDoubted) {
  ChanceRuns runs(told_live());
  int trials = 0;
  for (int i = 0; i < 10000; ++i) {  // a hundred seconds
    runs.now += 10ms;
    if (!runs.doubt(5ms)) continue;
    ++trials;
    runs.run(10ms);
    EXPECT_EQ(runs.exec(), 10ms);
  }
  EXPECT_GE(trials, 3);
  EXPECT_LE(trials, 5);
  ChanceRuns told({.dispatch = 300us, .answer = 100us, .overrun = 0});
  EXPECT_FALSE(told.doubt(5ms)) << "what is told is true";
}

// A report that says nonsense: what passed between order and report is known here.
TEST(Chances, NonsenseIsNotBelieved) {
  for (const Duration told : {0ns, std::chrono::duration_cast<Duration>(std::chrono::hours{278})}) {
    ChanceRuns runs(told_live());
    for (int i = 0; i < 300; ++i) {
      runs.now += 20ms;
      runs.chances.observe(the_device, {.model = the_model,
                                        .index = 0,
                                        .sent = runs.now,
                                        .at_once = true,
                                        .start = runs.now + 200us,
                                        .took = told,
                                        .heard = runs.now + 10ms + 300us});
    }
    EXPECT_LT(runs.longest(), 15) << told.count();
    EXPECT_GT(runs.longest(), 9) << told.count();
    EXPECT_GT(runs.late(8ms), 0.5) << told.count();
    EXPECT_LT(runs.late(14ms), 0.1) << told.count();
  }
}

TEST(Chances, AClockMayStandStillAndJump) {
  ChanceRuns runs(told_live());
  runs.run(100, 10ms);
  for (int i = 0; i < 50; ++i)
    runs.chances.observe(the_device, {.model = the_model,
                                      .index = 0,
                                      .sent = runs.now,
                                      .at_once = true,
                                      .start = runs.now,
                                      .took = 10ms,
                                      .heard = runs.now});
  EXPECT_EQ(runs.exec(), 10ms);
  const TimePoint sent = runs.now;
  runs.now += 1h;
  runs.chances.observe(the_device, {.model = the_model,
                                    .index = 0,
                                    .sent = sent,
                                    .at_once = true,
                                    .start = sent,
                                    .took = 10ms,
                                    .heard = runs.now});
  EXPECT_LT(runs.longest(), 15) << "one jump";
  runs.run(20, 10ms);
  EXPECT_LT(runs.longest(), 13);
}

// One size that takes far longer than its seed says leaves the others as they are.
TEST(Chances, ASizeMayBeUnlikeItsSeed) {
  ChanceRuns runs(told_live());
  for (int i = 0; i < 60; ++i) {
    runs.run(10ms, 0);
    runs.run(10ms, 0);
    runs.run(100ms, 2);
  }
  EXPECT_LT(runs.exec(0), 12ms);
  EXPECT_GT(runs.exec(2), 80ms);
}

// Two runs of two models were longer: the third model is expected to be so, too. One that is as before tells
// for all.
TEST(Chances, ADeviceSlowsDownWithAllThatItRuns) {
  Chances chances(told_live());
  chances.start(the_device, true);
  for (const std::uint32_t m : {0U, 1U, 2U})
    chances.model_changed(ModelId{m},
                          std::make_shared<const ModelInfo>(
                              ModelInfo{.id = ModelId{m}, .name = "m", .load = 1ms, .batches = {{1, 10ms}}}),
                          false);
  TimePoint now{1s};
  const auto run = [&](std::uint32_t m, Duration took) {
    now += took + 1ms;
    chances.observe(the_device, {.model = ModelId{m},
                                 .index = 0,
                                 .sent = now - took - 300us,
                                 .at_once = true,
                                 .start = now - took - 100us,
                                 .took = took,
                                 .heard = now});
  };
  for (std::uint32_t i = 0; i < 100; ++i) run(i % 3, 10ms);
  run(0, 50ms);
  run(1, 50ms);
  for (const std::uint32_t m : {0U, 1U, 2U}) EXPECT_GT(chances.exec(the_device, ModelId{m}, 0), 45ms) << m;
  for (std::uint32_t i = 0; i < 20; ++i) run(i % 3, 50ms);
  run(2, 10ms);
  for (const std::uint32_t m : {0U, 1U, 2U}) EXPECT_LT(chances.exec(the_device, ModelId{m}, 0), 15ms) << m;
}

TEST(Chances, ANewVersionIsMeasuredAnew) {
  ChanceRuns runs(told_live());
  runs.run(100, 20ms);
  EXPECT_EQ(runs.exec(), 20ms);
  const ModelInfo info{.id = the_model, .name = "m", .load = 1ms, .batches = {{1, 5ms}}};
  runs.chances.model_changed(the_model, std::make_shared<const ModelInfo>(info), true);
  EXPECT_EQ(runs.exec(), 5ms);
}

TEST(Spread, AValueIsInTheFirstBinWhoseEdgeIsNotBelowIt) {
  const auto& edges = Spread::edges();
  const auto check = [&](double value) {
    const auto first = std::lower_bound(edges.begin(), edges.end() - 1, value);
    EXPECT_EQ(Spread::bin(value), static_cast<std::size_t>(first - edges.begin())) << value;
  };
  constexpr double infinite = std::numeric_limits<double>::infinity();
  for (const double edge : edges)
    for (const double value : {std::nextafter(edge, -infinite), edge, std::nextafter(edge, infinite)})
      check(value);
  for (const double value : {-infinite, -1.0, 0.0, 1e-300, 0.25, 1.0, 255.0, 256.0, 1e300, infinite})
    check(value);
  Random random(1);
  for (int i = 0; i < 10'000; ++i) check(std::exp(random.normal()));
  EXPECT_EQ(edges[Spread::odd_bin()], Spread::odd);
}

// A doubt takes back what one question has found.
TEST(Chances, WhatIsDoubtedIsHeededByQuestionsThatWereBegun) {
  ChanceRuns runs(told_live());
  runs.run(100, 10ms);
  runs.run(3, 200ms);
  runs.now += 10s;
  const Chances::There there = runs.chances.there(the_device, the_model);
  EXPECT_GT(there.most(0), 100ms);
  EXPECT_GT(there.late(0, 50ms), 0.5);
  EXPECT_TRUE(runs.doubt(50ms));
  EXPECT_EQ(there.exec(0), 10ms);
  EXPECT_EQ(there.most(0), runs.chances.most(the_device, the_model, 0));
  EXPECT_EQ(there.run(0).most, there.most(0));
  EXPECT_EQ(there.late(0, 50ms), runs.late(50ms));
}

TEST(Chances, QuestionsThatWereBegunHeedATrialWhereTheModelNeverRan) {
  const DeviceId other{1};
  ChanceRuns runs(told_live());
  runs.chances.start(other, true);
  runs.run(100, 10ms);
  EXPECT_FALSE(runs.doubt(5ms)) << "it ran just now";
  runs.now += 10s;
  const Chances::There ran = runs.chances.there(the_device, the_model);
  const Chances::There never_ran = runs.chances.there(other, the_model);
  EXPECT_EQ(ran.exec(0), 10ms);
  EXPECT_EQ(never_ran.exec(0), 10ms);
  const auto idles = [&](DeviceId device) { return device == other; };
  EXPECT_TRUE(runs.chances.doubt(the_model, 5ms, runs.now, idles));
  EXPECT_EQ(never_ran.exec(0), 2500us);
  EXPECT_EQ(ran.exec(0), 10ms);
  EXPECT_EQ(ran.late(0, 10ms), runs.late(10ms));
}

}  // namespace
}  // namespace carillon::ledger
