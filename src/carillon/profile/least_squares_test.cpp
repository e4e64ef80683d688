#include "carillon/profile/least_squares.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::profile {
namespace {

LinearSystem random_system(Random& random, std::size_t rows, std::size_t terms) {
  LinearSystem system(terms);
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<double> row(terms);
    for (std::size_t j = 0; j < terms; ++j) row[j] = random.normal() * std::pow(10.0, static_cast<double>(j));
    system.add(row, random.normal());
  }
  return system;
}

TEST(LeastSquares, GivesBackWhatMadeTheValues) {
  LinearSystem system(3);
  for (double b : {1.0, 4.0, 16.0, 32.0}) system.add(std::array{b * b, b, 1.0}, 0.25 * b * b + 3 * b - 7);
  const auto x = system.solve();
  EXPECT_NEAR(x[0], 0.25, 1e-12);
  EXPECT_NEAR(x[1], 3, 1e-11);
  EXPECT_NEAR(x[2], -7, 1e-10);
}

TEST(LeastSquares, LeavesAResidualAtRightAnglesToEveryTerm) {
  Random random(1);
  for (int trial = 0; trial < 50; ++trial) {
    const LinearSystem system = random_system(random, 12, 4);
    const auto x = system.solve();
    for (std::size_t j = 0; j < 4; ++j) {
      double along = 0, length = 0;
      for (std::size_t i = 0; i < system.rows(); ++i) {
        double rest = system.value(i);
        for (std::size_t k = 0; k < 4; ++k) rest -= system.term(i, k) * x[k];
        along += rest * system.term(i, j);
        length += system.term(i, j) * system.term(i, j);
      }
      EXPECT_NEAR(along / std::sqrt(length), 0, 1e-10) << "trial " << trial << ", term " << j;
    }
  }
}

TEST(LeastSquares, ATermThatDependsOnOthersGetsZero) {
  LinearSystem system(3);
  for (double b : {1.0, 2.0, 3.0}) system.add(std::array{b, 2 * b, 1.0}, 5 * b + 1);
  const auto x = system.solve();
  EXPECT_NEAR(x[0], 5, 1e-12);
  EXPECT_EQ(x[1], 0);
  EXPECT_NEAR(x[2], 1, 1e-12);
  EXPECT_TRUE(std::ranges::all_of(LinearSystem(2).solve(), [](double each) { return each == 0; }));
}

// The oracle: of all sets of terms whose solution has none below 0, the one with the least squares.
TEST(LeastSquares, NonnegativeIsTheBestOfAllSetsOfTerms) {
  Random random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t terms = 1 + random.below(5);
    const LinearSystem system = random_system(random, 9, terms);
    const auto found = system.solve_nonnegative();
    EXPECT_TRUE(std::ranges::all_of(found, [](double each) { return each >= 0; }));
    double least = system.squares(std::vector<double>(terms));
    for (std::size_t set = 1; set < (std::size_t{1} << terms); ++set) {
      LinearSystem part(terms);
      for (std::size_t i = 0; i < system.rows(); ++i) {
        std::vector<double> row(terms);
        for (std::size_t j = 0; j < terms; ++j)
          if (set >> j & 1) row[j] = system.term(i, j);
        part.add(row, system.value(i));
      }
      const auto x = part.solve();
      if (std::ranges::all_of(x, [](double each) { return each >= 0; }))
        least = std::min(least, system.squares(x));
    }
    EXPECT_NEAR(system.squares(found), least, 1e-9 * (1 + least)) << "trial " << trial;
  }
}

TEST(LeastSquares, TheMedianRatioIgnoresAWildPoint) {
  const std::array points = {Point{1, 2}, Point{2, 4}, Point{3, 6}, Point{1, 100}, Point{0, 5}};
  EXPECT_DOUBLE_EQ(median_ratio(points), 2);
  EXPECT_DOUBLE_EQ(median_ratio(std::array{Point{1, 2}, Point{1, 4}}), 3);
  EXPECT_EQ(median_ratio({}), 0);
}

}  // namespace
}  // namespace carillon::profile
