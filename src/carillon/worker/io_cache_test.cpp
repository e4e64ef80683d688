#include "carillon/worker/io_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::worker {
namespace {

Arena arena(Bytes size) {
  std::vector<std::string> notes;
  auto taken = Arena::take(size, "test", notes);
  EXPECT_TRUE(taken) << taken.error().message;
  return std::move(*taken);
}

TEST(IoCache, GivesOneAlignedPieceAndSaysWhenItIsFull) {
  IoCache cache(arena(kib(64)));
  EXPECT_EQ(cache.capacity(), kib(64));
  const auto all = cache.allocate(kib(64).count);
  ASSERT_NE(all.data, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.data) % 64, 0U);
  EXPECT_EQ(cache.free(), Bytes{0});
  EXPECT_EQ(cache.allocate(1).data, nullptr);
  cache.release(all);
  EXPECT_EQ(cache.allocate(kib(64).count + 1).data, nullptr);
  EXPECT_EQ(cache.allocate(~0ULL).data, nullptr);
  EXPECT_NE(cache.allocate(0).data, nullptr);  // a place, if an empty one
}

TEST(IoCache, MergesNeighboursInAnyOrderOfRelease) {
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    IoCache cache(arena(kib(12)));
    IoCache::Piece pieces[3];
    for (auto& piece : pieces) piece = cache.allocate(4096);
    for (const int i : order) cache.release(pieces[i]);
    EXPECT_NE(cache.allocate(kib(12).count).data, nullptr);
  }
}

TEST(IoCache, PrefersTheTightestHole) {
  IoCache cache(arena(kib(64)));
  const auto wide = cache.allocate(kib(16).count);
  const auto wall = cache.allocate(1);
  const auto narrow = cache.allocate(kib(8).count);
  const auto end = cache.allocate(1);
  cache.release(wide);
  cache.release(narrow);
  EXPECT_EQ(cache.allocate(kib(8).count).data, narrow.data);
  EXPECT_EQ(cache.allocate(kib(16).count).data, wide.data);
  EXPECT_NE(wall.data, end.data);
}

// Live pieces never overlap, keep what is written, and an allocation fails only where no gap holds it.
TEST(IoCache, AgreesWithAMapOfGranules) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    constexpr std::size_t granules = 64;
    IoCache cache(arena({granules * IoCache::granule}));
    std::vector<std::pair<IoCache::Piece, int>> live;
    std::vector<int> owner(granules, 0);
    for (int step = 1; step < 2000; ++step) {
      if (random.below(5) < 3) {
        const std::uint64_t bytes = 1 + random.below(12 * IoCache::granule);
        const std::uint64_t need = (bytes + IoCache::granule - 1) / IoCache::granule;
        std::uint64_t longest = 0, run = 0;
        for (const int o : owner) longest = std::max(longest, run = o == 0 ? run + 1 : 0);
        const auto piece = cache.allocate(bytes);
        ASSERT_EQ(piece.data != nullptr, need <= longest) << "seed " << seed << " step " << step;
        if (piece.data == nullptr) continue;
        for (std::uint32_t g = piece.first; g < piece.first + piece.count; ++g) {
          ASSERT_EQ(std::exchange(owner[g], step), 0) << "seed " << seed << " step " << step;
        }
        std::memset(piece.data, step & 0xff, bytes);
        live.emplace_back(piece, step);
      } else if (!live.empty()) {
        std::swap(live[random.below(live.size())], live.back());
        const auto [piece, tag] = live.back();
        live.pop_back();
        ASSERT_EQ(static_cast<int>(*piece.data), tag & 0xff);
        for (std::uint32_t g = piece.first; g < piece.first + piece.count; ++g)
          ASSERT_EQ(std::exchange(owner[g], 0), tag);
        cache.release(piece);
      }
      ASSERT_EQ(cache.free().count / IoCache::granule,
                static_cast<std::uint64_t>(std::count(owner.begin(), owner.end(), 0)));
    }
  }
}

TEST(IoCacheDeathTest, ReleasingTwiceIsABug) {
  IoCache cache(arena(kib(64)));
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
}  // namespace carillon::worker
