#include "carillon/frontend/admin/host.h"

#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

TEST(Host, ReadsWhatTheProcessorsDid) {
  // user 100, nice 1, system 20, idle 700, iowait 30, irq 2, softirq 3, steal 4; guests are in user.
  const auto ticks = parse_stat("cpu  100 1 20 700 30 2 3 4 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
  ASSERT_TRUE(ticks);
  EXPECT_EQ(ticks->total, 860U);
  EXPECT_EQ(ticks->busy, 130U);
  EXPECT_TRUE(parse_stat("cpu  1 1 1 1\nintr 5\n"));  // of an old system
  for (const char* wrong : {"", "cpu0 1 2 3 4", "cpu  1 2 x"}) EXPECT_FALSE(parse_stat(wrong)) << wrong;
}

TEST(Host, ReadsItsMemory) {
  const auto memory = parse_meminfo("MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\n");
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->memory_total, 1'024'000U);
  EXPECT_EQ(memory->memory_used, 614'400U);
  for (const char* wrong : {"", "MemTotal: 5 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n",
                            "XMemTotal: 5 kB\nMemAvailable: 1 kB"})
    EXPECT_FALSE(parse_meminfo(wrong)) << wrong;
}

TEST(Host, IsLookedAt) {
  HostWatch watch;
  const auto first = watch.look();
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->utilization);
  EXPECT_GT(first->memory_total, first->memory_used);
  const auto of_us = process_statistics();
  ASSERT_TRUE(of_us);
  EXPECT_GT(of_us->resident, 1U << 20);
}

}  // namespace
}  // namespace carillon::frontend
