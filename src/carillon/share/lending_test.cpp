#include "carillon/share/lending.h"

#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

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

// Whatever the order in which two threads run: who says something last, and rings where told() says so, is heard.
TEST(LendingThreads, WhatWasSaidLastIsHeard) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Lending lending{Duration{0}};
    std::atomic<int> rings{0};
    std::atomic<bool> done{false};
    const bool ends_free = seed % 2 == 0;
    std::thread teller([&] {
      Random random(seed);
      for (int i = 0; i < 200; ++i) {
        const bool is_free = i == 199 ? ends_free : random.uniform() < 0.5;
        if (lending.told(is_free ? std::optional(TimePoint::max()) : std::nullopt, TimePoint(Duration(i + 1)))) ++rings;
      }
      done = true;
    });
    // As the broker does: once at first, then only where it was woken, or asked to look by itself.
    auto last = lending.look(true, TimePoint(1s));
    for (int seen = 0;;) {
      const bool over = done;
      if (const int now = rings; now != seen || last.next != TimePoint::max()) {
        seen = now;
        last = lending.look(true, TimePoint(1s));
      } else if (over) {
        break;
      }
    }
    teller.join();
    ASSERT_EQ(lending.lent(), ends_free) << "seed " << seed;
  }
}

}  // namespace
}  // namespace carillon::share
