#include "carillon/cluster/partition/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/cluster/partition/testing/problems.h"

namespace carillon::cluster {
namespace {

using ::testing::HasSubstr;

Model model(std::int64_t rps, std::int64_t bytes, std::int64_t dynamic = 0, std::int64_t cost = 1) {
  return {.name = "m",
          .micro_rps = rps * micro_per_unit,
          .static_bytes = bytes,
          .dynamic_bytes = dynamic,
          .move_cost = cost};
}

TEST(Measure, SaysWhatADivisionIsWorth) {
  Problem problem{.models = {model(10, 4, 3), model(20, 6, 9), model(30, 10, 1)},
                  .groups = 2,
                  .memory_bytes = 19,
                  .current = {0, 0, no_group}};
  const Figures figures = measure(problem, {0, 0, 1});
  EXPECT_TRUE(figures.feasible);
  EXPECT_EQ(figures.move_cost, 0);
  EXPECT_EQ(figures.groups[0].models, (std::vector{0, 1}));
  EXPECT_EQ(figures.groups[0].micro_rps, 30 * micro_per_unit);
  EXPECT_EQ(figures.groups[0].static_bytes, 10);
  EXPECT_EQ(figures.groups[0].peak_bytes, 19);
  EXPECT_EQ(figures.objective, 0);
  const Figures other = measure(problem, {0, 1, 1});
  EXPECT_DOUBLE_EQ(other.load_imbalance, 40.0 / 30);
  EXPECT_DOUBLE_EQ(other.memory_imbalance, 12.0 / 10);
  EXPECT_DOUBLE_EQ(other.objective, 20.0 / 30 + 6.0 / 10);
  EXPECT_EQ(other.move_cost, 1);
  EXPECT_FALSE(other.feasible);  // 6 + 10 + 9 bytes
}

TEST(Measure, KnowsEachBound) {
  Problem problem{.models = {model(10, 4), model(20, 6)}, .groups = 1, .memory_bytes = 10, .current = {3, 0}};
  EXPECT_TRUE(measure(problem, {0, 0}).feasible);
  problem.max_micro_rps = 30 * micro_per_unit;
  problem.max_move = 1;
  EXPECT_TRUE(measure(problem, {0, 0}).feasible);
  problem.max_micro_rps = 30 * micro_per_unit - 1;
  EXPECT_FALSE(measure(problem, {0, 0}).feasible);
  problem.max_micro_rps.reset();
  problem.max_move = 0;
  EXPECT_FALSE(measure(problem, {0, 0}).feasible);
  problem.max_move.reset();
  problem.memory_bytes = 9;
  EXPECT_FALSE(measure(problem, {0, 0}).feasible);
}

TEST(CheckSums, SaysWhichSumExceedsWhat) {
  const struct {
    Problem problem;
    const char* words;
  } rows[] = {
      {{.models = {model(1, 8, 3)}, .memory_bytes = 10},
       "model 'm' fits no group: its static_bytes 8 and dynamic_bytes 3 are 11 together, but memory_bytes is "
       "10"},
      {{.models = {model(7, 1)}, .memory_bytes = 10, .max_micro_rps = 6 * micro_per_unit},
       "model 'm' fits no group: its rate_rps is 7, but max_rate_rps is 6"},
      {{.models = {model(5, 1), model(5, 1), model(5, 1)},
        .groups = 2,
        .memory_bytes = 10,
        .max_micro_rps = 7 * micro_per_unit},
       "rate_rps are 15 together, but 2 groups of max_rate_rps 7 bear 14; at least 3 groups"},
      {{.models = {model(5, 7), model(5, 6), model(5, 6, 2)}, .groups = 2, .memory_bytes = 10},
       "are 21 together, but 2 groups of memory_bytes 10 hold 20; at least 3 groups"},
      {{.models = {model(5, 6), model(5, 6), model(5, 6)}, .groups = 2, .memory_bytes = 10},
       "more than 2 models have static_bytes above half of memory_bytes 10"},
      {{.models = {model(4, 1), model(4, 1), model(4, 1)},
        .groups = 2,
        .memory_bytes = 10,
        .max_micro_rps = 7 * micro_per_unit},
       "more than 2 models have a rate_rps above half of max_rate_rps 7"},
      {{.models = {model(4, 1, 0, 6)}, .groups = 1, .memory_bytes = 10, .current = {1}, .max_move = 5},
       "--max-move 5 is too small: the models of groups that end have to move, which costs 6"},
  };
  for (const auto& [problem, words] : rows) {
    const auto checked = check_sums(problem);
    ASSERT_FALSE(checked) << words;
    EXPECT_THAT(checked.error().message, HasSubstr(words));
  }
}

TEST(Bounds, HoldForAllSmallProblems) {
  int feasible = 0;
  int tight = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const Problem problem = testing::small_problem(seed, 7, 3);
    const auto best = testing::best_of_all(problem);
    if (!check_sums(problem)) {
      EXPECT_FALSE(best) << "seed " << seed;
    } else if (best) {
      ++feasible;
      EXPECT_LE(objective_bound(problem), *best + 1e-12) << "seed " << seed;
      tight += objective_bound(problem) > *best - 1e-12;
    }
  }
  EXPECT_GT(feasible, 150);
  EXPECT_GT(tight, 50);
}

}  // namespace
}  // namespace carillon::cluster
