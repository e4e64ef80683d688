// Devices that fail, hang and come back, as the core sees them.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/controller/core.h"
#include "carillon/controller/testing/fakes.h"
#include "carillon/schedule/registry.h"

namespace carillon::controller {
namespace {

using schedule::ActionDone;
using schedule::Actions;
using schedule::ActionStatus;
using schedule::DeviceChanged;
using schedule::Event;
using schedule::Infer;
using schedule::Reason;
using schedule::Refuse;
using schedule::RequestArrived;
using testing::call_of;
using testing::HeldWorker;
using testing::is_right;
using testing::ScriptedScheduler;
using testing::served;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Window always{TimePoint::min(), TimePoint::max()};

Infer infer(std::uint32_t device, std::uint64_t id, std::vector<RequestId> requests) {
  return {.id = {id},
          .device = {device},
          .model = {0},
          .requests = std::move(requests),
          .window = always,
          .expected = 1ms};
}

// How an action of a device ends whose engine fails.
worker::ActionResult broken(const HeldWorker& of) {
  return {.id = {99},
          .status = ActionStatus::failed,
          .error = "fell off the bus",
          .device_lost = true,
          .life = of.life,
          .device = of.device};
}

// Two devices, one model, and a scheduler that does nothing until told.
class CoreDevicesTest : public ::testing::Test {
 protected:
  CoreDevicesTest() { start({}); }
  void start(CoreOptions options) {
    workers[1].device = {1};
    options.on_device = [this](const DeviceNews& news) { told.push_back(news); };
    auto owned = std::make_unique<ScriptedScheduler>();
    scheduler = owned.get();
    core = std::make_unique<Core>(std::move(owned), options);
    for (HeldWorker& worker : workers) core->add_device(worker, "held");
    core->add_model(served(0));
    core->start(at(0ms));
    scheduler->events.clear();
  }
  void submit(std::uint64_t ticket, int rows, TimePoint now) {
    core->submit(
        ticket, call_of({0}, rows, now),
        [this](InferAnswer answer) {
          for (const HeldWorker& worker : workers)
            EXPECT_FALSE(answer.call && worker.uses(*answer.call)) << "buffers given away while in use";
          answers.push_back(std::move(answer));
        },
        now);
  }
  // The scheduler answers the next event of kind E with `actions`.
  template <typename E>
  void on_next(Actions actions) {
    scheduler->script = [actions = std::move(actions), this](const Event& event, TimePoint, Actions& out,
                                                             TimePoint&) {
      if (!std::holds_alternative<E>(event)) return;
      out = actions;
      scheduler->script = nullptr;
    };
  }
  void end(int device, std::uint64_t id, ActionStatus status, TimePoint now) {
    core->on_result(workers[device].end({id}, status, now), now);
  }
  DeviceStatistics device(std::size_t index) { return core->book().snapshot().devices[index]; }

