#include "carillon/schedule/first_that_fits.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::schedule {
namespace {

TEST(FirstThatFits, IsTheFirstOfThoseThatCountBetweenTheBounds) {
  FirstThatFits things;
  EXPECT_EQ(things.first(0, 100), FirstThatFits::none);
  things.assign({7, 3, 5, 3});
  EXPECT_EQ(things.first(0, 100), 0U);
  EXPECT_EQ(things.first(0, 6), 1U);
  EXPECT_EQ(things.first(4, 6), 2U);
  EXPECT_EQ(things.first(6, 4), FirstThatFits::none);
  things.count(1, false);
  EXPECT_EQ(things.first(3, 3), 3U);
  things.count(1, true);
  EXPECT_EQ(things.first(3, 3), 1U);
  EXPECT_EQ(things.counted(), 4U);
}

TEST(FirstThatFits, AgreesWithLookingAtAll) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Random random(seed);
    for (std::uint32_t count = 0; count < 40; ++count) {
      std::vector<std::uint64_t> sizes;
      for (std::uint32_t i = 0; i < count; ++i) sizes.push_back(random.below(12));
      std::vector<bool> in(count, true);
      FirstThatFits things;
      things.assign(sizes);
      for (int turn = 0; turn < 50; ++turn) {
        if (count > 0) {
          const auto thing = static_cast<std::uint32_t>(random.below(count));
          in[thing] = random.below(3) > 0;
          things.count(thing, in[thing]);
        }
        const std::uint64_t least = random.below(12), most = random.below(14);
        std::uint32_t want = FirstThatFits::none;
        for (std::uint32_t i = count; i-- > 0;)
          if (in[i] && least <= sizes[i] && sizes[i] <= most) want = i;
        EXPECT_EQ(things.first(least, most), want) << "seed " << seed << ", " << count << " things";
      }
    }
  }
}

}  // namespace
}  // namespace carillon::schedule
