#include "carillon/cluster/partition/search.h"

#include <gtest/gtest.h>

#include "carillon/cluster/partition/testing/problems.h"

namespace carillon::cluster {
namespace {

using testing::best_of_all;
using testing::small_problem;
using testing::zoo_problem;

TEST(Search, FindsTheBestOfSmallProblems) {
  int best = 0;
  int feasible = 0;
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Problem problem = small_problem(seed, 9, 3);
    const auto wanted = best_of_all(problem);
    const Division division = search(problem, {.effort = 1'000'000, .seed = seed});
    const Figures figures = measure(problem, division);
    if (!wanted) {
      EXPECT_FALSE(figures.feasible) << "seed " << seed;
      continue;
    }
    ++feasible;
    if (!figures.feasible) continue;
    ++found;
    EXPECT_GE(figures.objective, *wanted - 1e-12) << "seed " << seed;
    best += figures.objective < *wanted + 1e-12;
  }
  RecordProperty("best", best);
  EXPECT_GT(feasible, 100);
  EXPECT_GE(found, feasible * 98 / 100);
  EXPECT_GE(best, feasible * 95 / 100) << "of " << feasible << ", feasible " << found;
}

TEST(Search, BalancesTheZoo) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    for (const auto& [models, groups] : {std::pair{400, 4}, {800, 20}}) {
      const Problem problem = zoo_problem(seed, models, groups);
      const Figures figures = measure(problem, search(problem, {.seed = seed}));
      EXPECT_TRUE(figures.feasible);
      EXPECT_LE(figures.load_imbalance, 0.002) << models << " models, seed " << seed;
      EXPECT_LE(figures.memory_imbalance, 0.002) << models << " models, seed " << seed;
    }
}

TEST(Search, FollowsRatesThatDriftWithinTheBoundOfMoves) {
  Problem problem = zoo_problem(7, 200, 8);
  problem.current = search(problem, {.effort = 5'000'000});
  Random dice(11);
  std::int64_t all = 0;
  for (const Model& m : problem.models) all += m.move_cost;
  problem.max_move = all / 20;
  for (int step = 0; step < 20; ++step) {
    for (Model& m : problem.models)
      m.micro_rps = std::llround(static_cast<double>(m.micro_rps) * (0.9 + 0.2 * dice.uniform()));
    const Division division = search(problem, {.effort = 5'000'000});
    const Figures figures = measure(problem, division);
    EXPECT_TRUE(figures.feasible) << "step " << step;
    EXPECT_LE(figures.move_cost, *problem.max_move);
    EXPECT_LE(figures.load_imbalance, 0.01) << "step " << step;
    EXPECT_LE(figures.memory_imbalance, 0.01) << "step " << step;
    problem.current = division;
  }
}

TEST(Search, KeepsTheDivisionInForceWhereNothingMayMove) {
  Problem problem = zoo_problem(3, 60, 4);
  for (std::size_t i = 0; i < 60; ++i) problem.current.push_back(static_cast<int>(i % 4));
  problem.max_move = 0;
  EXPECT_EQ(search(problem, {.effort = 1'000'000}), problem.current);
}

TEST(Search, CountsTheMovesOfGroupsThatEnd) {
  Problem problem = zoo_problem(5, 60, 4);
  std::int64_t forced = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    problem.current.push_back(static_cast<int>(i % 5));
    if (i % 5 == 4) forced += problem.models[i].move_cost;
  }
  problem.max_move = forced;
  const Figures least = measure(problem, search(problem, {.effort = 1'000'000}));
  EXPECT_TRUE(least.feasible);
  EXPECT_EQ(least.move_cost, forced);
  problem.max_move = forced * 3 / 2;
  const Figures more = measure(problem, search(problem, {.effort = 1'000'000}));
  EXPECT_TRUE(more.feasible);
  EXPECT_LT(more.objective, least.objective);
}

TEST(Search, KeepsTightBounds) {
  // A tenth of memory is free, and the largest dynamic sizes are as large.
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Problem problem = zoo_problem(seed, 60, 6);
    std::int64_t sum = 0;
    for (const Model& m : problem.models) sum += m.static_bytes;
    for (Model& m : problem.models) m.dynamic_bytes = m.static_bytes / 10;
    problem.memory_bytes = sum / 6 * 11 / 10;
    std::int64_t rate = 0;
    for (const Model& m : problem.models) rate += m.micro_rps;
    problem.max_micro_rps = rate / 6 * 101 / 100;
    EXPECT_TRUE(measure(problem, search(problem, {.effort = 5'000'000, .seed = seed})).feasible) << seed;
  }
}

TEST(Search, GivesTheSameTwice) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Problem problem = zoo_problem(seed, 300, 7);
    EXPECT_EQ(search(problem, {.effort = 5'000'000, .seed = seed}),
              search(problem, {.effort = 5'000'000, .seed = seed}));
  }
}

TEST(Search, EndsOnTheLargestProblems) {
  const Problem many = zoo_problem(1, 20'000, 2'000);
  EXPECT_TRUE(measure(many, search(many, {.effort = 5'000'000})).feasible);
  const Problem large = zoo_problem(1, 50'000, 3);
  EXPECT_LE(measure(large, search(large, {.effort = 5'000'000})).objective, 1e-3);
}

TEST(Search, TakesWhatHasNoLoadOrNoMemory) {
  Problem problem{.models = std::vector<Model>(6), .groups = 3, .memory_bytes = 1};
  EXPECT_EQ(measure(problem, search(problem, {.effort = 10'000})).objective, 0);
  problem.models[4].micro_rps = 5;
  EXPECT_DOUBLE_EQ(measure(problem, search(problem, {.effort = 10'000})).objective, 2);
}

}  // namespace
}  // namespace carillon::cluster
