#include "carillon/ledger/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::ledger {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DeviceId first{0}, second{1};
constexpr ModelId model{0}, other{1};
constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Window any{TimePoint::min(), TimePoint::max()};

// Two devices of ten pages, and two models of three that run batches of one and two.
struct LedgerTest : ::testing::Test {
  LedgerTest() {
    for (const ModelId id : {model, other}) apply(model_comes(info(id)));
    for (const DeviceId id : {first, second}) apply(DeviceChanged{id, true, 10, 2});
  }
  static ModelInfo info(ModelId id, std::uint64_t pages = 3) {
    return {.id = id, .name = "m", .pages = pages, .load = 8ms, .batches = {{1, 1ms}, {2, 2ms}}};
  }
  void apply(const Event& event) { ledger.apply(event, now); }
  void book(const Order& order) { ledger.book(order, now); }
  void arrives(std::uint64_t id, Class cls = Class::normal) {
    apply(RequestArrived{{.id = {id}, .model = model, .cls = cls, .arrival = now}});
  }
  void load(std::uint64_t id, DeviceId device = first, ModelId of = model) {
    book(Load{{id}, device, of, {now, TimePoint::max()}, 8ms});
  }
  void infer(std::uint64_t id, std::vector<RequestId> requests, Class cls = Class::normal,
             Window window = any) {
    book(Infer{{id}, first, model, std::move(requests), window, 1ms, cls});
  }
  void done(std::uint64_t id, ActionStatus status = ActionStatus::success, Duration took = 1ms) {
    apply(ActionDone{.id = {id}, .status = status, .start = now, .end = now, .duration = took});
  }
  void loaded() {
    load(1);
    done(1);
  }
  std::vector<std::uint64_t> under_way(Lane lane, DeviceId device = first) const {
    std::vector<std::uint64_t> ids;
    for (const std::uint32_t place : ledger.device(device).under_way[static_cast<std::size_t>(lane)])
      ids.push_back(ledger.at(place).id.value);
    return ids;
  }
  Residence residence() const { return ledger.residence(first, model); }

  Ledger ledger;
  TimePoint now = at(1s);
};

// --- Requests

TEST_F(LedgerTest, ARequestIsOpenUntilItIsAnsweredRefusedOrLeft) {
  for (std::uint64_t id = 0; id < 4; ++id) arrives(id);
  EXPECT_EQ(ledger.open_requests(), 4U);
  book(Refuse{{0}, Reason::cannot_finish, TimePoint::max()});
  apply(RequestCancelled{{1}, model});
  infer(7, {{2}});
  EXPECT_NE(ledger.request({2})->action, Ledger::none);
  done(7);
  EXPECT_EQ(ledger.open_requests(), 1U);
  EXPECT_EQ(ledger.request({3})->told.id, RequestId{3});
}

TEST_F(LedgerTest, ARequestWhoseRunFailedWaitsAgain) {
  arrives(0);
  infer(7, {{0}});
  done(7, ActionStatus::failed);
  ASSERT_NE(ledger.request({0}), nullptr);
  EXPECT_EQ(ledger.request({0})->action, Ledger::none);
}

TEST_F(LedgerTest, ARequestThatIsLeftStaysWhileAnInferHasIt) {
  arrives(0);
  arrives(1);
  infer(7, {{0}, {1}});
  EXPECT_EQ(ledger.action({7})->wanted, 2U);
  apply(RequestCancelled{{0}, model});
  apply(RequestCancelled{{0}, model});
  EXPECT_EQ(ledger.action({7})->wanted, 1U) << "once, however often it is told";
  EXPECT_EQ(ledger.request({0})->withdrawn, ledger.tick() - 1) << "when it was told first";
  done(7, ActionStatus::too_late);
  EXPECT_EQ(ledger.request({0}), nullptr);
  EXPECT_NE(ledger.request({1}), nullptr);
}

TEST_F(LedgerTest, ARefusedRequestMayArriveOnceMore) {
  arrives(0);
  book(Refuse{{0}, Reason::deadline_passed, TimePoint::max()});
  arrives(0);
  EXPECT_EQ(ledger.open_requests(), 1U);
}

// --- Orders

TEST_F(LedgerTest, AnOrderIsUnderWayUntilItIsReported) {
  loaded();
  infer(7, {});
  book(Unload{{8}, first, other});
  EXPECT_EQ(ledger.actions_under_way(), 2U);
  EXPECT_EQ(ledger.action({7})->kind, ActionKind::infer);
  EXPECT_EQ(ledger.action({7})->sent, now);
  EXPECT_EQ(ledger.action({8})->window, (Window{now, TimePoint::max()}));
  EXPECT_EQ(ledger.model(model).under_way, 1U);
  done(7);
  done(7);
  done(8);
  EXPECT_EQ(ledger.actions_under_way(), 0U);
  EXPECT_EQ(ledger.model(model).under_way, 0U);
}

