#include "carillon/engine/memory_planner.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/bytes.h"
#include "carillon/base/random.h"

namespace carillon::engine {
namespace {

// What no plan can go below: the largest sum of (aligned) sizes that one kernel needs at a time.
std::uint64_t memory_lower_bound(std::span<const BufferNeed> buffers) {
  std::map<int, std::int64_t> change;  // at a kernel: bytes taken minus bytes given back
  for (const BufferNeed& need : buffers) {
    const auto size = static_cast<std::int64_t>(round_up(need.size, buffer_alignment));
    change[need.first] += size;
    change[need.last + 1] -= size;
  }
  std::int64_t now = 0, most = 0;
  for (const auto& [kernel, delta] : change) most = std::max(most, now += delta);
  return static_cast<std::uint64_t>(most);
}

// Independent of how the planner works: compares every pair.
void expect_sound(const std::vector<BufferNeed>& buffers, const MemoryPlan& plan) {
  ASSERT_EQ(plan.offsets.size(), buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(plan.offsets[i] % buffer_alignment, 0U);
    EXPECT_LE(plan.offsets[i] + buffers[i].size, plan.total);
    for (std::size_t j = 0; j < i; ++j) {
      const bool together = buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
      const bool apart = plan.offsets[i] + buffers[i].size <= plan.offsets[j] ||
                         plan.offsets[j] + buffers[j].size <= plan.offsets[i];
      const bool empty = buffers[i].size == 0 || buffers[j].size == 0;
      EXPECT_TRUE(!together || apart || empty) << "buffers " << j << " and " << i;
    }
  }
  EXPECT_GE(plan.total, memory_lower_bound(buffers));
}

TEST(MemoryPlanner, NothingNeedsNothing) {
  EXPECT_EQ(plan_memory({}).total, 0U);
  EXPECT_EQ(memory_lower_bound({}), 0U);
}

TEST(MemoryPlanner, RoundsSizesUp) {
  const std::vector<BufferNeed> one{{.size = 1, .first = 0, .last = 0}};
  EXPECT_EQ(plan_memory(one).total, 64U);
  const std::vector<BufferNeed> empty{{.size = 0, .first = 0, .last = 9}};
  EXPECT_EQ(plan_memory(empty).total, 0U);
}

TEST(MemoryPlanner, AChainNeedsTwoBuffersAtATime) {
  std::vector<BufferNeed> chain;
  for (int k = 0; k < 50; ++k) chain.push_back({.size = 4096, .first = k, .last = k + 1});
  const MemoryPlan plan = plan_memory(chain);
  expect_sound(chain, plan);
  EXPECT_EQ(plan.total, 2 * 4096U);
}

TEST(MemoryPlanner, AResidualOutlivesItsBranch) {
  const std::vector<BufferNeed> block{{1000, 0, 3}, {500, 1, 2}, {500, 2, 3}, {1000, 3, 4}};
  const MemoryPlan plan = plan_memory(block);
  expect_sound(block, plan);
  EXPECT_EQ(plan.total, memory_lower_bound(block));
}

TEST(MemoryPlanner, LastAndFirstAtOneKernelOverlap) {
  const std::vector<BufferNeed> pair{{64, 0, 5}, {64, 5, 9}};  // read and written by kernel 5
  EXPECT_EQ(plan_memory(pair).total, 128U);
  const std::vector<BufferNeed> apart{{64, 0, 4}, {64, 5, 9}};
  EXPECT_EQ(plan_memory(apart).total, 64U);
}

// Far apart in time, and for longer than most: the planner looks at kernels in stretches.
TEST(MemoryPlanner, LongPlansAreSound) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<BufferNeed> buffers(400);
    for (BufferNeed& need : buffers) {
      need.first = static_cast<int>(random.below(1000));
      const std::uint64_t spans[] = {4, 100, 200, 1000};
      need.last = need.first + static_cast<int>(random.below(spans[random.below(4)]));
      need.size = 64 * random.below(30);
    }
    const MemoryPlan plan = plan_memory(buffers);
    expect_sound(buffers, plan);
    EXPECT_LT(static_cast<double>(plan.total), 1.5 * static_cast<double>(memory_lower_bound(buffers)));
  }
}

TEST(MemoryPlanner, RandomBuffersNeverOverlapAndStayNearTheBound) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int kernels = 1 + static_cast<int>(random.below(60));
    std::vector<BufferNeed> buffers(random.below(120));
    for (BufferNeed& need : buffers) {
      need.first = static_cast<int>(random.below(static_cast<std::uint64_t>(kernels)));
      const std::uint64_t span = random.below(8) == 0 ? 40 : 4;
      need.last = need.first + static_cast<int>(random.below(span));
      need.size = random.below(10) == 0 ? 0 : random.below(1U << random.below(20));
    }
    const MemoryPlan plan = plan_memory(buffers);
    expect_sound(buffers, plan);
    const auto bound = static_cast<double>(memory_lower_bound(buffers));
    if (bound > 0) worst = std::max(worst, static_cast<double>(plan.total) / bound);
  }
  EXPECT_LT(worst, 1.5);  // 1 would be perfect; packing in time and space is a hard problem
  RecordProperty("worst_over_bound", std::to_string(worst));
}

}  // namespace
}  // namespace carillon::engine
