#include "carillon/cluster/partition/prove.h"

#include <gtest/gtest.h>

#include "carillon/cluster/partition/search.h"
#include "carillon/cluster/partition/testing/problems.h"

namespace carillon::cluster {
namespace {

using testing::best_of_all;
using testing::small_problem;

TEST(Prove, AgreesWithTryingAll) {
  int feasible = 0;
  int infeasible = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const Problem problem = small_problem(seed, 9, 3);
    const auto best = best_of_all(problem);
    const Proof proof = prove(problem, std::nullopt, testing::long_enough);
    EXPECT_EQ(proof.infeasible, !best) << "seed " << seed;
    EXPECT_EQ(proof.division.has_value(), best.has_value()) << "seed " << seed;
    infeasible += !best;
    if (!best || !proof.division) continue;
    ++feasible;
    EXPECT_TRUE(measure(problem, *proof.division).feasible) << "seed " << seed;
    EXPECT_NEAR(measure(problem, *proof.division).objective, *best, tolerance) << "seed " << seed;
    EXPECT_NEAR(proof.bound, *best, tolerance) << "seed " << seed;
  }
  EXPECT_GT(feasible, 40);
  EXPECT_GT(infeasible, 10);
}

TEST(Prove, KnowsNoMoreThanItHadTimeFor) {
  const Problem problem = testing::zoo_problem(1, 40, 4);
  const Division found = search(problem, {.effort = 1'000'000});
  const Proof none = prove(problem, found, 0);
  EXPECT_EQ(none.bound, 0);
  EXPECT_FALSE(none.division || none.infeasible);
  const Proof stopped = prove(problem, found, 0.05);
  EXPECT_LE(stopped.bound, measure(problem, found).objective + tolerance);
  EXPECT_FALSE(stopped.infeasible);
  EXPECT_TRUE(!stopped.division || measure(problem, *stopped.division).feasible);
  EXPECT_EQ(prove(testing::zoo_problem(1, 10'000, 10), std::nullopt, 60).bound, 0);  // beyond it
}

}  // namespace
}  // namespace carillon::cluster
