#include "carillon/device/range_ledger.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::device {
namespace {

TEST(RangeLedger, GivesOnePieceAndSaysWhenItIsFull) {
  RangeLedger cache(kib(64));
  EXPECT_EQ(cache.capacity(), kib(64));
  const auto all = cache.allocate(kib(64).count);
  ASSERT_TRUE(all.there());
  EXPECT_EQ(cache.free(), Bytes{0});
  EXPECT_FALSE(cache.allocate(1).there());
  cache.release(all);
  EXPECT_FALSE(cache.allocate(kib(64).count + 1).there());
  EXPECT_FALSE(cache.allocate(~0ULL).there());
  EXPECT_TRUE(cache.allocate(0).there());  // a place, if an empty one
}

TEST(RangeLedger, OfNothingGivesNothing) {
  RangeLedger none(Bytes{RangeLedger::granule - 1});
  EXPECT_EQ(none.capacity(), Bytes{0});
  EXPECT_FALSE(none.allocate(0).there());
}

TEST(RangeLedger, MergesNeighboursInAnyOrderOfRelease) {
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    RangeLedger cache(kib(12));
    RangeLedger::Piece pieces[3];
    for (auto& piece : pieces) piece = cache.allocate(4096);
    for (const int i : order) cache.release(pieces[i]);
    EXPECT_TRUE(cache.allocate(kib(12).count).there());
  }
}

TEST(RangeLedger, PrefersTheTightestHole) {
  RangeLedger cache(kib(64));
  const auto wide = cache.allocate(kib(16).count);
  const auto wall = cache.allocate(1);
  const auto narrow = cache.allocate(kib(8).count);
  const auto end = cache.allocate(1);
  cache.release(wide);
  cache.release(narrow);
  EXPECT_EQ(cache.allocate(kib(8).count).first, narrow.first);
  EXPECT_EQ(cache.allocate(kib(16).count).first, wide.first);
  EXPECT_NE(wall.first, end.first);
}

// Live pieces never overlap, and an allocation fails only where no gap holds it.
TEST(RangeLedger, AgreesWithAMapOfGranules) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    constexpr std::size_t granules = 64;
    RangeLedger cache({granules * RangeLedger::granule});
    std::vector<std::pair<RangeLedger::Piece, int>> live;
    std::vector<int> owner(granules, 0);
    for (int step = 1; step < 2000; ++step) {
      if (random.below(5) < 3) {
        const std::uint64_t bytes = 1 + random.below(12 * RangeLedger::granule);
        const std::uint64_t need = (bytes + RangeLedger::granule - 1) / RangeLedger::granule;
        std::uint64_t longest = 0, run = 0;
        for (const int o : owner) longest = std::max(longest, run = o == 0 ? run + 1 : 0);
        const auto piece = cache.allocate(bytes);
        ASSERT_EQ(piece.there(), need <= longest) << "seed " << seed << " step " << step;
        if (!piece.there()) continue;
        for (std::uint32_t g = piece.first; g < piece.first + piece.count; ++g) {
          ASSERT_EQ(std::exchange(owner[g], step), 0) << "seed " << seed << " step " << step;
        }
        live.emplace_back(piece, step);
      } else if (!live.empty()) {
        std::swap(live[random.below(live.size())], live.back());
        const auto [piece, tag] = live.back();
        live.pop_back();
        for (std::uint32_t g = piece.first; g < piece.first + piece.count; ++g)
          ASSERT_EQ(std::exchange(owner[g], 0), tag);
        cache.release(piece);
      }
      ASSERT_EQ(cache.free().count / RangeLedger::granule,
                static_cast<std::uint64_t>(std::count(owner.begin(), owner.end(), 0)));
    }
  }
}

TEST(RangeLedgerDeathTest, ReleasingTwiceIsABug) {
  RangeLedger cache(kib(64));
  const auto piece = cache.allocate(1);
  cache.release(piece);
  EXPECT_DEATH(cache.release(piece), "is_free");
  // Also where it has become the inside of a longer run.
  const auto before = cache.allocate(1), after = cache.allocate(1), wall = cache.allocate(1);
  cache.release(before);
  cache.release(after);
  EXPECT_DEATH(cache.release(after), "is_free");
  cache.release(wall);
}

}  // namespace
}  // namespace carillon::device
