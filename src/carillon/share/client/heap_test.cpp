#include "carillon/share/client/heap.h"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <vector>

#include "carillon/base/random.h"

namespace carillon::share::client {
namespace {

constexpr std::size_t range = 4096 * page_bytes;

// The heap never touches its range: any address will do.
struct Fixture {
  Heap heap;
  Fixture() { EXPECT_TRUE(heap.start(reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40U), range)); }
};

TEST(Heap, NothingCanBeTakenBeyondTheLimit) {
  Fixture f;
  EXPECT_EQ(f.heap.take(1, Heap::State::own), nullptr);
  f.heap.set_limit(10 * page_bytes);
  EXPECT_EQ(f.heap.tail(), 10 * page_bytes);
  EXPECT_EQ(f.heap.take(10 * page_bytes + 1, Heap::State::own), nullptr);
  Heap::Block* b = f.heap.take(10 * page_bytes, Heap::State::own);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(f.heap.find(f.heap.address(*b)), b);
  EXPECT_EQ(f.heap.find(f.heap.address(*b) + page_bytes), nullptr);  // within it, not its start
  EXPECT_EQ(f.heap.take(1, Heap::State::own), nullptr);
  f.heap.give(b);
  EXPECT_EQ(f.heap.live(), 0U);
  EXPECT_EQ(f.heap.tail(), 10 * page_bytes);
}

TEST(Heap, ABlockBeyondAShrunkenLimitStaysUntilGivenBack) {
  Fixture f;
  f.heap.set_limit(10 * page_bytes);
  Heap::Block* low = f.heap.take(4 * page_bytes, Heap::State::own);
  Heap::Block* across = f.heap.take(4 * page_bytes, Heap::State::own);
  f.heap.set_limit(6 * page_bytes);
  EXPECT_EQ(f.heap.find(f.heap.address(*across)), across);
  EXPECT_EQ(f.heap.take(page_bytes, Heap::State::own), nullptr);
  f.heap.give(across);
  EXPECT_EQ(f.heap.tail(), 2 * page_bytes);
  f.heap.give(low);
  EXPECT_EQ(f.heap.tail(), 6 * page_bytes);
  EXPECT_EQ(f.heap.take(7 * page_bytes, Heap::State::own), nullptr);
  EXPECT_NE(f.heap.take(6 * page_bytes, Heap::State::own), nullptr);
}

// Against an oracle that knows of every page whether it is taken.
TEST(Heap, RandomBlocksNeverOverlapAndNoRoomIsLost) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Fixture f;
    std::size_t limit = 1000;
    f.heap.set_limit(limit * page_bytes);
    std::vector<bool> taken(4096, false);
    std::vector<bool> written(4096, false);  // since their pages were last given back
    std::vector<Heap::Block*> live;
    std::size_t shared = 0;
    for (int i = 0; i < 3000; ++i) {
      const auto what = random.below(100);
      if (what < 55) {
        const std::size_t pages = 1 + random.below(random.below(10) == 0 ? 300 : 30);
        const bool is_shared = random.below(2) == 0;
        Heap::Block* b = f.heap.take(pages * page_bytes - random.below(page_bytes),
                                     is_shared ? Heap::State::shared : Heap::State::own);
        std::size_t longest = 0, run = 0;
        for (std::size_t p = 0; p < limit; ++p) {
          run = taken[p] ? 0 : run + 1;
          longest = std::max(longest, run);
        }
        ASSERT_EQ(b != nullptr, longest >= pages) << "seed " << seed << " step " << i;
        if (!b) continue;
        ASSERT_LE(b->start + b->pages, limit);
        for (std::size_t p = b->start; p < b->start + b->pages; ++p) {
          ASSERT_FALSE(taken[p]) << "seed " << seed << " step " << i << " page " << p;
          taken[p] = written[p] = true;
        }
        if (is_shared) shared += b->pages;
        live.push_back(b);
      } else if (what < 96 && !live.empty()) {
        const std::size_t at = random.below(live.size());
        Heap::Block* b = live[at];
        ASSERT_EQ(f.heap.find(f.heap.address(*b)), b);
        if (b->state == Heap::State::shared) shared -= b->pages;
        for (std::size_t p = b->start; p < b->start + b->pages; ++p) taken[p] = false;
        f.heap.give(b);
        live[at] = live.back();
        live.pop_back();
        if (random.below(20) == 0) {
          f.heap.each_written([&](std::byte* address, std::size_t bytes) {
            const auto first = static_cast<std::size_t>(address - f.heap.base()) / page_bytes;
            for (std::size_t p = first; p < first + bytes / page_bytes; ++p) {
              EXPECT_FALSE(taken[p]) << "seed " << seed << " step " << i << " page " << p;
              written[p] = false;
            }
          });
          for (std::size_t p = 0; p < limit; ++p)
            ASSERT_TRUE(taken[p] || !written[p]) << "seed " << seed << " step " << i << " page " << p;
        }
      } else if (what < 98) {
        limit = 200 + random.below(3000);
        f.heap.set_limit(limit * page_bytes);
      } else if (Heap::Block* b = f.heap.first_shared()) {
        shared -= b->pages;
        f.heap.make_own(b);
      }
      ASSERT_EQ(f.heap.live_shared(), shared * page_bytes);
      ASSERT_EQ(f.heap.live(), static_cast<std::size_t>(std::ranges::count(taken, true)) * page_bytes);
      std::size_t tail = 0;
      while (tail < limit && !taken[limit - 1 - tail]) ++tail;
      ASSERT_EQ(f.heap.tail(), tail * page_bytes) << "seed " << seed << " step " << i;
    }
  }
}

}  // namespace
}  // namespace carillon::share::client
