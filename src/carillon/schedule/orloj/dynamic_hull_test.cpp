#include "carillon/schedule/orloj/dynamic_hull.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule::orloj {
namespace {

using Points = std::map<std::uint32_t, DynamicHull::Point>;

// The best that any point gives is what the hull's answer gives, to rounding.
void expect_top(const DynamicHull& hull, const Points& points, double x) {
  const auto top = hull.top(x);
  ASSERT_EQ(top.has_value(), !points.empty());
  if (!top) return;
  double best = -HUGE_VAL, size = 0;
  for (const auto& [key, p] : points) {
    best = std::max(best, p.alpha * x + p.beta);
    size = std::max({size, std::abs(p.alpha * x), std::abs(p.beta)});
  }
  const auto found = points.find(*top);
  ASSERT_NE(found, points.end());
  EXPECT_NEAR(found->second.alpha * x + found->second.beta, best, 1e-9 * size) << "at " << x;
}

enum class Shape { cloud, circle, line, grid, scores };

DynamicHull::Point draw(Random& random, Shape shape) {
  const double u = random.uniform();
  switch (shape) {
    case Shape::cloud:
      return {random.normal(), random.normal()};
    case Shape::circle:  // all on the hull
      return {std::cos(3.14159 * u), std::sin(3.14159 * u)};
    case Shape::line:
      return {u, 2 - 3 * u};
    case Shape::grid:  // many level, many the same
      return {static_cast<double>(random.below(5)), static_cast<double>(random.below(5))};
    case Shape::scores: {  // what deadlines make: positive alphas without beta, negative ones with
      const double far = std::exp(-20 * u);
      return random.below(2) == 0 ? DynamicHull::Point{far, 0} : DynamicHull::Point{-far, random.uniform()};
    }
  }
  return {};
}

class DynamicHullTest : public ::testing::TestWithParam<Shape> {};

TEST_P(DynamicHullTest, AgreesWithLookingAtAll) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    DynamicHull hull;
    Points points;
    const int most = seed % 3 == 0 ? 400 : 25;
    for (int step = 0; step < 600; ++step) {
      const auto key = static_cast<std::uint32_t>(random.below(static_cast<std::uint64_t>(most)));
      if (points.contains(key)) {
        EXPECT_TRUE(hull.erase(key));
        points.erase(key);
      } else {
        EXPECT_FALSE(hull.erase(key));
        const auto p = draw(random, GetParam());
        hull.insert(key, p);
        points[key] = p;
      }
      ASSERT_EQ(hull.size(), points.size());
      if (step % 50 == 49) {
        const double factor = std::ldexp(1.0, static_cast<int>(random.below(40)) - 20);
        hull.scale_alpha(factor);
        for (auto& [_, p] : points) p.alpha *= factor;
      }
      for (const double x : {0.0, 0.01, 0.5, 1.0, 3.0, 1e3, 1e6 * random.uniform()})
        expect_top(hull, points, x);
      if (HasFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    ASSERT_LE(hull.depth(), 2 + static_cast<int>(2.5 * std::log2(1 + static_cast<double>(hull.size()))));
    while (!points.empty()) {
      EXPECT_TRUE(hull.erase(points.begin()->first));
      points.erase(points.begin());
    }
    EXPECT_TRUE(hull.empty());
    EXPECT_FALSE(hull.top(1));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DynamicHullTest,
                         ::testing::Values(Shape::cloud, Shape::circle, Shape::line, Shape::grid,
                                           Shape::scores));

TEST(DynamicHull, StaysBalancedInAnyOrder) {
  for (const bool ascending : {true, false}) {
    DynamicHull hull;
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const double alpha = ascending ? i : 4096.0 - i;
      hull.insert(i, {alpha, -alpha * alpha / 1e4});
    }
    EXPECT_LE(hull.depth(), 30);
    for (std::uint32_t i = 0; i < 4000; ++i) EXPECT_TRUE(hull.erase(i));
    EXPECT_EQ(hull.size(), 96U);
    EXPECT_LE(hull.depth(), 17);
  }
}

TEST(DynamicHull, PopsInTheOrderOfTheScore) {
  Random random(9);
  DynamicHull hull;
  std::map<std::uint32_t, double> scores;
  for (std::uint32_t i = 0; i < 500; ++i) {
    const auto p = draw(random, Shape::scores);
    hull.insert(i, p);
    scores[i] = p.alpha * 7 + p.beta;
  }
  double last = HUGE_VAL;
  while (const auto top = hull.top(7)) {
    EXPECT_LE(scores[*top], last + 1e-12);
    last = scores[*top];
    hull.erase(*top);
  }
}

}  // namespace
}  // namespace carillon::schedule::orloj
