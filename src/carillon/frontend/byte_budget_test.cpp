#include "carillon/frontend/byte_budget.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::frontend {
namespace {

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