TEST_F(LedgerTest, EachClassHasItsLane) {
  infer(1, {}, Class::normal);
  infer(2, {}, Class::real_time);
  infer(3, {}, Class::best_effort);
  load(4);
  book(Profile{{5}, first, model, {0}, any, 1ms});
  EXPECT_THAT(under_way(Lane::exec), ElementsAre(1, 5));
  EXPECT_THAT(under_way(Lane::real_time), ElementsAre(2));
  EXPECT_THAT(under_way(Lane::best_effort), ElementsAre(3));
  EXPECT_THAT(under_way(Lane::load), ElementsAre(4));
  EXPECT_EQ(ledger.action({5})->profiled, RequestId{0});
}

TEST_F(LedgerTest, ALaneIsInTheOrderThatTheDeviceKeeps) {
  infer(1, {}, Class::normal, {at(2ms), TimePoint::max()});
  infer(2, {}, Class::normal, {at(1ms), TimePoint::max()});
  infer(3, {}, Class::normal, {at(2ms), TimePoint::max()});
  EXPECT_THAT(under_way(Lane::exec), ElementsAre(2, 1, 3));
  book(Preempt{{2}, first, at(2ms)});
  EXPECT_THAT(under_way(Lane::exec), ElementsAre(1, 2, 3));
  EXPECT_EQ(ledger.action({2})->preempted, 1U);
  book(Preempt{{1}, first, at(4ms)});
  EXPECT_THAT(under_way(Lane::exec), ElementsAre(2, 3, 1));
  EXPECT_FALSE(ledger.action({2})->stopped);
  book(Stop{{1}, first});
  book(Stop{{3}, first});
  EXPECT_TRUE(ledger.action({1})->stopped && ledger.action({3})->stopped);
  EXPECT_EQ(ledger.action({3})->preempted, 0U);
}

TEST_F(LedgerTest, AnOrderIsOvertakenByALaterOneThatEnds) {
  infer(1, {}, Class::normal, {at(1ms), TimePoint::max()});
  infer(2, {}, Class::normal, {at(2ms), TimePoint::max()});
  infer(3, {}, Class::normal, {at(1ms), TimePoint::max()});
  infer(4, {}, Class::real_time);
  done(3);
  EXPECT_GT(ledger.action({1})->overtaken, 0U);
  EXPECT_EQ(ledger.action({2})->overtaken, 0U) << "that one was to go before it";
  EXPECT_EQ(ledger.action({4})->overtaken, 0U) << "of another lane";
  const std::uint64_t when = ledger.action({1})->overtaken;
  done(2);
  EXPECT_EQ(ledger.action({1})->overtaken, when) << "the first time";
}

TEST_F(LedgerTest, ADeviceIsIdleUnlessSomethingButAnUnloadIsUnderWay) {
  EXPECT_TRUE(ledger.idle(first));
  loaded();
  book(Unload{{2}, first, model});
  EXPECT_TRUE(ledger.idle(first));
  infer(3, {});
  load(4);
  EXPECT_FALSE(ledger.idle(first));
  EXPECT_TRUE(ledger.idle(second));
  done(3);
  EXPECT_FALSE(ledger.idle(first)) << "the LOAD";
  done(4);
  EXPECT_TRUE(ledger.idle(first));
  book(Profile{{5}, first, model, {0}, any, 1ms});
  EXPECT_FALSE(ledger.idle(first));
  done(5, ActionStatus::stopped);
  EXPECT_TRUE(ledger.idle(first));
  EXPECT_FALSE(ledger.idle({9})) << "it never came";
}

TEST_F(LedgerTest, ADeviceThatWentIsNotIdleAndBeginsAnew) {
  for (const std::uint64_t id : {1, 3}) {
    infer(id, {});
    if (id == 1)
      book(GiveUp{first});
    else
      apply(DeviceChanged{first, false, 0});
    EXPECT_FALSE(ledger.idle(first)) << "it is not there";
    apply(DeviceChanged{first, true, 10});
    EXPECT_TRUE(ledger.idle(first));
    infer(id + 1, {});
    done(id, ActionStatus::failed);
    EXPECT_FALSE(ledger.idle(first)) << "a late report of the life before";
    done(id + 1);
    EXPECT_TRUE(ledger.idle(first));
  }
}

TEST_F(LedgerTest, AnOrderThatIsBookedTwiceChangesNothing) {
  arrives(0);
  for (int i = 0; i < 2; ++i) {
    load(1);
    infer(2, {{0}});
  }
  EXPECT_EQ(ledger.actions_under_way(), 2U);
  EXPECT_EQ(ledger.device(first).runs, 1U);
  EXPECT_EQ(ledger.device(first).wanted_for, 2U);
  EXPECT_EQ(ledger.model(model).loading, 1U);
  EXPECT_EQ(ledger.action({2})->wanted, 1U);
  for (int i = 0; i < 2; ++i) book(GiveUp{first});
  EXPECT_EQ(ledger.device(first).incarnation, 2U) << "it came, and was given up once";
  infer(3, {{0}});
  EXPECT_EQ(ledger.actions_under_way(), 0U) << "nothing is booked for a device that is not there";
  arrives(1);
  for (int i = 0; i < 2; ++i) book(Refuse{{1}, Reason::cannot_finish, now});
  EXPECT_EQ(ledger.changes().refused.size(), 1U);
}

