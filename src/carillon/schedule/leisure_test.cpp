#include "carillon/schedule/leisure.h"

#include <gtest/gtest.h>

namespace carillon::schedule {
namespace {

struct LeisureTest : ::testing::Test {
  static constexpr DeviceId first{0}, second{1};
  static constexpr TimePoint at(Duration d) { return TimePoint{d}; }
  LeisureTest() {
    hears(DeviceChanged{.device = first});
    hears(DeviceChanged{.device = second});
  }
  void hears(const Event& event, const Actions& says = {}, TimePoint wake = TimePoint::max()) {
    leisure.heard(event);
    leisure.said(says, wake);
  }
  static Infer infer(std::uint64_t id, DeviceId device) {
    return {{id}, device, {0}, {{id}}, {TimePoint{}, TimePoint::max()}, 1ms};
  }
  static ActionDone done(std::uint64_t id, ActionStatus status = ActionStatus::success) {
    return {.id = {id}, .status = status, .start = {}, .end = {}, .duration = 1ms};
  }
  Leisure leisure;
};

TEST_F(LeisureTest, IdleUntilThePolicysOwnWake) {
  EXPECT_EQ(leisure.free_until(first), TimePoint::max());
  hears(RequestArrived{}, {}, at(7ms));  // a batch that waits for company
  EXPECT_EQ(leisure.free_until(first), at(7ms));
  hears(RequestArrived{}, {}, at(9ms));
  EXPECT_EQ(leisure.free_until(second), at(9ms)) << "what was asked for last counts";
}

TEST_F(LeisureTest, WantedWhileAnythingIsUnderWay) {
  hears(Wake{}, {infer(1, first), Load{.id = {2}, .device = first}}, at(5ms));
  EXPECT_EQ(leisure.free_until(first), std::nullopt);
  EXPECT_EQ(leisure.free_until(second), at(5ms));
  hears(done(1), {}, at(5ms));
  EXPECT_EQ(leisure.free_until(first), std::nullopt) << "the LOAD";
  hears(done(2), {}, at(6ms));
  EXPECT_EQ(leisure.free_until(first), at(6ms));
  hears(Wake{}, {Profile{.id = {3}, .device = second}});
  EXPECT_EQ(leisure.free_until(second), std::nullopt);
  hears(done(3, ActionStatus::stopped));
  EXPECT_EQ(leisure.free_until(second), TimePoint::max());
}

TEST_F(LeisureTest, WhatTakesNoTimeOfTheDeviceDoesNotCount) {
  hears(Wake{},
        {Unload{{1}, first, {0}}, Refuse{}, Keep{}, Stop{{7}, first}, Preempt{.id = {7}, .device = first}});
  EXPECT_EQ(leisure.free_until(first), TimePoint::max());
  hears(done(1));
  EXPECT_EQ(leisure.free_until(first), TimePoint::max());
}

TEST_F(LeisureTest, ADeviceThatWentIsNobodysAndBeginsAnew) {
  hears(Wake{}, {infer(1, first), infer(2, second)});
  hears(DeviceChanged{first, false, 0});
  EXPECT_EQ(leisure.free_until(first), std::nullopt);
  EXPECT_EQ(leisure.free_until(second), std::nullopt) << "it has the other INFER";
  hears(DeviceChanged{.device = first});
  EXPECT_EQ(leisure.free_until(first), TimePoint::max());
  hears(Wake{}, {infer(3, first)});
  hears(done(1, ActionStatus::failed));
  EXPECT_EQ(leisure.free_until(first), std::nullopt) << "a late report of the life before";
  hears(done(3));
  EXPECT_EQ(leisure.free_until(first), TimePoint::max());
}

TEST_F(LeisureTest, GivenUpIsGone) {
  hears(Wake{}, {infer(1, first)});
  hears(Wake{}, {GiveUp{first}});
  EXPECT_EQ(leisure.free_until(first), std::nullopt);
  hears(done(1, ActionStatus::failed));
  hears(DeviceChanged{.device = first});
  EXPECT_EQ(leisure.free_until(first), TimePoint::max());
}

TEST_F(LeisureTest, ReportsOfWhatNobodySentAndDevicesThatNeverCame) {
  hears(done(99));
  EXPECT_EQ(leisure.free_until(first), TimePoint::max());
  EXPECT_EQ(leisure.free_until(DeviceId{7}), std::nullopt);
}

}  // namespace
}  // namespace carillon::schedule
