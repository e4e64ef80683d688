#include "carillon/schedule/parts/kept.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::schedule::parts {
namespace {

class KeptTest : public ::testing::Test {
 protected:
  std::vector<std::uint32_t> take(std::size_t most) {
    std::vector<std::uint32_t> taken;
    kept_.take(most, [&](std::uint32_t line) { taken.push_back(line); });
    return taken;
  }
  Kept kept_;
};

TEST_F(KeptTest, LinesMayBeTriedAgainOnceRelievedAndOnceEach) {
  for (const std::uint32_t line : {7U, 2U, 7U}) kept_.keep(line);
  EXPECT_FALSE(kept_.relieved());
  EXPECT_TRUE(take(9).empty());
  kept_.relieve();
  EXPECT_TRUE(kept_.relieved());
  EXPECT_EQ(take(9), (std::vector<std::uint32_t>{7, 2}));
  EXPECT_FALSE(kept_.relieved());
  kept_.keep(7);
  kept_.relieve();
  EXPECT_EQ(take(9), (std::vector<std::uint32_t>{7})) << "it is kept anew";
}

TEST_F(KeptTest, SomeAtATimeAndNotThoseThatCameLater) {
  for (const std::uint32_t line : {1U, 2U, 3U}) kept_.keep(line);
  kept_.relieve();
  kept_.keep(4);
  EXPECT_EQ(take(2), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(take(2), (std::vector<std::uint32_t>{3}));
  EXPECT_TRUE(take(2).empty()) << "4 came after relieve()";
}

}  // namespace
}  // namespace carillon::schedule::parts
