#include "carillon/schedule/carillon/carillon.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/policy_test.h"

namespace carillon::schedule {
namespace {

using testing::at;
using testing::linear_model;
using testing::of_kind;

class CarillonTest : public testing::PolicyTest<Carillon> {};

TEST_F(CarillonTest, NothingWaitsForMoreOfAModelThatIsNotAskedFor) {
  make();
  model(linear_model(0, 1ms, 10ms, 1, 8ms, {1, 2, 4}));
  device(0, 1, 0ms);
  EXPECT_EQ(of_kind<Infer>(arrives(0, 0, 5ms, at(500ms))).size(), 1U) << "the first of all";
}

TEST_F(CarillonTest, WhatNoDeviceIsFreeForInTimeIsRefusedAtOnce) {
  struct Case {
    Duration deadline;
    Preemption preemption;
    std::uint32_t model;
    bool refused;
  };
  for (const auto& [deadline, preemption, asked, refused] :
       {Case{150ms, Preemption::none, 0, true}, Case{250ms, Preemption::none, 0, false},
        Case{150ms, Preemption::deadline, 0, true},     // a run makes no way for another as long
        Case{50ms, Preemption::deadline, 1, false}}) {  // but for a shorter one
    make({.preemption = preemption});
    model(linear_model(0, 0ms, 100ms, 1, 8ms, {1}));
    model(linear_model(1, 0ms, 10ms, 1, 8ms, {1}));
    device(0, 2, 0ms);
    ASSERT_EQ(of_kind<Infer>(arrives(0, 0, 0ms, at(900ms))).size(), 1U);
    const auto said = of_kind<Refuse>(arrives(1, asked, 5ms, at(deadline)));
    ASSERT_EQ(said.size(), refused ? 1U : 0U) << deadline.count();
    if (refused) {
      EXPECT_EQ(said[0], (Refuse{RequestId{1}, Reason::cannot_finish, at(200ms)}));
    }
  }
}

TEST_F(CarillonTest, WhatAnotherDeviceIsFreeForInTimeIsKept) {
  make();
  model(linear_model(0, 0ms, 100ms, 1, 8ms, {1}));
  model(linear_model(1, 0ms, 20ms, 1, 8ms, {1}));
  device(0, 2, 0ms);
  device(1, 2, 0ms);
  ASSERT_EQ(of_kind<Infer>(arrives(0, 0, 0ms, at(900ms))).size(), 1U);
  ASSERT_EQ(of_kind<Infer>(arrives(1, 1, 0ms, at(900ms))).size(), 1U);
  EXPECT_TRUE(of_kind<Refuse>(arrives(2, 0, 5ms, at(150ms))).empty());
}

// One device, and a model of which requests of two applications come in turn. In the midst another model
// comes, which gets the name by which a kind was planned.
TEST_F(CarillonTest, BatchesAreOfOneKindAndANewModelMayTakeItsName) {
  make();
  model(linear_model(0, 2ms, 2ms, 1, 8ms, {1, 2, 4, 8}));
  device(0, 4, 0ms);
  struct Run {
    ActionId id;
    Duration start{0}, end{0};
  };
  std::vector<Run> runs;
  std::vector<Request> asked;
  std::vector<int> outcomes;
  std::size_t mixed = 0;
  const auto follow = [&](Actions orders, Duration now) {
    for (std::size_t i = 0; i < orders.size(); ++i)
      if (const auto* load = std::get_if<Load>(&orders[i]))
        for (const Action& order : done(load->id, now, now)) orders.push_back(order);
    for (const Infer& infer : of_kind<Infer>(orders)) {
      Duration each = 1ms;
      for (const RequestId id : infer.requests) {
        const Request& request = asked[id.value];
        ++outcomes[id.value];
        EXPECT_EQ(request.model, infer.model);
        mixed += request.app != asked[infer.requests.front().value].app ? 1 : 0;
        each = std::max<Duration>(each, request.app == AppId{2} ? 8ms : 1ms);
      }
      runs.push_back({infer.id, now, now + 2ms + each * static_cast<int>(infer.requests.size())});
    }
    for (const Refuse& refuse : of_kind<Refuse>(orders)) ++outcomes[refuse.request.value];
  };
  const auto live = [&](Duration from, Duration to, std::uint32_t models) {
    for (Duration now = from; now < to; now += 1ms) {
      if (!runs.empty() && runs.front().end <= now) {
        const Run run = runs.front();
        runs.erase(runs.begin());
        follow(done(run.id, run.start, run.end), now);
      }
      if (wake <= at(now)) follow(tell(Wake{}, now), now);
      if (models == 0 || now % 5ms != 0ms) continue;
      const std::uint64_t id = asked.size();
      const std::uint32_t which = id % 5 == 4 ? models - 1 : 0;
      asked.push_back({.id = RequestId{id},
                       .model = ModelId{which},
                       .app = AppId{which == 0 ? static_cast<std::uint32_t>(1 + id % 2) : 0},
                       .arrival = at(now),
                       .deadline = at(now + 300ms)});
      outcomes.push_back(0);
      follow(tell(RequestArrived{asked.back()}, now), now);
    }
  };
  live(1ms, 2000ms, 1);
  EXPECT_GT(mixed, 0U) << "before kinds are known";
  mixed = 0;
  live(2000ms, 4000ms, 1);
  EXPECT_EQ(mixed, 0U);
  follow(tell(model_comes(linear_model(1, 1ms, 2ms, 1, 8ms, {1, 2})), 4000ms), 4000ms);
  live(4001ms, 6000ms, 2);
  mixed = 0;
  live(6000ms, 8000ms, 2);
  EXPECT_EQ(mixed, 0U);
  live(8000ms, 10000ms, 0);
  EXPECT_EQ(std::ranges::count(outcomes, 1), static_cast<std::ptrdiff_t>(outcomes.size()));
}

// A line that waits for a larger batch by the last plan may find that there is none.
TEST_F(CarillonTest, AModelMayComeWithFewerBatchSizesBetweenPlans) {
  make();
  model(linear_model(0, 1ms, 6ms, 0, 0ms, {1, 2, 4, 8}));
  device(0, 4, 0ms);
  struct Run {
    ActionId id;
    Duration start{0}, end{0};
  };
  std::vector<Run> runs;
  std::vector<int> outcomes;
  const auto follow = [&](const Actions& orders, Duration now) {
    for (const Infer& infer : of_kind<Infer>(orders)) {
      for (const RequestId id : infer.requests) ++outcomes[id.value];
      runs.push_back({infer.id, now, now + 6ms + 1ms * static_cast<int>(infer.requests.size())});
    }
    for (const Refuse& refuse : of_kind<Refuse>(orders)) ++outcomes[refuse.request.value];
  };
  for (Duration now = 1ms; now < 4s; now += 1ms) {
    if (!runs.empty() && runs.front().end <= now) {
      const Run run = runs.front();
      runs.erase(runs.begin());
      follow(done(run.id, run.start, run.end), now);
    }
    if (wake <= at(now)) follow(tell(Wake{}, now), now);
    if (now >= 1s && now % 50ms == 0ms) {
      auto version = linear_model(0, 1ms, 6ms, 0, 0ms, {1, 2});
      if (now % 100ms == 0ms) version = linear_model(0, 1ms, 6ms, 0, 0ms, {1, 2, 4, 8});
      follow(tell(model_comes(version), now), now);
    }
    if (now >= 3s || now % 4ms != 0ms) continue;
    outcomes.push_back(0);
    follow(arrives(outcomes.size() - 1, 0, now, at(now + 100ms)), now);
  }
  EXPECT_EQ(std::ranges::count(outcomes, 1), static_cast<std::ptrdiff_t>(outcomes.size()));
}

}  // namespace
}  // namespace carillon::schedule