  HeldWorker workers[2];
  ScriptedScheduler* scheduler = nullptr;
  std::vector<DeviceNews> told;
  std::vector<InferAnswer> answers;
  std::unique_ptr<Core> core;
};

TEST_F(CoreDevicesTest, WhatADeviceHadIsTriedElsewhere) {
  on_next<RequestArrived>({infer(1, 1, {{0}})});
  submit(1, 1, at(1ms));
  ASSERT_TRUE(workers[1].held.contains({1}));
  on_next<DeviceChanged>({infer(0, 2, {{0}})});
  core->on_result(broken(workers[1]), at(2ms));
  EXPECT_EQ(workers[1].life, 1U) << "its worker's life is over";
  const auto changes = scheduler->heard<DeviceChanged>();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].device, DeviceId{1});
  EXPECT_FALSE(changes[0].alive);
  EXPECT_TRUE(scheduler->heard<ActionDone>().empty()) << "actions went with their device";
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].why, "fell off the bus");
  EXPECT_EQ(core->devices_alive(), 1U);

  EXPECT_TRUE(answers.empty());
  end(0, 2, ActionStatus::success, at(4ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_TRUE(answers[0].status.has_value());
  EXPECT_TRUE(is_right(*answers[0].call));
  EXPECT_EQ(core->open_rows(), 0U);
  EXPECT_EQ(core->actions_in_flight(), 0U);
  EXPECT_FALSE(device(1).alive);
  EXPECT_EQ(device(1).lost, 1U);
  EXPECT_EQ(device(0).executions, 1U);
}

// Whoever has the device meanwhile hears that it is wanted before it is sent anything, and that it is free
// once all that was heard of is decided.
TEST_F(CoreDevicesTest, UntilWhenADeviceCannotBeWanted) {
  struct Told {
    std::uint32_t device;
    std::optional<TimePoint> until;
    std::size_t held;  // by the worker at that moment
    bool operator==(const Told&) const = default;
  };
  std::vector<Told> leisure;
  CoreOptions options;
  options.on_leisure = [&](DeviceId device, std::optional<TimePoint> until) {
    leisure.push_back({device.value, until, workers[device.index()].held.size()});
  };
  start(options);
  EXPECT_EQ(leisure, (std::vector<Told>{{0, TimePoint::max(), 0}, {1, TimePoint::max(), 0}}));
  leisure.clear();

  scheduler->script = [](const Event&, TimePoint, Actions&, TimePoint& wake) { wake = at(9ms); };
  submit(1, 1, at(1ms));
  EXPECT_EQ(leisure, (std::vector<Told>{{0, at(9ms), 0}, {1, at(9ms), 0}}))
      << "the request waits for its time";
  leisure.clear();
  scheduler->script = nullptr;
  on_next<schedule::Wake>({infer(1, 1, {{0}})});
  core->wake(at(9ms));
  EXPECT_EQ(leisure, (std::vector<Told>{{1, std::nullopt, 0}, {0, TimePoint::max(), 0}}));
  leisure.clear();
  end(1, 1, ActionStatus::success, at(11ms));
  EXPECT_EQ(leisure, (std::vector<Told>{{1, TimePoint::max(), 0}}));
  leisure.clear();

  on_next<RequestArrived>({infer(0, 2, {{1}})});
  submit(2, 1, at(12ms));
  on_next<DeviceChanged>({Refuse{{1}, Reason::device_failed, TimePoint::max()}});
  core->on_result(broken(workers[0]), at(13ms));
  EXPECT_EQ(leisure, (std::vector<Told>{{0, std::nullopt, 0}})) << "one that went is nobody's";
}

TEST_F(CoreDevicesTest, ARefusalSaysWhatBecameOfTheDevice) {
  on_next<RequestArrived>({infer(1, 1, {{0}})});
  submit(1, 1, at(1ms));
  on_next<DeviceChanged>({Refuse{{0}, Reason::device_failed, TimePoint::max()}});
  core->on_result(broken(workers[1]), at(2ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].status.error().code, ErrorCode::internal);
  EXPECT_EQ(answers[0].status.error().message,
            "model 'model0': its execution failed: its device went: fell off the bus");
  EXPECT_NE(answers[0].call, nullptr);
  EXPECT_EQ(core->open_rows(), 0U);
}

TEST_F(CoreDevicesTest, ResultsOfALifeThatIsOverAreNotHeeded) {
  on_next<RequestArrived>({infer(1, 1, {{0}})});
  submit(1, 1, at(1ms));
  const worker::ActionResult late = workers[1].end({1}, ActionStatus::success, at(2ms));
  const worker::ActionResult late_failure = broken(workers[1]);
  core->on_result(broken(workers[1]), at(2ms));
  core->on_result(late, at(3ms));
  core->on_result(late_failure, at(3ms));
  core->on_probe({.found = {}, .life = 0, .device = {1}}, at(3ms));
  EXPECT_TRUE(answers.empty());
  EXPECT_EQ(scheduler->heard<DeviceChanged>().size(), 1U);
  EXPECT_EQ(core->devices_alive(), 1U);
}

TEST_F(CoreDevicesTest, ADeviceThatIsGivenUpIsTakenOutAndProbedUntilItIsBack) {
  on_next<RequestArrived>({infer(1, 1, {{0}})});
  submit(1, 1, at(1ms));
  TimePoint now = at(1s);
  on_next<RequestArrived>({schedule::GiveUp{{1}}, Refuse{{0}, Reason::device_failed, TimePoint::max()}});
  submit(3, 1, now);
  EXPECT_EQ(told.size(), 1U);
  EXPECT_TRUE(scheduler->heard<DeviceChanged>().empty()) << "it knows";
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].status.error().message,
            "model 'model0': its execution failed: its device went: it hangs: it reports nothing any more");

  while (workers[1].probes == 0 && now < at(10s)) core->wake(now = core->wake_at());
  EXPECT_EQ(core->wake_at(), TimePoint::max()) << "until the probe comes back";
  now += 1min;
  core->on_probe({.found = fail(ErrorCode::unavailable, "no"), .life = 1, .device = {1}}, now);
  EXPECT_EQ(core->devices_alive(), 1U);
  core->wake(now = core->wake_at());
  EXPECT_EQ(workers[1].probes, 2);
  core->on_probe({.found = {}, .life = 1, .device = {1}}, now);
  const auto changes = scheduler->heard<DeviceChanged>();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_TRUE(changes[0].alive);
  EXPECT_EQ(changes[0].pages, 100U);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_TRUE(told[1].alive && device(1).alive);

  on_next<RequestArrived>({infer(1, 2, {{1}, {2}})});
  submit(2, 1, now);
  end(1, 2, ActionStatus::success, now + 1ms);
  EXPECT_EQ(answers.size(), 3U);
}

