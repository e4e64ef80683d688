#include "carillon/dispatch/dispatch.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/scripted_scheduler.h"
#include "carillon/wire/application.h"

namespace carillon::dispatch {
namespace {

using schedule::ActionStatus;
using schedule::testing::linear_model;
using schedule::testing::ScriptedScheduler;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
std::string number(std::uint64_t value) {
  return std::to_string(value);
}

// Both write down what they are told, in one list.
class HeardCalls final : public wire::Calls {
 public:
  explicit HeardCalls(std::vector<std::string>& said) : said_(said) {}
  std::uint64_t sent(RequestId row, ModelId model, std::uint64_t entry) override {
    said_.push_back("sent " + number(row.value) + " of " + number(model.value) + " in " + number(entry));
    return 100 + row.value;
  }
  void came_back(RequestId row) override { said_.push_back("came back " + number(row.value)); }
  void ended(RequestId row, const wire::Report& report, TimePoint) override {
    said_.push_back("ended " + number(row.value) + " " + std::string(name_of(report.status)));
  }
  void turned_down(RequestId row, const Error& error) override {
    said_.push_back("turned down " + number(row.value) + ": " + error.message);
  }
  void lost(RequestId row, std::string_view why) override {
    said_.push_back("lost " + number(row.value) + ": " + std::string(why));
  }
  void refused(const wire::Verdict& verdict, TimePoint now) override {
    said_.push_back("refused " + number(verdict.refusal.request.value));
    verdicts.push_back(verdict);
    if (on_refused) on_refused(verdict, now);
  }
  void keep(RequestId row) override { said_.push_back("keep " + number(row.value)); }
  void forget(RequestId row) override { said_.push_back("forget " + number(row.value)); }

  std::vector<wire::Verdict> verdicts;
  std::function<void(const wire::Verdict&, TimePoint)> on_refused;

 private:
  std::vector<std::string>& said_;
};

class HeardLink final : public wire::DeviceLink {
 public:
  explicit HeardLink(std::vector<std::string>& said) : said_(said) {}
  void send(const ledger::Load& order) override { sends("load", order.id); }
  void send(const ledger::Unload& order) override { sends("unload", order.id); }
  void send(const ledger::Infer& order) override { sends("infer", order.id); }
  void send(const ledger::Profile& order) override { sends("profile", order.id); }
  void stop(ActionId id) override { said_.push_back("stop " + number(id.value)); }
  void preempt(ActionId id, TimePoint) override { said_.push_back("preempt " + number(id.value)); }
  void retire(std::uint32_t life) override { said_.push_back("retire " + number(life)); }
  void probe() override { said_.emplace_back("probe"); }
  ledger::Excuse slowness(ledger::Lane lane) override {
    return {.device = {}, .lane = lane, .starved = starved};
  }
  wire::Credit credit() const override { return grants; }
  std::uint64_t pages() const override { return 100; }
  int best_effort() const override { return 3; }

  wire::Credit grants;
  Duration starved{0};

 private:
  void sends(const std::string& what, ActionId id) { said_.push_back(what + " " + number(id.value)); }
  std::vector<std::string>& said_;
};

class HeardNotes final : public Notes {
 public:
  explicit HeardNotes(std::vector<std::string>& said) : said_(said) {}
  std::uint64_t begun(std::uint32_t, const Action& action) override { return 10 + action.id.value; }
  void with(std::uint32_t, std::uint64_t call) override { said_.push_back("with " + number(call)); }
  void complete(std::uint32_t) override { ++completed; }
  void not_taken(std::uint32_t, TimePoint now) override { untaken.push_back(now); }
  void odd_report(DeviceId device) override { said_.push_back("odd " + number(device.value)); }
  void device_back(DeviceId device) override { said_.push_back("back " + number(device.value)); }

  int completed = 0;
  std::vector<TimePoint> untaken;

 private:
  std::vector<std::string>& said_;
};

using Said = std::vector<std::string>;

class DispatchTest : public ::testing::Test {
 protected:
  DispatchTest() {
    for (HeardLink* link : {&first, &second}) dispatch.add_device(*link);
    dispatch.add_model(linear_model(0, 1ms, 1ms));
    dispatch.start(at(0ms));
  }

  Request row(std::uint64_t id, Duration arrival) const {
    return {.id = {id}, .model = {0}, .app = {}, .arrival = at(arrival), .deadline = at(arrival + 50ms)};
  }
  schedule::Infer infer(std::uint64_t action, std::vector<RequestId> rows, std::uint32_t device = 0) const {
    return {.id = {action},
            .device = {device},
            .model = {0},
            .requests = std::move(rows),
            .window = {at(0ms), at(50ms)},
            .expected = 2ms};
  }
  // The scheduler answers the next event with these.
  void next(schedule::Actions orders) {
    scheduler.script = [this, orders = std::move(orders)](const schedule::Event&, TimePoint,
                                                          schedule::Actions& out, TimePoint&) {
      out.insert(out.end(), orders.begin(), orders.end());
      scheduler.script = nullptr;
    };
  }
  wire::Report report(std::uint64_t action, ActionStatus status, Duration end) const {
    wire::Report out{.id = {action}, .status = status, .times = {}, .error = {}, .device = {0}};
    out.times.exec_start = at(end - 1ms);
    out.times.exec_end = at(end);
    return out;
  }
  // What was said since the last look.
  Said said() { return std::exchange(said_, {}); }