TEST_F(LedgerTest, SaysWhatTheLastEventChangedAndTheOrdersSince) {
  for (const std::uint64_t id : {0, 1, 2}) arrives(id);
  infer(1, {{0}, {1}});
  infer(2, {{2}});
  apply(RequestCancelled{{1}, model});
  done(1, ActionStatus::failed);
  EXPECT_EQ(ledger.changes().back, (std::vector<RequestId>{{0}})) << "the client of the other has gone";
  ASSERT_EQ(ledger.changes().ended.size(), 1U);
  EXPECT_EQ(ledger.at(ledger.changes().ended[0]).id, ActionId{1});
  book(Refuse{{0}, Reason::device_failed, now});
  EXPECT_EQ(ledger.changes().refused, (std::vector<Ledger::Changes::Refused>{
                                          {Refuse{{0}, Reason::device_failed, now}, model, Class::normal}}));
  apply(Wake{});
  EXPECT_TRUE(ledger.changes().back.empty() && ledger.changes().ended.empty() &&
              ledger.changes().refused.empty());
  infer(3, {{0}});
  done(3, ActionStatus::failed);
  book(GiveUp{first});
  EXPECT_EQ(ledger.changes().ended.size(), 1U) << "what was reported is not lost";
  EXPECT_EQ(ledger.changes().back, (std::vector<RequestId>{{2}}));
  ASSERT_EQ(ledger.changes().lost.size(), 1U);
  EXPECT_EQ(ledger.at(ledger.changes().lost[0]).id, ActionId{2});
}

TEST_F(LedgerTest, CountsWhatARequestWasTriedInVain) {
  arrives(0);
  std::uint64_t id = 1;
  const auto ends = [&](ActionStatus status) {
    infer(id, {{0}});
    done(id++, status);
  };
  ends(ActionStatus::failed);
  ends(ActionStatus::no_memory);
  ends(ActionStatus::too_late);
  ends(ActionStatus::stopped);
  infer(id++, {{0}});
  apply(Wake{});
  book(GiveUp{first});
  // Given while the same event is decided on: that device never has it.
  book(Infer{{id}, second, model, {{0}}, any, 1ms, Class::normal});
  book(GiveUp{second});
  const auto& tries = ledger.request({0})->tries;
  EXPECT_EQ(tries.failed, 2U);
  EXPECT_EQ(tries.late, 1U);
  EXPECT_EQ(tries.lost, 1U);
}

TEST_F(LedgerTest, WhatADeviceDidNotTakeIsNotItsWork) {
  infer(1, {});
  load(2);
  ledger.apply(NotTaken{{1}}, now);
  ledger.apply(NotTaken{{2}}, now);
  EXPECT_EQ(ledger.device(first).runs, 0U);
  EXPECT_EQ(ledger.device(first).busy, Duration{0});
  EXPECT_EQ(ledger.model(model).loading, 0U);
  EXPECT_FALSE(ledger.action({1})->taken);
  EXPECT_FALSE(ledger.idle(first)) << "the scheduler has yet to hear of it";
  done(1, ActionStatus::too_late);
  done(2, ActionStatus::too_late);
  EXPECT_TRUE(ledger.idle(first));
  EXPECT_EQ(ledger.model(model).under_way, 0U);
}

TEST_F(LedgerTest, TheEndOfWhatADeviceNeverHadSaysNothingOfIt) {
  load(1);
  load(2, first, other);
  ledger.apply(NotTaken{{2}}, now);
  done(2, ActionStatus::too_late);
  EXPECT_EQ(ledger.action({1})->overtaken, 0U);
  EXPECT_EQ(ledger.device(first).reported[static_cast<std::size_t>(Lane::load)], 0U);
  EXPECT_EQ(ledger.device(first).ran[static_cast<std::size_t>(Lane::load)], Duration{0});
  arrives(0);
  infer(3, {{0}});
  ledger.apply(NotTaken{{3}}, now);
  apply(Wake{});
  book(GiveUp{first});
  EXPECT_EQ(ledger.request({0})->tries.lost, 0U);
}

TEST_F(LedgerTest, RunsOfALaneAreCounted) {
  infer(1, {}, Class::real_time);
  infer(2, {});
  EXPECT_EQ(ledger.device(first).runs, 2U);
  EXPECT_EQ(ledger.device(first).busy, 2ms);
  done(1, ActionStatus::success, 3ms);
  done(2, ActionStatus::failed, 4ms);
  const auto& ran = ledger.device(first).ran;
  EXPECT_EQ(ran[static_cast<std::size_t>(Lane::real_time)], 3ms);
  EXPECT_EQ(ran[static_cast<std::size_t>(Lane::exec)], 4ms);
}

// --- Residence

TEST_F(LedgerTest, AModelIsLoadedWhenItsLoadSucceeds) {
  EXPECT_EQ(residence(), Residence::absent);
  load(1);
  EXPECT_EQ(residence(), Residence::loading);
  EXPECT_EQ(ledger.device(first).taken, 3U);
  EXPECT_EQ(ledger.model(model).coming, 1U);
  done(1, ActionStatus::failed);
  EXPECT_EQ(residence(), Residence::absent);
  EXPECT_EQ(ledger.copy(first, model)->failures, 1U);
  EXPECT_EQ(ledger.device(first).taken, 0U);
  load(2);
  now = at(2s);
  done(2);
  EXPECT_EQ(residence(), Residence::loaded);
  EXPECT_EQ(ledger.copy(first, model)->failures, 0U);
  EXPECT_EQ(ledger.copy(first, model)->last_use, at(2s));
  EXPECT_EQ(ledger.copy(first, model)->load, ActionId{2});
  EXPECT_THAT(ledger.model(model).places, ElementsAre(first));
  EXPECT_EQ(ledger.copy(second, model), nullptr);
}

