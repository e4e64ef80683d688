#include "carillon/schedule/fcfs/fcfs.h"

#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"
#include "carillon/schedule/testing/test_name.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;
using testing::SimWorld;

TimePoint at(Duration d) {
  return TimePoint{d};
}

TEST(Fcfs, ServesInOrderOfArrivalAndRunsLateRequestsToo) {
  Fcfs scheduler;
  SimWorld world(scheduler, {},
                 {linear_model(0, 1ms, 9ms, 1, 8ms, {1}), linear_model(1, 1ms, 9ms, 1, 8ms, {1})});
  for (std::uint32_t i = 0; i < 20; ++i)
    world.arrive({.model = ModelId{i % 2}, .deadline = at(100ms)}, at(50ms + Duration{i}));
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_EQ(world.count().on_time + world.count().late, 20);
  EXPECT_GT(world.count().late, 0);
  const auto& log = world.requests();
  for (std::size_t i = 4; i < log.size(); ++i)  // once both are loaded
    EXPECT_LE(log[i - 1].answered, log[i].answered) << i;
}

TEST(Fcfs, BatchesWhatWaitsAndKeepsTwoOutstanding) {
  Fcfs scheduler;
  SimWorld world(scheduler, {}, {linear_model(0, 1ms, 9ms)});
  for (int i = 0; i < 1 + 1 + 16 + 4; ++i)
    world.arrive({.model = ModelId{0}, .deadline = at(9s)}, at(50ms + Duration{i}));
  world.arrive({.model = ModelId{0}, .deadline = at(9s)}, at(1ms));  // loads the model
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_EQ(world.infers(), 1 + 2 + 2);
  EXPECT_EQ(scheduler.open(), 0U) << "what was answered is kept no longer";
}

TEST(Fcfs, LoadsOnDemandAndEvictsTheLeastRecentlyUsed) {
  Fcfs scheduler;
  std::vector<ModelInfo> models;
  for (std::uint32_t m = 0; m < 10; ++m) models.push_back(linear_model(m, 1ms, 2ms));
  SimWorld world(scheduler, {.pages = {3}}, models);
  for (std::uint32_t i = 0; i < 100; ++i)
    world.arrive({.model = ModelId{i * 7 % 10}, .deadline = at(100s)}, at(1ms * i));
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_EQ(world.count().on_time, 100);
  EXPECT_GT(world.unloads(), 5);
}

TEST(Fcfs, WhatADeviceLosesGoesToAnIdleOneThatHasTheModel) {
  Fcfs scheduler;
  SimWorld world(scheduler, {.pages = {1, 1}}, {linear_model(0, 1ms, 9ms)});
  for (int i = 0; i < 200; ++i) world.arrive({.model = ModelId{0}, .deadline = at(9s)}, at(Duration{i}));
  world.arrive({.model = ModelId{0}, .deadline = at(9s)}, at(5s));
  world.device(DeviceId{0}, false, at(5s + 1ms));
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_EQ(world.count().on_time, 201);
  EXPECT_EQ(world.loads(), 2);
}

TEST(Scheduler, IsMadeByName) {
  for (const std::string& text : scheduler_names()) {
    const auto made = make_scheduler(text);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    EXPECT_EQ((*made)->name(), text);
    EXPECT_FALSE(make_scheduler(text.substr(0, text.find(':')) + ":3").has_value());
  }
  for (const char* wrong : {"timeout", "timeout:", "timeout:x", "timeout:-0.1", "timeout:1.5", "timeout:0.3x",
                            "timeout-drop", "timeout-drop:2"}) {
    const auto made = make_scheduler(wrong);
    ASSERT_FALSE(made.has_value()) << wrong;
    EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
  }
  for (const char* wrong : {"", "Clockwork", "time-out:0.5", ":"}) {
    const auto made = make_scheduler(wrong);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::not_found);
    EXPECT_NE(made.error().message.find("clockwork, fcfs"), std::string::npos) << made.error().message;
  }
}

TEST(Scheduler, NamesOfReasonsAndStatusesAreDistinct) {
  EXPECT_EQ(name_of(Reason::cannot_finish), "cannot_finish");
  EXPECT_EQ(name_of(Reason::rejected_late), "rejected_late");
  EXPECT_EQ(name_of(ActionStatus::too_late), "too_late");
}

}  // namespace
}  // namespace carillon::schedule
