// A program of its own: it counts every operator new of the process.

#include <cstdint>

#include <gtest/gtest.h>

#include "carillon/base/testing/counted_new.h"
#include "carillon/device/core.h"

namespace carillon::device {
namespace {

using Kind = Command::Kind;
constexpr Window any_time{TimePoint::min(), TimePoint::max()};

TEST(DeviceAllocation, TheCounterCounts) {
  counting = true;
  const std::vector<int> made(100);
  counting = false;
  EXPECT_EQ(allocations, 1U);
  EXPECT_EQ(made.size(), 100U);
}

// Everything that can happen to actions, as many as were reserved for, again and again.
TEST(DeviceAllocation, NothingIsAllocatedOnThePathOfAnAction) {
  Core core({.pages = 8, .io = mib(1), .workspace = mib(1), .queue = 16, .reserved = 16});
  for (std::uint32_t m = 0; m < 4; ++m) core.add_model(ModelId{m}, m);
  Commands out;
  out.reserve(256);
  TimePoint now{};
  std::uint64_t next = 0;
  const auto settle = [&](bool ends) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const Command command = out[i];
      switch (command.kind) {
        case Kind::wake:
          core.turn(command.executor, now, out);
          break;
        case Kind::copy:
          core.copied(command.slot, true, now, out);
          break;
        case Kind::unmap:
          core.unmapped(command.slot, now, out);
          break;
        case Kind::gather:
          core.take_io(command.slot, 5000);
          core.gathered(command.slot, {.kernels = 10, .workspace = 50000}, now, out);
          break;
        case Kind::scatter:
          core.scattered(command.slot, now, out);
          break;
        case Kind::evict:
          core.ended(command.slot, 3, false, now, out);
          break;
        case Kind::launch:
          if (ends) core.ended(command.slot, 10, false, now, out);
          break;
        case Kind::report:
          break;
      }
    }
    out.clear();
  };
  allocations = 0;
  counting = true;
  for (int round = 0; round < 200; ++round) {
    now += 1us;
    for (std::uint32_t m = 0; m < 4; ++m) core.submit(LoadAction{{next++}, {m}, any_time}, now, out);
    settle(false);
    const std::uint64_t first = next;
    for (std::uint32_t i = 0; i < 16; ++i)
      core.submit(InferAction{.id = {next++}, .model = {i % 4}, .window = {now, now + 1us}}, now, out);
    settle(false);
    core.evict({first}, After::resume, now, now, out);
    settle(false);
    core.evict({first + 5}, After::drop, now, now, out);
    for (std::uint32_t m = 0; m < 4; ++m) core.submit(UnloadAction{{next++}, {m}}, now, out);
    settle(false);
    while (const auto running = core.running(first_stream)) {
      core.ended(*running, 10, false, now, out);
      settle(true);
    }
    now += 2us;
    core.turn(first_stream, now, out);
    settle(true);
    if (core.open() != 0) break;
  }
  counting = false;
  EXPECT_EQ(allocations, 0U);
  EXPECT_EQ(core.open(), 0U);
  EXPECT_EQ(core.free_pages(), 8U);
}

}  // namespace
}  // namespace carillon::device