  std::vector<std::string> said_;
  HeardCalls calls{said_};
  HeardLink first{said_}, second{said_};
  HeardNotes notes{said_};
  ScriptedScheduler scheduler;
  Dispatch dispatch{scheduler, Options{}, calls, notes};
};

// The scheduler hears of devices in order, also where a later one comes first.
TEST_F(DispatchTest, ADeviceMayBeAddedWhileItIsNotThereYet) {
  HeardLink third{said_}, fourth{said_};
  dispatch.add_device(third, false);
  dispatch.add_device(fourth, false);
  EXPECT_EQ(dispatch.devices(), 4U);
  EXPECT_EQ(dispatch.devices_alive(), 2U);
  EXPECT_FALSE(dispatch.device_alive({3}));
  dispatch.on_probe({.found = {}, .life = 0, .device = {3}}, at(1ms));
  EXPECT_TRUE(dispatch.device_alive({3}));
  EXPECT_FALSE(dispatch.device_alive({2}));
  const auto changes = scheduler.heard<schedule::DeviceChanged>();
  ASSERT_EQ(changes.size(), 4U);
  EXPECT_EQ(changes[2].device, DeviceId{2});
  EXPECT_FALSE(changes[2].alive);
  EXPECT_EQ(changes[3].device, DeviceId{3});
  EXPECT_TRUE(changes[3].alive);
  dispatch.on_probe({.found = {}, .life = 0, .device = {2}}, at(2ms));
  EXPECT_EQ(dispatch.devices_alive(), 4U);
}

TEST_F(DispatchTest, ARowIsSentWithItsNumbersAndItsEndIsToldBeforeTheSchedulerHearsOfIt) {
  next({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  EXPECT_EQ(said(), (Said{"sent 3 of 0 in 17", "with 103", "infer 7"}));
  EXPECT_EQ(dispatch.actions_in_flight(), 1U);
  std::size_t told = 0;
  scheduler.script = [&](const schedule::Event&, TimePoint, schedule::Actions&, TimePoint&) {
    told = said_.size();
  };
  dispatch.on_report(report(7, ActionStatus::success, 4ms), at(4ms));
  EXPECT_EQ(told, 1U);
  EXPECT_EQ(said(), (Said{"ended 3 success"}));
  EXPECT_EQ(scheduler.heard<schedule::ActionDone>().size(), 1U);
  EXPECT_EQ(dispatch.actions_in_flight(), 0U);
  EXPECT_EQ(dispatch.ledger().open_requests(), 0U);
}

TEST_F(DispatchTest, WhatADeviceHasNoCreditForComesBackAtOnceAndIsToldAPauseLater) {
  first.grants.infers = 0;
  next({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  EXPECT_EQ(said(), (Said{"sent 3 of 0 in 17", "with 103", "came back 3"})) << "and is not sent";
  EXPECT_EQ(notes.untaken, std::vector<TimePoint>{at(1ms)});
  EXPECT_EQ(dispatch.actions_in_flight(), 0U);
  EXPECT_EQ(dispatch.wake_at(), at(1100us));
  dispatch.wake(at(1099us));
  EXPECT_TRUE(scheduler.heard<schedule::ActionDone>().empty());
  dispatch.wake(at(1100us));
  ASSERT_EQ(scheduler.heard<schedule::ActionDone>().size(), 1U);
  EXPECT_EQ(scheduler.heard<schedule::ActionDone>()[0].status, ActionStatus::too_late);
}

TEST_F(DispatchTest, CreditComesBackWithEachReportAndWithANewLife) {
  const auto load = [](std::uint64_t action) {
    return schedule::Load{.id = {action}, .device = {0}, .model = {0}, .window = {}, .expected = 1ms};
  };
  const auto unload = [](std::uint64_t action) {
    return schedule::Unload{.id = {action}, .device = {0}, .model = {0}};
  };
  auto offers = [&, id = std::uint64_t{100}](schedule::Actions orders, Duration now) mutable {
    next(std::move(orders));
    dispatch.offer(row(id++, now), false, at(now));
    return said();
  };
  first.grants = {.infers = 1, .loads = 2};
  EXPECT_EQ(offers({load(1), infer(2, {RequestId{100}}), unload(3)}, 1ms),
            (Said{"load 1", "sent 100 of 0 in 12", "with 200", "infer 2", "unload 3"}));
  EXPECT_EQ(offers({load(4)}, 1ms), Said{}) << "LOADs and UNLOADs count together";
  EXPECT_EQ(dispatch.not_taken().size(), 1U);
  dispatch.on_report(report(1, ActionStatus::success, 2ms), at(2ms));
  EXPECT_EQ(offers({load(5), load(6)}, 2ms), Said{"load 5"});
  dispatch.on_report(report(1, ActionStatus::success, 2ms), at(3ms));
  (void)said();
  EXPECT_EQ(offers({load(7)}, 3ms), Said{}) << "a second report of an action gives no credit";
  wire::Report gone = report(3, ActionStatus::failed, 4ms);
  gone.device_lost = true;
  dispatch.on_report(gone, at(4ms));
  dispatch.on_probe({.found = {}, .life = 1, .device = {0}}, at(5ms));
  (void)said();
  EXPECT_EQ(offers({load(8), load(9), load(10)}, 5ms), (Said{"load 8", "load 9"}));
  EXPECT_EQ(offers({infer(11, {RequestId{105}})}, 6ms),
            (Said{"sent 105 of 0 in 21", "with 205", "infer 11"}));
  EXPECT_EQ(offers({infer(12, {RequestId{106}})}, 6ms),
            (Said{"sent 106 of 0 in 22", "with 206", "came back 106"}));
}

// The device holds its memory until it is sent.
TEST_F(DispatchTest, AnUnloadWaitsForCreditAndGoesBeforeLaterLoads) {
  const auto load = [](std::uint64_t action) {
    return schedule::Load{.id = {action}, .device = {0}, .model = {0}, .window = {}, .expected = 1ms};
  };
  const auto unload = [](std::uint64_t action) {
    return schedule::Unload{.id = {action}, .device = {0}, .model = {0}};
  };
  first.grants.loads = 1;
  next({load(1), unload(2), unload(3)});
  dispatch.offer(row(100, 1ms), false, at(1ms));
  EXPECT_EQ(said(), Said{"load 1"});
  EXPECT_EQ(dispatch.actions_in_flight(), 1U);
  EXPECT_TRUE(dispatch.not_taken().empty());
  dispatch.on_report(report(3, ActionStatus::success, 2ms), at(2ms));
  EXPECT_EQ(said(), Said{"odd 0"}) << "the device does not have it yet";
  next({load(4)});
  dispatch.on_report(report(1, ActionStatus::success, 2ms), at(2ms));
  EXPECT_EQ(said(), Said{"unload 2"});
  EXPECT_EQ(dispatch.not_taken().size(), 1U);
  EXPECT_TRUE(dispatch.on_devices({0}));
  dispatch.on_report(report(2, ActionStatus::success, 3ms), at(3ms));
  EXPECT_EQ(said(), Said{"unload 3"});
  dispatch.on_report(report(3, ActionStatus::success, 4ms), at(4ms));
  dispatch.wake(at(4ms));
  EXPECT_EQ(dispatch.actions_in_flight(), 0U);
  EXPECT_FALSE(dispatch.on_devices({0}));
}

TEST_F(DispatchTest, AnUnloadThatWaitsGoesWithItsDeviceAndIsNotSentOnceStopped) {
  const auto unload = [](std::uint64_t action, std::uint32_t device) {
    return schedule::Unload{.id = {action}, .device = {device}, .model = {0}};
  };
  first.grants.loads = second.grants.loads = 1;
  next({unload(1, 0), unload(2, 0), unload(3, 1), unload(4, 1)});
  dispatch.offer(row(100, 1ms), false, at(1ms));
  EXPECT_EQ(said(), (Said{"unload 1", "unload 3"}));
  wire::Report gone = report(1, ActionStatus::failed, 2ms);
  gone.device_lost = true;
  dispatch.on_report(gone, at(2ms));
  dispatch.on_probe({.found = {}, .life = 1, .device = {0}}, at(3ms));
  next({unload(5, 0)});
  dispatch.offer(row(101, 4ms), false, at(4ms));
  EXPECT_EQ(said(), (Said{"retire 1", "back 0", "unload 5"}));
  wire::Report done = report(5, ActionStatus::success, 5ms);
  done.life = 1;
  dispatch.on_report(done, at(5ms));
  EXPECT_EQ(said(), Said{});
  dispatch.stop();
  wire::Report late = report(3, ActionStatus::success, 6ms);
  late.device = {1};
  dispatch.on_report(late, at(6ms));
  EXPECT_EQ(said(), Said{});
  EXPECT_EQ(dispatch.actions_in_flight(), 0U);
}

// An odd run is told as it was expected. Threads are told of usual successes alone.
TEST_F(DispatchTest, AReportTellsTheSchedulerWhatARunTook) {
  auto told = [this, row_id = std::uint64_t{1}](ActionStatus status, bool odd) mutable {
    next({infer(row_id, {RequestId{row_id}})});
    dispatch.offer(row(row_id, 1ms), false, at(1ms));
    wire::Report ended = report(row_id++, status, 5ms);
    ended.times.paused = 300us;
    ended.times.threads = 4;
    ended.odd_time = odd;
    dispatch.on_report(ended, at(6ms));
    return scheduler.heard<schedule::ActionDone>().back();
  };
  const schedule::ActionDone done = told(ActionStatus::success, false);
  EXPECT_EQ(done.start, at(4ms));
  EXPECT_EQ(done.end, at(5ms));
  EXPECT_EQ(done.duration, 700us) << "without the time that it was paused";
  EXPECT_EQ(done.threads, 4);
  EXPECT_EQ(told(ActionStatus::success, true).duration, 2ms) << "as expected";
  EXPECT_EQ(told(ActionStatus::success, true).threads, 0);
  EXPECT_EQ(told(ActionStatus::failed, true).duration, 700us);
  EXPECT_EQ(told(ActionStatus::failed, false).threads, 0);
}

TEST_F(DispatchTest, AModelIsOnDevicesThatHoldItOrHaveAnActionOfIt) {
  EXPECT_FALSE(dispatch.on_devices({0}));
  EXPECT_FALSE(dispatch.on_devices({1})) << "nobody has heard of it";
  next({schedule::Load{.id = {1}, .device = {0}, .model = {0}, .window = {}, .expected = 1ms}});
  dispatch.offer(row(100, 1ms), false, at(1ms));
  EXPECT_TRUE(dispatch.on_devices({0})) << "it is loaded";
  dispatch.on_report(report(1, ActionStatus::success, 2ms), at(2ms));
  EXPECT_TRUE(dispatch.on_devices({0})) << "it is held";
  next({schedule::Unload{.id = {2}, .device = {0}, .model = {0}}});
  dispatch.offer(row(101, 3ms), false, at(3ms));
  EXPECT_TRUE(dispatch.on_devices({0})) << "it is unloaded";
  dispatch.on_report(report(2, ActionStatus::success, 4ms), at(4ms));
  EXPECT_FALSE(dispatch.on_devices({0}));
}

TEST_F(DispatchTest, BadRowsAreTurnedDownAndOthersEnd) {
  next({infer(7, {RequestId{3}, RequestId{4}})});
  dispatch.offer(row(3, 1ms), true, at(1ms));
  dispatch.offer(row(4, 1ms), true, at(1ms));
  (void)said();
  wire::Report bad = report(7, ActionStatus::success, 4ms);
  bad.bad_rows.push_back({.row = 1, .error = {ErrorCode::invalid_argument, "an index is out of range"}});
  dispatch.on_report(bad, at(4ms));
  EXPECT_EQ(said(), (Said{"ended 3 success", "turned down 4: an index is out of range"}));
}

// Between two devices without anything to do the first is named.
TEST_F(DispatchTest, ARefusalTellsHowThingsStood) {
  next({schedule::Load{
      .id = {1}, .device = {1}, .model = {0}, .window = {at(0ms), at(50ms)}, .expected = 8ms}});
  dispatch.offer(row(0, 1ms), false, at(1ms));
  wire::Report loaded = report(1, ActionStatus::success, 9ms);
  loaded.device = {1};
  next({infer(2, {RequestId{0}}, 1)});
  dispatch.on_report(loaded, at(9ms));
  next({schedule::Refuse{{5}, schedule::Reason::cannot_finish, at(80ms)}});
  dispatch.offer(row(5, 10ms), false, at(10ms));
  ASSERT_EQ(calls.verdicts.size(), 1U);
  const wire::Prospect& told = calls.verdicts[0].prospect;
  EXPECT_EQ(told.devices, 2U);
  EXPECT_EQ(told.holding, 1U);
  EXPECT_FALSE(told.loading);
  EXPECT_EQ(told.device, DeviceId{1});  // it holds the weights, though the other has nothing to do
  EXPECT_TRUE(told.holds);
  EXPECT_EQ(told.runs, 1U);
  EXPECT_EQ(told.busy, 2ms);
  EXPECT_EQ(told.batch, 1);
  EXPECT_EQ(told.exec, 2ms);  // as its INFER of one row was expected to take
}

TEST_F(DispatchTest, ARefusalTellsWhatTheSmallestBatchTakes) {
  const ModelId id{1};
  schedule::ModelInfo model = linear_model(id.value, 1ms, 1ms, 0, 0ms, {2, 4});
  dispatch.come(model, at(0ms));
  auto told = [&, row = std::uint64_t{10}]() mutable {
    next({schedule::Refuse{{row}, schedule::Reason::cannot_finish, at(80ms)}});
    dispatch.offer({.id = {row++}, .model = id, .app = {}, .arrival = at(1ms), .deadline = at(50ms)}, false,
                   at(1ms));
    return calls.verdicts.back().prospect;
  };
  EXPECT_EQ(told().batch, 2);
  EXPECT_EQ(told().exec, 3ms) << "as it came";
  EXPECT_EQ(told().holding, 2U) << "no device needs to load it";
  EXPECT_TRUE(told().holds);
  EXPECT_EQ(told().device, DeviceId{0}) << "the first of two with nothing to do";
  const auto sends = [&](std::uint64_t action, std::vector<RequestId> rows, Duration expected) {
    schedule::Infer order = infer(action, std::move(rows));
    order.model = id;
    order.expected = expected;
    next({order});
    dispatch.hear(at(1ms));
    dispatch.all_arrived(at(1ms));
  };
  for (std::uint64_t row = 0; row < 8; ++row)
    dispatch.offer({.id = {row}, .model = id, .app = {}, .arrival = at(1ms), .deadline = at(50ms)}, true,
                   at(1ms));
  sends(1, {{0}, {1}}, 7ms);
  EXPECT_EQ(told().exec, 7ms) << "as it was last expected to take";
  EXPECT_EQ(told().device, DeviceId{1}) << "which has less to do";
  sends(2, {{2}, {3}, {4}, {5}}, 9ms);
  EXPECT_EQ(told().exec, 7ms) << "of the smallest batch";
  model.batches[1].exec = 6ms;
  dispatch.change_times(id, model.batches, at(2ms));
  EXPECT_EQ(told().exec, 7ms);
  model.batches[0].exec = 4ms;
  dispatch.change_times(id, model.batches, at(2ms));
  EXPECT_EQ(told().exec, 4ms);
  EXPECT_EQ(told().batch, 2);
  EXPECT_EQ(dispatch.model(id).batches, model.batches);
  EXPECT_EQ(scheduler.heard<schedule::TimesChanged>().size(), 2U);
  EXPECT_EQ(scheduler.heard<schedule::ModelChanged>().size(), 2U) << "of each model, when it came";
}

TEST_F(DispatchTest, ARefusalNamesNoDeviceThatHasGone) {
  next({schedule::GiveUp{{0}}});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  next({schedule::Refuse{{5}, schedule::Reason::cannot_finish, at(80ms)}});
  dispatch.offer(row(5, 10ms), false, at(10ms));
  ASSERT_EQ(calls.verdicts.size(), 1U);
  EXPECT_EQ(calls.verdicts[0].prospect.devices, 1U);
  EXPECT_EQ(calls.verdicts[0].prospect.device, DeviceId{1});
}

TEST_F(DispatchTest, AllButUnloadsAreToldToBeComplete) {
  auto completed_by = [this, id = std::uint64_t{10}](ledger::Order order) mutable {
    const int before = notes.completed;
    next(schedule::Actions{order});
    dispatch.offer(row(id++, 1ms), false, at(1ms));
    return notes.completed - before;
  };
  EXPECT_EQ(
      completed_by(schedule::Load{.id = {1}, .device = {0}, .model = {0}, .window = {}, .expected = 1ms}), 1);
  EXPECT_EQ(completed_by(schedule::Profile{
                .id = {2}, .device = {0}, .model = {0}, .request = {10}, .window = {}, .expected = 1ms}),
            1);
  EXPECT_EQ(completed_by(infer(3, {RequestId{10}, RequestId{11}})), 1);
  EXPECT_EQ(completed_by(schedule::Unload{.id = {4}, .device = {0}, .model = {0}}), 0);
}

TEST_F(DispatchTest, ARowThatIsOfferedAgainInsideItsRefusalIsHeardAfterwards) {
  calls.on_refused = [this](const wire::Verdict& verdict, TimePoint now) {
    const std::size_t heard = scheduler.events.size();
    dispatch.offer(row(verdict.refusal.request.value, 1ms), false, now);
    EXPECT_EQ(scheduler.events.size(), heard);
  };
  next({schedule::Refuse{{3}, schedule::Reason::cannot_finish, TimePoint::max()}});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  EXPECT_EQ(scheduler.heard<schedule::RequestArrived>().size(), 2U);
}

TEST_F(DispatchTest, AWithdrawalIsHeardInHearAndARefusalOfItIsNot) {
  dispatch.offer(row(3, 1ms), false, at(1ms));
  dispatch.withdraw({3}, {0});
  EXPECT_TRUE(scheduler.heard<schedule::RequestCancelled>().empty());
  next({schedule::Refuse{{3}, schedule::Reason::cannot_finish, TimePoint::max()}});
  dispatch.hear(at(2ms));
  EXPECT_EQ(scheduler.heard<schedule::RequestCancelled>().size(), 1U);
  EXPECT_TRUE(said().empty());
}

TEST_F(DispatchTest, AWithdrawalIsHeardBeforeWhateverHappensNext) {
  scheduler.wake = at(5ms);
  dispatch.offer(row(3, 1ms), false, at(1ms));
  dispatch.offer(row(4, 1ms), false, at(1ms));
  const std::size_t heard = scheduler.events.size();
  dispatch.wake(at(5ms) - 1ns);
  EXPECT_EQ(scheduler.events.size(), heard) << "it is not time";
  dispatch.withdraw({3}, {0});
  dispatch.wake(at(5ms));
  ASSERT_EQ(scheduler.events.size(), heard + 2);
  EXPECT_TRUE(std::holds_alternative<schedule::RequestCancelled>(scheduler.events[heard]));
  EXPECT_TRUE(std::holds_alternative<schedule::Wake>(scheduler.events[heard + 1]));
  dispatch.withdraw({4}, {0});
  dispatch.go({0}, at(6ms));
  ASSERT_EQ(scheduler.events.size(), heard + 4);
  EXPECT_TRUE(std::holds_alternative<schedule::RequestCancelled>(scheduler.events[heard + 2]));
  EXPECT_TRUE(std::holds_alternative<schedule::ModelChanged>(scheduler.events[heard + 3]));
  next({infer(7, {RequestId{5}})});
  dispatch.offer(row(5, 6ms), false, at(6ms));
  dispatch.withdraw({5}, {0});
  dispatch.on_report(report(7, ActionStatus::success, 7ms), at(7ms));
  ASSERT_EQ(scheduler.events.size(), heard + 7);
  EXPECT_TRUE(std::holds_alternative<schedule::RequestCancelled>(scheduler.events[heard + 5]));
  EXPECT_TRUE(std::holds_alternative<schedule::ActionDone>(scheduler.events[heard + 6]));
}

TEST_F(DispatchTest, ADeviceThatIsLostLosesItsRowsAndItsLaterReportsAreDropped) {
  next({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  second.grants.infers = 0;
  next({infer(8, {RequestId{4}}, 1)});
  dispatch.offer(row(4, 1ms), false, at(1ms));
  (void)said();
  wire::Report gone = report(7, ActionStatus::failed, 3ms);
  gone.device_lost = true;
  gone.error = "out of order";
  dispatch.on_report(gone, at(3ms));
  EXPECT_EQ(said(), (Said{"retire 1", "lost 3: out of order"}));
  EXPECT_EQ(dispatch.devices_alive(), 1U);
  EXPECT_FALSE(dispatch.device_alive({0}));
  EXPECT_EQ(dispatch.not_taken().size(), 1U);  // of the other device
  dispatch.on_report(report(7, ActionStatus::success, 4ms), at(4ms));
  EXPECT_TRUE(said().empty());
  // Its next life begins once a probe finds it well.
  dispatch.wake(at(200ms));
  EXPECT_EQ(said(), Said{"probe"});
  dispatch.on_probe({.found = {}, .life = 0, .device = {0}}, at(201ms));
  EXPECT_FALSE(dispatch.device_alive({0}));
  dispatch.on_probe({.found = {}, .life = 1, .device = {0}}, at(202ms));
  EXPECT_TRUE(dispatch.device_alive({0}));
  EXPECT_EQ(said(), Said{"back 0"});
}

TEST_F(DispatchTest, ADeviceThatIsNotThereAtTheStartComesWhenItIsWell) {
  ScriptedScheduler hears;
  Dispatch later(hears, {}, calls, notes);
  later.add_device(first);
  later.add_device(second, false);
  later.start(at(0ms));
  EXPECT_EQ(hears.heard<schedule::DeviceChanged>().size(), 1U);
  EXPECT_EQ(later.devices(), 2U);
  EXPECT_EQ(later.devices_alive(), 1U);
  EXPECT_FALSE(later.device_alive({1}));
  EXPECT_EQ(later.wake_at(), TimePoint::max());
  later.on_probe({.found = {}, .life = 0, .device = {1}}, at(3ms));
  EXPECT_TRUE(later.device_alive({1}));
  const schedule::DeviceChanged came = hears.heard<schedule::DeviceChanged>().back();
  EXPECT_EQ(came.device, DeviceId{1});
  EXPECT_TRUE(came.alive);
  EXPECT_EQ(came.pages, 100U);
  EXPECT_EQ(came.best_effort, 3);
}

TEST_F(DispatchTest, ADeviceThatIsGivenUpLosesWhatItHadNoCreditForToo) {
  first.grants.infers = 0;
  next({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  ASSERT_EQ(dispatch.not_taken().size(), 1U);
  next({schedule::GiveUp{{0}}});
  dispatch.offer(row(4, 1ms), false, at(1ms));
  EXPECT_TRUE(dispatch.not_taken().empty());
  EXPECT_EQ(dispatch.devices_alive(), 1U);
}

TEST_F(DispatchTest, ADeviceThatIsGivenUpForAReportLosesOnlyTheOthers) {
  next({infer(7, {RequestId{3}}), infer(8, {RequestId{4}})});
  dispatch.offer(row(4, 1ms), true, at(1ms));
  dispatch.offer(row(3, 1ms), false, at(1ms));
  next({schedule::GiveUp{{0}}});
  (void)said();
  dispatch.on_report(report(7, ActionStatus::failed, 2ms), at(2ms));
  EXPECT_EQ(said(), (Said{"ended 3 failed", "retire 1", "lost 4: it hangs: it reports nothing any more"}));
}

TEST_F(DispatchTest, OrdersThatTheSchedulerBookedItselfAreCarriedOutOnce) {
  const auto booked = [this](schedule::Actions orders) {
    scheduler.script = [this, orders = std::move(orders)](const schedule::Event&, TimePoint now,
                                                          schedule::Actions& out, TimePoint&) {
      for (const schedule::Action& order : orders) scheduler.ledger->book(order, now);
      out.insert(out.end(), orders.begin(), orders.end());
      scheduler.script = nullptr;
    };
  };
  booked({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  EXPECT_EQ(said(), (Said{"sent 3 of 0 in 17", "with 103", "infer 7"}));
  booked({schedule::Refuse{{4}, schedule::Reason::cannot_finish, at(99ms)}});
  dispatch.offer(row(4, 2ms), false, at(2ms));
  EXPECT_EQ(said(), Said{"refused 4"});
  // The other device is given up after it was to get a row, so it never has that one.
  booked({schedule::GiveUp{{0}}, infer(8, {RequestId{3}}, 1), infer(9, {RequestId{5}}, 1),
          schedule::GiveUp{{1}}});
  dispatch.offer(row(5, 3ms), false, at(3ms));
  EXPECT_EQ(said(), (Said{"retire 1", "lost 3: it hangs: it reports nothing any more", "retire 1"}));
  EXPECT_EQ(dispatch.actions_in_flight(), 0U);
  EXPECT_EQ(dispatch.ledger().open_requests(), 2U);
}

TEST_F(DispatchTest, ASecondReportOfAnActionIsOdd) {
  next({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  dispatch.on_report(report(7, ActionStatus::success, 4ms), at(4ms));
  (void)said();
  dispatch.on_report(report(7, ActionStatus::success, 4ms), at(5ms));
  EXPECT_EQ(said(), Said{"odd 0"});
  EXPECT_EQ(scheduler.heard<schedule::ActionDone>().size(), 1U);
}

TEST_F(DispatchTest, WhatIsKeptStaysWhileItRuns) {
  const auto again = [](std::uint64_t action) {
    return schedule::Profile{
        .id = {action}, .device = {0}, .model = {0}, .request = {1}, .window = {}, .expected = 1ms};
  };
  next({schedule::Keep{{1}, true}, again(8), schedule::Keep{{1}, false}});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  EXPECT_EQ(said(), (Said{"keep 1", "profile 8"}));
  dispatch.on_report(report(8, ActionStatus::stopped, 4ms), at(4ms));
  EXPECT_EQ(said(), Said{"forget 1"});  // it had to make way, and yet nobody wants it any more
  next({schedule::Keep{{1}, true}, again(9)});
  dispatch.offer(row(4, 5ms), false, at(5ms));
  dispatch.on_report(report(9, ActionStatus::stopped, 6ms), at(6ms));
  EXPECT_EQ(said(), (Said{"keep 1", "profile 9"}));  // it may run again
  next({again(10)});
  dispatch.offer(row(5, 7ms), false, at(7ms));
  dispatch.on_report(report(10, ActionStatus::success, 8ms), at(8ms));
  EXPECT_EQ(said(), (Said{"profile 10", "forget 1"}));
}

TEST_F(DispatchTest, NamesBeyondTheCapCountAsNoneAndTheirLengthsStill) {
  ScriptedScheduler hears;
  Dispatch small(hears, {.max_applications = 1}, calls, notes);
  small.add_device(first);
  schedule::ModelInfo model = linear_model(0, 1ms, 1ms);
  model.solos = {3ms, 6ms};
  small.add_model(model);
  small.start(at(0ms));
  using Alike = wire::Dispatcher::Alike;
  EXPECT_EQ(small.application("", {}, at(0ms)), AppId{0});
  const AppId one = small.application("one", {}, at(0ms));
  EXPECT_EQ(small.application("one", {}, at(0ms)), one);
  EXPECT_EQ(small.application("two", {}, at(0ms)), AppId{0});
  EXPECT_TRUE(hears.heard<schedule::RequestProfiled>().empty());
  const AppId unnamed = small.application("two", Alike{{0}, 1}, at(0ms));
  EXPECT_NE(unnamed, AppId{0});
  EXPECT_EQ(small.application("", Alike{{0}, 1}, at(0ms)), unnamed);
  EXPECT_EQ(small.application("three", Alike{{0}, 1}, at(0ms)), unnamed);
  const auto told = hears.heard<schedule::RequestProfiled>();
  ASSERT_EQ(told.size(), 8U);
  EXPECT_EQ(told[0].app, unnamed);
  EXPECT_EQ(told[0].solo, 6ms);
  EXPECT_NE(small.application("", Alike{{0}, 2}, at(0ms)), unnamed);
  EXPECT_EQ(hears.heard<schedule::RequestProfiled>().size(), 8U) << "nothing is known of that length";
}

class TellsTenants final : public schedule::Scheduler {
 public:
  std::string_view name() const override { return "tells tenants"; }
  bool tells_tenants() const override { return true; }
  TimePoint decide(const schedule::Event&, TimePoint, schedule::Actions&) override {
    return TimePoint::max();
  }
};

// Where an application is a tenant, the name of the key is all that counts; else the key's counts for
// nothing.
TEST_F(DispatchTest, KeysAreTenantsWherePoliciesTellThemApart) {
  const auto keyed = [](const char* key, const char* name) { return wire::application_of(key, name); };
  const wire::Dispatcher::Alike alike{{0}, 1};
  TellsTenants tells;
  Dispatch by_tenant(tells, {}, calls, notes);
  EXPECT_EQ(by_tenant.application("", alike, at(0ms)), AppId{0}) << "lengths are no tenants";
  const AppId one = by_tenant.application(keyed("one", "a"), {}, at(0ms));
  EXPECT_NE(one, AppId{0});
  EXPECT_EQ(by_tenant.application(keyed("one", "b"), alike, at(0ms)), one);
  EXPECT_EQ(by_tenant.application(keyed("one", ""), {}, at(0ms)), one);
  EXPECT_NE(by_tenant.application(keyed("two", "a"), {}, at(0ms)), one);
  EXPECT_NE(by_tenant.application("a", {}, at(0ms)), one);

  const AppId a = dispatch.application(keyed("one", "a"), {}, at(0ms));
  EXPECT_EQ(dispatch.application(keyed("two", "a"), {}, at(0ms)), a);
  EXPECT_EQ(dispatch.application("a", {}, at(0ms)), a);
  EXPECT_EQ(dispatch.application(keyed("one", ""), {}, at(0ms)), AppId{0});
}

TEST_F(DispatchTest, TellsApart1024NamesUnlessToldOtherwise) {
  for (std::uint32_t i = 1; i <= 1024; ++i) EXPECT_EQ(dispatch.application(number(i), {}, at(0ms)), AppId{i});
  EXPECT_EQ(dispatch.application("one more", {}, at(0ms)), AppId{0});
  EXPECT_EQ(dispatch.application(number(1024), {}, at(0ms)), AppId{1024});
}

// 50 ms after its order, and so long after each look.
TEST_F(DispatchTest, AWakeTellsOfADeviceThatIsSlowToReport) {
  first.starved = 3ms;
  next({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  auto told_at = [this, id = std::uint64_t{100}](TimePoint now) mutable {
    scheduler.wake = now;
    dispatch.offer(row(id++, 1ms), false, now);
    dispatch.wake(now);
    return scheduler.heard<schedule::Wake>().back().excuses;
  };
  const std::vector<schedule::Excuse> excuse{
      {.device = {0}, .lane = schedule::Lane::exec, .starved = 3ms, .moved = false}};
  EXPECT_TRUE(told_at(at(44750us)).empty());
  EXPECT_EQ(told_at(at(51ms)), excuse);
  EXPECT_TRUE(told_at(at(94750us)).empty());
  EXPECT_EQ(told_at(at(101ms)), excuse);
  EXPECT_TRUE(told_at(at(145ms)).empty());
  EXPECT_TRUE(told_at(at(151ms)).empty()) << "an eighth of that has not passed since it was looked at all";
  EXPECT_EQ(told_at(at(152ms)), excuse);
  dispatch.on_report(report(7, ActionStatus::success, 160ms), at(160ms));
  next({infer(8, {RequestId{4}})});
  dispatch.offer(row(4, 160ms), false, at(160ms));
  EXPECT_TRUE(told_at(at(203ms)).empty()) << "it has had this order for 43 ms";
  EXPECT_EQ(told_at(at(210ms)), excuse);
}

TEST_F(DispatchTest, AfterAStopRowsEndAndTheSchedulerHearsNothing) {
  next({infer(7, {RequestId{3}})});
  dispatch.offer(row(3, 1ms), false, at(1ms));
  scheduler.script = [](const schedule::Event&, TimePoint, schedule::Actions& out, TimePoint& wake) {
    out.push_back(schedule::GiveUp{{1}});
    wake = at(2ms);
  };
  dispatch.offer(row(5, 1ms), false, at(1ms));
  scheduler.script = nullptr;
  (void)said();
  const std::size_t heard = scheduler.events.size();
  dispatch.stop();
  dispatch.withdraw({3}, {0});
  dispatch.offer(row(4, 2ms), false, at(2ms));
  dispatch.on_report(report(7, ActionStatus::success, 4ms), at(4ms));
  dispatch.wake(at(1s));
  dispatch.come(linear_model(1, 1ms, 1ms), at(5ms));
  dispatch.change_times({0}, dispatch.model({0}).batches, at(5ms));
  dispatch.go({0}, at(5ms));
  EXPECT_EQ(said(), Said{"ended 3 success"});
  EXPECT_EQ(scheduler.events.size(), heard);
  EXPECT_EQ(dispatch.actions_in_flight(), 0U);
  EXPECT_EQ(dispatch.wake_at(), TimePoint::max());
}

}  // namespace
}  // namespace carillon::dispatch
