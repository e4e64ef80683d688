#include "carillon/engine/cuda/memory/ipc_memory.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "carillon/base/random.h"
#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/driver/emulated.h"

namespace carillon::engine::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Driver ipc_table = Emulated::table();

std::shared_ptr<MemoryImporter> importer() {
  return make_importer(std::shared_ptr<const Driver>(std::shared_ptr<void>(), &ipc_table), 0);
}

MemoryHandle raw(const IpcHandle& handle) {
  MemoryHandle out;
  std::memcpy(out.data(), handle.bytes, out.size());
  return out;
}

std::vector<std::byte> drawn(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  std::vector<std::byte> out(count);
  for (std::byte& each : out) each = static_cast<std::byte>(random.below(256));
  return out;
}

TEST(IpcMemory, CopiesAreWhatIsThere) {
  constexpr std::size_t size = (3 << 20) + 5;
  const Emulated device;
  {
    EmulatedLoan loan(size);
    const auto sent = drawn(1, size);
    std::ranges::copy(sent, loan.data());
    const auto memory = importer()->open(raw(loan.handle()));
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ((*memory)->bytes(), size);
    for (const auto& [offset, count] : std::vector<std::pair<std::size_t, std::size_t>>{
             {0, size}, {0, 0}, {size, 0}, {7, 1}, {(1 << 20) - 1, 2}, {3, (2 << 20) + 1}, {size - 1, 1}}) {
      std::vector<std::byte> back(count);
      ASSERT_TRUE((*memory)->read(offset, back));
      EXPECT_TRUE(std::equal(back.begin(), back.end(), sent.begin() + static_cast<std::ptrdiff_t>(offset)));
      const auto other = drawn(offset + 2, count);
      ASSERT_TRUE((*memory)->write(offset, other));
      EXPECT_TRUE(std::equal(other.begin(), other.end(), loan.data() + offset));
      ASSERT_TRUE((*memory)->write(offset, back));
    }
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), loan.data())) << "and nothing besides was written";
  }
  EXPECT_THAT(device.violations(), IsEmpty());
  EXPECT_EQ(device.left_behind(), "");
}

TEST(IpcMemory, IsOpenAsLongAsSomebodyHasIt) {
  const Emulated device;
  std::optional<EmulatedLoan> loan(std::in_place, 100);
  loan->data()[99] = std::byte{9};
  auto from = importer();
  auto first = from->open(raw(loan->handle()));
  auto second = from->open(raw(loan->handle()));
  ASSERT_TRUE(first && second);
  loan.reset();  // its process has ended
  from.reset();
  first->reset();
  std::byte last{};
  EXPECT_TRUE((*second)->read(99, std::span(&last, 1)));
  EXPECT_EQ(last, std::byte{9});
  EXPECT_THAT(device.left_behind(), HasSubstr("1 open loan"));
  second->reset();
  EXPECT_EQ(device.left_behind(), "");
  EXPECT_THAT(device.violations(), IsEmpty());
}

TEST(IpcMemory, WhatIsNoHandleIsRefused) {
  const Emulated device;
  {
    const auto from = importer();
    std::optional<EmulatedLoan> loan(std::in_place, 64);
    const MemoryHandle good = raw(loan->handle());
    std::vector<MemoryHandle> wrong{MemoryHandle{}};
    for (std::size_t i = 0; i < 48; ++i) {  // what of it says anything
      wrong.push_back(good);
      wrong.back()[i] ^= std::byte{1};
    }
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      wrong.emplace_back();
      std::ranges::copy(drawn(seed, wrong.back().size()), wrong.back().begin());
    }
    for (const MemoryHandle& handle : wrong) {
      const auto opened = from->open(handle);
      ASSERT_FALSE(opened);
      EXPECT_EQ(opened.error().code, ErrorCode::invalid_argument);
      EXPECT_THAT(opened.error().message, HasSubstr("CUDA_ERROR_"));
      EXPECT_THAT(opened.error().message, HasSubstr("cudaIpcGetMemHandle"));
    }
    loan.reset();
    EXPECT_THAT(from->open(good).error().message, HasSubstr("CUDA_ERROR_MAP_FAILED"));

    // Its own memory, which it has no need to open.
    const InPrimaryContext here(ipc_table, 0);
    Address own = 0;
    IpcHandle of_own;
    ASSERT_EQ(ipc_table.allocate(&own, 64), done);
    ASSERT_EQ(ipc_table.ipc_export(&of_own, own), done);
    EXPECT_THAT(from->open(raw(of_own)).error().message, HasSubstr("CUDA_ERROR_INVALID_CONTEXT"));
    ASSERT_EQ(ipc_table.free(own), done);
  }
  EXPECT_THAT(device.violations(), IsEmpty());
  EXPECT_EQ(device.left_behind(), "");
}

