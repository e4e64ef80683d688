#include "carillon/engine/cuda/memory/cuda_memory.h"

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cuda/driver/emulated.h"

namespace carillon::engine::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Driver table = Emulated::table();

std::unique_ptr<CudaMemory> memory_of(std::uint64_t pages, Bytes io = kib(64), Bytes workspace = kib(64)) {
  auto made = CudaMemory::make(table, 0, {.pages = pages, .io = io, .workspace = workspace});
  EXPECT_TRUE(made) << made.error().message;
  return made ? std::move(*made) : nullptr;
}

std::vector<std::byte> bytes_of(std::uint64_t seed, std::uint64_t count) {
  Random random(seed);
  std::vector<std::byte> out(count);
  for (std::byte& each : out) each = static_cast<std::byte>(random.below(256));
  return out;
}

void expect_clean(const Emulated& device) {
  EXPECT_THAT(device.violations(), IsEmpty());
  EXPECT_EQ(device.left_behind(), "");
}

// In pieces of 2 MiB, of which each takes 1 ms besides; what is not pinned, by way of pieces of 1 MiB.
TEST(CudaMemory, WhatIsPinnedGoesStraight) {
  const Emulated device(
      {.bytes_per_second = 1e9, .copy = std::chrono::milliseconds{1}, .enqueue = Duration{0}});
  {
    const auto memory = memory_of(1, mib(8));
    const auto sent = bytes_of(1, 5 << 20);
    Context context = nullptr;
    void* pinned = nullptr;
    ASSERT_EQ(table.context_retain(&context, 0), done);
    ASSERT_EQ(table.context_push(context), done);
    ASSERT_EQ(table.host_allocate(&pinned, sent.size(), host_is_mapped), done);
    std::memcpy(pinned, sent.data(), sent.size());
    const std::span<const std::byte> from(static_cast<const std::byte*>(pinned), sent.size());
    const auto took = [&](std::span<const std::byte> bytes) {
      const Duration start = device.now();
      memory->copy_in(memory->io(0), bytes);
      std::vector<std::byte> back(bytes.size());
      const Duration end = device.now();
      memory->copy_out(back, memory->io(0));
      EXPECT_TRUE(std::ranges::equal(back, bytes));
      return to_ms(end - start);
    };
    const double bus = static_cast<double>(sent.size()) / 1e6;
    EXPECT_NEAR(took(from), bus + 3, 1e-3);
    EXPECT_NEAR(took(sent), bus + 5, 1e-3);
    EXPECT_NEAR(took(from.subspan(7, sent.size() - 7)), bus + 3, 1e-2) << "any part of it";
    EXPECT_EQ(table.host_free(pinned), done);
    EXPECT_EQ(table.context_pop(&context), done);
    EXPECT_EQ(table.context_release(0), done);
  }
  expect_clean(device);
}

TEST(CudaMemory, BlocksHoldWhatIsCopiedThere) {
  const Emulated device;
  {
    const auto memory = memory_of(2, mib(3), mib(2));
    EXPECT_EQ(memory->pages(), 2U);
    EXPECT_EQ(memory->io_size(), mib(4)) << "whole granules";
    EXPECT_EQ(memory->workspace_size(), mib(2));
    EXPECT_EQ(memory->access(memory->io(0)), nullptr);
    // More than goes through pinned memory at a time, and not at its start.
    const auto sent = bytes_of(1, 2'500'001);
    memory->copy_in(memory->io(192), sent);
    std::vector<std::byte> back(sent.size());
    memory->copy_out(back, memory->io(192));
    EXPECT_EQ(back, sent);
    memory->copy_in(memory->workspace(64), std::span(sent).first(1000));
    memory->copy_out(std::span(back).first(1000), memory->workspace(64));
    EXPECT_TRUE(std::equal(back.begin(), back.begin() + 1000, sent.begin()));
    EXPECT_FALSE(memory->lost());
  }
  expect_clean(device);
}

// Ranges come and go in a random order; each page keeps what its last user left, wherever it is mapped next.
TEST(CudaMemory, PagesMoveBehindRanges) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const Emulated device;
    {
      Random random(seed);
      const auto memory = memory_of(6);
      std::vector<std::uint32_t> free{0, 1, 2, 3, 4, 5};
      struct Loaded {
        WeightRange range;
        std::vector<std::uint32_t> pages;
      };
      std::vector<Loaded> loaded;
      std::map<std::uint32_t, std::uint64_t> tags;
      const auto first_words = [&](const Loaded& of, std::uint64_t i) {
        std::uint64_t word = 0;
        memory->copy_out(std::as_writable_bytes(std::span(&word, 1)), of.range.data + i * page_size.count);
        return word;
      };
      for (int step = 0; step < 60; ++step) {
        const std::uint64_t wanted = 1 + random.below(3);
        if (free.size() >= wanted && random.below(2) == 0) {
          auto range = memory->reserve(wanted);
          ASSERT_TRUE(range) << range.error().message;
          Loaded next{*range, {free.end() - static_cast<std::ptrdiff_t>(wanted), free.end()}};
          free.resize(free.size() - wanted);
          ASSERT_TRUE(memory->map(next.range, next.pages));
          for (std::uint64_t i = 0; i < wanted; ++i) {
            const std::uint32_t page = next.pages[i];
            if (tags.contains(page)) {
              EXPECT_EQ(first_words(next, i), tags[page]);
            }
            tags[page] = random.bits();
            memory->copy_in(next.range.data + i * page_size.count, std::as_bytes(std::span(&tags[page], 1)));
          }
          loaded.push_back(std::move(next));
        } else if (!loaded.empty()) {
          const std::size_t which = random.below(loaded.size());
          Loaded goes = std::move(loaded[which]);
          loaded.erase(loaded.begin() + static_cast<std::ptrdiff_t>(which));
          for (std::uint64_t i = 0; i < goes.pages.size(); ++i)
            EXPECT_EQ(first_words(goes, i), tags[goes.pages[i]]);
          memory->unmap(goes.range, goes.pages);
          memory->release(goes.range);
          free.insert(free.end(), goes.pages.begin(), goes.pages.end());
        }
      }
      for (const Loaded& rest : loaded) {
        memory->unmap(rest.range, rest.pages);
        memory->release(rest.range);
      }
    }
    expect_clean(device);
  }
}

