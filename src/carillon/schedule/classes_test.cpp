// What the layer of the classes does around a policy, which here does as it is told.
#include "carillon/schedule/classes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/audit.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule {
namespace {

constexpr Environment told{.dispatch = 100us, .answer = 200us, .overrun = 0, .classes = true};
constexpr TimePoint never = TimePoint::max();
TimePoint at(Duration d) {
  return TimePoint{d};
}

// What it hears is kept, and it says what it was given to say.
struct Script {
  std::vector<Event> heard;
  Actions says;
  TimePoint wake = never;
};
class Scripted final : public Scheduler {
 public:
  explicit Scripted(Script& script) : script_(script) {}
  std::string_view name() const override { return "scripted"; }
  TimePoint decide(const Event& event, TimePoint, Actions& out) override {
    script_.heard.push_back(event);
    for (Action& action : std::exchange(script_.says, {})) out.push_back(std::move(action));
    return script_.wake;
  }

 private:
  Script& script_;
};

// Models of 4 ms for one, and 2 ms more for each further one, in batches of up to four.
ModelInfo model(std::uint32_t id, Class cls = Class::normal, std::uint64_t pages = 0) {
  ModelInfo info = testing::linear_model(id, 2ms, 2ms, pages, 5ms, {1, 2, 3, 4});
  info.cls = cls;
  return info;
}

struct Driven {
  Script script;
  Classed layer;
  testing::Shadowed driven{layer, 0};  // with a ledger
  TimePoint now{};
  TimePoint wake = never;
  Actions out;
  std::uint64_t next = 0;

