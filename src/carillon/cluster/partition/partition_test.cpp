#include "carillon/cluster/partition/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/cluster/partition/testing/problems.h"

namespace carillon::cluster {
namespace {

using ::testing::HasSubstr;

const PartitionOptions brief{.search = {.effort = 200'000}};

Model sized(std::int64_t bytes, std::int64_t rps = 1) {
  return {.name = "m", .micro_rps = rps * micro_per_unit, .static_bytes = bytes, .move_cost = bytes};
}

// What holds of every answer, whatever the problem.
void check(const Problem& problem, const Partition& found) {
  const Figures figures = measure(problem, found.division);
  EXPECT_TRUE(figures.feasible);
  EXPECT_EQ(figures.objective, found.figures.objective);
  EXPECT_LE(found.bound, figures.objective);
  EXPECT_EQ(found.proved, figures.objective <= found.bound + tolerance);
  if (!problem.current.empty()) return;
  int next = 0;  // groups have the numbers of their first models
  for (const int group : found.division) {
    EXPECT_LE(group, next);
    next = std::max(next, group + 1);
  }
}

TEST(Partition, KeepsItsPromises) {
  int proved = 0;
  for (std::uint64_t seed = 1000; seed < 1200; ++seed) {
    const Problem problem = testing::small_problem(seed, 8, 3);
    const auto best = testing::best_of_all(problem);
    const auto found = partition(problem, brief);
    if (!best) {
      EXPECT_FALSE(found) << "seed " << seed;
    } else if (found) {
      SCOPED_TRACE(seed);
      check(problem, *found);
      EXPECT_LE(found->bound, *best + 1e-12);
      EXPECT_LE(found->figures.objective, found->proved ? *best + tolerance : 4.0);
      proved += found->proved;
    }
  }
  EXPECT_GT(proved, 20);
}

// Twelve models in three groups: the most that all divisions of can be tried.
TEST(Partition, ProvesTheBest) {
  int searched = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Problem problem = testing::zoo_problem(seed, 12, 3);
    const auto best = testing::best_of_all(problem);
    ASSERT_TRUE(best);
    const auto found =
        partition(problem, {.search = {.effort = 1'000'000}, .proof_seconds = testing::long_enough});
    ASSERT_TRUE(found) << found.error().message;
    check(problem, *found);
    EXPECT_TRUE(found->proved) << "seed " << seed;
    EXPECT_NEAR(found->figures.objective, *best, tolerance) << "seed " << seed;
    EXPECT_NEAR(found->bound, *best, tolerance) << "seed " << seed;
    searched += measure(problem, search(problem, {.effort = 1'000'000})).objective < *best + tolerance;
  }
  EXPECT_GE(searched, 15);
}

TEST(Partition, ProvesTheBestWithinBounds) {
  int found_some = 0;
  int none = 0;
  for (std::uint64_t seed = 2000; seed < 2080; ++seed) {
    const Problem problem = testing::small_problem(seed, 9, 3);
    const auto best = testing::best_of_all(problem);
    const auto found =
        partition(problem, {.search = {.effort = 20'000}, .proof_seconds = testing::long_enough});
    ASSERT_EQ(found.has_value(), best.has_value()) << "seed " << seed;
    if (found) {
      SCOPED_TRACE(seed);
      check(problem, *found);
      EXPECT_TRUE(found->proved);
      EXPECT_NEAR(found->figures.objective, *best, tolerance);
      ++found_some;
    } else {
      EXPECT_THAT(found.error().message, ::testing::Not(HasSubstr("was found"))) << "seed " << seed;
      ++none;
    }
  }
  EXPECT_GT(found_some, 30);
  EXPECT_GT(none, 10);
}

TEST(Partition, SaysThatTheBoundOfMovesIsTooSmall) {
  const Problem problem{.models = {sized(5), sized(5), sized(5)},
                        .groups = 2,
                        .memory_bytes = 10,
                        .current = {0, 0, 0},
                        .max_move = 4};
  const auto found = partition(problem, brief);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("--max-move 4 is too small"));
  EXPECT_THAT(found.error().message, HasSubstr("one that costs 5 does"));
}

TEST(Partition, SaysWhichBoundStandsInTheWay) {
  const auto memory =
      partition({.models = {sized(7), sized(7), sized(6)}, .groups = 2, .memory_bytes = 12}, brief);
  ASSERT_FALSE(memory);
  EXPECT_THAT(memory.error().message, HasSubstr("but memory_bytes is 12"));
  const auto rate = partition({.models = {sized(1, 4), sized(1, 4), sized(1, 4)},
                               .groups = 2,
                               .memory_bytes = 12,
                               .max_micro_rps = 6 * micro_per_unit},
                              brief);
  ASSERT_FALSE(rate);
  EXPECT_THAT(rate.error().message, HasSubstr("max_rate_rps"));
  // Five models of three bytes: three of them do not fit one group, whatever the sums say.
  const auto whole = partition(
      {.models = {sized(3), sized(3), sized(3), sized(3), sized(3)}, .groups = 2, .memory_bytes = 8}, brief);
  ASSERT_FALSE(whole);
  EXPECT_THAT(whole.error().message, HasSubstr("models of group"));
  EXPECT_THAT(whole.error().message, HasSubstr("take 9 bytes"));
}

}  // namespace
}  // namespace carillon::cluster
