#include "carillon/worker/page_cache.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "carillon/base/random.h"
#include "carillon/worker/fake_model.h"

namespace carillon::worker {
namespace {

using Outcome = PageCache::Outcome;

constexpr std::uint64_t page = page_size.count;

std::unique_ptr<PageCache> make(std::uint64_t pages) {
  std::vector<std::string> notes;
  auto cache = PageCache::make(pages, notes);
  EXPECT_TRUE(cache) << cache.error().message;
  return std::move(*cache);
}

PageCache::Range reserve(const PageCache& cache, std::uint64_t pages) {
  auto range = cache.reserve({pages * page});
  EXPECT_TRUE(range) << range.error().message;
  return std::move(*range);
}

// One word in every small page of the range, so also on both sides of every border.
void write(const PageCache::Range& range, std::uint64_t tag) {
  for (std::uint64_t at = 0; at < range.pages() * page; at += 4096) {
    const std::uint64_t word = testing::weight_word(tag, at);
    std::memcpy(range.data() + at, &word, 8);
  }
}
bool holds(const PageCache::Range& range, std::uint64_t tag) {
  for (std::uint64_t at = 0; at < range.pages() * page; at += 4096) {
    std::uint64_t word = 0;
    std::memcpy(&word, range.data() + at, 8);
    if (word != testing::weight_word(tag, at)) return false;
  }
  return true;
}

TEST(PageCache, RoundsWeightsUpToPages) {
  const struct {
    std::uint64_t bytes, pages;
  } rows[] = {{0, 0}, {1, 1}, {page, 1}, {page + 1, 2}, {7 * page, 7}};
  const auto cache = make(1);
  for (const auto& [bytes, pages] : rows) {
    EXPECT_EQ(Worker::pages_for({bytes}), pages);
    auto range = cache->reserve({bytes});
    ASSERT_TRUE(range);
    EXPECT_EQ(range->pages(), pages);
    EXPECT_EQ(range->data() == nullptr, pages == 0);
    EXPECT_FALSE(range->mapped());
  }
  EXPECT_EQ(cache->free_pages(), 1U);  // to reserve takes none
}

TEST(PageCache, ATensorMaySpanScatteredPages) {
  const auto cache = make(4);
  PageCache::Range a = reserve(*cache, 1), b = reserve(*cache, 1), c = reserve(*cache, 1),
                   d = reserve(*cache, 1);
  for (auto* range : {&a, &b, &c, &d}) ASSERT_EQ(cache->map(*range), Outcome::mapped);
  cache->unmap(d);
  cache->unmap(b);  // free now: the second and the fourth page, which are no neighbours
  write(a, 1);
  write(c, 3);
  PageCache::Range wide = reserve(*cache, 2);
  ASSERT_EQ(cache->map(wide), Outcome::mapped);
  std::memset(wide.data() + page - 1000, 0x5a, 2000);  // one write over the border
  EXPECT_EQ(wide.data()[page - 1], std::byte{0x5a});
  EXPECT_EQ(wide.data()[page], std::byte{0x5a});
  write(wide, 2);
  EXPECT_TRUE(holds(wide, 2) && holds(a, 1) && holds(c, 3));
}

TEST(PageCache, TakesAllOrNothing) {
  const auto cache = make(3);
  PageCache::Range a = reserve(*cache, 2), b = reserve(*cache, 2), none = reserve(*cache, 0);
  EXPECT_EQ(cache->map(a), Outcome::mapped);
  EXPECT_EQ(cache->free_pages(), 1U);
  EXPECT_EQ(cache->map(b), Outcome::no_pages);
  EXPECT_EQ(cache->free_pages(), 1U);
  EXPECT_FALSE(b.mapped());
  EXPECT_EQ(cache->map(none), Outcome::mapped);  // a model without weights needs nothing
  cache->unmap(none);
  cache->unmap(a);
  EXPECT_EQ(cache->free_pages(), 3U);
  EXPECT_EQ(cache->map(b), Outcome::mapped);
}

// How much of the range the process has in its page tables, in KiB.
std::uint64_t resident_kib(const PageCache::Range& range) {
  std::ifstream in("/proc/self/smaps");
  std::uint64_t sum = 0;
  bool inside = false;
  const auto first = reinterpret_cast<std::uintptr_t>(range.data());
  for (std::string line; std::getline(in, line);) {
    std::uint64_t from = 0, to = 0, value = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
      inside = from < first + range.pages() * page && to > first;
    else if (inside && std::sscanf(line.c_str(), "Rss: %lu kB", &value) == 1)
      sum += value;
  }
  return sum;
}

TEST(PageCache, AMappedRangeNeverFaults) {
  const auto cache = make(2);
  PageCache::Range range = reserve(*cache, 2);
  ASSERT_EQ(cache->map(range), Outcome::mapped);
  EXPECT_EQ(resident_kib(range), 2 * page / 1024);
  cache->unmap(range);
  EXPECT_EQ(resident_kib(range), 0U);
}

// Asks the kernel, which says so instead of sending a signal. (In a forked child the pages are missing
// anyway.)
bool readable(const std::byte* data) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const long wrote = syscall(SYS_write, ends[1], data, 1);
  EXPECT_TRUE(wrote == 1 || errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
  return wrote == 1;
}

TEST(PageCache, StaleUseIsAFault) {
  const auto cache = make(2);
  PageCache::Range range = reserve(*cache, 2);
  for (const bool mapped : {false, true, false, true, false}) {
    if (mapped) {
      ASSERT_EQ(cache->map(range), Outcome::mapped);
    } else if (range.mapped()) {
      cache->unmap(range);
    }
    for (const std::uint64_t at : {std::uint64_t{0}, page - 1, page, 2 * page - 1})
      EXPECT_EQ(readable(range.data() + at), mapped) << at;
  }
}

// Random models come and go; each keeps its address and its content, and the number of free pages is the sum.
TEST(PageCache, HoldsWhatWasWrittenThroughRandomLoadsAndUnloads) {
  constexpr std::uint64_t pages = 6;
  const auto cache = make(pages);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Random random(seed);
    std::vector<PageCache::Range> ranges;
    std::vector<const std::byte*> address;
    for (int i = 0; i < 5; ++i) {
      ranges.push_back(reserve(*cache, 1 + random.below(3)));
      address.push_back(ranges.back().data());
    }
    std::uint64_t used = 0;
    for (int step = 0; step < 60; ++step) {
      const std::size_t i = random.below(ranges.size());
      PageCache::Range& range = ranges[i];
      const std::uint64_t tag = 100 * seed + i;
      if (range.mapped()) {
        ASSERT_TRUE(holds(range, tag)) << "seed " << seed << " step " << step;
        cache->unmap(range);
        used -= range.pages();
      } else {
        const Outcome want = used + range.pages() <= pages ? Outcome::mapped : Outcome::no_pages;
        ASSERT_EQ(cache->map(range), want) << "seed " << seed << " step " << step;
        if (want == Outcome::mapped) {
          used += range.pages();
          write(range, tag);
        }
      }
      ASSERT_EQ(range.data(), address[i]);
      ASSERT_EQ(cache->free_pages(), pages - used);
    }
    for (std::size_t i = 0; i < ranges.size(); ++i)
      if (ranges[i].mapped()) {
        ASSERT_TRUE(holds(ranges[i], 100 * seed + i));
        cache->unmap(ranges[i]);
      }
  }
}

}  // namespace
}  // namespace carillon::worker
