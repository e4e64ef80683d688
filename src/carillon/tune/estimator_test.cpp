#include "carillon/tune/estimator.h"

#include <cmath>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/tune/model.h"

namespace carillon::tune {
namespace {

Estimator::Sample sample(std::uint32_t trial, double tau, int company, int width, double alpha, double beta,
                         double speed = 1) {
  const double times = width > 1 ? height(width, 1, beta) : std::pow(alpha, company - 1);
  return {trial, company, width, speed, tau * times / speed};
}

TEST(Estimator, KnowsNothingAtTheStart) {
  const Estimator e;
  EXPECT_FALSE(e.alpha().known);
  EXPECT_FALSE(e.beta().known);
  EXPECT_FALSE(e.move().known);
  EXPECT_FALSE(e.iteration(3).known);
}

TEST(Estimator, FindsWhatMadeTheTimes) {
  Estimator e;
  for (std::uint32_t t = 0; t < 4; ++t) {
    const double tau = 1 + t;
    for (const int company : {1, 2, 3}) e.add(sample(t, tau, company, 1, 1.2, 1.1));
    for (const int width : {2, 4}) e.add(sample(t, tau, 1, width, 1.2, 1.1, 2));
  }
  EXPECT_NEAR(e.alpha().value, 1.2, 1e-9);
  EXPECT_NEAR(e.beta().value, 1.1, 1e-9);
  EXPECT_LT(e.alpha().error, 1e-6);
  for (std::uint32_t t = 0; t < 4; ++t) EXPECT_NEAR(e.iteration(t).value, 1 + t, 1e-9);
  // Of one that has not reported: between the others, with an error as large as their spread.
  const Measured other = e.iteration(9);
  EXPECT_TRUE(other.known);
  EXPECT_EQ(other.seen, 0U);
  EXPECT_GT(other.value, 1);
  EXPECT_LT(other.value, 4);
  EXPECT_GT(other.error, 0.5);
}

// Two devices, or one in company: either may be what made the difference.
TEST(Estimator, OfTwoThatChangeTogetherNeitherIsKnown) {
  Estimator e;
  for (int i = 0; i < 5; ++i) {
    e.add(sample(0, 1, 1, 2, 2, 2));
    e.add(sample(0, 1, 2, 1, 2, 2));
  }
  EXPECT_FALSE(e.alpha().known);
  EXPECT_FALSE(e.beta().known);
  for (int i = 0; i < 5; ++i) e.add(sample(0, 1, 1, 1, 2, 2));
  EXPECT_NEAR(e.alpha().value, 2, 1e-9);
  EXPECT_NEAR(e.beta().value, 2, 1e-9);
}

// Unlike trials, each at one width: the slow ones in company. Their means say nothing firm.
TEST(Estimator, UnlikeTrialsDoNotPassForOverhead) {
  Estimator e;
  Random random(7);
  for (std::uint32_t t = 0; t < 20; ++t)
    e.add(sample(t, std::exp(random.normal()), t % 2 == 0 ? 1 : 2, 1, 1.2, 1));
  const Measured loose = e.alpha();
  ASSERT_TRUE(loose.known);
  EXPECT_GT(loose.error, 0.2);
  // A few trials at both say it.
  for (std::uint32_t t = 0; t < 20; t += 4)
    for (int i = 0; i < 2; ++i) {
      e.add(sample(100 + t, 5, 1, 1, 1.2, 1));
      e.add(sample(100 + t, 5, 2, 1, 1.2, 1));
    }
  EXPECT_NEAR(e.alpha().value, 1.2, 1e-6);
  EXPECT_LT(e.alpha().error, 0.01);
}

// Over many runs the true value is within two errors as often as it should be, and the error shrinks.
TEST(Estimator, ErrorsAreWhatTheySay) {
  Random random(3);
  int within = 0;
  double first = 0, last = 0;
  constexpr int runs = 400;
  for (int run = 0; run < runs; ++run) {
    Estimator e;
    for (std::uint32_t t = 0; t < 10; ++t)
      for (int i = 0; i < 8; ++i) {
        Estimator::Sample s = sample(t, 2, 1 + i % 2, 1, 1.3, 1);
        s.seconds *= std::exp(0.1 * random.normal());
        e.add(s);
        if (t == 1 && i == 7) first += e.alpha().error;
      }
    const Measured a = e.alpha();
    last += a.error;
    within += std::abs(a.value - 1.3) < 2 * a.error ? 1 : 0;
  }
  EXPECT_GT(within, runs * 0.92);
  EXPECT_LT(within, runs * 0.985);
  EXPECT_LT(last, 0.6 * first);
}

TEST(Estimator, CostOfAMoveIsTheMean) {
  Estimator e;
  e.add_move(1);
  EXPECT_EQ(e.move().value, 1);
  EXPECT_EQ(e.move().error, 1);  // one says little
  e.add_move(3);
  EXPECT_EQ(e.move().value, 2);
  EXPECT_NEAR(e.move().error, 1, 1e-12);
}

TEST(Estimator, ForgetsTrialsButNotOverheads) {
  Estimator e;
  for (const int company : {1, 2, 1, 2}) e.add(sample(0, 3, company, 1, 1.4, 1));
  e.forget(0);
  EXPECT_NEAR(e.alpha().value, 1.4, 1e-9);
  EXPECT_EQ(e.iteration(0).seen, 0U);
  e.add(sample(0, 8, 1, 1, 1.4, 1));
  EXPECT_NEAR(e.iteration(0).value, 8, 1e-9);
}

}  // namespace
}  // namespace carillon::tune
