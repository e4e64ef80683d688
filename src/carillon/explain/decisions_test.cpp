#include "carillon/explain/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::explain {
namespace {

using schedule::ActionDone;
using schedule::ActionStatus;
using schedule::Infer;
using schedule::Reason;
using schedule::Refuse;
using schedule::RequestArrived;
using ::testing::ElementsAre;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Window always{TimePoint::min(), TimePoint::max()};

// Two devices; "resnet" takes pages and is on neither, "mlp" needs none.
class DecisionsTest : public ::testing::Test {
 protected:
  DecisionsTest() {
    schedule::ModelInfo resnet{.id = {0}, .name = "resnet", .pages = 2};
    resnet.batches = {{1, 4ms}, {4, 9ms}};
    schedule::ModelInfo mlp{.id = {1}, .name = "mlp"};
    mlp.batches = {{1, 1ms}};
    decisions.add(schedule::model_comes(resnet), at(0ms), {});
    decisions.add(schedule::model_comes(mlp), at(0ms), {});
    decisions.add(schedule::DeviceChanged{.device = {0}, .pages = 10}, at(0ms), {});
    decisions.add(schedule::DeviceChanged{.device = {1}, .pages = 10}, at(0ms), {});
  }
  void arrives(std::uint64_t id, TimePoint now, TimePoint deadline, const schedule::Actions& actions = {},
               std::uint32_t model = 0) {
    decisions.add(RequestArrived{{.id = {id}, .model = {model}, .arrival = now, .deadline = deadline}}, now,
                  actions);
  }
  void ends(std::uint64_t id, ActionStatus status, TimePoint start, TimePoint now,
            const schedule::Actions& actions = {}) {
    decisions.add(
        ActionDone{.id = {id}, .status = status, .start = start, .end = now, .duration = now - start}, now,
        actions);
  }
  static Infer infer(std::uint64_t id, std::vector<RequestId> requests, std::uint32_t device = 0,
                     std::uint32_t model = 0) {
    return {.id = {id},
            .device = {device},
            .model = {model},
            .requests = std::move(requests),
            .window = always,
            .expected = 4ms};
  }
  Story story(std::uint64_t number) { return decisions.story(*decisions.find(number)); }

