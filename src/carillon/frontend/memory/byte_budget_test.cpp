#include "carillon/frontend/memory/byte_budget.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::frontend {
namespace {

TEST(ConnectionShare, IsOfAllCallsOfAConnection) {
  const auto budget = std::make_shared<ByteBudget>(1000, 100);
  ConnectionShares shares(400, 100);
  const auto share = shares.of("a");
  EXPECT_EQ(shares.of("a"), share);
  EXPECT_NE(shares.of("b"), share);
  const CallOfConnection first(share);
  Reservation one(budget, nullptr, share);
  ASSERT_TRUE(one.grow(250));
  {
    const CallOfConnection second(share);
    Reservation two(budget, nullptr, share), of_another(budget, nullptr, shares.of("b"));
    EXPECT_FALSE(two.grow(51));
    EXPECT_TRUE(two.share_refused());
    EXPECT_EQ(budget->used(), 250U) << "nothing is taken from others";
    EXPECT_TRUE(two.grow(50));
    EXPECT_TRUE(of_another.grow(300));
    EXPECT_EQ(share->used(), 300U);
    EXPECT_FALSE(one.grow(1));
  }
  EXPECT_EQ(share->used(), 250U);
  EXPECT_TRUE(one.grow(500)) << "the only call may be as large as everything";
  one.shrink_to(0);
  EXPECT_EQ(share->used(), 0U);
}

TEST(ConnectionShare, OfConnectionsThatHaveGoneNothingIsKept) {
  ConnectionShares shares(2, 1);
  const auto kept = shares.of("kept");
  for (int i = 0; i < 1000; ++i) (void)shares.of(std::to_string(i));
  EXPECT_EQ(shares.of("kept"), kept);
  EXPECT_LT(shares.size(), 300U);
}

TEST(ConnectionShare, IsNeverLessThanOneMessage) {
  EXPECT_EQ(ConnectionShares(200, 100).of("a")->limit(), 100U);
  EXPECT_EQ(ConnectionShares(199, 100).of("a"), nullptr);
  EXPECT_EQ(ConnectionShares(100, 100).of("a"), nullptr);
  EXPECT_EQ(ConnectionShares(50, 100).of("a"), nullptr);
  // Without a share only the budget bounds.
  const auto budget = std::make_shared<ByteBudget>(1000, 900);
  ConnectionShares none(900, 900);
  const CallOfConnection first(none.of("a")), second(none.of("a"));
  Reservation one(budget, nullptr, first.share()), two(budget, nullptr, second.share());
  EXPECT_TRUE(one.grow(600));
  EXPECT_TRUE(two.grow(300));
  EXPECT_FALSE(two.grow(300));
  EXPECT_FALSE(two.share_refused());
}

constexpr std::size_t MiB = std::size_t{1} << 20;

TEST(ByteBudget, WhatIsTakenIsGivenBack) {
  const auto budget = std::make_shared<ByteBudget>(8 * MiB, MiB);
  {
    Reservation one(budget);
    ASSERT_TRUE(one.grow(MiB));
    ASSERT_TRUE(one.grow(MiB));
    EXPECT_EQ(budget->used(), 2 * MiB);
    one.shrink_to(MiB / 2);
    EXPECT_EQ(budget->used(), MiB / 2);
    Reservation other = std::move(one);
    EXPECT_EQ(other.bytes(), MiB / 2);
    other = Reservation(budget);
    EXPECT_EQ(other.bytes(), 0U);
  }
  EXPECT_EQ(budget->used(), 0U);
  EXPECT_FALSE(Reservation().grow(1));
}

TEST(ByteBudget, LargeBodiesLeaveRoomForSmallOnes) {
  const auto budget = std::make_shared<ByteBudget>(8 * MiB, MiB);
  std::vector<Reservation> large;
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(large.emplace_back(budget).grow(MiB));
  Reservation late(budget);
  EXPECT_FALSE(late.grow(MiB));
  EXPECT_EQ(budget->refusals(), 1U);
  EXPECT_EQ(late.bytes(), 0U);
  EXPECT_TRUE(late.grow(ByteBudget::small));
  EXPECT_FALSE(late.grow(1)) << "it is large now";
  std::vector<Reservation> small;
  while (small.emplace_back(budget).grow(ByteBudget::small)) continue;
  EXPECT_EQ(budget->used(), 8 * MiB);
}

TEST(ByteBudget, TheLargestBodyFitsWhenNothingElseIsInFlight) {
  const auto budget = std::make_shared<ByteBudget>(MiB, MiB);
  EXPECT_TRUE(Reservation(budget).grow(MiB));
  EXPECT_FALSE(Reservation(budget).grow(MiB + 1));
  EXPECT_FALSE(Reservation(budget).grow(SIZE_MAX));
  EXPECT_EQ(budget->used(), 0U);
}

TEST(ByteBudget, WhatIsOverdrawnKeepsOthersOut) {
  const auto budget = std::make_shared<ByteBudget>(MiB, MiB);
  Reservation over(budget);
  over.overdraw(3 * MiB);
  EXPECT_EQ(over.bytes(), 3 * MiB);
  EXPECT_EQ(budget->used(), 3 * MiB);
  Reservation other(budget);
  EXPECT_FALSE(other.grow(1));
  over.shrink_to(1);
  EXPECT_TRUE(other.grow(MiB - 1));
  over.shrink_to(0);
  Reservation().overdraw(MiB);  // of nothing
  EXPECT_EQ(budget->largest(), MiB);
  EXPECT_EQ(std::make_shared<ByteBudget>(8 * MiB, MiB)->largest(), 7 * MiB);
}

// From several threads at once no more is ever held than the limit.
TEST(ByteBudget, NeverHoldsMoreThanItsLimit) {
  const auto budget = std::make_shared<ByteBudget>(MiB, MiB / 4);
  std::atomic<std::size_t> held = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t));
      for (int i = 0; i < 20000; ++i) {
        Reservation mine(budget);
        const std::size_t want = random.below(MiB / 4);
        if (!mine.grow(want)) continue;
        if (held.fetch_add(want) + want > MiB) over = true;
        held.fetch_sub(want);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_EQ(budget->used(), 0U);
}

}  // namespace
}  // namespace carillon::frontend