TEST_F(CoreDevicesTest, WhatADeviceHadThatIsGivenUpRunsElsewhereAtOnce) {
  on_next<RequestArrived>({infer(1, 1, {{0}})});
  submit(1, 1, at(1ms));
  on_next<RequestArrived>({schedule::GiveUp{{1}}, infer(0, 2, {{0}, {1}})});
  submit(2, 1, at(2ms));
  EXPECT_FALSE(device(1).alive);
  end(0, 2, ActionStatus::success, at(3ms));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_TRUE(answers[0].status && answers[1].status);
  EXPECT_EQ(core->open_rows(), 0U);
}

TEST_F(CoreDevicesTest, ACallThatWasAnsweredBeforeItsDeviceWentIsLetGo) {
  on_next<RequestArrived>({infer(1, 1, {{0}})});
  submit(1, 1, at(1ms));
  core->cancel(1, at(2ms));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].call, nullptr);
  EXPECT_EQ(core->open_rows(), 1U);
  core->on_result(broken(workers[1]), at(3ms));
  EXPECT_EQ(core->open_rows(), 0U);
  EXPECT_EQ(answers.size(), 1U);
}

TEST_F(CoreDevicesTest, WhatAFullWorkerDidNotTakeGoesWithItsDevice) {
  workers[1].full = true;
  on_next<RequestArrived>({infer(1, 1, {{0}})});
  submit(1, 1, at(1ms));
  core->on_result(broken(workers[1]), at(1ms));
  core->wake(at(2ms));
  EXPECT_TRUE(scheduler->heard<ActionDone>().empty());
}

TEST_F(CoreDevicesTest, TheBookKnowsWhatEachDeviceHolds) {
  on_next<RequestArrived>(
      {schedule::Load{{1}, {0}, {0}, always, 1ms}, schedule::Load{{2}, {1}, {0}, always, 1ms}});
  submit(1, 1, at(1ms));
  end(0, 1, ActionStatus::success, at(3ms));
  end(1, 2, ActionStatus::success, at(3ms));
  EXPECT_EQ(core->book().snapshot().models[0].devices, 2U);
  EXPECT_EQ(core->book().snapshot().models[0].held_by, (std::vector<DeviceId>{{0}, {1}}));
  EXPECT_EQ(device(1).models, 1U);
  core->on_result(broken(workers[1]), at(4ms));
  EXPECT_EQ(core->book().snapshot().models[0].devices, 1U);
  EXPECT_EQ(core->book().snapshot().models[0].held_by, (std::vector<DeviceId>{{0}}));
  EXPECT_TRUE(core->book().snapshot().models[0].loaded);
  EXPECT_EQ(device(1).models, 0U);
  core->on_result(broken(workers[0]), at(5ms));
  EXPECT_FALSE(core->book().snapshot().models[0].loaded);
}

