#include "carillon/research/unit_device.h"

#include <gtest/gtest.h>

namespace carillon::research {
namespace {

// Ten units; a round takes 100 us, whatever its depth, but 150 with three blocks.
class UnitDeviceTest : public testing::Test, protected UnitObserver {
 protected:
  static constexpr UnitDeviceOptions exact{
      .dispatch = 2us, .reset_host = 3us, .dismiss = 8us, .kill = 4us, .interference = 0};

  void make(const UnitDeviceOptions& options = exact) {
    device_.emplace(10, 4, options, 1, std::vector<UnitObserver*>{this});
  }
  void launch(Queue queue, int blocks, Spread spread, bool priority = false) {
    device_->launch({.kind = ShareCommand::Kind::launch,
                     .queue = queue,
                     .priority = priority,
                     .blocks = blocks,
                     .spread = spread},
                    rounds_, now_);
  }
  // Until nothing happens any more; what was told of, as "ended 0 @102".
  std::vector<std::string> run(TimePoint until = TimePoint::max()) {
    std::vector<std::string> said;
    while (device_->next() < until) {
      now_ = device_->next();
      const auto event = device_->step();
      if (!event) continue;
      said.push_back((event->kind == UnitDevice::Event::Kind::ended ? "ended " : "evicted ") +
                     std::to_string(event->queue) + " @" + us(event->at));
    }
    return said;
  }
  static std::string us(TimePoint at) { return std::to_string((at - TimePoint{}) / 1us); }
  using Said = std::vector<std::string>;

  void round_started(Queue queue, const ShareCommand&, int units, int blocks, TimePoint at,
                     TimePoint end) override {
    rounds_run_.push_back(std::to_string(queue) + ": " + std::to_string(blocks) + " on " +
                          std::to_string(units) + ", " + us(at) + " to " + us(end));
  }
  void round_killed(Queue queue, const ShareCommand&, int, int blocks, TimePoint, TimePoint at) override {
    rounds_run_.push_back(std::to_string(queue) + ": " + std::to_string(blocks) + " killed at " + us(at));
  }

