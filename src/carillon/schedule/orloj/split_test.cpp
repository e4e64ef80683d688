#include "carillon/schedule/orloj/split.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule::orloj {
namespace {

TEST(Split, PaddingCostsMoreThanABatchOfItsOwnOrItDoesNot) {
  // A run costs 36 whatever is in it.
  const CompanyCost cost{.extra = -36, .growth = 1};
  // A request of 48 beside one of 72: 24 of padding against 36.
  EXPECT_TRUE(quickest_company(std::vector<double>{48, 72}, cost).admits(72));
  // Two of them: 48 of padding against 36.
  const std::vector<double> mixed{72, 48, 48};
  EXPECT_FALSE(quickest_company(mixed, cost).admits(48)) << "the first is long";
  EXPECT_TRUE(quickest_company(mixed, cost).admits(72));
  const std::vector<double> short_first{48, 72, 48};
  EXPECT_FALSE(quickest_company(short_first, cost).admits(72));
  EXPECT_TRUE(quickest_company(short_first, cost).admits(48));
  EXPECT_TRUE(quickest_company(std::vector<double>{7}, cost).admits(7));
}

TEST(Split, IsTheBestOfAllSplitsInTwo) {
  Random random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> solos(1 + random.below(8));
    for (double& solo : solos) solo = 10.0 * static_cast<double>(1 + random.below(20));
    const CompanyCost cost{.extra = 300 * random.uniform() - 200, .growth = 1.5 * random.uniform()};
    const auto time = [&](const std::vector<double>& batch) {
      return batch.empty()
                 ? 0
                 : cost.of(static_cast<int>(batch.size()), *std::max_element(batch.begin(), batch.end()));
    };
    double least = time(solos);
    for (std::uint32_t subset = 1; subset < (1U << solos.size()); ++subset) {
      std::vector<double> in, out;
      for (std::size_t i = 0; i < solos.size(); ++i) ((subset >> i) & 1 ? in : out).push_back(solos[i]);
      least = std::min(least, time(in) + time(out));
    }
    const Company company = quickest_company(solos, cost);
    EXPECT_TRUE(company.admits(solos.front()));
    std::vector<double> in, out;
    for (const double solo : solos) (company.admits(solo) ? in : out).push_back(solo);
    EXPECT_NEAR(time(in) + time(out), least, 1e-6) << round;
  }
}

}  // namespace
}  // namespace carillon::schedule::orloj