// Another process with a driver of its own allocates, exports and writes; it ends while the memory is open.
TEST(IpcMemory, OfAnotherProcess) {
  const Emulated device;
  int told[2], go[2];
  ASSERT_EQ(pipe(told), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    const InPrimaryContext here(ipc_table, 0);
    Address at = 0;
    IpcHandle handle;
    bool good = ipc_table.allocate(&at, 4096) == done && ipc_table.ipc_export(&handle, at) == done;
    std::memset(reinterpret_cast<void*>(at), 5, 4096);
    good = good && write(told[1], handle.bytes, sizeof handle.bytes) == sizeof handle.bytes;
    char byte = 0;
    good = good && read(go[0], &byte, 1) == 1 && *reinterpret_cast<char*>(at + 4095) == 6;
    _exit(good ? 0 : 1);
  }
  MemoryHandle handle;
  ASSERT_EQ(read(told[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
  auto memory = importer()->open(handle);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ((*memory)->bytes(), 4096U);
  std::vector<std::byte> bytes(4096);
  ASSERT_TRUE((*memory)->read(0, bytes));
  EXPECT_EQ(bytes, std::vector<std::byte>(4096, std::byte{5}));
  ASSERT_TRUE((*memory)->write(4095, std::vector<std::byte>(1, std::byte{6})));
  ASSERT_EQ(write(go[1], "g", 1), 1);
  int ended = -1;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  ASSERT_TRUE((*memory)->read(0, bytes)) << "the memory outlives its process";
  memory->reset();
  EXPECT_FALSE(importer()->open(handle)) << "but is not opened any more";
  for (const int each : {told[0], told[1], go[0], go[1]}) close(each);
  EXPECT_THAT(device.violations(), IsEmpty());
  EXPECT_EQ(device.left_behind(), "");
}

// Whichever call that makes memory fails, or whenever the device is lost: an error, and nothing left behind.
TEST(IpcMemory, FaultsAreErrors) {
  for (std::uint64_t failing = 1; failing <= 6; ++failing) {
    const Emulated device({.fail_create = failing});
    {
      EmulatedLoan loan(64);
      const auto from = importer();
      const auto opened = from->open(raw(loan.handle()));
      EXPECT_EQ(opened.has_value(), failing > 5);
      if (!opened) {
        EXPECT_EQ(opened.error().code, ErrorCode::resource_exhausted);
        EXPECT_TRUE(from->open(raw(loan.handle()))) << "the next call goes on";
      }
    }
    EXPECT_THAT(device.violations(), IsEmpty());
    EXPECT_EQ(device.left_behind(), "");
  }
  const Emulated device({.lose_after = 2});
  {
    EmulatedLoan loan(3 << 20);
    const auto from = importer();
    const auto memory = from->open(raw(loan.handle()));
    ASSERT_TRUE(memory);
    std::vector<std::byte> bytes(3 << 20);
    for (const auto& went : {(*memory)->read(0, bytes), (*memory)->write(0, bytes)}) {
      ASSERT_FALSE(went);
      EXPECT_EQ(went.error().code, ErrorCode::unavailable);
      EXPECT_THAT(went.error().message, HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
    }
    EXPECT_EQ(from->open(raw(loan.handle())).error().code, ErrorCode::unavailable);
  }
  EXPECT_EQ(device.left_behind(), "");
}

}  // namespace
}  // namespace carillon::engine::cuda
