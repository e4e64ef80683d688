#include "carillon/schedule/loads_ahead.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/asked_ahead.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/subclusters.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/scripted_scheduler.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;

// Two devices of two pages. The first has models 0 and 1, the second models 2 and 3.
class LoadsAheadTest : public ::testing::TestWithParam<std::string> {
 protected:
  LoadsAheadTest() : asked(make_scheduler(GetParam(), {.hangs_after = 1s, .classes = true}).value()) {
    for (std::uint32_t i = 0; i < 4; ++i) tell(model_comes(linear_model(i, 1ms, 1ms)));
    tell(DeviceChanged{DeviceId{0}, true, 2, 1, {ModelId{0}, ModelId{1}}});
    tell(DeviceChanged{DeviceId{1}, true, 2, 1, {ModelId{2}, ModelId{3}}});
    EXPECT_TRUE(orders.empty());
  }
  void tell(const Event& event) {
    orders.clear();
    asked.decide(event, now, orders);
  }
  void ask(std::uint32_t model, std::vector<ModelId> instead) {
    asked.ask({ModelId{model}, DeviceId{1}, std::move(instead)});
    tell(Wake{});
  }
  template <typename Order>
  const Order* only() const {
    return orders.size() == 1 ? std::get_if<Order>(orders.data()) : nullptr;
  }
  void done(ActionId id) { tell(ActionDone{id, ActionStatus::success, now, now += 8ms, 8ms}); }

  AskedAhead asked;
  Actions orders;
  TimePoint now{1s};
};
INSTANTIATE_TEST_SUITE_P(All, LoadsAheadTest, ::testing::ValuesIn(scheduler_names()));

TEST_P(LoadsAheadTest, RoomIsMadeAndTheModelIsLoaded) {
  ask(1, {ModelId{2}});
  const auto* unload = only<Unload>();
  ASSERT_NE(unload, nullptr);
  EXPECT_EQ(unload->device, DeviceId{1});
  EXPECT_EQ(unload->model, ModelId{2});
  const ActionId first = unload->id;
  ask(1, {ModelId{3}});
  EXPECT_TRUE(orders.empty()) << "room is being made";
  done(first);
  if (orders.empty()) ask(1, {});
  const auto* load = only<Load>();
  ASSERT_NE(load, nullptr);
  EXPECT_EQ(load->device, DeviceId{1});
  EXPECT_EQ(load->model, ModelId{1});
  done(ActionId(load->id));
  EXPECT_TRUE(orders.empty());
  ask(1, {});
  EXPECT_TRUE(orders.empty()) << "it is there";
  EXPECT_TRUE(asked.loads_ahead());
}

TEST_P(LoadsAheadTest, WhatMayNotGoStays) {
  ask(1, {});
  EXPECT_TRUE(orders.empty());
  ask(0, {ModelId{1}});  // which is not there
  EXPECT_TRUE(orders.empty());
}

TEST(LoadsAhead, ASchedulerThatDoesNotSaysSo) {
  AskedAhead asked(std::make_unique<testing::ScriptedScheduler>());
  Actions orders;
  EXPECT_TRUE(asked.loads_ahead());
  asked.ask({ModelId{0}, DeviceId{0}});
  asked.decide(Wake{}, TimePoint{1s}, orders);
  EXPECT_FALSE(asked.loads_ahead());
  EXPECT_TRUE(orders.empty());
}

// Devices 0 and 2 are of the first group, and so is the model.
TEST(LoadsAhead, OnlyOnDevicesOfTheModelsGroup) {
  const Environment environment{.hangs_after = 1s, .classes = true};
  const auto make = [&] { return make_scheduler("fcfs", environment).value(); };
  auto divided = std::make_unique<Subclusters>(make, environment, groups_of_models({{"m0"}, {"m1"}}));
  const Subclusters& groups = *divided;
  AskedAhead asked(std::move(divided));
  Actions orders;
  const auto tell = [&](const Event& event) {
    orders.clear();
    asked.decide(event, TimePoint{1s}, orders);
  };
  for (std::uint32_t i = 0; i < 2; ++i) tell(model_comes(linear_model(i, 1ms, 1ms)));
  ASSERT_EQ(groups.group(ModelId{0}), 0U);
  tell(DeviceChanged{DeviceId{0}, true, 1, 1, {ModelId{0}}});
  for (std::uint32_t i = 1; i < 3; ++i) tell(DeviceChanged{DeviceId{i}, true, 1, 1, {}});
  orders.clear();
  asked.ask({ModelId{0}, DeviceId{1}});
  tell(Wake{});
  EXPECT_TRUE(orders.empty());
  asked.ask({ModelId{0}, DeviceId{2}});
  tell(Wake{});
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(std::get<Load>(orders[0]).device, DeviceId{2});
  EXPECT_TRUE(asked.loads_ahead());
}

}  // namespace
}  // namespace carillon::schedule
