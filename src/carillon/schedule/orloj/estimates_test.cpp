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

// Requests of two applications run in batches of a world of its own c0 and c1.
struct World {
  explicit World(const ModelInfo& info, double c0_ms, double c1, const OrlojOptions& options = {})
      : estimates(info, options), cost{from_ms(c0_ms), c1} {
    for (std::uint32_t app = 0; app < 2; ++app) estimates.arrived(AppId{app});
    estimates.refresh(now);
  }
  Duration solo(AppId app) {
    const bool quick = app.index() == 0;
    return from_ms(std::max(1.0, (quick ? 30 : 90) + (quick ? 5 : 10) * random.normal()));
  }
  void run(int batches, double outliers = 0) {
    for (int i = 0; i < batches; ++i) {
      std::vector<AppId> members(std::size_t{1} << random.below(4));
      Duration longest{0};
      for (AppId& member : members) {
        member = AppId{static_cast<std::uint32_t>(random.below(2))};
        estimates.arrived(member);
        const Duration own = solo(member);
        longest = std::max(longest, own);
        if (sampling && random.uniform() < 0.1) estimates.sampled(member, own, now);
      }
      Duration took = cost.of(static_cast<int>(members.size()), longest);
      if (random.uniform() < outliers) took *= 10;
      estimates.ran(members, took);
      now += 100ms;
      estimates.refresh(now);
    }
  }
  Estimates estimates;
  profile::BatchCost cost;
  TimePoint now;
  bool sampling = true;
  Random random{7};
};

TEST(Estimates, StartFromTheSeeds) {
  Estimates plain(model(36, 24), {});
  EXPECT_NEAR(to_ms(plain.cost().c0), 36, 1e-3);
  EXPECT_NEAR(plain.cost().c1, 1, 1e-6) << "requests are as long as the line's slope";
  plain.arrived(AppId{0});
  plain.refresh(TimePoint{});
  EXPECT_NEAR(plain.batch(AppId{0}, 3).mean, 36 + 8 * 24, 0.01);

  ModelInfo measured = model(36, 24);
  measured.cost = profile::BatchCost{20ms, 0.5};
  Estimates given(measured, {});
  EXPECT_NEAR(to_ms(given.cost().c0), 20, 1e-3);
  EXPECT_NEAR(given.cost().c1, 0.5, 1e-6);
  given.arrived(AppId{0});
  given.refresh(TimePoint{});
  EXPECT_NEAR(given.batch(AppId{0}, 3).mean, 20 + 8 * 24, 0.01) << "a time that agrees with the batches";

  for (int i = 0; i < 100; ++i) measured.solos.push_back(from_ms(i < 50 ? 30 : 90));
  Estimates seeded(measured, {});
  seeded.arrived(AppId{5});
  seeded.refresh(TimePoint{});
  EXPECT_NEAR(seeded.solo(AppId{5}), 60e6, 1e3);
  EXPECT_NEAR(seeded.batch(AppId{5}, 0).mean, 20 + 0.5 * 60, 0.01);
  EXPECT_GT(seeded.batch(AppId{5}, 3).mean, 20 + 0.5 * 8 * 85) << "one of eight is nearly always long";
}

TEST(Estimates, LearnWhatBatchesCost) {
  // Seeds of c0 36, c1 0.4 for requests of 60 ms; the world's are half or twice that.
  for (const auto& [c0, c1] : {std::pair(36.0, 0.4), {18.0, 0.8}, {72.0, 0.2}, {72.0, 0.8}, {18.0, 0.2}}) {
    World world(model(36, 24), c0, c1);
    world.run(400);
    EXPECT_NEAR(to_ms(world.estimates.cost().c0), c0, 0.12 * c0 + 4) << c0 << " " << c1;
    EXPECT_NEAR(world.estimates.cost().c1, c1, 0.1 * c1) << c0 << " " << c1;
    for (const int k : {1, 4, 16}) {
      const double want = to_ms(world.cost.of(k, 80ms));
      EXPECT_NEAR(to_ms(world.estimates.cost().of(k, 80ms)), want, 0.07 * want) << k << " of " << c0;
    }
  }
}

TEST(Estimates, ForgetAWorldThatHasChanged) {
  World world(model(36, 24), 36, 0.4);
  world.run(3000);
  world.cost = {72ms, 0.2};
  world.run(3000);
  EXPECT_NEAR(to_ms(world.estimates.cost().of(1, 60ms)), 84, 6);
  EXPECT_NEAR(to_ms(world.estimates.cost().of(16, 90ms)), 360, 25);
}

TEST(Estimates, AreNotThrownByOutliersOrByInputsThatChange) {
  World world(model(36, 24), 36, 0.4);
  world.run(1000, 0.01);
  const profile::BatchCost cost = world.estimates.cost();
  EXPECT_NEAR(to_ms(cost.of(1, 60ms)), 60, 6);
  EXPECT_NEAR(to_ms(cost.of(16, 90ms)), 612, 61);
}

TEST(Estimates, LearnWithoutSamplesAndStartAnewWithThem) {
  World world(model(36, 24), 72, 0.8);
  world.sampling = false;
  world.run(400);
  // Nothing is known of single requests: c0 and c1 are those of a request of 24 ms.
  EXPECT_NEAR(world.estimates.batch(AppId{0}, 0).mean, 72 + 0.8 * 60, 25);
  EXPECT_NEAR(world.estimates.batch(AppId{0}, 3).mean, 72 + 0.8 * 8 * 95, 80);
  world.sampling = true;
  world.run(600);
  EXPECT_NEAR(to_ms(world.estimates.cost().c0), 72, 14);
  EXPECT_NEAR(world.estimates.cost().c1, 0.8, 0.08);
}

TEST(Estimates, SeedsStayWhereThatIsAskedFor) {
  World world(model(36, 24), 72, 0.8, {.cost_memory = 0});
  world.run(400);
  EXPECT_NEAR(to_ms(world.estimates.cost().c0), 36, 1e-3);
}

// One size and one application alone tell nothing of the line's slope.
TEST(Estimates, BatchesThatAreAllAlikeMoveTheLineOnly) {
  ModelInfo info = model(36, 24);
  Estimates estimates(info, {});
  const AppId app{0};
  TimePoint now{};
  estimates.arrived(app);
  for (int i = 0; i < 500; ++i) {
    estimates.ran({&app, 1}, 120ms);
    now += 500ms;
    estimates.refresh(now);
  }
  EXPECT_NEAR(estimates.batch(app, 0).mean, 120, 5);
  EXPECT_GT(estimates.batch(app, 4).mean, 300);
  EXPECT_LT(estimates.batch(app, 4).mean, 900);
}

}  // namespace
}  // namespace carillon::schedule::orloj
