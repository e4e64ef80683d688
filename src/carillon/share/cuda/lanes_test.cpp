#include "carillon/share/cuda/lanes.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/share/cuda/testing/fake_driver.h"

namespace carillon::share::cuda {
namespace {

using testing::FakeDriver;
using testing::FakeDriverOptions;

constexpr Bytes small_granule = kib(64);

std::string refusal_of(FakeDriverOptions options, int ordinal = 0) {
  FakeDriver::here().reset(options);
  const auto lanes = open_lanes(ordinal, usual_piece, FakeDriver::here().table());
  return lanes ? "" : lanes.error().message;
}

TEST(CudaLanes, WhatADeviceCannotDoIsSaid) {
  EXPECT_EQ(refusal_of({}), "");
  EXPECT_EQ(refusal_of({.devices = 0}), "cuda:0: the CUDA driver does not start: CUDA_ERROR_NO_DEVICE");
  EXPECT_EQ(refusal_of({}, 1),
            "there is no cuda:1: the CUDA driver sees 1 device (CUDA_VISIBLE_DEVICES says which)");
  EXPECT_EQ(refusal_of({.virtual_memory = false}),
            "cuda:0 cannot map physical memory, which lanes need (Linux, Pascal and later)");
}

TEST(CudaLanes, WithoutADriverSaysSo) {
  const auto lanes = open_lanes(0);
  if (lanes) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_EQ(lanes.error().code, ErrorCode::unavailable);
  EXPECT_NE(lanes.error().message.find("cuda:0"), std::string::npos) << lanes.error().message;
}

TEST(CudaLanes, ComeInPiecesWhoseNumbersNeverComeAgain) {
  FakeDriver& fake = FakeDriver::here();
  fake.reset();
  {
    const auto lanes = open_lanes(0, Bytes{3 * small_granule.count - 1}, fake.table());
    ASSERT_TRUE(lanes);
    EXPECT_EQ((*lanes)->device()->piece, 3 * small_granule.count);
    EXPECT_EQ((*lanes)->device()->memory, memory_of_cuda);
    EXPECT_EQ((*lanes)->device()->uuid[0], 1);
    const auto lane = (*lanes)->make(1);
    ASSERT_TRUE(lane);
    EXPECT_EQ((*lane)->whole(), -1);
    std::set<std::uint64_t> seen;
    std::vector<std::uint64_t> before;
    // Sizes in granules, and how many pieces of three granules these are.
    const struct {
      std::uint64_t granules;
      std::size_t pieces;
    } rows[] = {{1, 1}, {3, 1}, {4, 2}, {30, 10}, {7, 3}, {0, 0}, {9, 3}};
    for (const auto& [granules, pieces] : rows) {
      ASSERT_TRUE((*lane)->resize(Bytes{granules * small_granule.count}));
      const auto now = (*lane)->pieces();
      ASSERT_EQ(now.size(), pieces) << granules;
      EXPECT_EQ(fake.memory_used(), pieces * 3 * small_granule.count);
      for (std::size_t i = 0; i < now.size(); ++i) {
        if (i < before.size())
          EXPECT_EQ(now[i], before[i]) << granules;
        else
          EXPECT_TRUE(seen.insert(now[i]).second) << granules;
      }
      before.assign(now.begin(), now.end());
    }
    EXPECT_TRUE((*lane)->piece(2)->open());
    (*lane)->give_back();
    EXPECT_EQ(fake.memory_used(), 0U);
  }
  EXPECT_EQ(fake.left_behind(), "");
  EXPECT_TRUE(fake.violations().empty());
}

TEST(CudaLanes, ThatDoNotFitStayAsTheyWere) {
  FakeDriver& fake = FakeDriver::here();
  fake.reset({.memory = 4 * small_granule.count});
  const auto lanes = open_lanes(0, small_granule, fake.table());
  ASSERT_TRUE(lanes);
  const auto lane = (*lanes)->make(1);
  ASSERT_TRUE((*lane)->resize(Bytes{2 * small_granule.count}));
  const auto grown = (*lane)->resize(Bytes{5 * small_granule.count});
  ASSERT_FALSE(grown);
  EXPECT_EQ(grown.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(grown.error().message, "cuda:0: no memory for a lane: CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ((*lane)->pieces().size(), 2U);
  EXPECT_EQ(fake.memory_used(), 2 * small_granule.count);
}

TEST(CudaLanes, GetAContextWhereTheDriverWantsOne) {
  FakeDriver& fake = FakeDriver::here();
  fake.reset({.memory_needs_context = true});
  {
    const auto lanes = open_lanes(0, small_granule, fake.table());
    ASSERT_TRUE(lanes);
    EXPECT_EQ(fake.left_behind(), "");
    const auto lane = (*lanes)->make(1);
    ASSERT_TRUE((*lane)->resize(Bytes{2 * small_granule.count}));
    EXPECT_EQ(fake.left_behind(), "2 handles, 1 contexts");
  }
  EXPECT_EQ(fake.left_behind(), "");
}

}  // namespace
}  // namespace carillon::share::cuda
