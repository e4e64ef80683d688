#include "carillon/schedule/orloj/pace.h"

#include <cmath>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule::orloj {
namespace {

// Times that vary by themselves: of the size of `spread`, in logarithms.
struct World {
  explicit World(double of) : spread(of) {}
  void run(int times, double pace = 1) {
    for (int i = 0; i < times; ++i) one(pace);
  }
  void one(double pace) { learned.saw(7e6, 7e6 * pace * std::exp(spread * random.normal())); }

  double spread;
  Pace learned;
  Random random{5};
};

TEST(Pace, IsOneWhateverTimesVaryByThemselves) {
  for (const double spread : {0.0, 0.05, 0.3, 1.0}) {
    World world(spread);
    int other = 0;
    for (int i = 0; i < 3000; ++i) {
      world.one(1);
      other += world.learned.value() != 1 ? 1 : 0;
    }
    EXPECT_LT(other, 60) << spread;
  }
}

TEST(Pace, FollowsASlowSpellAndItsEnd) {
  for (const double spread : {0.0, 0.1, 0.3})
    for (const double pace : {4.0, 8.0, 16.0, 0.25}) {
      World world(spread);
      world.run(100);
      world.run(5, pace);
      EXPECT_NEAR(std::log2(world.learned.value()), std::log2(pace), 0.75) << spread << " " << pace;
      world.run(200, pace);
      EXPECT_NEAR(std::log2(world.learned.value()), std::log2(pace), 0.6) << spread << " " << pace;
      world.run(3);
      EXPECT_NEAR(std::log2(world.learned.value()), 0, 0.6) << spread << " " << pace;
    }
}

TEST(Pace, ALoneWildTimeIsNoChange) {
  for (const double wild : {10.0, 30.0, 1000.0, 0.02}) {
    World world(0.1);
    world.one(wild);
    EXPECT_EQ(world.learned.value(), 1) << "the first of all";
    world.run(100);
    world.one(wild);
    EXPECT_EQ(world.learned.value(), 1) << wild;
    world.run(2);
    EXPECT_EQ(world.learned.value(), 1) << wild;
  }
}

// What is learned slowly was learned wrongly: the pace makes good for it, and the centre does in the end.
TEST(Pace, IsDrawnBackToOne) {
  World world(0.05);
  world.run(500, 1.25);
  EXPECT_EQ(world.learned.value(), 1);
}

}  // namespace
}  // namespace carillon::schedule::orloj
