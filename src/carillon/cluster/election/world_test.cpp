#include <algorithm>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/statistics.h"
#include "carillon/base/testing/seeds.h"
#include "carillon/cluster/election/testing/election_world.h"

namespace carillon::cluster::election::testing {
namespace {

// CARILLON_ELECTION_SEEDS=FIRST..LAST asks for other seeds.
carillon::testing::Seeds election_seeds() {
  return carillon::testing::seeds_from("CARILLON_ELECTION_SEEDS", {0, 999});
}

TEST(ElectionWorlds, PromisesHoldUnderAllFaults) {
  const auto [first, last] = election_seeds();
  ElectionWorldFigures sum;
  Duration rest{0};
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const auto figures = run_election_world(seed, Faults::all);
    ASSERT_FALSE(figures.broken) << "seed " << seed << ": " << *figures.broken;
    rest = std::max(rest, figures.rest);
    sum.events += figures.events;
    sum.epochs += figures.epochs;
    sum.orders += figures.orders;
    sum.refused += figures.refused;
    sum.handed_over += figures.handed_over;
    sum.withdrawn += figures.withdrawn;
    sum.denied += figures.denied;
    sum.unanswered += figures.unanswered;
    sum.stalls += figures.stalls;
    sum.unknown += figures.unknown;
  }
  std::printf(
      "%lu events, %lu epochs, %lu orders, %lu refused by the fence, %lu handovers, %lu withdrawn, %lu "
      "denied, "
      "%lu unanswered, %lu stalls, %lu unknown; at rest after %.1f ms at most\n",
      sum.events, sum.epochs, sum.orders, sum.refused, sum.handed_over, sum.withdrawn, sum.denied,
      sum.unanswered, sum.stalls, sum.unknown, to_ms(rest));
  // The faults reach what they are for.
  for (const std::uint64_t met :
       {sum.refused, sum.handed_over, sum.withdrawn, sum.denied, sum.unanswered, sum.stalls, sum.unknown})
    EXPECT_GT(met, 0U);
}

// How long nobody leads, over the seeds.
struct Gaps {
  Duration p50, p99;
};
Gaps measure_gaps(Faults faults, Plant plant = Plant::none) {
  const auto [first, last] = election_seeds();
  std::vector<Duration> gaps;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const auto figures = run_election_world(seed, faults, plant);
    EXPECT_FALSE(figures.broken) << "seed " << seed << ": " << *figures.broken;
    gaps.push_back(figures.gap);
  }
  const Duration p50 = percentile(gaps, 0.5), p99 = percentile(gaps, 0.99), most = percentile(gaps, 1);
  std::printf("without a leader: p50 %.1f ms, p99 %.1f ms, at most %.1f ms\n", to_ms(p50), to_ms(p99),
              to_ms(most));
  return {p50, p99};
}

TEST(ElectionWorlds, ACrashOfTheLeaderIsMendedSoon) {
  const auto [p50, p99] = measure_gaps(Faults::leader);
  EXPECT_LE(p50, 60ms);
  EXPECT_LE(p99, 150ms);
}

TEST(ElectionWorlds, TheRanksOfTheDeadAreNotWaitedFor) {
  const auto missed = measure_gaps(Faults::dead_spares);
  EXPECT_LE(missed.p50, 60ms);
  EXPECT_LE(missed.p99, 150ms);
  const auto waited_for = measure_gaps(Faults::dead_spares, Plant::none_missed);
  EXPECT_LT(missed.p50, waited_for.p50);
  EXPECT_LT(missed.p99, waited_for.p99);
}

TEST(ElectionWorlds, AHandoverTakesAMoment) {
  const auto [p50, p99] = measure_gaps(Faults::handover);
  EXPECT_LE(p50, 5ms);
  EXPECT_LE(p99, 10ms);
}

TEST(ElectionWorlds, NobodyIsElectedForTheSakeOfASpare) {
  const auto [first, last] = election_seeds();
  std::uint64_t denied = 0, unanswered = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const auto figures = run_election_world(seed, Faults::spare);
    ASSERT_FALSE(figures.broken) << "seed " << seed << ": " << *figures.broken;
    denied += figures.denied;
    unanswered += figures.unanswered;
  }
  std::printf("%lu questions denied, %lu unanswered, no election\n", denied, unanswered);
  EXPECT_GT(denied, 0U);
  EXPECT_GT(unanswered, 0U);
}

TEST(ElectionWorlds, NobodyIsElectedAfterAStallOfAllOthers) {
  const auto [first, last] = election_seeds();
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const auto figures = run_election_world(seed, Faults::stalls);
    ASSERT_FALSE(figures.broken) << "seed " << seed << ": " << *figures.broken;
  }
}

TEST(ElectionWorlds, SameSeedSameWorld) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto once = run_election_world(seed, Faults::all), again = run_election_world(seed, Faults::all);
    EXPECT_EQ(once.events, again.events);
    EXPECT_EQ(once.rest, again.rest);
  }
}

// Each mistake is found, and within how many seeds.
TEST(ElectionWorlds, PlantedMistakesAreFound) {
  const struct {
    Plant plant;
    const char* name;
    Faults faults;
  } rows[] = {
      {Plant::no_fence, "no fence", Faults::all},
      {Plant::no_compare, "a claim without compare-and-set", Faults::all},
      {Plant::stalls_counted, "own stalls counted", Faults::stalls},
      {Plant::stalls_counted, "a stall of the leader not noticed", Faults::all},
      {Plant::no_asking, "a claim without a question", Faults::spare},
      {Plant::blind_claim, "a lost answer taken for a lost claim", Faults::all},
      {Plant::no_stop, "a leader that does not stop", Faults::all},
      {Plant::no_incarnation, "a new process taken for the old one", Faults::all},
      {Plant::claims_cut_off, "a spare that is cut off claims", Faults::spare},
  };
  for (const auto& [plant, name, faults] : rows) {
    std::uint64_t seed = 0;
    std::optional<std::string> found;
    for (; seed < 1000 && !found; ++seed) found = run_election_world(seed, faults, plant).broken;
    EXPECT_TRUE(found) << name;
    if (found) std::printf("%s: seed %lu, %s\n", name, seed - 1, found->c_str());
  }
}

}  // namespace
}  // namespace carillon::cluster::election::testing