TEST(CudaMemory, ALoadGivesAccessOnce) {
  const Emulated device;
  {
    const auto memory = memory_of(8);
    const auto range = memory->reserve(8).value();
    const std::vector<std::uint32_t> pages{7, 6, 5, 4, 3, 2, 1, 0};
    const std::uint64_t before = device.memory_calls();
    ASSERT_TRUE(memory->map(range, pages));
    EXPECT_EQ(device.memory_calls() - before, 8U + 1U);
    memory->unmap(range, pages);
    EXPECT_EQ(device.memory_calls() - before, 8U + 2U);
    memory->release(range);
  }
  expect_clean(device);
}

TEST(CudaMemory, WhatIsNotMappedFaults) {
  const Emulated device;
  {
    const auto memory = memory_of(1);
    const auto range = memory->reserve(1).value();
    EXPECT_DEATH(std::memset(range.data, 0, 1), "");
    memory->release(range);
  }
  expect_clean(device);
}

TEST(CudaMemory, WhereThereIsNotEnoughItSaysWhatThereIs) {
  const Emulated device({.memory = std::uint64_t{100} << 20});
  const auto made = CudaMemory::make(table, 0, {.pages = 7, .io = mib(2), .workspace = mib(2)});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(made.error().message, HasSubstr("116.0 MiB"));
  EXPECT_THAT(made.error().message, HasSubstr("100.0 MiB"));
  expect_clean(device);
}

// Whichever of the calls that make memory fails: nothing is left, and the error says what it was for.
TEST(CudaMemory, AFailureOnTheWayLeavesNothing) {
  int failures = 0;
  for (std::uint64_t n = 1; n < 12; ++n) {
    SCOPED_TRACE(n);
    const Emulated device({.fail_create = n});
    {
      const auto made = CudaMemory::make(table, 0, {.pages = 4, .io = mib(2), .workspace = mib(2)});
      if (!made) {
        ++failures;
        EXPECT_EQ(made.error().code, ErrorCode::resource_exhausted);
        EXPECT_THAT(made.error().message, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
      }
    }
    expect_clean(device);
  }
  EXPECT_EQ(failures, 2 + 4 + 4) << "blocks, pages, pinned memory";
}

// Both ways by streams of their own, and straight: their bytes are the same, and no LOAD's copy is waited
// for.
TEST(CudaMemory, HostIoIsMemoryThatCopiesGoStraightFrom) {
  const Emulated device(
      {.bytes_per_second = 1e9, .copy = std::chrono::milliseconds{1}, .enqueue = Duration{0}});
  {
    const auto memory = memory_of(1, mib(2));
    std::byte* const host = memory->host_io();
    ASSERT_NE(host, nullptr);
    EXPECT_EQ(memory->host_io(), host) << "it is taken once";
    const std::span<std::byte> all(host, memory->io_size().count);
    const auto sent = bytes_of(3, 1500);
    std::ranges::copy(sent, host + 500);
    const Duration start = device.now();
    memory->copy_in(memory->io(500), all.subspan(500, 1500));
    EXPECT_NEAR(to_ms(device.now() - start), 1.0015, 1e-3);
    std::ranges::fill(all, std::byte{7});
    memory->copy_out(all.subspan(500, 1500), memory->io(500));
    EXPECT_TRUE(std::ranges::equal(all.subspan(500, 1500), sent));
    EXPECT_EQ(all[499], std::byte{7});
    EXPECT_EQ(all[2000], std::byte{7});
  }
  expect_clean(device);
}

TEST(CudaMemory, ALostDeviceIsSeen) {
  const Emulated device({.lose_after = 3});
  const auto memory = memory_of(2, mib(2));
  std::vector<std::byte> some(100, std::byte{1}), back(100, std::byte{9});
  memory->copy_in(memory->io(0), some);
  memory->copy_out(back, memory->io(0));
  EXPECT_EQ(back, some);
  EXPECT_FALSE(memory->lost());
  memory->copy_in(memory->io(0), some);
  std::vector<std::byte> kept(100, std::byte{9});
  memory->copy_out(kept, memory->io(0));
  EXPECT_TRUE(memory->lost());
  EXPECT_THAT(kept, ::testing::Each(std::byte{9})) << "left as it was";
  const auto range = memory->reserve(1).value();
  const std::vector<std::uint32_t> pages{0};
  const auto mapped = memory->map(range, pages);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().code, ErrorCode::unavailable);
  memory->release(range);
}

}  // namespace
}  // namespace carillon::engine::cuda
