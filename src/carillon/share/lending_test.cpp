#include "carillon/share/lending.h"

#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace carillon::share {
namespace {

using Change = Lending::Change;

TimePoint at(Duration since) { return TimePoint(1s + since); }

struct LendingTest : ::testing::Test {
  Lending lending{1ms};
  bool wants(Duration now) { return lending.told(std::nullopt, at(now)); }
  bool is_free(Duration now, TimePoint until = TimePoint::max()) { return lending.told(until, at(now)); }
  Lending::Look look(Duration now, bool anybody = true) { return lending.look(anybody, at(now)); }
};

TEST_F(LendingTest, WithoutJobsNobodyIsDisturbed) {
  EXPECT_FALSE(is_free(0ms));
  EXPECT_EQ(look(9ms, false).change, Change::none);
  EXPECT_FALSE(wants(10ms));
  EXPECT_FALSE(is_free(11ms));
  EXPECT_FALSE(lending.lent());
}

TEST_F(LendingTest, IsLentOnceItWasFreeForLongEnoughAndTakenBackAtOnce) {
  EXPECT_EQ(look(0ms).change, Change::none) << "nobody has said that it is free";
  EXPECT_TRUE(is_free(1ms)) << "it was waited for";
  auto seen = look(1ms);
  EXPECT_EQ(seen.change, Change::none);
  EXPECT_EQ(seen.next, at(2ms));
  EXPECT_FALSE(wants(1500us)) << "it is not lent: nobody is to be woken";
  EXPECT_FALSE(is_free(1700us)) << "it is looked at anyway";
  seen = look(2ms);
  EXPECT_EQ(seen.change, Change::none);
  EXPECT_EQ(seen.next, at(2700us)) << "free since 1.7 ms";
  seen = look(2700us);
  EXPECT_EQ(seen.change, Change::lend);
  EXPECT_EQ(seen.until, TimePoint::max());
  EXPECT_EQ(seen.next, TimePoint::max());
  EXPECT_TRUE(lending.lent());
  EXPECT_EQ(look(3ms).change, Change::none);
  EXPECT_TRUE(wants(4ms));
  EXPECT_EQ(look(4ms).change, Change::take_back);
  EXPECT_FALSE(lending.lent());
  EXPECT_EQ(look(5ms).next, TimePoint::max()) << "who has it says when it is free";
}

TEST_F(LendingTest, IsNotLentForAShorterTimeThanItsRest) {
  look(0ms);
  EXPECT_TRUE(is_free(0ms, at(1500us)));
  EXPECT_EQ(look(1ms).change, Change::none) << "half a millisecond is left";
  EXPECT_EQ(look(1ms).next, at(2500us));
  EXPECT_FALSE(is_free(1100us, at(9ms)));
  EXPECT_EQ(look(2500us).change, Change::lend);
  EXPECT_EQ(look(2600us).change, Change::none);
}

TEST_F(LendingTest, IsTakenBackWhereTheLastJobWent) {
  look(0ms);
  is_free(0ms);
  EXPECT_EQ(look(1ms).change, Change::lend);
  EXPECT_EQ(look(2ms, false).change, Change::take_back);
  EXPECT_FALSE(wants(3ms));
  EXPECT_FALSE(is_free(4ms));
  EXPECT_EQ(look(5ms).change, Change::lend) << "one came, and it was free for long enough";
}

TEST_F(LendingTest, WhoTookItBackAndGaveItAgainBeforeAnybodyLookedHadIt) {
  look(0ms);
  is_free(0ms);
  EXPECT_EQ(look(1ms).change, Change::lend);
  EXPECT_TRUE(wants(2ms));
  EXPECT_FALSE(is_free(3ms)) << "its bell has rung already";
  EXPECT_EQ(look(3ms).change, Change::none);
  EXPECT_TRUE(wants(4ms)) << "it is lent still";
}

// One thread says the opposite just while another looks, many times: whatever the order of their steps, what was said is
// heard, by that look or by the one that told() asks for.
TEST(LendingThreads, WhatIsSaidWhileSomebodyLooksIsHeard) {
  constexpr int rounds = 100'000;
  std::optional<Lending> lending;
  std::atomic<int> round{0}, told{0};
  std::atomic<bool> rings{false};
  const auto says_free = [](int i) { return i % 2 == 0; };
  std::thread teller([&] {
    for (int i = 1; i <= rounds; ++i) {
      while (round != i && round >= 0) std::this_thread::yield();
      if (round < 0) return;
      for (int spin = i % 61; spin > 0; --spin) round.load();
      rings = lending->told(says_free(i) ? std::optional(TimePoint::max()) : std::nullopt, at(2ms));
      told = i;
    }
  });
  for (int i = 1; i <= rounds; ++i) {
    lending.emplace(Duration{0});
    lending->told(says_free(i) ? std::nullopt : std::optional(TimePoint::max()), at(1ms));
    round = i;
    for (int spin = i % 67; spin > 0; --spin) round.load();
    Lending::Look seen = lending->look(true, at(3ms));
    while (told != i) std::this_thread::yield();
    if (rings || seen.next != TimePoint::max()) seen = lending->look(true, at(3ms));
    EXPECT_EQ(lending->lent(), says_free(i)) << "round " << i;
    if (lending->lent() != says_free(i)) break;
  }
  if (round != rounds) round = -1;
  teller.join();
}

}  // namespace
}  // namespace carillon::share
