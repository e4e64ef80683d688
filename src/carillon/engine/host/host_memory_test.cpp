#include "carillon/engine/host/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "carillon/base/mix.h"
#include "carillon/base/random.h"

namespace carillon::engine {
namespace {

constexpr std::uint64_t page = page_size.count;

// No two places alike, and never zero, as `mix` is a bijection.
std::uint64_t word_at(std::uint64_t tag, std::uint64_t offset) {
  return mix((tag << 40) + offset + 1);
}

// The memory with an account of its free pages.
class Pages {
 public:
  explicit Pages(std::uint64_t count) {
    std::vector<std::string> notes;
    auto made = HostMemory::make({.pages = count, .io = kib(64), .workspace = kib(64)}, notes);
    EXPECT_TRUE(made) << made.error().message;
    memory = std::move(*made);
    for (std::uint64_t i = count; i > 0; --i) free.push_back(static_cast<std::uint32_t>(i - 1));
  }
  struct Range {
    WeightRange at;
    std::vector<std::uint32_t> held;
    bool mapped = false;
    std::byte* data() const { return at.data; }
    std::uint64_t pages() const { return at.pages; }
  };
  Range reserve(std::uint64_t pages) {
    const auto range = memory->reserve(pages);
    EXPECT_TRUE(range) << range.error().message;
    return {*range, {}, false};
  }
  bool map(Range& range) {
    if (range.pages() > free.size()) return false;
    range.held.assign(free.end() - static_cast<std::ptrdiff_t>(range.pages()), free.end());
    free.resize(free.size() - range.pages());
    const auto mapped = memory->map(range.at, range.held);
    EXPECT_TRUE(mapped) << mapped.error().message;
    return range.mapped = true;
  }
  void unmap(Range& range) {
    memory->unmap(range.at, range.held);
    free.insert(free.end(), range.held.begin(), range.held.end());
    range.mapped = false;
  }
  std::unique_ptr<HostMemory> memory;
  std::vector<std::uint32_t> free;
};
using Range = Pages::Range;

// One word in every small page of the range, so also on both sides of every border.
void write(const Range& range, std::uint64_t tag) {
  for (std::uint64_t at = 0; at < range.pages() * page; at += 4096) {
    const std::uint64_t word = word_at(tag, at);
    std::memcpy(range.data() + at, &word, 8);
  }
}
bool holds(const Range& range, std::uint64_t tag) {
  for (std::uint64_t at = 0; at < range.pages() * page; at += 4096) {
    std::uint64_t word = 0;
    std::memcpy(&word, range.data() + at, 8);
    if (word != word_at(tag, at)) return false;
  }
  return true;
}

TEST(HostMemory, RoundsWeightsUpToPages) {
  const struct {
    std::uint64_t bytes, pages;
  } rows[] = {{0, 0}, {1, 1}, {page, 1}, {page + 1, 2}, {7 * page, 7}};
  Pages cache(1);
  for (const auto& [bytes, pages] : rows) {
    EXPECT_EQ(pages_for({bytes}), pages);
    const Range range = cache.reserve(pages);
    EXPECT_EQ(range.pages(), pages);
    EXPECT_EQ(range.data() == nullptr, pages == 0);
  }
}

TEST(HostMemory, CopiesInAndOut) {
  Pages cache(1);
  HostMemory& memory = *cache.memory;
  const std::string text = "sixteen bytes !!";
  memory.copy_in(memory.io(64), std::as_bytes(std::span(text)));
  std::string back(text.size(), ' ');
  memory.copy_out(std::as_writable_bytes(std::span(back)), memory.io(64));
  EXPECT_EQ(back, text);
  EXPECT_EQ(memory.access(memory.workspace(0)), memory.workspace(0));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.io(0)) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.workspace(0)) % 64, 0U);
}

