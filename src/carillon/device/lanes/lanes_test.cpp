#include "carillon/device/lanes/lanes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::device {
namespace {

struct LanesTest : ::testing::Test {
  using Kind = LanePlace::Kind;
  static JobMemory needs(std::uint64_t persistent, std::uint64_t ephemeral) {
    return {{persistent}, {ephemeral}};
  }
  LaneId admit(std::uint32_t job, JobMemory memory) {
    return lanes.admit({job}, memory, lanes.find(memory).value());
  }
  static bool nobody(LaneId) { return false; }
  Lanes lanes{Bytes{100}};
};

// Algorithm 2.1, line by line.
TEST_F(LanesTest, ALaneOfItsOwnWhereThatFits) {
  EXPECT_EQ(lanes.find(needs(10, 90)), (LanePlace{Kind::open, no_lane}));
  EXPECT_EQ(lanes.find(needs(11, 90)), std::nullopt);
  admit(0, needs(10, 40));
  EXPECT_EQ(lanes.find(needs(10, 40)), (LanePlace{Kind::open, no_lane})) << "exactly";
}

TEST_F(LanesTest, ElseTheBestMatch) {
  const LaneId large = admit(0, needs(5, 50)), small = admit(1, needs(5, 30));
  EXPECT_EQ(lanes.find(needs(5, 30)), (LanePlace{Kind::join, small}));
  EXPECT_EQ(lanes.find(needs(5, 31)), (LanePlace{Kind::join, large}));
  EXPECT_EQ(lanes.find(needs(11, 20)), std::nullopt) << "its persistent memory does not fit";
}

TEST_F(LanesTest, ElseTheSmallestThatMayGrow) {
  const LaneId large = admit(0, needs(5, 50)), small = admit(1, needs(5, 30));
  EXPECT_EQ(lanes.find(needs(1, 55)), (LanePlace{Kind::grow, large})) << "growing the small one needs 115";
  lanes.remove({0});
  admit(2, needs(5, 40));
  EXPECT_EQ(lanes.find(needs(1, 45)), (LanePlace{Kind::grow, small}));
  EXPECT_EQ(lanes.find(needs(1, 60)), std::nullopt);
}

TEST_F(LanesTest, ASealedLaneTakesNobody) {
  const LaneId only = admit(0, needs(0, 60));
  lanes.seal(only, true);
  EXPECT_EQ(lanes.find(needs(0, 50)), std::nullopt);
  EXPECT_EQ(lanes.find_shared(needs(0, 50)), std::nullopt);
  EXPECT_EQ(lanes.find_shared(needs(0, 40)), (LanePlace{Kind::open, no_lane}));
  lanes.seal(only, false);
  EXPECT_EQ(lanes.find(needs(0, 50)), (LanePlace{Kind::join, only}));
}

TEST_F(LanesTest, OneLaneForAll) {
  const LaneId lane = lanes.admit({0}, needs(10, 20), lanes.find_shared(needs(10, 20)).value());
  EXPECT_EQ(lanes.find_shared(needs(10, 20)), (LanePlace{Kind::join, lane}));
  EXPECT_EQ(lanes.find_shared(needs(10, 80)), (LanePlace{Kind::grow, lane}));
  EXPECT_EQ(lanes.find_shared(needs(10, 81)), std::nullopt);
}

TEST_F(LanesTest, LanesFollowTheirJobs) {
  const LaneId lane = admit(0, needs(10, 30));
  lanes.admit({1}, needs(10, 50), {Kind::grow, lane});
  EXPECT_EQ(lanes.ephemeral(), Bytes{50});
  EXPECT_TRUE(lanes.update({0}, needs(10, 70)));
  EXPECT_FALSE(lanes.update({0}, needs(21, 70)));
  EXPECT_EQ(lanes.memory_of({0}), needs(10, 70)) << "as it was";
  EXPECT_EQ(lanes.room_of({1}), needs(20, 80));
  lanes.remove({0});
  EXPECT_TRUE(lanes.fit(lane));
  EXPECT_FALSE(lanes.fit(lane));
  EXPECT_EQ(lanes.ephemeral(), Bytes{50});
  lanes.remove({1});
  EXPECT_EQ(lanes.lanes_open(), 0U);
  EXPECT_EQ(lanes.persistent() + lanes.ephemeral(), Bytes{});
}

// Figure 2.6b: when C goes, B below it moves up.
TEST_F(LanesTest, GapsClose) {
  const LaneId a = admit(0, needs(0, 20)), b = admit(1, needs(0, 20)), c = admit(2, needs(0, 20));
  std::vector<LaneId> moved;
  const auto tell = [&](LaneId id) { moved.push_back(id); };
  EXPECT_TRUE(lanes.arrange(nobody, tell));
  EXPECT_EQ(moved, (std::vector{a, b, c})) << "they had no place";
  lanes.remove({0});
  moved.clear();
  EXPECT_TRUE(lanes.arrange([&](LaneId id) { return id == b; }, tell));
  EXPECT_EQ(moved, std::vector{c}) << "b is at it; c finds room before it";
  EXPECT_EQ(lanes.lane(b).offset, Bytes{20});
  EXPECT_EQ(lanes.lane(c).offset, Bytes{0});
}

TEST_F(LanesTest, WhatFitsInSumMayHaveToWaitForItsPlace) {
  const LaneId a = admit(0, needs(0, 40)), b = admit(1, needs(0, 20)), c = admit(2, needs(0, 40));
  EXPECT_TRUE(lanes.arrange(nobody, [](LaneId) {}));
  lanes.remove({0});
  lanes.remove({2});
  const LaneId large = admit(3, needs(0, 70));
  EXPECT_FALSE(lanes.arrange([&](LaneId id) { return id == b; }, [](LaneId) {}));
  EXPECT_EQ(lanes.lane(large).offset, std::nullopt);
  EXPECT_FALSE(lanes.arranged());
  EXPECT_TRUE(lanes.arrange(nobody, [](LaneId) {}));
  EXPECT_EQ(lanes.lane(large).offset, Bytes{20});
  (void)a;
  (void)c;
}

TEST_F(LanesTest, ALaneGrowsInPlaceAsFarAsWhoIsPinnedLeavesIt) {
  const LaneId a = admit(0, needs(10, 20)), b = admit(1, needs(0, 20));
  lanes.arrange(nobody, [](LaneId) {});
  EXPECT_TRUE(lanes.grows_in_place(a, Bytes{90}, Bytes{10}, [&](LaneId id) { return id == a; }))
      << "the other may move";
  EXPECT_FALSE(lanes.grows_in_place(a, Bytes{91}, Bytes{10}, [&](LaneId id) { return id == a; }));
  EXPECT_FALSE(lanes.grows_in_place(a, Bytes{21}, Bytes{10}, [](LaneId) { return true; }));
  EXPECT_TRUE(lanes.grows_in_place(b, Bytes{70}, Bytes{10}, [](LaneId) { return true; }));
  EXPECT_FALSE(lanes.grows_in_place(b, Bytes{70}, Bytes{11}, [](LaneId) { return true; }))
      << "persistent memory grows as well";
}

// Against a reference that knows the paper's lines and nothing else.
TEST(LanesRandom, AgreeWithAlgorithm21AndEquation21) {
  struct Reference {
    std::uint64_t capacity = 0;
    struct Job {
      JobMemory memory;
      LaneId lane;
    };
    std::map<std::uint32_t, Job> jobs;
    std::map<std::uint32_t, std::uint64_t> lanes;  // sizes
    std::uint64_t persistent() const {
      std::uint64_t sum = 0;
      for (const auto& [id, job] : jobs) sum += job.memory.persistent.count;
      return sum;
    }
    std::uint64_t ephemeral() const {
      std::uint64_t sum = 0;
      for (const auto& [id, size] : lanes) sum += size;
      return sum;
    }
    std::optional<LanePlace> find(JobMemory m) const {
      const std::uint64_t p = persistent() + m.persistent.count, e = m.ephemeral.count;
      if (p + ephemeral() + e <= capacity) return LanePlace{LanePlace::Kind::open, no_lane};
      std::vector<std::pair<std::uint64_t, std::uint32_t>> ascending;
      for (const auto& [id, size] : lanes) ascending.emplace_back(size, id);
      std::ranges::sort(ascending);
      if (p + ephemeral() <= capacity)
        for (const auto& [size, id] : ascending)
          if (size >= e) return LanePlace{LanePlace::Kind::join, {id}};
      for (const auto& [size, id] : ascending)
        if (size < e && p + ephemeral() - size + e <= capacity) return LanePlace{LanePlace::Kind::grow, {id}};
      return std::nullopt;
    }
  };
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    Reference truth{.capacity = 50 + random.below(200)};
    Lanes lanes(Bytes{truth.capacity});
    std::uint32_t next = 0;
    for (int step = 0; step < 200; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
      if (truth.jobs.empty() || random.below(3) > 0) {
        const JobMemory m{{random.below(20)}, {1 + random.below(60)}};
        const auto place = lanes.find(m);
        ASSERT_EQ(place, truth.find(m));
        if (!place) continue;
        const LaneId lane = lanes.admit({next}, m, *place);
        truth.jobs[next++] = {m, lane};
        auto& size = truth.lanes[lane.value];
        size = std::max(size, m.ephemeral.count);
      } else {
        auto gone = truth.jobs.begin();
        std::advance(gone, static_cast<std::ptrdiff_t>(random.below(truth.jobs.size())));
        const LaneId lane = gone->second.lane;
        lanes.remove({gone->first});
        truth.jobs.erase(gone);
        std::uint64_t most = 0;
        bool any = false;
        for (const auto& [id, job] : truth.jobs)
          if (job.lane == lane) any = true, most = std::max(most, job.memory.ephemeral.count);
        if (any) {
          lanes.fit(lane);
          truth.lanes[lane.value] = most;
        } else {
          truth.lanes.erase(lane.value);
        }
      }
      ASSERT_EQ(lanes.persistent().count, truth.persistent());
      ASSERT_EQ(lanes.ephemeral().count, truth.ephemeral());
      ASSERT_LE(truth.persistent() + truth.ephemeral(), truth.capacity);
      if (random.below(2) > 0) continue;
      const std::uint64_t held = random.below(64);  // by lane, a bit each: who is in it
      std::map<std::uint32_t, std::optional<Bytes>> before;
      for (const auto& [id, size] : truth.lanes) before[id] = lanes.lane({id}).offset;
      const bool all = lanes.arrange([&](LaneId id) { return (held >> id.value & 1U) != 0; }, [](LaneId) {});
      std::size_t placed = 0;
      std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
      for (const auto& [id, size] : truth.lanes) {
        const auto offset = lanes.lane({id}).offset;
        if (before[id] && (held >> id & 1U) != 0) {
          ASSERT_EQ(offset, before[id]) << "moved under a job";
        }
        if (!offset) continue;
        ++placed;
        ranges.emplace_back(offset->count, offset->count + size);
      }
      if (!all) continue;
      ASSERT_EQ(placed, truth.lanes.size());
      std::ranges::sort(ranges);
      for (std::size_t i = 1; i < ranges.size(); ++i) ASSERT_LE(ranges[i - 1].second, ranges[i].first);
      if (!ranges.empty()) {
        ASSERT_LE(ranges.back().second + truth.persistent(), truth.capacity);
      }
    }
  }
}

}  // namespace
}  // namespace carillon::device
