#include "carillon/share/client/survivors.h"

#include <gtest/gtest.h>

#include <memory>

namespace carillon::share::client {
namespace {

TEST(Survivors, TheThirdOfItsSizeIsKnownAgain) {
  const auto learned = std::make_unique<Survivors>();
  for (int i = 0; i < 3; ++i) {
    const std::uint32_t keys[] = {learned->key(1 << 20), learned->key(1 << 20), learned->key(1 << 20)};
    EXPECT_FALSE(learned->expected(keys[0]));
    EXPECT_FALSE(learned->expected(keys[1]));
    EXPECT_EQ(learned->expected(keys[2]), i > 0);
    EXPECT_FALSE(learned->expected(learned->key(1 << 21)));
    learned->survived(keys[2]);
    learned->next_iteration();
  }
}

TEST(Survivors, IsForgottenAfterThreeThatDied) {
  const auto learned = std::make_unique<Survivors>();
  const std::uint32_t key = learned->key(100'000);
  learned->survived(key);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(learned->expected(key));
    learned->died(key);
  }
  EXPECT_FALSE(learned->expected(key));
}

}  // namespace
}  // namespace carillon::share::client