// Small pages of which neighbours move together, wherever they were before.
TEST(HostMemory, SmallPagesKeepTheirBytesInRandomRuns) {
  constexpr Bytes small = kib(64);
  constexpr std::uint64_t count = 256;
  std::vector<std::string> notes;
  auto made = HostMemory::make({.pages = count, .page = small, .io = kib(64), .workspace = kib(64)}, notes);
  ASSERT_TRUE(made) << made.error().message;
  HostMemory& memory = **made;
  EXPECT_EQ(memory.page(), small);
  struct Model {
    WeightRange range;
    std::vector<std::uint32_t> held;  // empty: it is not mapped
    std::uint64_t tag = 0;
  };
  Random random(5);
  std::vector<Model> models(24);
  for (Model& model : models) {
    const auto range = memory.reserve(1 + random.below(70));
    ASSERT_TRUE(range);
    model.range = *range;
  }
  std::set<std::uint32_t> free;
  for (std::uint32_t i = 0; i < count; ++i) free.insert(i);
  const auto words = [&](const Model& model) { return model.range.pages * small.count / 4096; };
  for (int round = 0; round < 2000; ++round) {
    Model& model = models[random.below(models.size())];
    if (!model.held.empty()) {
      for (std::uint64_t i = 0; i < words(model); ++i) {
        std::uint64_t there = 0;
        std::memcpy(&there, model.range.data + i * 4096, 8);
        ASSERT_EQ(there, word_at(model.tag, i));
      }
      memory.unmap(model.range, model.held);
      free.insert(model.held.begin(), model.held.end());
      model.held.clear();
    } else if (free.size() >= model.range.pages) {
      // Neighbours mostly, now and then one from anywhere.
      while (model.held.size() < model.range.pages) {
        auto next = model.held.empty() || random.below(8) == 0
                        ? free.lower_bound(static_cast<std::uint32_t>(random.below(count)))
                        : free.lower_bound(model.held.back());
        if (next == free.end()) next = free.begin();
        model.held.push_back(*next);
        free.erase(next);
      }
      ASSERT_TRUE(memory.map(model.range, model.held));
      model.tag = static_cast<std::uint64_t>(round);
      for (std::uint64_t i = 0; i < words(model); ++i) {
        const std::uint64_t word = word_at(model.tag, i);
        std::memcpy(model.range.data + i * 4096, &word, 8);
      }
    }
  }
  for (Model& model : models) {
    if (!model.held.empty()) memory.unmap(model.range, model.held);
    memory.release(model.range);
  }
}

TEST(HostMemory, ATensorMaySpanScatteredPages) {
  Pages cache(4);
  Range a = cache.reserve(1), b = cache.reserve(1), c = cache.reserve(1), d = cache.reserve(1);
  for (auto* range : {&a, &b, &c, &d}) ASSERT_TRUE(cache.map(*range));
  cache.unmap(d);
  cache.unmap(b);  // free now: the second and the fourth page, which are no neighbours
  write(a, 1);
  write(c, 3);
  Range wide = cache.reserve(2);
  ASSERT_TRUE(cache.map(wide));
  std::memset(wide.data() + page - 1000, 0x5a, 2000);  // one write over the border
  EXPECT_EQ(wide.data()[page - 1], std::byte{0x5a});
  EXPECT_EQ(wide.data()[page], std::byte{0x5a});
  write(wide, 2);
  EXPECT_TRUE(holds(wide, 2) && holds(a, 1) && holds(c, 3));
}

// How much of the range the process has in its page tables, in KiB.
std::uint64_t resident_kib(const Range& range) {
  std::ifstream in("/proc/self/smaps");
  std::uint64_t sum = 0;
  bool inside = false;
  const auto first = reinterpret_cast<std::uintptr_t>(range.data());
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::uint64_t from = 0, to = 0;
    char dash = 0;
    if (words >> std::hex >> from >> dash >> to && dash == '-') {
      inside = from < first + range.pages() * page && to > first;
    } else if (inside && line.starts_with("Rss:")) {
      std::uint64_t value = 0;
      EXPECT_TRUE(std::istringstream(line.substr(4)) >> value) << line;
      sum += value;
    }
  }
  return sum;
}