TEST_F(LedgerTest, PagesAreFreeWhenTheUnloadIsReported) {
  loaded();
  book(Unload{{2}, first, model});
  EXPECT_EQ(residence(), Residence::unloading);
  EXPECT_THAT(ledger.model(model).places, IsEmpty());
  EXPECT_EQ(ledger.device(first).taken, 3U);
  EXPECT_EQ(ledger.device(first).freeing, 3U);
  done(2);
  EXPECT_EQ(residence(), Residence::absent);
  EXPECT_EQ(ledger.device(first).taken, 0U);
  EXPECT_EQ(ledger.device(first).freeing, 0U);
}

TEST_F(LedgerTest, CopiesThatDevicesHoldAreCountedUntilTheyGo) {
  for (const std::uint64_t i : {1, 2}) load(i, i == 1 ? first : second);
  EXPECT_EQ(ledger.model(model).held, 0U);
  for (const std::uint64_t i : {1, 2}) done(i);
  done(2);
  EXPECT_EQ(ledger.model(model).held, 2U);
  book(Unload{{3}, first, model});
  EXPECT_EQ(ledger.model(model).held, 2U);
  done(3);
  EXPECT_EQ(ledger.model(model).held, 1U);
  book(GiveUp{second});
  EXPECT_EQ(ledger.model(model).held, 0U);
}

// What the device holds and what it may be sent differ where an UNLOAD came to nothing.
TEST_F(LedgerTest, ACopyWhoseUnloadFailedIsHeldAndNotResident) {
  loaded();
  EXPECT_TRUE(ledger.copy(first, model)->held);
  book(Unload{{2}, first, model});
  done(2, ActionStatus::too_late);
  EXPECT_EQ(residence(), Residence::absent);
  EXPECT_TRUE(ledger.copy(first, model)->held);
}

TEST_F(LedgerTest, ACopyHasUsersByClass) {
  loaded();
  infer(2, {}, Class::real_time);
  infer(3, {});
  now = at(3s);
  infer(4, {});
  EXPECT_THAT(ledger.copy(first, model)->users, ElementsAre(1, 2, 0));
  EXPECT_EQ(ledger.copy(first, model)->last_use, at(3s));
  done(2);
  done(3);
  done(4);
  EXPECT_EQ(ledger.copy(first, model)->using_it(), 0U);
}

TEST_F(LedgerTest, ADeviceKnowsBetterWhetherACopyIsThere) {
  load(1);
  infer(2, {});
  done(1);
  done(2, ActionStatus::not_loaded);
  EXPECT_EQ(residence(), Residence::loaded) << "that one was sent before the LOAD ended";
  infer(3, {});
  done(3, ActionStatus::not_loaded);
  EXPECT_EQ(residence(), Residence::absent);
  EXPECT_EQ(ledger.device(first).taken, 0U);
}

TEST_F(LedgerTest, ADeviceMayComeWithWeights) {
  apply(DeviceChanged{first, true, 10, 2, {model, other}});
  EXPECT_EQ(residence(), Residence::loaded);
  EXPECT_TRUE(ledger.holds(first, other));
  EXPECT_EQ(ledger.device(first).taken, 6U);
  EXPECT_THAT(ledger.model(model).places, ElementsAre(first));
  EXPECT_EQ(ledger.copy(first, model)->last_use, now);
  book(Unload{{1}, first, model});
  done(1);
  EXPECT_EQ(residence(), Residence::absent);
  EXPECT_EQ(ledger.device(first).taken, 3U);
  infer(2, {}, Class::normal);
  done(2, ActionStatus::not_loaded);
  apply(DeviceChanged{first, true, 10, 2});
  EXPECT_EQ(ledger.device(first).taken, 0U);
  EXPECT_EQ(ledger.model(other).held, 0U);
}

TEST_F(LedgerTest, CopiesOfAnEarlierVersionLeave) {
  loaded();
  load(2, second);
  infer(3, {});
  apply(model_comes(info(model)));
  EXPECT_EQ(ledger.model(model).version, 1U);
  EXPECT_LT(ledger.action({3})->version, ledger.model(model).version);
  EXPECT_EQ(residence(), Residence::leaving);
  EXPECT_EQ(ledger.residence(second, model), Residence::leaving);
  EXPECT_TRUE(ledger.copy(second, model)->arriving);
  done(2);
  EXPECT_EQ(ledger.residence(second, model), Residence::leaving);
  EXPECT_FALSE(ledger.copy(second, model)->arriving);
  done(3, ActionStatus::not_loaded);
  EXPECT_EQ(residence(), Residence::leaving) << "it says nothing of this version";
  EXPECT_EQ(ledger.device(first).taken, 3U);
  apply(ModelChanged{model, nullptr});
  EXPECT_FALSE(ledger.model(model).served);
  EXPECT_EQ(ledger.model(model).info->pages, 3U) << "as it was last";
}

