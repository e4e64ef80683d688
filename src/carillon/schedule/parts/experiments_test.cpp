#include "carillon/schedule/parts/experiments.h"

#include <array>
#include <functional>
#include <utility>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule::parts {
namespace {

// Requests come at a steady rate, and a share of them is answered that depends on the values.
struct TriedWorld {
  Experiments experiments{{0, 0, 0}, {3, 2, 2}};
  std::function<double(const Experiments&, TimePoint)> share;
  Experiments::Matters matters{true, true, true};
  Duration every = 250ms, slo = 100ms;
  double rate = 4000;
  Random random{1};
  TimePoint now{};
  int tried = 0, plans = 0;

  void plan() {
    const int requests = static_cast<int>(rate * to_seconds(every));
    const double chance = share(experiments, now);
    int answered = 0;
    for (int i = 0; i < requests; ++i) answered += random.uniform() < chance ? 1 : 0;
    experiments.answered(static_cast<std::size_t>(answered));
    experiments.lost(static_cast<std::size_t>(requests - answered));
    now += every;
    experiments.step(now, every, slo, matters);
    ++plans;
    tried += experiments.trying() ? 1 : 0;
  }
  void go(Duration time) {
    for (const TimePoint end = now + time; now < end;) plan();
  }
  int value(Experiments::Setting setting) const { return experiments.value(setting); }
};

double when(bool so, double then, double otherwise) {
  return so ? then : otherwise;
}

bool as_at_first(const Experiments& experiments) {
  return !experiments.differs(Experiments::keep_off) && !experiments.differs(Experiments::limit) &&
         !experiments.differs(Experiments::curb);
}

TEST(Experiments, TriesNothingWhileNothingIsLost) {
  TriedWorld world;
  world.share = [](const auto&, TimePoint) { return 0.99; };
  world.go(60s);
  EXPECT_EQ(world.tried, 0);
}

TEST(Experiments, KeepsAValueThatAnswersMore) {
  for (const int best : {1, 2}) {
    TriedWorld world;
    world.share = [&](const auto& e, TimePoint) {
      return when(e.value(Experiments::keep_off) == best, 0.998, 0.6);
    };
    world.matters = {true, false, false};
    world.go(best == 1 ? 5s : 20s);
    EXPECT_EQ(world.value(Experiments::keep_off), best);
    const int tried = world.tried;
    world.go(600s);
    EXPECT_EQ(world.value(Experiments::keep_off), best);
    EXPECT_EQ(world.tried, tried) << "nothing is lost any more";
  }
}

TEST(Experiments, TrialsThatFailAreFew) {
  TriedWorld world;
  world.share = [](const auto& e, TimePoint) { return when(as_at_first(e), 0.9, 0.85); };
  world.go(600s);
  EXPECT_GT(world.tried, 0);
  EXPECT_LT(world.tried, 0.07 * world.plans);
  while (world.experiments.trying()) world.plan();
  for (const auto setting : {Experiments::keep_off, Experiments::limit, Experiments::curb})
    EXPECT_EQ(world.value(setting), 0);
}

TEST(Experiments, ABadTrialEndsAtOnce) {
  TriedWorld world;
  world.slo = 900ms;  // a whole trial takes 5 plans that are not counted, and 8 that are
  world.share = [](const auto& e, TimePoint) { return when(e.value(Experiments::curb) == 1, 0.2, 0.8); };
  world.matters = {false, false, true};
  world.go(7s);
  EXPECT_EQ(world.tried, 6);
  EXPECT_EQ(world.value(Experiments::curb), 0);
}

TEST(Experiments, ValuesThatAreAsGoodChangeSeldom) {
  for (const double rate : {150.0, 400.0, 4000.0}) {
    TriedWorld world;
    world.rate = rate;
    world.share = [](const auto&, TimePoint) { return 0.7; };
    std::array<int, Experiments::settings> kept{};
    int changes = 0;
    for (int i = 0; i < 20000; ++i) {  // 83 minutes
      world.plan();
      if (world.experiments.trying()) continue;
      for (const auto setting : {Experiments::keep_off, Experiments::limit, Experiments::curb})
        changes += std::exchange(kept[setting], world.value(setting)) != world.value(setting) ? 1 : 0;
    }
    EXPECT_LT(changes, 12) << rate;
  }
}

TEST(Experiments, QuietTimesAreNoGain) {
  // A burst that ends as the trial begins, and each that lasts longer or comes later.
  for (int begins = 0; begins < 24; ++begins) {
    for (int lasts = 1; lasts < 24; ++lasts) {
      TriedWorld world;
      world.share = [&](const auto&, TimePoint now) {
        const auto plan = now.time_since_epoch() / 250ms;
        return when(plan >= begins && plan < begins + lasts, 0.5, 1);
      };
      world.go(20s);
      for (const auto setting : {Experiments::keep_off, Experiments::limit, Experiments::curb})
        EXPECT_EQ(world.value(setting), 0) << begins << ", " << lasts;
    }
  }
}

TEST(Experiments, BurstsThatComeAgainAreNoGain) {
  for (const Duration slo : {100ms, 500ms, 2000ms}) {
    for (const auto& [begins, ends] : {std::pair{0.15, 0.5}, std::pair{0.06, 0.25}}) {
      TriedWorld world;
      world.rate = 400;
      world.slo = slo;
      Random bursts{7};
      bool burst = false;
      world.share = [&](const auto&, TimePoint) {
        burst = burst ? bursts.uniform() >= ends : bursts.uniform() < begins;
        return when(burst, 0.5, 1);
      };
      std::array<int, Experiments::settings> kept{};
      int changes = 0;
      for (int i = 0; i < 3000; ++i) {
        world.plan();
        if (world.experiments.trying()) continue;
        for (const auto setting : {Experiments::keep_off, Experiments::limit, Experiments::curb})
          changes += std::exchange(kept[setting], world.value(setting)) != world.value(setting) ? 1 : 0;
      }
      EXPECT_LT(changes, 5) << to_seconds(slo) << " s, bursts end by " << ends;
      EXPECT_LT(world.tried, 0.3 * world.plans);
    }
  }
}

TEST(Experiments, TrialsOfRequestsThatHaveLongAreFew) {
  TriedWorld world;
  world.rate = 400;
  world.slo = 5s;
  world.share = [](const auto& e, TimePoint) { return when(as_at_first(e), 0.75, 0.7); };
  world.go(3600s);
  EXPECT_GT(world.tried, 0);
  EXPECT_LT(world.tried, 0.12 * world.plans);
}

TEST(Experiments, TheDefaultComesBack) {
  TriedWorld world;
  bool other = true;
  world.share = [&](const auto& e, TimePoint) {
    return when((e.value(Experiments::limit) == 1) == other, 0.9, 0.7);
  };
  world.matters = {false, true, false};
  world.go(5s);
  EXPECT_EQ(world.value(Experiments::limit), 1);
  world.go(120s);
  other = false;
  world.go(15s);
  EXPECT_EQ(world.value(Experiments::limit), 0) << "the load is another, so pauses are short again";
}

TEST(Experiments, WhatDoesNotMatterOrHasOneValueStays) {
  TriedWorld world;
  world.experiments = Experiments({1, 0, 0}, {1, 2, 2});
  world.share = [](const auto& e, TimePoint) {
    EXPECT_EQ(e.value(Experiments::keep_off), 1);
    EXPECT_EQ(e.value(Experiments::curb), 0);
    return 0.5;
  };
  world.matters = {true, true, false};
  world.go(120s);
  EXPECT_GT(world.tried, 0);
}

TEST(Experiments, DisturbedTrialsEnd) {
  TriedWorld world;
  world.share = [](const auto&, TimePoint) { return 0.5; };
  while (!world.experiments.trying()) world.plan();
  world.experiments.disturb();
  EXPECT_FALSE(world.experiments.trying());
  for (const auto setting : {Experiments::keep_off, Experiments::limit, Experiments::curb})
    EXPECT_EQ(world.value(setting), 0);
}

TEST(Experiments, DisturbedTrialsRest) {
  TriedWorld world;
  world.share = [](const auto&, TimePoint) { return 0.5; };
  world.matters = {true, false, false};
  int trials = 0;
  for (const TimePoint end = world.now + 60s; world.now < end;) {
    world.plan();
    if (!world.experiments.trying()) continue;
    world.experiments.disturb();
    ++trials;
  }
  EXPECT_GT(trials, 1);
  EXPECT_LE(trials, 60s / 4s) << "four seconds apart";
}

TEST(Experiments, FewRequestsTellNothing) {
  TriedWorld world;
  world.rate = 8;
  world.share = [](const auto&, TimePoint) { return 0.5; };
  world.go(600s);
  EXPECT_EQ(world.tried, 0);
}

}  // namespace
}  // namespace carillon::schedule::parts
