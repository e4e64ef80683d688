#include "carillon/schedule/orloj/estimates.h"

#include <cmath>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule::orloj {
namespace {

ModelInfo model(double c0_ms, double slope_ms) {
  ModelInfo info{.id = ModelId{0}, .name = "m", .batches = {}};
  for (const int k : {1, 2, 4, 8, 16}) info.batches.push_back({k, from_ms(c0_ms + slope_ms * k)});
  return info;
}
std::vector<int> sizes_of(const ModelInfo& info) {
  std::vector<int> sizes;
  for (const BatchProfile& b : info.batches) sizes.push_back(b.batch);
  return sizes;
}
Estimates estimates_of(const ModelInfo& info, const OrlojOptions& options = {}) {
  return {info, options, sizes_of(info)};
}

// Requests of two applications run in batches of a world where k inputs of at most n take c0 + c1 * k * n.
struct World {
  explicit World(const ModelInfo& info, double c0_ms, double c1, const OrlojOptions& options = {})
      : estimates(estimates_of(info, options)), cost{from_ms(c0_ms), c1} {}
  Duration input(AppId app) {
    const bool quick = app.index() == 0;
    return from_ms(std::max(1.0, (quick ? 30 : 90) + (quick ? 5 : 10) * random.normal()));
  }
  // What a batch takes whose largest input is of that size.
  double truth(int size, double input_ms) const { return to_ms(cost.of(size, from_ms(input_ms))); }
  double learned(int size, double input_ms) const {
    return estimates.cost().of(size, truth(1, input_ms) * 1e6) / 1e6;
  }
  void run(int batches, double outliers = 0) {
    for (int i = 0; i < batches; ++i) {
      std::vector<AppId> members(std::size_t{1} << random.below(4));
      Duration largest{0};
      for (AppId& member : members) {
        member = AppId{static_cast<std::uint32_t>(random.below(2))};
        estimates.arrived(member);
        const Duration own = input(member);
        largest = std::max(largest, own);
        if (sampling && random.uniform() < 0.1) estimates.sampled(member, from_ns(pace * to_ns(1, own)), now);
      }
      double took = pace * to_ns(static_cast<int>(members.size()), largest);
      if (random.uniform() < outliers) took *= 10;
      estimates.ran(members, from_ns(took), now);
      now += 100ms;
      estimates.refresh(now);
    }
  }
  double to_ns(int size, Duration largest) const {
    return static_cast<double>(cost.of(size, largest).count());
  }