TEST_F(LedgerTest, ACopyWhoseLoadFailedAfterTheModelChangedIsAbsent) {
  load(1);
  apply(ModelChanged{model, nullptr});
  done(1, ActionStatus::failed);
  EXPECT_EQ(residence(), Residence::absent);
  EXPECT_EQ(ledger.device(first).taken, 0U);
}

TEST_F(LedgerTest, TimesThatChangeAreThoseOfTheModel) {
  apply(TimesChanged{model, {{1, 1ms}, {2, 9ms}}});
  EXPECT_EQ(ledger.model(model).info->batches[1].exec, 9ms);
}

// --- What was measured

// Normal requests are planned by each device's times, or by those of all alike; the others are sent, too.
struct MeasuredTest : LedgerTest {
  static constexpr Environment told{.dispatch = 300us, .answer = 1ms, .overrun = 0.05, .measured = true};
  explicit MeasuredTest(bool by_device = true) {
    ledger = {};
    ledger.planned_by(told, by_device);
    ledger.classed_by(told, true);
    for (const ModelId id : {model, other}) change(model_comes(info(id, 0)));
    for (const DeviceId id : {first, second}) apply(DeviceChanged{id, true, 10, 2});
  }
  // As a driver and what plans do.
  void change(const ModelChanged& changed) {
    apply(changed);
    ledger.plan(changed);
  }
  void change(const TimesChanged& changed) {
    apply(changed);
    ledger.plan(changed, now);
  }
  // One row that takes so long, from 100 us after it was sent on; reported 200 us after its end.
  void run(Duration took, Class cls = Class::normal, DeviceId device = first, int threads = 0) {
    send(device, {{next}}, cls);
    report(took, ActionStatus::success, threads);
  }
  void send(DeviceId device, std::vector<RequestId> rows, Class cls = Class::normal) {
    book(Infer{{++next}, device, model, std::move(rows), any, ledger.times(cls).of(device, model, 0), cls});
  }
  void report(Duration took, ActionStatus status = ActionStatus::success, int threads = 0) {
    const TimePoint start = now + 100us;
    now = start + took + 200us;
    apply(ActionDone{{next}, status, start, start + took, took, threads});
  }
  Duration normal(DeviceId device = first, std::size_t index = 0) const {
    return ledger.times(Class::normal).of(device, model, index);
  }
  Duration of(Class cls) const { return ledger.times(cls).of(model, 0); }
  std::uint64_t next = 100;
};
struct AlikeTest : MeasuredTest {
  AlikeTest() : MeasuredTest(false) {}
};

TEST_F(MeasuredTest, ARunTeachesTheTimesOfItsDeviceAndItsClass) {
  run(2ms);
  EXPECT_EQ(normal(), 2ms);
  EXPECT_EQ(normal(second), 1ms) << "its seed";
  EXPECT_EQ(of(Class::real_time), 1ms);
  run(1500us, Class::real_time);
  EXPECT_EQ(of(Class::real_time), 1500us);
  EXPECT_EQ(of(Class::best_effort), 1ms);
  run(1800us, Class::best_effort);
  EXPECT_EQ(of(Class::best_effort), 1800us);
  EXPECT_EQ(of(Class::real_time), 1500us);
  EXPECT_EQ(normal(), 2ms);
  run(1500us, Class::normal, second);
  EXPECT_EQ(normal(second), 1500us);
  EXPECT_EQ(normal(), 2ms);
}

TEST_F(AlikeTest, WhereDevicesAreAlikeARunTeachesTheTimesOfAll) {
  run(2ms, Class::normal, second);
  EXPECT_EQ(normal(first), 2ms);
}

TEST_F(MeasuredTest, ARunForAnotherSchedulerTeachesTimesAndOverrunsAlone) {
  const auto recall = [&](std::size_t rows, Duration took, Class cls = Class::normal, ModelId of = model) {
    now += 40ms;
    ledger.recall(first, {.model = of, .cls = cls, .rows = rows, .took = took, .expected = 20ms, .end = now});
  };
  for (std::size_t i = 0; i < TailWindow::enough; ++i) recall(1, 30ms);
  recall(2, 4ms, Class::real_time);
  recall(3, 9ms);  // there is no such size
  recall(1, 9ms, Class::normal, ModelId{7});
  EXPECT_EQ(normal(), 30ms);
  EXPECT_EQ(normal(second), 1ms);
  EXPECT_EQ(ledger.times(Class::real_time).of(model, 1), 4ms);
  const Environment& margins = ledger.margins(Class::normal).at(first);
  EXPECT_DOUBLE_EQ(margins.overrun, 0.5);
  EXPECT_EQ(margins.dispatch, told.dispatch);
  EXPECT_EQ(margins.answer, told.answer);
}