TEST_F(CoreDevicesTest, ARowThatRunsAgainIsNotLostWithItsDevice) {
  const auto again = [](std::uint64_t id, std::uint32_t device) {
    return schedule::Profile{
        .id = {id}, .device = {device}, .model = {0}, .request = {0}, .window = always, .expected = 1ms};
  };
  on_next<RequestArrived>({schedule::Keep{{0}}, infer(0, 1, {{0}})});
  submit(1, 1, at(1ms));
  on_next<ActionDone>({again(2, 0)});
  end(0, 1, ActionStatus::success, at(3ms));
  ASSERT_EQ(workers[0].held.size(), 1U);
  on_next<DeviceChanged>({again(3, 1)});
  core->on_result(broken(workers[0]), at(4ms));
  ASSERT_TRUE(workers[1].held.contains({3})) << "elsewhere";
  end(1, 3, ActionStatus::success, at(9ms));
  EXPECT_EQ(core->book().snapshot().models[0].profiled, 1U);
  EXPECT_EQ(core->actions_in_flight(), 0U);
}

// A worker whose lanes are slow as the test says, and which counts who asks.
struct SlowWorker : HeldWorker {
  schedule::Excuse slowness(schedule::Lane lane) override {
    asked.push_back(lane);
    const Duration passed = now - std::exchange(looked[static_cast<std::size_t>(lane)], now);
    return {.device = {}, .lane = lane, .starved = passed * starved_percent / 100, .moved = moved};
  }
  TimePoint now{};
  std::array<TimePoint, schedule::lanes> looked{};
  int starved_percent = 0;
  bool moved = false;
  std::vector<schedule::Lane> asked;
};

// The wake of a scheduler tells of devices that have had something to do for long, and only of those.
TEST(SlowDevices, AWakeTellsOfThem) {
  SlowWorker workers[2];
  workers[1].device = {1};
  auto owned = std::make_unique<ScriptedScheduler>();
  ScriptedScheduler& scheduler = *owned;
  Core core(std::move(owned), {.slow_after = 50ms});
  for (HeldWorker& worker : workers) core.add_device(worker);
  core.add_model(served(0));
  core.start(at(0ms));
  workers[1].starved_percent = 20;
  scheduler.script = [](const Event& event, TimePoint now, Actions& out, TimePoint& wake) {
    wake = now + 10ms;
    if (std::holds_alternative<RequestArrived>(event))
      out = {infer(1, 1, {{0}}), schedule::Unload{{2}, {0}, {0}}};
  };
  core.submit(
      1, call_of({0}, 1, at(1ms)), [](const InferAnswer&) {}, at(1ms));
  while (core.wake_at() <= at(191ms)) {
    workers[1].now = core.wake_at();
    core.wake(core.wake_at());
  }
  using schedule::Lane;
  EXPECT_EQ(workers[1].asked, (std::vector<Lane>(3, Lane::exec))) << "at 51, 101 and 151 ms";
  ASSERT_EQ(workers[0].asked.size(), 3 * 4U) << "an UNLOAD waits for runs of all classes";
  std::vector<schedule::Excuse> told;
  for (const schedule::Wake& wake : scheduler.heard<schedule::Wake>())
    told.insert(told.end(), wake.excuses.begin(), wake.excuses.end());
  EXPECT_EQ(told, (std::vector<schedule::Excuse>{{{1}, Lane::exec, 10200us, false},
                                                 {{1}, Lane::exec, 10ms, false},
                                                 {{1}, Lane::exec, 10ms, false}}))
      << "of the other there is nothing to tell";
}

