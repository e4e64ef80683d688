#include "carillon/base/memory_account.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<MemoryAccount> account_of(Bytes models) {
  return MemoryAccount::make(
      {.models = models, .bound = "--memory 64MiB", .weights = mib(32), .least = [](const ModelNeed& need) {
         return mib(32) + need.memory + need.weights;
       }});
}

TEST(MemoryAccount, WritesWholeMebibytes) {
  EXPECT_EQ(whole_mib(mib(97)), "97MiB");
  EXPECT_EQ(whole_mib(mib(96) + Bytes{1}), "97MiB");
}

TEST(MemoryAccount, RefusesBeforeItIsTried) {
  const auto account = account_of(mib(32));
  const auto refused = account->take("large", {.memory = mib(50), .weights = mib(15)});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("--memory 64MiB is too small for model 'large': at least 97MiB"));
  EXPECT_EQ(account->left(), mib(32));
  const auto weights = account->take("wide", {.memory = mib(1), .weights = mib(33)});
  ASSERT_FALSE(weights);
  EXPECT_THAT(weights.error().message,
              HasSubstr("it needs 33.0 MiB for its weights, and there are 32.0 MiB"));
}

TEST(MemoryAccount, NamesNoBoundWhereNoneWouldDo) {
  const auto account = MemoryAccount::make(
      {.models = mib(32), .bound = "--memory 64MiB", .least = [](const ModelNeed&) { return Bytes{}; }});
  const auto refused = account->take("large", {.memory = mib(50)});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("is too small for model 'large'; it takes about 50.0 MiB"));
}

TEST(MemoryAccount, SaysThatOthersAreInTheWay) {
  const auto account = account_of(mib(32));
  auto first = account->take("first", {.memory = mib(20)});
  ASSERT_TRUE(first);
  const auto second = account->take("second", {.memory = mib(20)});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message,
              HasSubstr("for model 'second' beside those that are there: at least 72MiB"));
  EXPECT_THAT(second.error().message, HasSubstr("12.0 MiB are left for models"));
}

TEST(MemoryAccount, AsksOthersForWhatTheyDoWithout) {
  const auto account = account_of(mib(32));
  std::vector<Bytes> asked;
  std::optional<MemoryAccount::Charge> spare = account->take("spare", {.memory = mib(24)}).value();
  account->set_reclaim([&](Bytes needed) {
    asked.push_back(needed);
    const bool some = spare.has_value();
    spare.reset();
    return some;
  });
  EXPECT_FALSE(account->take("timid", {.memory = mib(10)}, MemoryAccount::Reclaims::nothing));
  EXPECT_TRUE(asked.empty());
  auto taken = account->take("bold", {.memory = mib(10)});
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_EQ(asked, std::vector{mib(2)});
  EXPECT_FALSE(account->take("third", {.memory = mib(23)}));
  EXPECT_EQ(asked.back(), mib(1)) << "where nothing comes of it, once";
  EXPECT_FALSE(taken->expect({.memory = mib(33)})) << "nobody needs to give anything for this";
  EXPECT_TRUE(taken->settle({.plans = mib(32), .weights = {}, .processes = {}}));
  EXPECT_EQ(asked.size(), 2U);
  account->shrink_by(mib(5));
  EXPECT_EQ(asked.back(), mib(5));
  account->set_reclaim({});
  account->shrink_by({});
  EXPECT_FALSE(account->take("more", {.memory = mib(10)}));
  EXPECT_EQ(asked.size(), 3U);
}

TEST(MemoryAccount, ChargesWhatIsTakenAndGetsItBack) {
  const auto account = account_of(mib(32));
  {
    auto charge = account->take("one", {.memory = mib(30)});
    ASSERT_TRUE(charge);
    EXPECT_EQ(account->counts().loading, mib(30));
    ASSERT_TRUE(charge->expect({.memory = mib(10)}));
    EXPECT_EQ(account->left(), mib(22));
    ASSERT_TRUE(charge->settle({.plans = mib(2), .weights = mib(3), .processes = mib(4)}));
    const auto counts = account->counts();
    EXPECT_EQ(counts.loading, Bytes{});
    EXPECT_EQ(counts.taken.plans, mib(2));
    EXPECT_EQ(counts.taken.weights, mib(3));
    EXPECT_EQ(counts.taken.processes, mib(4));
    const MemoryAccount::Charge moved = std::move(*charge);
    EXPECT_EQ(account->left(), mib(23));
  }
  EXPECT_EQ(account->left(), mib(32));
  EXPECT_EQ(account->counts().taken.sum(), Bytes{});
}

TEST(MemoryAccount, ToldOfMoreThanThereIsItRefuses) {
  const auto account = account_of(mib(32));
  {
    auto charge = account->take("grows", {.memory = mib(1)});
    ASSERT_TRUE(charge);
    const auto settled = charge->settle({.processes = mib(40)});
    ASSERT_FALSE(settled);
    EXPECT_THAT(settled.error().message,
                HasSubstr("--memory 64MiB is too small for model 'grows': at least 72MiB"));
    EXPECT_EQ(account->left(), Bytes{});
  }
  EXPECT_EQ(account->left(), mib(32));
}

TEST(MemoryAccount, ALowerBoundAdmitsLess) {
  const auto account = account_of(mib(32));
  auto charge = account->take("one", {.memory = mib(30)});
  ASSERT_TRUE(charge);
  account->shrink_by(mib(16));
  EXPECT_EQ(account->left(), Bytes{});
  EXPECT_FALSE(account->take("two", {.memory = mib(1)}));
  account->shrink_by({});
  EXPECT_TRUE(account->take("two", {.memory = mib(1)}));
}

TEST(MemoryAccount, ThreadsNeverTakeMoreThanThereIs) {
  const auto account = account_of(mib(32));
  std::atomic<int> taken = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        auto charge = account->take("any", {.memory = mib(10)});
        if (!charge) continue;
        ++taken;
        EXPECT_LE(account->counts().loading, mib(32));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(taken, 0);
  EXPECT_EQ(account->left(), mib(32));
}

}  // namespace
}  // namespace carillon