TEST_F(MeasuredTest, OnlyARunOfThisVersionAndPlanThatSucceededTeaches) {
  for (const ActionStatus status : {ActionStatus::failed, ActionStatus::too_late, ActionStatus::stopped}) {
    send(first, {{1}});
    report(2ms, status);
  }
  EXPECT_EQ(normal(), 1ms);
  book(Profile{{++next}, first, model, {1}, any, 1ms});
  report(2ms);
  EXPECT_EQ(normal(), 1ms) << "a request that is run again";
  send(first, {{1}});
  change(model_comes(info(model, 0)));
  report(2ms);
  EXPECT_EQ(normal(), 1ms) << "of the last version";
  send(first, {{1}});
  change(TimesChanged{model, {{1, 1100us}, {2, 2ms}}});
  report(2ms);
  EXPECT_EQ(normal(), 1100us) << "by the last plan";
  send(first, {{1}, {2}});
  change(TimesChanged{model, {{1, 1ms}, {2, 2ms}}});
  report(3ms);
  EXPECT_EQ(normal(first, 1), 3ms) << "another size's plan is another";
  run(2ms);
  EXPECT_EQ(normal(), 2ms);
}

// To the policy, requests of one size are a model of their own.
TEST_F(MeasuredTest, ARunTeachesTheTimesOfWhatItWasPlannedAs) {
  const ModelId planned{7};
  ledger.plan(model_comes(info(planned, 0)));
  book(Infer{{++next}, first, model, {{1}}, any, 1ms, Class::normal, planned});
  report(2ms);
  EXPECT_EQ(ledger.times(Class::normal).of(first, planned, 0), 2ms);
  EXPECT_EQ(normal(), 1ms);
}

TEST_F(MeasuredTest, ANormalRunTeachesItsTimeOverTheShareThatRealTimeRunsLeave) {
  for (int i = 0; i < 200; ++i) run(1ms, Class::real_time);
  run(1500us);
  EXPECT_NEAR(ledger.device(first).urgent_share, 0.05, 0.01) << "of the last four seconds, the first";
  EXPECT_EQ(normal(), from_ns(1.5e6 / (1 - ledger.device(first).urgent_share)));
  EXPECT_EQ(of(Class::real_time), 1ms);
  now += 10s;
  for (int i = 0; i < 10; ++i) run(1500us);
  EXPECT_EQ(normal(), 1500us);
  EXPECT_EQ(ledger.device(first).urgent_share, 0) << "of late there were none";
}

TEST_F(MeasuredTest, AnotherNumberOfThreadsIsAnotherPaceOfNormalRuns) {
  for (int i = 0; i < 10; ++i) run(1ms, Class::normal, first, 2);
  run(1ms, Class::real_time, first, 2);
  run(2ms, Class::normal, first, 1);
  EXPECT_NEAR(to_ms(normal(first, 1)), 4, 0.001) << "twice its seed, as the size that ran";
  EXPECT_NEAR(to_ms(ledger.times(Class::normal).of(first, other, 0)), 2, 0.001) << "it never ran";
  EXPECT_GE(ledger.times(Class::normal).longest(other).front(), 1999us) << "of all devices";
  EXPECT_EQ(normal(second, 1), 2ms);
  EXPECT_EQ(of(Class::real_time), 1ms);
}

// The model's next version may have other seeds, and fewer of them.
TEST_F(MeasuredTest, ARunOfAnEarlierVersionBeginsNoOtherPace) {
  run(1ms, Class::normal, first, 2);
  book(Infer{{++next}, first, model, {{1}, {2}}, any, 2ms});
  ModelInfo small = info(model, 0);
  small.batches = {{1, 1ms}};
  change(model_comes(small));
  report(2ms, ActionStatus::success, 1);
  EXPECT_EQ(normal(), 1ms) << "its seed";
  run(2ms, Class::normal, first, 1);
  EXPECT_EQ(normal(), 2ms);
  EXPECT_NEAR(to_ms(ledger.times(Class::normal).of(first, other, 0)), 2, 0.001) << "the next run begins it";
}

// The margins of each class are of its own runs; best-effort ones teach none.
TEST_F(MeasuredTest, MarginsAreOfTheClass) {
  const auto dispatch = [&](Class cls) { return ledger.margins(cls).at(first).dispatch; };
  for (int i = 0; i < 100; ++i) run(1ms, Class::best_effort);
  EXPECT_EQ(dispatch(Class::real_time), 300us) << "as told";
  for (int i = 0; i < 100; ++i) run(1ms);
  EXPECT_EQ(dispatch(Class::normal), 100us);
  EXPECT_EQ(dispatch(Class::real_time), 300us);
  for (int i = 0; i < 100; ++i) run(1ms, Class::real_time);
  EXPECT_EQ(dispatch(Class::real_time), 100us);
  EXPECT_EQ(dispatch(Class::best_effort), 100us) << "the same";
  book(GiveUp{first});
  apply(DeviceChanged{first, true, 10});
  EXPECT_EQ(dispatch(Class::normal), 300us) << "it started anew";
  EXPECT_EQ(dispatch(Class::real_time), 300us);
}

TEST_F(MeasuredTest, MarginsAreOfTheDevice) {
  for (const Class cls : {Class::normal, Class::real_time}) {
    for (int i = 0; i < 100; ++i) run(1ms, cls, second);
    EXPECT_EQ(ledger.margins(cls).at(second).dispatch, 100us);
    EXPECT_EQ(ledger.margins(cls).at(first).dispatch, 300us) << "as told";
  }
}

