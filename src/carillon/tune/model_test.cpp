#include "carillon/tune/model.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::tune {
namespace {

using ::testing::HasSubstr;

TEST(Heights, AreThoseOfEquation3_2) {
  EXPECT_DOUBLE_EQ(height(1, 1.3, 1.1), 1);
  EXPECT_DOUBLE_EQ(height(0.5, 1.3, 1.1), 1.3);
  EXPECT_DOUBLE_EQ(height(0.25, 1.3, 1.1), 1.3 * 1.3 * 1.3);
  EXPECT_DOUBLE_EQ(height(2, 1.3, 1.1), 1.1 / 2);
  EXPECT_DOUBLE_EQ(height(4, 1.3, 1.1), 1.1 * 1.1 * 1.1 / 4);
  EXPECT_DOUBLE_EQ(height(4, 1, 1), 0.25);
}

// O^p = 1 - (p - 1)/p * alpha: one more pays as long as alpha is below p/(p - 1).
TEST(PackingLimit, IsTheLastThatPaysByEquation3_1) {
  EXPECT_EQ(packing_limit(1, 0, 16), 16);  // nothing but `most` bounds it
  EXPECT_EQ(packing_limit(2, 0, 16), 1);   // O^2 = 0
  EXPECT_EQ(packing_limit(1.99, 0, 16), 2);
  EXPECT_EQ(packing_limit(1.5, 0, 16), 2);  // O^3 = 0
  EXPECT_EQ(packing_limit(1.49, 0, 16), 3);
  EXPECT_EQ(packing_limit(1.1, 0, 16), 10);   // 11/10 = p/(p - 1) at p = 11
  EXPECT_EQ(packing_limit(1.1, 0.2, 16), 3);  // O^3 = 0.267, O^4 = 0.175
  EXPECT_EQ(packing_limit(10, 0, 16), 1);
}

TEST(PackingLimit, IsFromMeasuredTimesToo) {
  const std::array times{10.0, 11.0, 14.0, 40.0};
  // O^2 = 0.45, O^3 = 0.152, O^4 < 0.
  EXPECT_EQ(packing_limit(times, 0, 16), 3);
  EXPECT_EQ(packing_limit(times, 0.2, 16), 2);
  EXPECT_EQ(packing_limit(std::array{10.0}, 0, 16), 1);  // what was not measured is not done
}

TEST(ScalingLimit, IsTheLastThatStillFalls) {
  EXPECT_EQ(scaling_limit(1, 8), 8);
  EXPECT_EQ(scaling_limit(2, 8), 1);
  EXPECT_EQ(scaling_limit(1.5, 8), 2);     // h(2) = 0.75, h(3) = 0.75
  EXPECT_EQ(scaling_limit(1.05, 64), 20);  // h(21) = h(20)
  for (const double beta : {1.01, 1.1, 1.2, 1.3, 1.6}) {
    const int d = scaling_limit(beta, 1000);
    EXPECT_TRUE(d == 1 || height(d, 1, beta) < height(d - 1, 1, beta)) << beta;
    EXPECT_GE(height(d + 1, 1, beta), height(d, 1, beta) * (1 - 1e-12)) << beta;
  }
}

TEST(Overheads, OutOfTheirRangesAreErrors) {
  EXPECT_TRUE(check_overheads(1.9, 1.24, 2, 4));
  EXPECT_TRUE(check_overheads(5, 5, std::nullopt, std::nullopt));
  EXPECT_THAT(check_overheads(0.9, 1, {}, {}).error().message, HasSubstr("at least 1"));
  EXPECT_THAT(check_overheads(2, 1, 2, {}).error().message, HasSubstr("below c/(c-1) = 2"));
  EXPECT_THAT(check_overheads(1, 1.25, {}, 4).error().message, HasSubstr("below 1 + 1/d = 1.25"));
  EXPECT_THAT(check_overheads(1, 0, {}, {}).error().message, HasSubstr("beta is 0"));
}

}  // namespace
}  // namespace carillon::tune