  explicit Driven(const std::vector<ModelInfo>& models, std::uint64_t pages = 10, int devices = 1,
                  const ClassedOptions& options = {}, int best_effort = 1)
      : layer(std::make_unique<Scripted>(script), told, options) {
    for (const ModelInfo& info : models) hear(model_comes(info));
    for (int i = 0; i < devices; ++i) device(static_cast<std::uint32_t>(i), true, pages, best_effort);
  }
  void hear(const Event& event) {
    out.clear();
    wake = driven.decide(event, now, out);
  }
  void device(std::uint32_t id, bool alive, std::uint64_t pages = 10, int best_effort = 1) {
    hear(DeviceChanged{DeviceId{id}, alive, pages, best_effort});
  }
  RequestId ask(Class cls, std::uint32_t of = 0, TimePoint deadline = never) {
    const RequestId id{next++};
    hear(RequestArrived{
        {.id = id, .model = ModelId{of}, .app = {}, .cls = cls, .arrival = now, .deadline = deadline}});
    return id;
  }
  void done(ActionId id, ActionStatus status = ActionStatus::success, Duration took = 4ms) {
    hear(ActionDone{id, status, now - took, now, took});
  }
  void wakes() {
    now = wake;
    hear(Wake{});
  }
  template <typename Kind>
  std::vector<Kind> all() const {
    return testing::of_kind<Kind>(out);
  }
  // The one action of its kind, which there must be.
  template <typename Kind>
  Kind one() const {
    const auto found = all<Kind>();
    EXPECT_EQ(found.size(), 1U);
    return found.empty() ? Kind{} : found.front();
  }
  bool quiet() const { return out.empty(); }
  template <typename Kind>
  const Kind* last_heard() const {
    return script.heard.empty() ? nullptr : std::get_if<Kind>(&script.heard.back());
  }
};

// --- Real-time requests

TEST(Classed, ARealTimeRequestIsKeptFromThePolicyAndSentAtOnce) {
  Driven d({model(0)});
  const std::size_t heard = d.script.heard.size();
  const RequestId id = d.ask(Class::real_time, 0, at(20ms));
  EXPECT_EQ(d.script.heard.size(), heard);
  const Infer infer = d.one<Infer>();
  EXPECT_EQ(infer.cls, Class::real_time);
  EXPECT_EQ(infer.requests, std::vector{id});
  EXPECT_EQ(infer.window.earliest, TimePoint::min()) << "before all else that waits";
  EXPECT_EQ(infer.window.latest, at(20ms - 200us - 4ms)) << "the last start that is in time";
  EXPECT_TRUE(Classed::owns(infer.id));
  d.now = at(5ms);
  d.done(infer.id);
  EXPECT_TRUE(d.quiet());
  EXPECT_EQ(d.script.heard.size(), heard) << "nor does it hear of the end";
}

TEST(Classed, ANormalRequestPasses) {
  Driven d({model(0)});
  d.script.says = {Infer{{5}, {0}, {0}, {{0}}, {at(0ms), never}, 4ms}};
  d.script.wake = at(7ms);
  d.ask(Class::normal);
  ASSERT_TRUE(d.last_heard<RequestArrived>());
  EXPECT_EQ(d.one<Infer>().id, ActionId{5});
  EXPECT_EQ(d.wake, at(7ms));
  d.done({5});
  ASSERT_TRUE(d.last_heard<ActionDone>());
  EXPECT_EQ(d.last_heard<ActionDone>()->duration, 4ms);
  d.wakes();
  EXPECT_TRUE(d.last_heard<Wake>());
}

TEST(Classed, TwoAreInFlightAndTheMoreUrgentGoesFirstOfTheOthers) {
  Driven d({model(0)});
  const ActionId first = (d.ask(Class::real_time, 0, at(100ms)), d.one<Infer>().id);
  d.ask(Class::real_time, 0, at(100ms));
  d.one<Infer>();
  const RequestId later = d.ask(Class::real_time, 0, at(90ms));
  EXPECT_TRUE(d.quiet());
  const RequestId sooner = d.ask(Class::real_time, 0, at(13ms));
  EXPECT_TRUE(d.quiet());
  d.now = at(4100us);
  d.done(first);
  EXPECT_EQ(d.one<Infer>().requests, std::vector{sooner}) << "with another it would be late";
  EXPECT_NE(later, sooner);
}

TEST(Classed, ItIsRefusedAtOnceWhereItCannotBeInTime) {
  Driven d({model(0)});
  d.ask(Class::real_time, 0, at(4299us));
  const Refuse refusal = d.one<Refuse>();
  EXPECT_EQ(refusal.reason, Reason::cannot_finish);
  EXPECT_EQ(refusal.would_finish, at(4300us)) << "100 us, 4 ms, 200 us";
  d.ask(Class::real_time, 0, at(4300us));
  d.one<Infer>();
  d.ask(Class::real_time, 0, at(8299us));
  EXPECT_EQ(d.one<Refuse>().would_finish, at(8300us)) << "behind the first";
  d.ask(Class::real_time, 0, at(8300us));
  d.one<Infer>();
}

TEST(Classed, ItIsRefusedWhereItWouldMakeAnotherLate) {
  Driven d({model(0)});
  for (int i = 0; i < 2; ++i) d.ask(Class::real_time, 0, at(8300us));
  d.ask(Class::real_time, 0, at(13ms));  // ends at 12.1 ms
  EXPECT_TRUE(d.quiet());
  d.ask(Class::real_time, 0, at(12700us));
  const Refuse refusal = d.one<Refuse>();
  EXPECT_EQ(refusal.reason, Reason::cannot_finish) << "it could be in time, but not both";
  EXPECT_EQ(refusal.would_finish, at(16300us));
  d.ask(Class::real_time, 0, at(16300us));
  EXPECT_TRUE(d.quiet()) << "behind them";
}

TEST(Classed, WithoutADeadlineNoMoreThanASecondOfWorkWaits) {
  Driven d({model(0)});
  int taken = 0;
  for (; taken < 1000; ++taken) {
    d.ask(Class::real_time);
    if (!d.all<Refuse>().empty()) break;
  }
  EXPECT_EQ(taken, 249) << "100 us and 249 times 4 ms";
  EXPECT_EQ(d.one<Refuse>().reason, Reason::cannot_finish);
  EXPECT_EQ(d.one<Refuse>().would_finish, at(100us + 250 * 4ms + 200us));
}

TEST(Classed, SeveralOfAModelGoTogetherWhereThatIsNoLater) {
  Driven d({model(0), model(1)});
  const ActionId first = (d.ask(Class::real_time, 0, at(100ms)), d.one<Infer>().id);
  d.ask(Class::real_time, 0, at(100ms));
  for (int i = 0; i < 3; ++i) d.ask(Class::real_time, 0, at(101ms));
  d.ask(Class::real_time, 1, at(102ms));
  d.ask(Class::real_time, 0, at(103ms));
  d.now = at(4100us);
  d.done(first);
  const Infer infer = d.one<Infer>();
  EXPECT_EQ(infer.requests.size(), 3U) << "those before the other model's";
  EXPECT_EQ(infer.expected, 8ms);
}

TEST(Classed, ItGoesToTheDeviceThatEndsItFirst) {
  Driven d({model(0)}, 10, 3);
  EXPECT_EQ((d.ask(Class::real_time, 0, at(100ms)), d.one<Infer>().device), DeviceId{0});
  d.script.says = {Infer{{5}, {1}, {0}, {{1}}, {at(0ms), never}, 4ms}};
  d.ask(Class::normal);
  EXPECT_EQ((d.ask(Class::real_time, 0, at(100ms)), d.one<Infer>().device), DeviceId{2})
      << "the other runs something";
  EXPECT_EQ((d.ask(Class::real_time, 0, at(100ms)), d.one<Infer>().device), DeviceId{1});
}

TEST(Classed, WhatWaitsTooLongIsRefused) {
  Driven d({model(0)});
  const ActionId first = (d.ask(Class::real_time, 0, at(13ms)), d.one<Infer>().id);
  d.ask(Class::real_time, 0, at(13ms));
  d.ask(Class::real_time, 0, at(13ms));
  EXPECT_TRUE(d.quiet());
  EXPECT_EQ(d.wake, at(13ms - 200us - 4ms - 100us + 1ns)) << "its last start has passed";
  d.now = at(8100us);
  d.done(first, ActionStatus::success, 8ms);
  const Refuse refusal = d.one<Refuse>();
  EXPECT_EQ(refusal.reason, Reason::deadline_passed);
  EXPECT_GT(refusal.would_finish, at(13ms));
  EXPECT_EQ(d.wake, never);
}

TEST(Classed, AFailedRunIsTriedAgainThreeTimes) {
  Driven d({model(0)});
  d.ask(Class::real_time, 0, at(100ms));
  for (int i = 0; i < 2; ++i) {
    const ActionId id = d.one<Infer>().id;
    d.now += 5ms;
    d.done(id, ActionStatus::failed);
    EXPECT_TRUE(d.all<Refuse>().empty());
  }
  d.done(d.one<Infer>().id, ActionStatus::failed);
  EXPECT_EQ(d.one<Refuse>().reason, Reason::device_failed);
}

TEST(Classed, OneThatCameTooLateIsTriedAgainOrRefused) {
  Driven d({model(0)});
  d.ask(Class::real_time, 0, at(10ms));
  const ActionId id = d.one<Infer>().id;
  d.now = at(1ms);
  d.done(id, ActionStatus::too_late, 0ms);
  const ActionId again = d.one<Infer>().id;
  d.now = at(7ms);
  d.done(again, ActionStatus::too_late, 0ms);
  EXPECT_EQ(d.one<Refuse>().reason, Reason::rejected_late);
}

TEST(Classed, WhatADeviceHadGoesToAnother) {
  Driven d({model(0)}, 10, 2);
  d.ask(Class::real_time, 0, at(100ms));
  EXPECT_EQ(d.one<Infer>().device, DeviceId{0});
  d.ask(Class::best_effort);
  const DeviceId patient = d.one<Infer>().device;
  d.now = at(1ms);
  d.device(0, false);
  EXPECT_EQ(d.all<Infer>().size(), patient == DeviceId{0} ? 2U : 1U);
  for (const Infer& infer : d.all<Infer>()) EXPECT_EQ(infer.device, DeviceId{1});
  d.device(1, false);
  EXPECT_EQ(d.all<Refuse>().size(), 2U);
  for (const Refuse& refusal : d.all<Refuse>()) EXPECT_EQ(refusal.reason, Reason::no_device);
  d.ask(Class::real_time);
  EXPECT_EQ(d.one<Refuse>().reason, Reason::no_device);
}

TEST(Classed, WhoseClientHasGoneIsNotServed) {
  Driven d({model(0)});
  const ActionId first = (d.ask(Class::real_time, 0, at(100ms)), d.one<Infer>().id);
  const RequestId flying = d.ask(Class::real_time, 0, at(100ms)),
                  waits = d.ask(Class::real_time, 0, at(100ms));
  const std::size_t heard = d.script.heard.size();
  d.hear(RequestCancelled{waits, ModelId{0}});
  d.hear(RequestCancelled{flying, ModelId{0}});
  EXPECT_EQ(d.script.heard.size(), heard);
  d.now = at(4100us);
  d.done(first);
  EXPECT_TRUE(d.quiet());
  d.hear(RequestCancelled{RequestId{77}, ModelId{0}});
  EXPECT_TRUE(d.last_heard<RequestCancelled>()) << "not one of ours";
}

TEST(Classed, MeasuredTimesAreLearnedAndForgotten) {
  for (const Class cls : {Class::real_time, Class::best_effort}) {
    Driven d({model(0)});
    for (int i = 0; i < 2; ++i) {
      d.ask(cls, 0, d.now + 100ms);
      const ActionId id = d.one<Infer>().id;
      d.now += 7ms;
      d.done(id, ActionStatus::success, 7ms);
    }
    d.ask(cls, 0, d.now + 5ms);
    EXPECT_EQ(d.one<Refuse>().would_finish, d.now + 7300us);
    d.now += 2s;
    d.ask(cls, 0, d.now + 5ms);
    EXPECT_EQ(d.one<Infer>().cls, cls);
  }
}

TEST(Classed, AReportThatComesTwiceIsHeardOnce) {
  Driven d({model(0)});
  d.ask(Class::real_time);
  const ActionId id = d.one<Infer>().id;
  const std::size_t heard = d.script.heard.size();
  d.now = at(5ms);
  d.done(id);
  d.done(id);
  EXPECT_EQ(d.script.heard.size(), heard);
}

// --- Best effort

TEST(Classed, ADeviceHasTwiceAsManyBestEffortRunsAsItDoesAtATime) {
  Driven d({model(0)}, 10, 2, {}, 2);
  int sent[2] = {};
  for (int i = 0; i < 20; ++i) {
    d.ask(Class::best_effort);
    for (const Infer& infer : d.all<Infer>()) {
      EXPECT_EQ(infer.cls, Class::best_effort);
      EXPECT_EQ(infer.window.earliest, d.now);
      ++sent[infer.device.index()];
    }
  }
  EXPECT_EQ(sent[0], 4);
  EXPECT_EQ(sent[1], 4);
}

TEST(Classed, WhatTheDeviceRefusesIsNoTurn) {
  Driven d({model(0), model(1)});
  std::vector<Infer> under_way;
  const auto collect = [&] {
    for (const Infer& infer : d.all<Infer>()) under_way.push_back(infer);
  };
  for (int i = 0; i < 40; ++i)
    for (std::uint32_t m = 0; m < 2; ++m) {
      d.ask(Class::best_effort, m, at(100s));
      collect();
    }
  int sent[2] = {};
  for (int i = 0; i < 40; ++i) {
    ASSERT_FALSE(under_way.empty());
    const Infer infer = under_way.front();
    under_way.erase(under_way.begin());
    ++sent[infer.model.index()];
    d.now += 4ms;
    const bool refused = infer.model == ModelId{0};
    d.done(infer.id, refused ? ActionStatus::too_late : ActionStatus::success,
           refused ? 0ms : infer.expected);
    collect();
  }
  EXPECT_GT(sent[0], 2 * sent[1]);
}

TEST(Classed, ModelsTakeTurnsByTheTimeThatTheyHad) {
  ModelInfo longer = model(1);
  for (BatchProfile& b : longer.batches) b.exec *= 10;
  ModelInfo shorter = model(0);
  shorter.batches.resize(1);
  longer.batches.resize(1);
  Driven d({shorter, longer});
  std::vector<ActionId> under_way;
  for (int i = 0; i < 200; ++i)
    for (std::uint32_t m = 0; m < 2; ++m) {
      d.ask(Class::best_effort, m);
      for (const Infer& infer : d.all<Infer>()) under_way.push_back(infer.id);
    }
  Duration had[2] = {};
  std::vector<Infer> next;
  for (int i = 0; i < 110; ++i) {
    d.now += 40ms;
    d.done(under_way.front(), ActionStatus::success,
           i < 2 ? 4ms : next[static_cast<std::size_t>(i - 2)].expected);
    under_way.erase(under_way.begin());
    const Infer infer = d.one<Infer>();
    next.push_back(infer);
    under_way.push_back(infer.id);
    had[infer.model.index()] += infer.expected;
  }
  EXPECT_NEAR(to_ms(had[0]), to_ms(had[1]), 80);
}

TEST(Classed, ManyThatWaitGoInTheBatchThatServesMost) {
  Driven d({model(0)});
  std::vector<ActionId> first;
  for (int i = 0; i < 10; ++i) {
    d.ask(Class::best_effort);
    for (const Infer& infer : d.all<Infer>()) first.push_back(infer.id);
  }
  ASSERT_EQ(first.size(), 2U);
  d.now = at(4ms);
  d.done(first[0]);
  EXPECT_EQ(d.one<Infer>().requests.size(), 4U) << "10 ms for four, 4 ms for one";
}

TEST(Classed, WhatWaitsPatientlyWaitsForItsDeadlineOnly) {
  Driven d({model(0)});
  d.ask(Class::best_effort, 0, at(4299us));
  EXPECT_EQ(d.one<Refuse>().reason, Reason::cannot_finish);
  for (int i = 0; i < 2; ++i) d.ask(Class::best_effort);
  const RequestId waits = d.ask(Class::best_effort, 0, at(50ms));
  EXPECT_EQ(d.wake, at(50ms - 4300us + 1ns));
  d.ask(Class::best_effort);
  d.wakes();
  EXPECT_EQ(d.one<Refuse>().request, waits);
  EXPECT_EQ(d.one<Refuse>().reason, Reason::deadline_passed);
  EXPECT_EQ(d.wake, never) << "the last one waits for as long as it takes";
}

// An INFER that finds no room for its tensors beside others' has not failed: it waits until one of these
// ends.
TEST(Classed, WithoutRoomForItsTensorsARunWaits) {
  Driven d({model(0)});
  const RequestId waits = d.ask(Class::best_effort);
  Infer unlucky = d.one<Infer>();
  for (int i = 0; i < 10; ++i) {
    d.ask(Class::best_effort);
    const Infer other = d.one<Infer>();
    d.done(unlucky.id, ActionStatus::no_memory);
    EXPECT_TRUE(d.quiet()) << "it would fare no better at once";
    d.done(other.id);
    unlucky = d.one<Infer>();
    EXPECT_EQ(unlucky.requests, std::vector{waits});
  }
}

TEST(Classed, ARealTimeRunWithoutRoomGoesWhenAnotherHasEnded) {
  Driven d({model(0)});
  d.ask(Class::best_effort);
  const Infer patient = d.one<Infer>();
  const RequestId urgent = d.ask(Class::real_time, 0, at(1s));
  d.done(d.one<Infer>().id, ActionStatus::no_memory);
  EXPECT_TRUE(d.quiet());
  d.done(patient.id);
  EXPECT_EQ(d.one<Infer>().requests, std::vector{urgent});
}

TEST(Classed, WhatHasNoRoomAloneIsRefused) {
  Driven d({model(0)});
  d.ask(Class::best_effort);
  for (int i = 0; i < 2; ++i) d.done(d.one<Infer>().id, ActionStatus::no_memory);
  d.done(d.one<Infer>().id, ActionStatus::no_memory);
  EXPECT_EQ(d.one<Refuse>().reason, Reason::device_failed);
}

// --- Residence

TEST(Classed, RealTimeModelsAreLoadedAndKept) {
  Driven d({model(0, Class::normal, 4), model(1, Class::real_time, 3), model(2, Class::best_effort, 2)}, 10,
           2);
  ASSERT_EQ(d.all<Load>().size(), 2U) << "both classes have room";
  const Load load = d.all<Load>().front();
  EXPECT_EQ(load.device, DeviceId{1});
  EXPECT_EQ(load.model, ModelId{1}) << "real-time ones first";
  EXPECT_TRUE(Classed::owns(load.id));
  EXPECT_TRUE(d.layer.pinned(ModelId{1}));
  EXPECT_TRUE(d.layer.pinned(ModelId{2}));
  EXPECT_FALSE(d.layer.pinned(ModelId{0}));
  std::vector<std::uint64_t> pages;
  for (const Event& event : d.script.heard) {
    if (const auto* come = std::get_if<ModelChanged>(&event)) pages.push_back(come->info->pages);
    if (const auto* device = std::get_if<DeviceChanged>(&event)) pages.push_back(device->pages);
  }
  EXPECT_EQ(pages, (std::vector<std::uint64_t>{4, 0, 0, 5, 5})) << "three models, two devices";
  // Not before it is there.
  const std::size_t heard = d.script.heard.size();
  d.ask(Class::real_time, 1, at(1s));
  EXPECT_TRUE(d.quiet());
  d.now = at(5ms);
  d.done(load.id);
  EXPECT_EQ(d.script.heard.size(), heard);
  EXPECT_EQ(d.one<Infer>().device, DeviceId{1});
}

TEST(Classed, ARequestWaitsForItsPinnedModel) {
  Driven d({model(0, Class::real_time, 3)});
  const Load load = d.one<Load>();
  const RequestId waits = d.ask(Class::real_time, 0, at(100ms)), none = d.ask(Class::real_time);
  EXPECT_TRUE(d.quiet());
  d.now = at(5ms);
  d.done(load.id, ActionStatus::success, 5ms);
  EXPECT_EQ(d.one<Infer>().requests, (std::vector{waits, none}));
}

TEST(Classed, ALoadThatFailsIsTriedAgain) {
  Driven d({model(0, Class::real_time, 3)});
  d.ask(Class::real_time);
  for (int i = 0; i < 3; ++i) {
    d.ask(Class::best_effort, 0, d.now + 50ms);
    EXPECT_TRUE(d.quiet()) << "waits for it";
  }
  Driven e({model(0, Class::real_time, 3)});
  const ActionId load = e.one<Load>().id;
  e.now = at(5ms);
  e.done(load, ActionStatus::failed, 5ms);
  EXPECT_TRUE(e.quiet());
  EXPECT_EQ(e.wake, at(15ms));
  e.wakes();
  e.one<Load>();
}

TEST(Classed, WhereLoadsFailThePolicyHearsThatTheModelIsNotThere) {
  Driven d({model(0, Class::real_time, 3)});
  ActionId load = d.one<Load>().id;
  d.script.says = {Infer{{5}, {0}, {0}, {{0}}, {at(0ms), never}, 4ms}};
  d.ask(Class::normal);
  EXPECT_TRUE(d.quiet()) << "held back until it is there";
  for (int failures = 1; failures <= 3; ++failures) {
    EXPECT_FALSE(d.last_heard<ActionDone>()) << failures;
    d.now += 5ms;
    d.done(load, ActionStatus::failed, 5ms);
    EXPECT_TRUE(d.all<Infer>().empty());
    if (failures == 3) break;
    d.wakes();
    load = d.one<Load>().id;
  }
  ASSERT_TRUE(d.last_heard<ActionDone>());
  EXPECT_EQ(d.last_heard<ActionDone>()->id, ActionId{5});
  EXPECT_EQ(d.last_heard<ActionDone>()->status, ActionStatus::not_loaded);
  d.script.says = {Infer{{6}, {0}, {0}, {{1}}, {at(0ms), never}, 4ms}};
  d.ask(Class::normal);
  EXPECT_TRUE(d.quiet()) << "nor is anything sent from then on";
  ASSERT_TRUE(d.last_heard<ActionDone>());
  EXPECT_EQ(d.last_heard<ActionDone>()->id, ActionId{6});
  d.wakes();
  d.one<Load>();
  d.script.says = {Infer{{7}, {0}, {0}, {{2}}, {at(0ms), never}, 4ms}};
  d.ask(Class::normal);
  EXPECT_EQ(d.one<Infer>().id, ActionId{7}) << "it may come to be there";
}

TEST(Classed, NoMoreArePinnedThanLeaveRoomForTheOthers) {
  const struct {
    std::uint64_t pages;
    std::vector<bool> pinned;  // of a real-time model of 4, another of 3, and a best-effort one of 2
  } rows[] = {
      {15, {true, true, true}},    // beside normal ones of 2 and 4
      {14, {true, true, false}},   // which both have to fit beside a best-effort model
      {11, {true, true, false}},   // and the largest beside a real-time one
      {10, {true, false, false}},  // 4 and 4, but not 3 more
      {7, {false, true, false}},   // 3 and 4
      {6, {false, false, false}},
  };
  for (const auto& [pages, pinned] : rows) {
    Driven d({model(0, Class::real_time, 4), model(1, Class::real_time, 3), model(2, Class::best_effort, 2),
              model(3, Class::normal, 2), model(4, Class::normal, 4)},
             pages);
    for (std::uint32_t m = 0; m < 3; ++m)
      EXPECT_EQ(d.layer.pinned(ModelId{m}), pinned[m]) << pages << " pages, model " << m;
    const std::size_t loads = static_cast<std::size_t>(std::ranges::count(pinned, true));
    EXPECT_EQ(d.all<Load>().size(), loads);
  }
}

TEST(Classed, WhatThePolicySendsToAPinnedModelWaitsUntilItIsThere) {
  Driven d({model(0, Class::real_time, 3)});
  const ActionId load = d.one<Load>().id;
  d.script.says = {Infer{{0}, {0}, {0}, {{0}}, {at(0ms), never}, 4ms}};
  d.ask(Class::normal);
  EXPECT_TRUE(d.quiet());
  d.now = at(5ms);
  d.done(load, ActionStatus::success, 5ms);
  EXPECT_EQ(d.one<Infer>().id, ActionId{0});
}

TEST(Classed, WhatWaitsSoAndIsCancelledOrStoppedIsNotSent) {
  for (const bool stop : {false, true}) {
    Driven d({model(0, Class::real_time, 3)});
    const ActionId load = d.one<Load>().id;
    d.script.says = {Infer{{0}, {0}, {0}, {{0}}, {at(0ms), never}, 4ms}};
    d.ask(Class::normal);
    if (stop) {
      d.script.says = {Stop{{0}, {0}}};
      d.ask(Class::normal);
    } else {
      d.hear(RequestCancelled{RequestId{0}, ModelId{0}});
    }
    EXPECT_TRUE(d.quiet());
    ASSERT_TRUE(d.last_heard<ActionDone>());
    EXPECT_EQ(d.last_heard<ActionDone>()->id, ActionId{0});
    EXPECT_EQ(d.last_heard<ActionDone>()->status, stop ? ActionStatus::stopped : ActionStatus::too_late);
    d.now = at(5ms);
    d.done(load, ActionStatus::success, 5ms);
    EXPECT_TRUE(d.quiet());
  }
}

TEST(Classed, ARequestWhoseModelIsNowhereIsThePolicysAsANormalOne) {
  Driven d({model(0, Class::normal, 4)});
  const RequestId id = d.ask(Class::real_time, 0, at(50ms));
  ASSERT_TRUE(d.last_heard<RequestArrived>());
  EXPECT_EQ(d.last_heard<RequestArrived>()->request.id, id);
  EXPECT_EQ(d.last_heard<RequestArrived>()->request.cls, Class::normal);
  d.script.says = {Load{{0}, {0}, {0}, {at(0ms), never}, 5ms}};
  d.ask(Class::normal);
  d.now = at(5ms);
  d.done({0}, ActionStatus::success, 5ms);
  d.ask(Class::real_time, 0, at(50ms));
  EXPECT_EQ(d.one<Infer>().cls, Class::real_time) << "now it is somewhere";
}

TEST(Classed, OfBestEffortOneAtATimeIsThePolicys) {
  Driven d({model(0, Class::normal, 4)});
  const RequestId first = d.ask(Class::best_effort);
  EXPECT_TRUE(d.last_heard<RequestArrived>());
  const std::size_t heard = d.script.heard.size();
  const RequestId second = d.ask(Class::best_effort);
  EXPECT_EQ(d.script.heard.size(), heard);
  d.script.says = {Refuse{first, Reason::deadline_passed, never}};
  d.ask(Class::normal);
  ASSERT_TRUE(d.last_heard<RequestArrived>());
  EXPECT_EQ(d.last_heard<RequestArrived>()->request.id, second) << "the first has come to its end";
  d.ask(Class::best_effort);
  d.script.says = {Load{{0}, {0}, {0}, {at(0ms), never}, 5ms}};
  d.ask(Class::normal);
  d.now = at(5ms);
  d.done({0}, ActionStatus::success, 5ms);
  EXPECT_EQ(d.one<Infer>().cls, Class::best_effort) << "the others need it no more";
}

// Else those behind it would wait for ever where the LOAD's report is lost and its device given up for that.
TEST(Classed, TheNextIsThePolicysWhereTheFirstIsAnsweredBeforeItsLoadIsReported) {
  Driven d({model(0, Class::normal, 4)});
  d.script.says = {Load{{0}, {0}, {0}, {at(0ms), never}, 5ms}};
  const RequestId first = d.ask(Class::best_effort);
  const RequestId second = d.ask(Class::best_effort);
  d.script.says = {Infer{{1}, {0}, {0}, {first}, {at(5ms), never}, 4ms}};
  d.ask(Class::normal);
  EXPECT_EQ(d.one<Infer>().id, ActionId{1});
  d.now = at(9ms);
  const std::size_t heard = d.script.heard.size();
  d.done({1}, ActionStatus::failed);
  EXPECT_EQ(d.script.heard.size(), heard + 1) << "it is the policy's to try again";
  d.script.says = {Infer{{2}, {0}, {0}, {first}, {at(9ms), never}, 4ms}};
  d.ask(Class::normal);
  d.now = at(13ms);
  d.done({2});
  ASSERT_TRUE(d.last_heard<RequestArrived>());
  EXPECT_EQ(d.last_heard<RequestArrived>()->request.id, second);
}

TEST(Classed, AnUnloadWaitsForWhatIsUnderWay) {
  Driven d({model(0, Class::normal, 4)});
  d.script.says = {Load{{0}, {0}, {0}, {at(0ms), never}, 5ms}};
  d.ask(Class::normal);
  d.now = at(5ms);
  d.done({0}, ActionStatus::success, 5ms);
  d.ask(Class::real_time, 0, at(50ms));
  const ActionId run = d.one<Infer>().id;
  d.script.says = {Unload{{1}, {0}, {0}}};
  d.ask(Class::normal);
  EXPECT_TRUE(d.quiet());
  d.ask(Class::real_time, 0, at(50ms));
  EXPECT_TRUE(d.all<Infer>().empty()) << "it is as good as gone";
  d.now = at(10ms);
  d.done(run);
  EXPECT_EQ(d.one<Unload>().id, ActionId{1});
}

TEST(Classed, ANewVersionOfAPinnedModelTakesThePlaceOfTheOld) {
  Driven d({model(0, Class::real_time, 3)});
  const ActionId load = d.one<Load>().id;
  d.now = at(5ms);
  d.done(load, ActionStatus::success, 5ms);
  d.ask(Class::real_time);
  const ActionId run = d.one<Infer>().id;
  d.hear(model_comes(model(0, Class::real_time, 2)));
  EXPECT_TRUE(d.quiet()) << "the old one runs";
  d.ask(Class::real_time);
  EXPECT_TRUE(d.quiet());
  d.now = at(10ms);
  d.done(run);
  const ActionId unload = d.one<Unload>().id;
  d.done(unload, ActionStatus::success, 0ms);
  const ActionId again = d.one<Load>().id;
  d.now = at(15ms);
  d.done(again, ActionStatus::success, 5ms);
  d.one<Infer>();
}

TEST(Classed, AModelThatGoesTakesWithItWhatWaits) {
  Driven d({model(0, Class::real_time, 3)});
  d.ask(Class::real_time);
  d.ask(Class::best_effort);
  d.hear(ModelChanged{ModelId{0}, nullptr});
  ASSERT_EQ(d.all<Refuse>().size(), 2U);
  for (const Refuse& refusal : d.all<Refuse>()) EXPECT_EQ(refusal.reason, Reason::no_model);
  d.ask(Class::real_time);
  EXPECT_EQ(d.one<Refuse>().reason, Reason::no_model);
}

TEST(Classed, ADeviceThatComesBackIsGivenItsPinnedModelsAgain) {
  Driven d({model(0, Class::real_time, 3)});
  d.done(d.one<Load>().id, ActionStatus::success, 0ms);
  d.device(0, false);
  EXPECT_TRUE(d.quiet());
  d.device(0, true);
  d.one<Load>();
  EXPECT_EQ(d.last_heard<DeviceChanged>()->pages, 7U);
}

TEST(Classed, ASmallerDeviceHasThemUnpinned) {
  Driven d({model(0, Class::real_time, 3), model(1, Class::normal, 4)});
  EXPECT_TRUE(d.layer.pinned(ModelId{0}));
  d.done(d.one<Load>().id, ActionStatus::success, 0ms);
  d.device(1, true, 5);
  EXPECT_FALSE(d.layer.pinned(ModelId{0}));
  EXPECT_EQ(d.one<Unload>().device, DeviceId{0});
  EXPECT_EQ(d.last_heard<DeviceChanged>()->pages, 5U);
}

// --- What the policy is told

TEST(Classed, ThePolicyIsToldHowLongItsRunsTakeBesideTheOthers) {
  for (const bool tells : {true, false}) {
    Driven d({model(0)}, 10, 1, {.tells_share = tells});
    // 4 ms in every 16.
    for (int i = 0; i < 500; ++i) {
      d.ask(Class::real_time);
      const ActionId id = d.one<Infer>().id;
      d.now += 4ms;
      d.done(id);
      d.now += 12ms;
    }
    d.script.says = {Infer{{0}, {0}, {0}, {{1}}, {d.now, never}, 4ms}};
    d.ask(Class::normal);
    d.now += 6ms;
    d.done({0}, ActionStatus::success, 3ms);
    ASSERT_TRUE(d.last_heard<ActionDone>());
    EXPECT_NEAR(to_ms(d.last_heard<ActionDone>()->duration), tells ? 4 : 3, 0.05);
  }
}

TEST(Classed, ThePolicyHearsThatTimesChange) {
  Driven d({model(0), model(1, Class::real_time, 3)});
  const TimesChanged change{ModelId{1}, {{1, 3ms}, {2, 4ms}, {3, 5ms}, {4, 6ms}}};
  d.hear(change);
  ASSERT_NE(d.last_heard<TimesChanged>(), nullptr);
  EXPECT_EQ(d.last_heard<TimesChanged>()->model, ModelId{1});
  EXPECT_EQ(d.last_heard<TimesChanged>()->batches, change.batches);
  EXPECT_TRUE(d.quiet());
}

TEST(Classed, TimesThatChangeBeforeAnythingElseAreThoseOfTheModel) {
  Script script;
  Classed layer(std::make_unique<Scripted>(script), told, {});
  testing::Shadowed driven{layer, 0};
  Actions out;
  driven.decide(model_comes(model(0)), {}, out);
  const TimesChanged change{ModelId{0}, {{1, 3ms}, {2, 4ms}, {3, 5ms}, {4, 6ms}}};
  driven.decide(change, {}, out);
  driven.decide(DeviceChanged{DeviceId{0}, true, 10}, {}, out);
  ASSERT_EQ(script.heard.size(), 2U);
  EXPECT_EQ(std::get<ModelChanged>(script.heard[0]).info->batches, change.batches);
}

// Of real-time rows that wait, and of those that come; one that is under way teaches nothing.
TEST(Classed, RealTimeRequestsTakeTheNewTimes) {
  Driven d({model(0)});
  const auto times = [&](Duration one) {
    d.hear(TimesChanged{ModelId{0}, {{1, one}, {2, 2 * one}, {3, 3 * one}, {4, 4 * one}}});
  };
  d.ask(Class::real_time, 0, d.now + 100ms);
  const ActionId first = d.one<Infer>().id;
  d.ask(Class::real_time, 0, d.now + 100ms);
  const ActionId second = d.one<Infer>().id;
  d.ask(Class::real_time, 0, d.now + 20ms);  // 4 ms each: by 12 ms and something
  EXPECT_TRUE(d.quiet());
  times(9ms);
  d.ask(Class::real_time, 0, d.now + 20ms);
  EXPECT_EQ(d.all<Refuse>().size(), 1U) << "behind the one that waits, which takes 9 ms";
  d.now += 16ms;
  d.done(first, ActionStatus::success, 16ms);
  d.done(second, ActionStatus::success, 16ms);
  d.now += 1s;
  d.ask(Class::real_time, 0, d.now + 100ms);
  EXPECT_EQ(d.one<Infer>().expected, 9ms) << "what both took is no measurement of it";
}

TEST(Classed, WhatWaitsAndIsTooLateByTheNewTimesIsRefused) {
  Driven d({model(0)});
  for (int i = 0; i < 2; ++i) d.ask(Class::real_time, 0, d.now + 100ms);
  const RequestId waits = d.ask(Class::real_time, 0, d.now + 20ms);
  const RequestId patient = d.ask(Class::best_effort, 0, d.now + 500ms);
  d.hear(TimesChanged{ModelId{0}, {{1, 30ms}, {2, 60ms}, {3, 90ms}, {4, 120ms}}});
  EXPECT_EQ(d.one<Refuse>().request, waits);
  (void)patient;
}

TEST(BusyShare, GrowsAndGoesWithinFourSeconds) {
  ledger::BusyShare share;
  TimePoint now{};
  for (int i = 0; i < 100; ++i) share.add(10ms, now += 20ms);
  EXPECT_NEAR(share.at(now), 0.25, 0.01) << "half of two seconds of four";
  for (int i = 0; i < 200; ++i) share.add(10ms, now += 20ms);
  EXPECT_NEAR(share.at(now), 0.5, 0.01);
  EXPECT_NEAR(share.at(now + 2s), 0.25, 0.04);
  EXPECT_EQ(share.at(now + 5s), 0);
  EXPECT_EQ(share.at(now + 100s), 0);
  share.add(100s, now + 100s);
  EXPECT_EQ(share.at(now + 100s), ledger::BusyShare::most);
}

}  // namespace
}  // namespace carillon::schedule