  Estimates estimates;
  profile::PaddedCost cost;
  TimePoint now{1s};
  bool sampling = true;
  double pace = 1;
  Random random{7};
};

TEST(Estimates, StartFromTheSeeds) {
  Estimates plain = estimates_of(model(36, 24));
  EXPECT_NEAR(plain.batch(AppId{0}, 0).mean, 60, 0.01);
  EXPECT_NEAR(plain.batch(AppId{0}, 3).mean, 36 + 8 * 24, 0.01);
  EXPECT_NEAR(to_ms(plain.estimate(AppId{0}, 8)), 36 + 8 * 24, 0.01);
  EXPECT_NEAR(to_ms(plain.estimate(AppId{0}, 3)), 36 + 3 * 24, 0.01) << "of any size";

  ModelInfo measured = model(36, 24);
  measured.cost = profile::PaddedCost{20ms, 0.5};  // of single requests' times
  for (int i = 0; i < 100; ++i) measured.solos.push_back(from_ms(i < 50 ? 30 : 90));
  Estimates seeded = estimates_of(measured);
  EXPECT_NEAR(seeded.solo(AppId{5}), 60e6, 1e4) << "whatever the application";
  EXPECT_NEAR(seeded.batch(AppId{5}, 0).mean, 60, 0.01);
  EXPECT_GT(seeded.batch(AppId{5}, 3).mean, 20 + 0.5 * 8 * 80) << "one of eight is nearly always long";
}

TEST(Estimates, BatchTimesAreDistributions) {
  World world(model(36, 24), 36, 0.4);
  world.run(200);
  for (std::size_t k = 0; k < 5; ++k)
    for (const AppId app : {AppId{0}, AppId{1}}) {
      const auto& time = world.estimates.batch(app, k);
      double sum = 0, mean = 0, last = 0;
      for (const auto& bin : time.bins) {
        EXPECT_LT(bin.low, bin.high);
        EXPECT_GE(bin.low, last - 1e-9);
        last = bin.high;
        sum += bin.probability;
        mean += bin.probability * (bin.low + bin.high) / 2;
      }
      EXPECT_NEAR(sum, 1, 1e-9);
      EXPECT_NEAR(mean, time.mean, 0.1 * time.mean) << "coarser";
      EXPECT_EQ(time.estimate, world.estimates.estimate(app, 1 << k));
    }
  EXPECT_NEAR(to_ms(world.estimates.batch(AppId{0}, 0).estimate), world.truth(1, 30), 2);
  EXPECT_NEAR(to_ms(world.estimates.batch(AppId{1}, 0).estimate), world.truth(1, 90), 3);
  EXPECT_GT(world.estimates.batch(AppId{0}, 3).mean, world.truth(8, 85)) << "long ones come along";
}

TEST(Estimates, LearnWhatBatchesCost) {
  // Seeds of c0 36, c1 0.4 for inputs of 60; the world's are half or twice that.
  for (const auto& [c0, c1] : {std::pair(36.0, 0.4), {18.0, 0.8}, {72.0, 0.2}, {72.0, 0.8}, {18.0, 0.2}}) {
    World world(model(36, 24), c0, c1);
    world.run(400);
    for (const int k : {1, 4, 16})
      for (const double input : {60.0, 90.0})
        EXPECT_NEAR(world.learned(k, input), world.truth(k, input), 0.08 * world.truth(k, input))
            << k << " of " << c0 << " " << c1;
  }
}

TEST(Estimates, ForgetAWorldThatHasChanged) {
  World world(model(36, 24), 36, 0.4);
  world.run(3000);
  world.cost = {72ms, 0.2};
  world.run(3000);
  EXPECT_NEAR(world.estimates.batch(AppId{0}, 0).mean * world.estimates.pace(), world.truth(1, 30), 4);
  EXPECT_NEAR(world.estimates.batch(AppId{1}, 4).mean, world.truth(16, 110), 30);
}

TEST(Estimates, AreNotThrownByOutliersOrByInputsThatChange) {
  World world(model(36, 24), 36, 0.4);
  world.run(1000, 0.01);
  EXPECT_NEAR(to_ms(world.estimates.estimate(AppId{0}, 1)), world.truth(1, 30), 3);
  EXPECT_NEAR(world.learned(16, 90), world.truth(16, 90), 0.1 * world.truth(16, 90));
}

TEST(Estimates, LearnFromBatchesOfOneWithoutSamples) {
  World world(model(36, 24), 72, 0.8);
  world.sampling = false;
  world.run(600);
  EXPECT_NEAR(to_ms(world.estimates.estimate(AppId{0}, 1)), world.truth(1, 30), 5);
  EXPECT_NEAR(to_ms(world.estimates.estimate(AppId{1}, 1)), world.truth(1, 90), 8);
  EXPECT_NEAR(world.learned(16, 90), world.truth(16, 90), 0.1 * world.truth(16, 90));
}

TEST(Estimates, SeedsStayWhereThatIsAskedFor) {
  World world(model(36, 24), 18, 0.8, {.cost_memory = 0});
  world.run(400);
  EXPECT_NEAR(world.estimates.cost().growth, 1, 1e-6);
  EXPECT_LT(world.learned(16, 60), 0.8 * world.truth(16, 60)) << "they are wrong";
}

// One size and one application alone tell nothing of what company costs, but that nothing got quicker.
TEST(Estimates, BatchesThatAreAllAlikeMoveTheLineOnly) {
  Estimates estimates = estimates_of(model(36, 24));
  const AppId app{0};
  TimePoint now{1s};
  for (int i = 0; i < 500; ++i) {
    estimates.arrived(app);
    estimates.ran({&app, 1}, 120ms, now);
    now += 500ms;
    estimates.refresh(now);
  }
  EXPECT_NEAR(estimates.batch(app, 0).mean, 120, 8);
  EXPECT_GT(estimates.batch(app, 4).mean, 300);
  EXPECT_LT(estimates.batch(app, 4).mean, 1700);
}

// The first sample of an application says that it takes thirty times as long as it does.
TEST(Estimates, AWildFirstSampleIsOneOfAFew) {
  World world(model(36, 24), 36, 0.4);
  const AppId app{0};
  world.estimates.sampled(app, 1800ms, world.now);
  world.now += 1s;
  world.estimates.refresh(world.now);
  EXPECT_LT(to_ms(world.estimates.estimate(app, 1)), 70);
  for (int i = 0; i < 20; ++i) {
    world.estimates.ran({&app, 1}, 48ms, world.now += 100ms);
    world.estimates.refresh(world.now);
  }
  EXPECT_NEAR(to_ms(world.estimates.estimate(app, 1)), 48, 1);
  EXPECT_LT(to_ms(world.estimates.estimate(app, 8)), 300);
}

TEST(Estimates, WhatIsKnownOfTheModelIsThePriorOfANewApplication) {
  World world(model(36, 24), 100, 0.5);
  world.run(400);
  const double mean = (world.truth(1, 30) + world.truth(1, 90)) / 2;
  EXPECT_NEAR(world.estimates.solo(AppId{77}) / 1e6, mean, 0.15 * mean) << "and not what the seeds said";
  for (int i = 0; i < 8; ++i) world.estimates.sampled(AppId{77}, 40ms, world.now);
  world.now += 1s;
  world.estimates.refresh(world.now);
  EXPECT_NEAR(to_ms(world.estimates.estimate(AppId{77}, 1)), 40, 2) << "eight samples say more";
}

// Whether samples are wild is a matter of the application's own median only where most of them are not.
TEST(Estimates, TwoWildSamplesOfThreeAreWild) {
  World world(model(36, 24), 100, 0.5);
  world.run(400);
  const AppId app{77};
  for (const Duration solo : {100ms, 5000ms, 5000ms}) world.estimates.sampled(app, solo, world.now);
  world.now += 1s;
  world.estimates.refresh(world.now);
  EXPECT_LT(world.estimates.solo(app) / 1e6, 200);
  // Where most of many are alike the application is slow.
  for (int i = 0; i < 2; ++i) world.estimates.sampled(app, 5000ms, world.now);
  world.now += 1s;
  world.estimates.refresh(world.now);
  EXPECT_GT(world.estimates.solo(app) / 1e6, 500);
}

TEST(Estimates, OldSamplesCountLess) {
  Estimates estimates = estimates_of(model(36, 24));
  const AppId app{0};
  TimePoint now{1s};
  const auto sample = [&](int times, Duration solo) {
    for (int i = 0; i < times; ++i) estimates.sampled(app, solo, now);
    now += 1s;
    estimates.refresh(now);
  };
  sample(100, 60ms);
  EXPECT_NEAR(to_ms(estimates.estimate(app, 1)), 60, 1);
  // As long as there is nothing newer they still count for something.
  now += 3600s;
  estimates.refresh(now);
  EXPECT_NEAR(to_ms(estimates.estimate(app, 1)), 60, 1);
  sample(12, 70ms);
  EXPECT_NEAR(to_ms(estimates.estimate(app, 1)), 70, 1);
}

// A slow spell is followed at once, and forgotten at once: what was learned before is not spoilt.
TEST(Estimates, ASlowSpellIsAMatterOfPace) {
  World world(model(36, 24), 36, 0.4);
  world.run(400);
  const auto solo = [&](std::uint32_t app) { return to_ms(world.estimates.estimate(AppId{app}, 1)); };
  const double quick = solo(0), slow = solo(1);
  world.pace = 8;
  world.run(8);
  EXPECT_NEAR(solo(0), 8 * quick, 3 * quick);
  world.run(450);
  EXPECT_NEAR(solo(0), 8 * quick, 2 * quick);
  EXPECT_NEAR(solo(1), 8 * slow, 2 * slow);
  world.pace = 1;
  world.run(5);
  EXPECT_NEAR(solo(0), quick, 0.35 * quick);
  EXPECT_NEAR(solo(1), slow, 0.35 * slow);
}

TEST(Estimates, TellABoundedNumberOfApplicationsApart) {
  World world(model(36, 24), 36, 0.4, {.most_apps = 8});
  world.run(200);
  // Names that nobody has heard of before: each is sampled once, and gives way to the next.
  for (std::uint32_t name = 10; name < 50'010; ++name) {
    world.estimates.arrived(AppId{name * 1000});
    world.estimates.sampled(AppId{name * 1000}, 500ms, world.now += 1ms);
    if (name % 4 != 0) continue;
    for (const AppId known : {AppId{0}, AppId{1}}) world.estimates.arrived(known);
    world.estimates.refresh(world.now);
  }
  EXPECT_LE(world.estimates.applications(), 9U);
  EXPECT_NEAR(to_ms(world.estimates.estimate(AppId{0}, 1)), world.truth(1, 30), 3) << "those in use stay";
  EXPECT_NEAR(to_ms(world.estimates.estimate(AppId{1}, 1)), world.truth(1, 90), 6);
}

TEST(Estimates, ATrialIsWorthWhileWhereNothingWasHeardForLong) {
  Estimates estimates = estimates_of(model(36, 24), {.trial_after = 1s, .trial_at_most = 4s});
  const AppId app{3};
  EXPECT_TRUE(estimates.worth_a_trial(app, TimePoint{1s})) << "never heard of";
  estimates.sampled(app, 60ms, TimePoint{1s});
  EXPECT_FALSE(estimates.worth_a_trial(app, TimePoint{1500ms}));
  EXPECT_TRUE(estimates.worth_a_trial(app, TimePoint{2s}));
  for (const Duration pause : {2s, 4s, 4s}) {
    estimates.ran({&app, 1}, 60ms, TimePoint{10s});
    estimates.tried(app, true);
    EXPECT_FALSE(estimates.worth_a_trial(app, TimePoint{10s} + pause - 1ms));
    EXPECT_TRUE(estimates.worth_a_trial(app, TimePoint{10s} + pause));
  }
  estimates.tried(app, false);
  EXPECT_TRUE(estimates.worth_a_trial(app, TimePoint{11s})) << "it was wrong";
}

}  // namespace
}  // namespace carillon::schedule::orloj
