#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "carillon/base/testing/seeds.h"
#include "carillon/tune/testing/tune_world.h"

namespace carillon::tune {
namespace {

class RandomTuning : public ::testing::TestWithParam<std::string> {};

// CARILLON_TUNE_SEEDS=FIRST..LAST asks for other seeds.
TEST_P(RandomTuning, PromisesHoldAndEveryTrialEnds) {
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_TUNE_SEEDS", {0, 999});
  std::uint64_t changes = 0, most = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const testing::TuneWorldFigures figures = testing::run_tune_world(seed, GetParam());
    ASSERT_FALSE(figures.broken.has_value()) << "seed " << seed << ": " << *figures.broken;
    changes += figures.changes;
    most = std::max(most, figures.changes);
  }
  if (GetParam() == "fifo") {
    EXPECT_EQ(changes, 0U);
  } else if (GetParam() == "best") {
    EXPECT_GT(changes, 0U);
  }
}

TEST_P(RandomTuning, SameSeedSameRun) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto once = testing::run_tune_world(seed, GetParam()),
               again = testing::run_tune_world(seed, GetParam());
    EXPECT_EQ(once.events, again.events);
    EXPECT_EQ(once.changes, again.changes);
    EXPECT_EQ(once.end, again.end);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RandomTuning, ::testing::Values("fifo", "static", "dynamic", "best"),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace carillon::tune