// Memory is taken by what is written, once: who has the page next finds it there.
TEST(HostMemory, APageTakesMemoryWhenItIsWrittenAndKeepsIt) {
  Pages cache(2);
  Range range = cache.reserve(2);
  ASSERT_TRUE(cache.map(range));
  EXPECT_EQ(resident_kib(range), 0U);
  std::memset(range.data(), 1, 2 * page);
  EXPECT_EQ(resident_kib(range), 2 * page / 1024);
  cache.unmap(range);
  EXPECT_EQ(resident_kib(range), 0U);
  Range next = cache.reserve(2);
  ASSERT_TRUE(cache.map(next));
  EXPECT_EQ(resident_kib(next), 2 * page / 1024);
  cache.unmap(next);
}

TEST(HostMemory, AWorkspaceIsThereWhenItIsWanted) {
  std::vector<std::string> notes;
  auto memory = HostMemory::make({.pages = 1, .io = mib(1), .workspace = mib(8)}, notes);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  const auto resident = [&](std::uint64_t from, std::uint64_t size) {
    std::vector<unsigned char> there(size / 4096);
    EXPECT_EQ(mincore((*memory)->workspace(from), size, there.data()), 0);
    return std::ranges::count_if(there, [](unsigned char page) { return (page & 1) != 0; });
  };
  std::memset((*memory)->workspace(0), 7, 100);
  ASSERT_TRUE((*memory)->prepare_workspace(0, mib(2)).has_value());
  ASSERT_TRUE((*memory)->prepare_workspace(mib(6).count + 64, {1000}).has_value());
  EXPECT_EQ(resident(0, mib(2).count), mib(2).count / 4096);
  EXPECT_EQ(resident(mib(2).count, mib(4).count), 0);
  EXPECT_GT(resident(mib(6).count, mib(2).count), 0);
  EXPECT_EQ((*memory)->workspace(0)[99], std::byte{7}) << "what is there stays";
  EXPECT_TRUE((*memory)->prepare_workspace(0, {}).has_value());
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

TEST(HostMemory, StaleUseIsAFault) {
  Pages cache(2);
  Range range = cache.reserve(2);
  for (const bool mapped : {false, true, false, true, false}) {
    if (mapped) {
      ASSERT_TRUE(cache.map(range));
    } else if (range.mapped) {
      cache.unmap(range);
    }
    for (const std::uint64_t at : {std::uint64_t{0}, page - 1, page, 2 * page - 1})
      EXPECT_EQ(readable(range.data() + at), mapped) << at;
  }
}

// Random models come and go; each keeps its address and its content, and the number of free pages is the sum.
TEST(HostMemory, HoldsWhatWasWrittenThroughRandomLoadsAndUnloads) {
  constexpr std::uint64_t pages = 6;
  Pages cache(pages);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Random random(seed);
    std::vector<Range> ranges;
    std::vector<const std::byte*> address;
    for (int i = 0; i < 5; ++i) {
      ranges.push_back(cache.reserve(1 + random.below(3)));
      address.push_back(ranges.back().data());
    }
    std::uint64_t used = 0;
    for (int step = 0; step < 60; ++step) {
      const std::size_t i = random.below(ranges.size());
      Range& range = ranges[i];
      const std::uint64_t tag = 100 * seed + i;
      if (range.mapped) {
        ASSERT_TRUE(holds(range, tag)) << "seed " << seed << " step " << step;
        cache.unmap(range);
        used -= range.pages();
      } else {
        const bool want = used + range.pages() <= pages;
        ASSERT_EQ(cache.map(range), want) << "seed " << seed << " step " << step;
        if (want) {
          used += range.pages();
          write(range, tag);
        }
      }
      ASSERT_EQ(range.data(), address[i]);
      ASSERT_EQ(cache.free.size(), pages - used);
    }
    for (std::size_t i = 0; i < ranges.size(); ++i)
      if (ranges[i].mapped) {
        ASSERT_TRUE(holds(ranges[i], 100 * seed + i));
        cache.unmap(ranges[i]);
      }
  }
}

}  // namespace
}  // namespace carillon::engine