  Decisions decisions;
};

std::vector<std::string> steps_of(const std::vector<Step>& steps) {
  std::vector<std::string> out;
  for (const Step& step : steps)
    out.push_back(std::string(name_of(step.what)) + " " + std::to_string(step.begin / 1us) + "-" +
                  std::to_string(step.end / 1us));
  return out;
}

TEST_F(DecisionsTest, TellsOfALoadAHoldAndARun) {
  arrives(0, at(10ms), at(60ms),
          {schedule::Load{.id = {1}, .device = {0}, .model = {0}, .window = always, .expected = 5ms}});
  arrives(1, at(12ms), at(60ms));
  ends(1, ActionStatus::success, at(11ms), at(16ms));
  decisions.add(schedule::Wake{}, at(20ms), {infer(2, {{0}, {1}})});
  ends(2, ActionStatus::success, at(21ms), at(30ms));
  const Story told = story(0);
  EXPECT_EQ(told.request.outcome, Outcome::on_time);
  EXPECT_EQ(told.took(), 20ms);
  EXPECT_THAT(steps_of(told.steps), ElementsAre("wait 0-1000", "load 1000-6000", "wait 6000-10000",
                                                "wait 10000-11000", "exec 11000-20000"));
  EXPECT_EQ(told.steps[0].note, "the scheduler held it, until 1 of its batch's 1 had come");
  ASSERT_TRUE(told.last.has_value());
  EXPECT_THAT(told.last->requests, ElementsAre(0, 1));
  EXPECT_EQ(told.request.tries, 1);
}

TEST_F(DecisionsTest, TellsWhatADeviceWasBusyWith) {
  arrives(0, at(0ms), TimePoint::max(), {infer(1, {{0}}, 0, 1)}, 1);
  arrives(1, at(2ms), at(9ms), {infer(2, {{1}})});
  ends(1, ActionStatus::success, at(1ms), at(6ms));
  ends(2, ActionStatus::success, at(6ms), at(10ms));
  const Story told = story(1);
  EXPECT_EQ(told.request.outcome, Outcome::late);
  EXPECT_THAT(steps_of(told.steps), ElementsAre("busy 0-4000", "exec 4000-8000"));
  EXPECT_EQ(told.steps[0].note, "mlp, alone");
  EXPECT_EQ(told.steps[0].device, 0U);
}

TEST_F(DecisionsTest, TellsTheNumbersBehindARefusalAndWhatCameAfter) {
  arrives(0, at(0ms), TimePoint::max(), {infer(1, {{0}}, 0, 1)}, 1);
  arrives(1, at(2ms), at(5ms),
          {Refuse{.request = {1}, .reason = Reason::cannot_finish, .would_finish = at(12ms)}}, 1);
  ends(1, ActionStatus::success, at(1ms), at(6ms));
  const Story told = story(1);
  EXPECT_EQ(told.request.outcome, Outcome::refused);
  EXPECT_EQ(told.request.cause, Cause::cannot_finish);
  EXPECT_EQ(told.request.would_take, 10ms);
  ASSERT_TRUE(told.request.expected.has_value());
  const Expectation& expected = *told.request.expected;
  EXPECT_EQ(expected.exec, 4ms);  // as the scheduler said of the batch of one, and not as it was told
  EXPECT_EQ(expected.devices, 2);
  EXPECT_EQ(expected.holding, 2);
  EXPECT_EQ(expected.device, 1U);  // it has nothing to do
  EXPECT_EQ(expected.actions, 0);
  EXPECT_THAT(steps_of(told.after), ElementsAre("busy -1000-4000"));
}

TEST_F(DecisionsTest, TellsOfTriesInVain) {
  arrives(0, at(0ms), at(100ms), {infer(1, {{0}})});
  decisions.add(schedule::DeviceChanged{.device = {0}, .alive = false}, at(5ms), {infer(2, {{0}}, 1)});
  ends(2, ActionStatus::too_late, at(6ms), at(6ms), {infer(3, {{0}}, 1)});
  decisions.add(schedule::Wake{}, at(7ms),
                {Refuse{.request = {0}, .reason = Reason::device_failed, .would_finish = TimePoint::max()}});
  const Story told = story(0);
  EXPECT_EQ(told.request.outcome, Outcome::failed);
  EXPECT_EQ(told.request.tries, 3);
  ASSERT_GE(told.steps.size(), 2U);
  EXPECT_EQ(told.steps[0].note, "its device went");
  EXPECT_EQ(told.steps[1].note, "the device could not start it in its window");
}

TEST_F(DecisionsTest, ClientsThatGoAreCancelledAndOpenOnesStayOpen) {
  arrives(0, at(0ms), at(100ms));
  arrives(1, at(0ms), at(100ms));
  decisions.add(schedule::RequestCancelled{{0}, {0}}, at(3ms), {});
  EXPECT_EQ(story(0).request.outcome, Outcome::cancelled);
  EXPECT_EQ(story(0).took(), 3ms);
  EXPECT_EQ(story(1).request.outcome, Outcome::open);
  EXPECT_EQ(story(1).took(), std::nullopt);
  EXPECT_EQ(decisions.find(2), nullptr);
}

// Nothing that a log says may lead outside of what there is.
TEST_F(DecisionsTest, TakesRecordsThatMakeNoSense) {
  arrives(0, at(0ms), at(10ms),
          {infer(1, {{7}, {8}}), infer(2, {{0}}, 0, 99), infer(3, {{0}}, 4'000'000'000)}, 55);
  ends(77, ActionStatus::success, at(0ms), at(1ms));
  decisions.add(schedule::Wake{}, at(1ms),
                {Refuse{.request = {9}}, schedule::GiveUp{{5}}, schedule::Preempt{.id = {3}, .device = {9}}});
  EXPECT_TRUE(decisions.requests().empty());
  EXPECT_EQ(decisions.actions().size(), 1U);
}

TEST_F(DecisionsTest, TellsWhatARequestTakesByTheTimesThatChanged) {
  decisions.add(schedule::TimesChanged{{1}, {{1, 7ms}}}, at(1ms), {});
  arrives(1, at(2ms), at(5ms),
          {Refuse{.request = {1}, .reason = Reason::cannot_finish, .would_finish = at(12ms)}}, 1);
  EXPECT_EQ(story(1).request.expected->exec, 7ms);
  arrives(2, at(2ms), TimePoint::max(), {infer(1, {{2}}, 0, 1)}, 1);  // which is expected to take 4 ms
  decisions.add(schedule::TimesChanged{{1}, {{1, 7ms}}}, at(3ms), {});
  arrives(3, at(4ms), at(5ms),
          {Refuse{.request = {3}, .reason = Reason::cannot_finish, .would_finish = at(12ms)}}, 1);
  EXPECT_EQ(story(3).request.expected->exec, 4ms) << "what did not change is as the scheduler says";
}

}  // namespace
}  // namespace carillon::explain