  std::vector<Duration> rounds_{100us, 100us, 150us};
  std::optional<UnitDevice> device_;
  TimePoint now_{};
  Said rounds_run_;
};

TEST_F(UnitDeviceTest, AStreamRunsInOrderAndHidesTheDispatchOfWhatFollows) {
  make();
  launch(0, 10, {.units = 10, .depth = 1});
  launch(0, 5, {.units = 5, .depth = 1});
  EXPECT_EQ(run(), (Said{"ended 0 @102", "ended 0 @202"}));
  launch(0, 1, {.units = 1, .depth = 1});
  EXPECT_EQ(run(), (Said{"ended 0 @304"}));
}

TEST_F(UnitDeviceTest, NarrowLaunchesOfStreamsRunSideBySide) {
  make();
  launch(0, 4, {.units = 4, .depth = 1});
  launch(1, 6, {.units = 6, .depth = 1});
  EXPECT_EQ(run(), (Said{"ended 0 @102", "ended 1 @102"}));
  EXPECT_EQ(device_->free_units(), 10);
}

TEST_F(UnitDeviceTest, WhatDoesNotFitStartsAsUnitsGetFree) {
  make();
  launch(0, 7, {.units = 7, .depth = 1});
  launch(1, 6, {.units = 6, .depth = 1});
  EXPECT_EQ(run(), (Said{"ended 0 @102", "ended 1 @202"}));
  EXPECT_EQ(rounds_run_, (Said{"0: 7 on 7, 2 to 102", "1: 3 on 3, 2 to 102", "1: 3 on 3, 102 to 202"}));
}

TEST_F(UnitDeviceTest, MoreBlocksThanUnitsRunInRounds) {
  make();
  launch(0, 25, {.units = 5, .depth = 3});
  EXPECT_EQ(run(), (Said{"ended 0 @252"}));
  EXPECT_EQ(rounds_run_, (Said{"0: 15 on 5, 2 to 152", "0: 10 on 5, 152 to 252"}));
}

TEST_F(UnitDeviceTest, PriorityWaitsForAllItsUnitsAndNobodyGoesBefore) {
  make();
  launch(0, 6, {.units = 6, .depth = 1});
  run(TimePoint{} + 50us);
  launch(1, 8, {.units = 8, .depth = 1}, true);
  launch(2, 4, {.units = 4, .depth = 1});
  EXPECT_EQ(run(), (Said{"ended 0 @102", "ended 1 @202", "ended 2 @302"}));
}

TEST_F(UnitDeviceTest, AnEvictionDismissesWhatWaitsAndKillsWhatRuns) {
  make();
  for (int i = 0; i < 4; ++i) launch(0, 10, {.units = 10, .depth = 1});
  run(TimePoint{} + 50us);
  now_ = TimePoint{} + 50us;
  device_->evict(0, true, now_);
  // 3 us for the host's queue, three times 8 for what waits, 4 to kill.
  EXPECT_EQ(run(), (Said{"evicted 0 @81"}));
  EXPECT_EQ(rounds_run_.back(), "0: 10 killed at 81");
  EXPECT_EQ(device_->free_units(), 10);
  launch(0, 10, {.units = 10, .depth = 1});
  EXPECT_EQ(run(), (Said{"ended 0 @204"}));
}

TEST_F(UnitDeviceTest, WithoutAKillWhatRunsEndsAndWhatWaitsIsFetchedThen) {
  make();
  for (int i = 0; i < 3; ++i) launch(0, 20, {.units = 10, .depth = 1});
  run(TimePoint{} + 50us);
  now_ = TimePoint{} + 50us;
  device_->evict(0, false, now_);
  EXPECT_EQ(run(), (Said{"ended 0 @202", "evicted 0 @221"}));
}

TEST_F(UnitDeviceTest, WhatHasPriorityStartsOnceQueuesAreEmpty) {
  make();
  for (int i = 0; i < 4; ++i) launch(0, 5, {.units = 5, .depth = 1});
  run(TimePoint{} + 50us);
  now_ = TimePoint{} + 50us;
  device_->evict(0, true, now_);
  launch(1, 5, {.units = 5, .depth = 1}, true);   // there are units for it
  launch(2, 5, {.units = 5, .depth = 1}, false);  // and it lets others have them till then
  EXPECT_EQ(run(), (Said{"evicted 0 @81", "ended 2 @152", "ended 1 @181"}));
}

TEST_F(UnitDeviceTest, WhatEndsBeforeItIsKilledHasEnded) {
  make();
  launch(0, 10, {.units = 10, .depth = 1});
  launch(0, 10, {.units = 10, .depth = 1});
  run(TimePoint{} + 95us);
  now_ = TimePoint{} + 95us;
  device_->evict(0, true, now_);
  EXPECT_EQ(run(), (Said{"ended 0 @102", "evicted 0 @110"}));
}

TEST_F(UnitDeviceTest, WhatIsKilledGetsNoMoreUnits) {
  make();
  launch(0, 25, {.units = 10, .depth = 1});
  run(TimePoint{} + 95us);
  now_ = TimePoint{} + 95us;
  device_->evict(0, true, now_);
  EXPECT_EQ(run(), (Said{"evicted 0 @102"}));
  EXPECT_EQ(rounds_run_.size(), 1U);
}

TEST_F(UnitDeviceTest, PipesDismissSideBySide) {
  auto two = exact;
  two.pipes = 2;
  make(two);
  for (Queue queue = 0; queue < 3; ++queue)
    for (int i = 0; i < 3; ++i) launch(queue, 3, {.units = 3, .depth = 1});
  run(TimePoint{} + 50us);
  now_ = TimePoint{} + 50us;
  for (Queue queue = 0; queue < 3; ++queue) device_->evict(queue, true, now_);
  EXPECT_EQ(run(), (Said{"evicted 0 @73", "evicted 1 @73", "evicted 2 @89"}));
}

TEST_F(UnitDeviceTest, CompanySlowsWhatStartsBesideIt) {
  auto slower = exact;
  slower.interference = 0.1;
  make(slower);
  launch(0, 4, {.units = 4, .depth = 1});
  launch(1, 4, {.units = 4, .depth = 1});
  EXPECT_EQ(run(), (Said{"ended 0 @102", "ended 1 @112"}));
}

TEST_F(UnitDeviceTest, NoiseIsSeeded) {
  auto noisy = exact;
  noisy.noise = 0.05;
  std::vector<Said> runs;
  for (int i = 0; i < 2; ++i) {
    make(noisy);
    now_ = {};
    rounds_run_.clear();
    for (int k = 0; k < 20; ++k) launch(0, 10, {.units = 10, .depth = 1});
    run();
    runs.push_back(rounds_run_);
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0].back(), "0: 10 on 10, 1902 to 2002");
}

}  // namespace
}  // namespace carillon::research