TEST_F(MeasuredTest, AGivenUpDeviceCountsForNoMargins) {
  for (const Class cls : {Class::normal, Class::real_time}) {
    for (int i = 0; i < 100; ++i) run(1ms, cls, second);
    EXPECT_EQ(ledger.margins(cls).worst().dispatch, 300us) << "of the first, as told";
  }
  book(GiveUp{first});
  for (const Class cls : {Class::normal, Class::real_time})
    EXPECT_EQ(ledger.margins(cls).worst().dispatch, 100us);
  const std::uint64_t version = ledger.margins(Class::normal).version();
  apply(DeviceChanged{first, false, 0});
  EXPECT_EQ(ledger.margins(Class::normal).version(), version) << "it had gone already";
}

TEST_F(MeasuredTest, ARunIsAtOnceWhereNothingIsBeforeItInItsLane) {
  book(Infer{{1}, first, model, {{1}}, {now, TimePoint::max()}, 1ms});
  EXPECT_TRUE(ledger.action({1})->at_once);
  book(Infer{{2}, first, model, {{2}}, {now, TimePoint::max()}, 1ms});
  EXPECT_FALSE(ledger.action({2})->at_once);
  book(Infer{{3}, first, model, {{3}}, any, 1ms, Class::real_time});
  EXPECT_TRUE(ledger.action({3})->at_once) << "another lane";
  book(Infer{{4}, second, model, {{4}}, {now + 1ns, TimePoint::max()}, 1ms});
  EXPECT_FALSE(ledger.action({4})->at_once) << "its window is not open";
  change(model_comes(info(other, 3)));
  load(5, second, other);
  done(4);
  book(Infer{{6}, second, other, {{6}}, any, 1ms});
  EXPECT_FALSE(ledger.action({6})->at_once) << "its model is loading";
}

// --- Doubts

TEST_F(MeasuredTest, ADoubtIsHeldOfWhatWasNotMeasuredOfLate) {
  for (int i = 0; i < 10; ++i) run(90ms);
  send(first, {{1}});  // busy: it is given its second
  const Doubt doubt{.model = model, .left = 20ms};
  EXPECT_FALSE(ledger.book(doubt, now).any());
  EXPECT_EQ(normal(), 90ms) << "measured just now";
  EXPECT_FALSE(ledger.book(Doubt{.model = model, .left = 1ms}, now + 2s).times);
  EXPECT_EQ(normal(), 90ms) << "the seed would be too long, too";
  EXPECT_FALSE(ledger.book(doubt, now + 999ms).times);
  EXPECT_TRUE(ledger.book(doubt, now + 1s).times);
  EXPECT_EQ(normal(), 1ms) << "at once";
  EXPECT_FALSE(ledger.book(doubt, now + 1s).any()) << "there is nothing left to doubt";
}

TEST_F(MeasuredTest, ADoubtOfAnIdleDeviceIsHeldSooner) {
  for (int i = 0; i < 10; ++i) run(90ms);
  const Doubt doubt{.model = model, .left = 20ms};
  EXPECT_FALSE(ledger.book(doubt, now + 99ms).times);
  EXPECT_TRUE(ledger.book(doubt, now + 100ms).times);
}

TEST_F(AlikeTest, ADoubtIsOfEachSizeThatWasNotMeasuredOfLate) {
  send(first, {{1}, {2}});
  report(40ms);
  now += 900ms;
  for (int i = 0; i < 10; ++i) run(10ms);  // 100 ms, and the way
  EXPECT_FALSE(ledger.book(Doubt{.model = other, .left = 20ms}, now).times) << "it never ran";
  ledger.book(Doubt{.model = model, .left = 20ms}, now);
  EXPECT_EQ(normal(first, 0), 10ms);
  EXPECT_EQ(normal(first, 1), 2ms) << "its seed";
  EXPECT_TRUE(ledger.book(Doubt{.model = model, .left = 20ms}, now + 1s).times);
  EXPECT_EQ(normal(first, 0), 1ms);
}

TEST_F(MeasuredTest, ADoubtIsOfItsClassAlone) {
  run(2ms);
  run(2ms, Class::real_time);
  run(2ms, Class::best_effort);
  now += 2s;
  EXPECT_TRUE(ledger.book(Doubt{.model = model, .cls = Class::best_effort}, now).times);
  EXPECT_EQ(of(Class::best_effort), 1ms);
  EXPECT_EQ(of(Class::real_time), 2ms);
  EXPECT_TRUE(ledger.book(Doubt{.model = model, .cls = Class::real_time}, now).times);
  EXPECT_EQ(of(Class::real_time), 1ms);
  EXPECT_GE(normal(), 2ms);
}

// Devices of other hosts: each order and each delivery is told by itself.
TEST_F(MeasuredTest, MarginsCountTheWayToAnotherHostAndBack) {
  const auto margins = [&]() -> const Environment& { return ledger.margins(Class::normal).at(first); };
  for (std::size_t i = 0; i < 100; ++i) run(1ms);
  const Duration dispatch = margins().dispatch;
  EXPECT_LT(dispatch, 200us);
  for (std::size_t i = 0; i < 100; ++i) ledger.arrived(first, Class::normal, 3ms, now);
  EXPECT_EQ(margins().dispatch, told.dispatch + 3ms);
  EXPECT_EQ(ledger.margins(Class::normal).usual(first).dispatch, told.dispatch + 3ms);
  EXPECT_LT(margins().answer, 1ms);
  ledger.delivered(first, Class::normal, 2ms, now);
  EXPECT_EQ(margins().answer, told.client + 2ms) << "later than the run was reported";
  run(1ms);
  EXPECT_EQ(margins().answer, told.client + 2ms);
}