// Under every policy a device is given up that hangs, and none that is slow.
TEST(SlowDevices, AreNotTakenOut) {
  const struct {
    int starved_percent;
    bool moved;
    bool hangs;
  } rows[] = {{0, false, true}, {100, false, false}, {0, true, false}, {40, false, true}};
  for (const std::string policy : {"clockwork", "fcfs", "symphony", "orloj"})
    for (const auto& [starved_percent, moved, hangs] : rows) {
      SlowWorker worker;
      worker.starved_percent = starved_percent;
      worker.moved = moved;
      Core core(*schedule::make_scheduler(policy, {.hangs_after = 800ms}), {.slow_after = 50ms});
      core.add_device(worker);
      core.add_model(served(0));
      TimePoint now = at(0ms);
      core.start(now);
      std::vector<InferAnswer> answers;
      core.submit(
          1, call_of({0}, 1, now), [&](InferAnswer answer) { answers.push_back(std::move(answer)); }, now);
      for (; now < at(60s); now += 5ms) {
        worker.now = now;
        // Its LOAD ends; its run does not.
        if (!worker.held.empty() && worker.held.begin()->second.kind == schedule::ActionKind::load)
          core.on_result(worker.end(worker.held.begin()->first, ActionStatus::success, now), now);
        if (core.wake_at() <= now) core.wake(now);
      }
      EXPECT_EQ(core.book().snapshot().devices[0].lost > 0, hangs)
          << policy << " " << starved_percent << " " << moved;
      if (hangs) continue;
      ASSERT_FALSE(worker.held.empty()) << policy;
      core.on_result(worker.end(worker.held.begin()->first, ActionStatus::success, now), now);
      ASSERT_EQ(answers.size(), 1U);
      EXPECT_TRUE(answers[0].status.has_value());
    }
}

// Every policy, with its own ways: a device that goes takes nobody's answer with it, and where none is left
// all are refused at once.
class PoliciesWithoutDevices : public ::testing::TestWithParam<std::string> {};

TEST_P(PoliciesWithoutDevices, RefuseAtOnceUntilOneIsBack) {
  HeldWorker workers[2];
  workers[1].device = {1};
  auto scheduler = schedule::make_scheduler(GetParam());
  ASSERT_TRUE(scheduler.has_value());
  Core core(std::move(*scheduler), {});
  for (HeldWorker& worker : workers) core.add_device(worker);
  core.add_model(served(0));
  TimePoint now = at(0ms);
  core.start(now);
  std::vector<InferAnswer> answers;
  std::uint64_t tickets = 0;
  const auto submit = [&](Duration deadline) {
    core.submit(
        ++tickets, call_of({0}, 1, now, now + deadline),
        [&](InferAnswer answer) { answers.push_back(std::move(answer)); }, now);
  };
  // All that is held ends well, in order, a millisecond each.
  const auto work = [&](Duration time) {
    for (const TimePoint until = now + time; now < until; now += 1ms) {
      for (HeldWorker& worker : workers)
        if (!worker.held.empty())
          core.on_result(worker.end(worker.held.begin()->first, ActionStatus::success, now), now);
      if (core.wake_at() <= now) core.wake(now);
    }
  };
  work(100ms);  // the model is loaded
  for (int i = 0; i < 20; ++i) {
    submit(500ms);
    work(3ms);
  }
  work(600ms);
  const auto well = [&] {
    return std::ranges::count_if(answers, [](const InferAnswer& a) { return a.status.has_value(); });
  };
  EXPECT_EQ(well(), 20) << "both are there";
  answers.clear();

  for (int i = 0; i < 4; ++i) submit(500ms);
  for (HeldWorker& worker : workers) core.on_result(broken(worker), now);
  for (int i = 0; i < 4; ++i) {
    const std::size_t before = answers.size();
    submit(500ms);
    ASSERT_EQ(answers.size(), before + 1) << "at once";
    EXPECT_EQ(answers.back().status.error().code, ErrorCode::unavailable);
    EXPECT_EQ(answers.back().status.error().message, "model 'model0': no device answers");
  }
  work(600ms);
  EXPECT_EQ(answers.size(), 8U);
  EXPECT_EQ(core.open_calls(), 0U);
  answers.clear();

  core.on_probe({.found = {}, .life = workers[1].life, .device = {1}}, now);
  work(1s);  // it is loaded again
  for (int i = 0; i < 20; ++i) {
    submit(500ms);
    work(3ms);
  }
  work(600ms);
  EXPECT_GE(well(), 18);
  EXPECT_EQ(answers.size(), 20U);
}

INSTANTIATE_TEST_SUITE_P(All, PoliciesWithoutDevices,
                         ::testing::Values("clockwork", "fcfs", "symphony", "eager", "timeout:0.3", "clipper",
                                           "nexus", "shepherd", "orloj"),
                         [](const auto& name) { return name.param.substr(0, name.param.find(':')); });

}  // namespace
}  // namespace carillon::controller
