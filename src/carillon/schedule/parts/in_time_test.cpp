#include "carillon/schedule/parts/in_time.h"

#include <memory>

#include <gtest/gtest.h>

#include "carillon/schedule/policy.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule::parts {
namespace {

// One device and one model, whose runs take 10 ms.
class InTimeTest : public ::testing::Test {
 protected:
  InTimeTest() {
    ledger_.planned_by(environment_, true);
    hear(DeviceChanged{device_, true, 1});
    const ModelChanged comes{
        model_, std::make_shared<const ModelInfo>(testing::linear_model(0, 0ms, 10ms, 1, 8ms, {1}))};
    ledger_.plan(comes);
    hear(comes);
  }
  void hear(const Event& event) {
    ledger_.apply(event, now_);
    Orders orders(ledger_, next_, now_, actions_);
    plan_.hear(event, orders);
  }
  // For a second, so many. The next is planned for.
  void arrive(int requests, Duration slo) {
    for (int i = 0; i <= 100; ++i) {
      for (int k = i * requests / 100; k < (i + 1) * requests / 100; ++k)
        plan_.arrived(
            {.id = RequestId{next_request_++}, .model = model_, .arrival = now_, .deadline = now_ + slo},
            model_, now_);
      now_ += 10ms;
      Orders orders(ledger_, next_, now_, actions_);
      while (plan_.step(orders) || plan_.busy()) {
      }
    }
    shortage_.find(1, now_);
  }
  // Each run takes so long, in turn.
  void run(int times, std::initializer_list<Duration> takes) {
    for (int i = 0; i < times; ++i)
      for (const Duration took : takes) {
        const ActionId id{next_++};
        ledger_.book(Infer{id, device_, model_, {RequestId{next_request_++}}, {now_, TimePoint::max()}, 10ms},
                     now_);
        const TimePoint start = now_;
        now_ += took;
        hear(ActionDone{
            .id = id, .status = ActionStatus::success, .start = start, .end = now_, .duration = took});
      }
  }
  Times times(const InTime& in_time) const { return in_time.times(Class::normal, ledger_, now_); }
  double accepted() const { return by_chance_.accepted_of_idle(device_, model_, times(by_chance_)); }

  const Environment environment_{.dispatch = {}, .answer = {}, .overrun = 0};
  const DeviceId device_{0};
  const ModelId model_{0};
  ledger::Ledger ledger_;
  Actions actions_;
  std::uint64_t next_ = 0, next_request_ = 0;
  TimePoint now_{1s};
  Plan plan_{environment_};
  Shortage shortage_{plan_};
  const InTime by_chance_{true, plan_, shortage_}, by_margins_{false, plan_, shortage_};
};

TEST_F(InTimeTest, AnIdleDeviceTakesNearlyAnyChanceWhileNothingElseComes) {
  EXPECT_NEAR(accepted(), 0.9, 1e-9);
  EXPECT_EQ(by_margins_.accepted_of_idle(device_, model_, times(by_margins_)), 0);
  EXPECT_NEAR(by_chance_.accepted(device_, model_, times(by_chance_), ledger_), 0.9, 1e-9);
}

TEST_F(InTimeTest, ABusyDeviceTakesNoChance) {
  ledger_.book(Infer{ActionId{next_++}, device_, model_, {RequestId{1}}, {now_, TimePoint::max()}, 10ms},
               now_);
  EXPECT_EQ(by_chance_.accepted(device_, model_, times(by_chance_), ledger_), 0);
}

TEST_F(InTimeTest, WhatTheTimeWouldAnswerOtherwiseIsTheBar) {
  arrive(400, 100ms);  // four devices' work
  EXPECT_NEAR(plan_.load(), 4, 0.2);
  EXPECT_NEAR(accepted(), 1 - plan_.load() / (1 + plan_.load()), 0.02);
}

// The next request of the model would be late as well.
TEST_F(InTimeTest, TheBarIsLowerWhereRunsAreOftenLateByThemselves) {
  run(200, {10ms, 14ms});
  arrive(400, 12ms);
  const double late = times(by_chance_).late(device_, model_, 0, 12ms);
  EXPECT_NEAR(late, 0.5, 0.15);
  const double alone = to_seconds(times(by_chance_).exec(device_, model_, 0)) / plan_.each();
  EXPECT_NEAR(accepted(), 1 - plan_.load() / (1 + plan_.load()) * alone * (1 - late), 1e-9);
  EXPECT_GT(accepted(), 0.5);
}

}  // namespace
}  // namespace carillon::schedule::parts