// Best-effort rows may be large, and their way is that of a slow frontend.
TEST_F(MeasuredTest, TheWayTeachesTheMarginsOfItsClassAlone) {
  for (const Class cls : {Class::normal, Class::real_time, Class::best_effort}) run(1ms, cls);
  const auto margins = [&](Class cls) { return ledger.margins(cls).at(first); };
  const auto told_of = [&](Class cls) {
    for (std::size_t i = 0; i < 100; ++i) ledger.arrived(first, cls, 30ms, now);
    for (std::size_t i = 0; i < 100; ++i) ledger.delivered(first, cls, 20ms, now);
  };
  told_of(Class::best_effort);
  for (const Class cls : {Class::normal, Class::real_time}) {
    EXPECT_LT(margins(cls).dispatch, 10ms);
    EXPECT_LT(margins(cls).answer, 10ms);
  }
  told_of(Class::normal);
  EXPECT_EQ(margins(Class::normal).dispatch, told.dispatch + 30ms);
  EXPECT_EQ(margins(Class::normal).answer, told.client + 20ms);
  EXPECT_LT(margins(Class::real_time).dispatch, 10ms);
  EXPECT_LT(margins(Class::real_time).answer, 10ms);
  told_of(Class::real_time);
  EXPECT_EQ(margins(Class::real_time).dispatch, told.dispatch + 30ms);
  EXPECT_EQ(margins(Class::real_time).answer, told.client + 20ms);
}

TEST_F(MeasuredTest, MarginsAreDoubtedWithTheTimes) {
  for (const Class cls : {Class::normal, Class::real_time}) {
    const auto answer = [&] { return ledger.margins(cls).at(first).answer; };
    for (int i = 0; i < 100; ++i) run(1ms, cls);
    send(first, {{1}}, cls);
    now += 30ms;  // the report is late
    report(1ms);
    const TimePoint end = now;
    for (int i = 0; i < 3; ++i) {
      send(first, {{1}}, cls);
      now += 100ms;
      apply(ActionDone{{next}, ActionStatus::success, end, end + 1ms, 1ms});
    }
    ASSERT_GT(answer(), 90ms);
    EXPECT_FALSE(ledger.book(Doubt{.model = model, .cls = cls, .left = 20ms}, now + 99ms).margins)
        << "of late";
    EXPECT_FALSE(ledger.book(Doubt{.model = model, .cls = cls, .left = 1ms}, now + 100ms).margins)
        << "too little even as told";
    EXPECT_TRUE(ledger.book(Doubt{.model = model, .cls = cls, .left = 20ms}, now + 100ms).margins);
    EXPECT_EQ(answer(), 1ms) << "as told";
  }
}

// --- Devices

TEST_F(LedgerTest, WhatADeviceHadIsLostWithIt) {
  for (const bool given_up : {false, true}) {
    SCOPED_TRACE(given_up);
    loaded();
    arrives(0);
    arrives(1);
    infer(2, {{0}, {1}});
    apply(RequestCancelled{{1}, model});
    const std::uint32_t before = ledger.device(first).incarnation;
    if (given_up)
      book(GiveUp{first});
    else
      apply(DeviceChanged{first, false, 0});
    EXPECT_FALSE(ledger.device(first).alive);
    EXPECT_EQ(ledger.alive(), 1U);
    EXPECT_NE(ledger.device(first).incarnation, before);
    EXPECT_EQ(ledger.actions_under_way(), 0U);
    EXPECT_EQ(ledger.request({0})->action, Ledger::none);
    EXPECT_EQ(ledger.request({1}), nullptr) << "nobody wants it any more";
    EXPECT_EQ(residence(), Residence::absent);
    EXPECT_FALSE(ledger.copy(first, model)->held);
    EXPECT_EQ(ledger.device(first).taken, 0U);
    EXPECT_EQ(ledger.device(first).busy, Duration{0});
    EXPECT_EQ(ledger.model(model).under_way, 0U);
    EXPECT_THAT(ledger.model(model).places, IsEmpty());
    done(2);  // on its way from before
    EXPECT_EQ(ledger.request({0})->action, Ledger::none);
    apply(DeviceChanged{first, true, 10});
    EXPECT_TRUE(ledger.idle(first));
    EXPECT_EQ(ledger.alive(), 2U);
    apply(RequestCancelled{{0}, model});
  }
}

TEST_F(LedgerTest, PlacesAreUsedAgain) {
  for (std::uint64_t id = 0; id < 100; ++id) {
    arrives(id);
    infer(id, {{id}});
    EXPECT_EQ(ledger.request({id})->action, 0U);
    done(id);
  }
  EXPECT_EQ(ledger.open_requests(), 0U);
}

}  // namespace
}  // namespace carillon::ledger
