#include "carillon/schedule/edf/edf.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/ledgered.h"
#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/policy_test.h"

namespace carillon::schedule {
namespace {

using testing::at;
using testing::linear_model;
using testing::of_kind;

class EdfTest : public testing::PolicyTest<Edf> {};
using Ids = std::vector<std::uint64_t>;

TEST_F(EdfTest, TheEarliestDeadlineGoesFirstAndTheDeviceHasOneRunAtATime) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  model(linear_model(1, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 2, 0ms);
  const auto first = of_kind<Infer>(arrives(0, 0, 1ms, at(100ms)));
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].window, (Window{at(1ms), at(90ms)}));
  EXPECT_TRUE(arrives(1, 0, 2ms, at(80ms)).empty());
  EXPECT_TRUE(arrives(2, 1, 3ms, at(60ms)).empty());
  EXPECT_TRUE(arrives(3, 1, 4ms, TimePoint::max()).empty());
  ActionId runs = first[0].id;
  for (const std::uint64_t next : {2, 1, 3}) {
    const auto sent = of_kind<Infer>(done(runs, 4ms, 10ms * static_cast<int>(runs.value)));
    ASSERT_EQ(sent.size(), 1U) << next;
    EXPECT_EQ(requests(sent[0]), Ids{next});
    runs = sent[0].id;
  }
}

TEST_F(EdfTest, ABatchIsAsLargeAsItsFirstRequestHasTimeFor) {
  for (const auto& [deadline, rows] : {std::pair(31ms, 2UL), std::pair(41ms, 4UL), std::pair(21ms, 1UL)}) {
    make();
    model(linear_model(0, 5ms, 10ms, 1, 8ms, {1, 2, 4}));  // 15, 20 and 30 ms
    device(0, 1, 0ms);
    for (std::uint64_t id = 0; id < 5; ++id)
      EXPECT_TRUE(arrives(id, 0, 5ms, id == 3 ? at(deadline) : at(90ms), Class::normal, true).empty());
    const auto sent = of_kind<Infer>(tell(AllArrived{}, 5ms));
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(sent[0].requests.size(), rows) << deadline.count();
    EXPECT_EQ(sent[0].requests[0], RequestId{3});
  }
}

TEST_F(EdfTest, ARequestIsRefusedOnceItWouldBeLateEvenAlone) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms);
  EXPECT_EQ(of_kind<Infer>(arrives(0, 0, 1ms, at(100ms))).size(), 1U);
  const auto at_once = arrives(1, 0, 2ms, at(11ms));
  EXPECT_EQ(at_once, (Actions{Refuse{RequestId{1}, Reason::cannot_finish, at(12ms)}}));
  EXPECT_TRUE(arrives(2, 0, 3ms, at(20ms)).empty());
  EXPECT_EQ(wake, at(10ms) + Duration{1});
  EXPECT_EQ(tell(Wake{}, 10ms + Duration{1}),
            (Actions{Refuse{RequestId{2}, Reason::deadline_passed, at(20ms) + Duration{1}}}));
}

TEST_F(EdfTest, ClassesGoInOrderWhereTheyShareAStream) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms);
  ActionId runs = of_kind<Infer>(arrives(0, 0, 1ms, at(900ms)))[0].id;
  arrives(1, 0, 2ms, at(200ms), Class::best_effort);
  arrives(2, 0, 2ms, at(300ms), Class::normal);
  arrives(3, 0, 2ms, at(400ms), Class::real_time);
  for (const std::uint64_t next : {3, 2, 1}) {
    const auto sent = of_kind<Infer>(done(runs, 2ms, 20ms));
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(requests(sent[0]), Ids{next});
    EXPECT_EQ(sent[0].cls, Class::normal);
    runs = sent[0].id;
  }
}

TEST_F(EdfTest, ClassesRunBesideEachOtherOnStreamsOfTheirOwn) {
  make({.classes = true});
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms, 2);
  std::uint64_t id = 0;
  for (const auto& [cls, at_a_time] :
       {std::pair(Class::best_effort, 2), std::pair(Class::normal, 1), std::pair(Class::real_time, 1)})
    for (int i = 0; i < 3; ++i, ++id) {
      const auto sent = of_kind<Infer>(arrives(id, 0, 1ms, at(900ms), cls));
      ASSERT_EQ(sent.size(), i < at_a_time ? 1U : 0U) << id;
      if (!sent.empty()) {
        EXPECT_EQ(sent[0].cls, cls);
      }
    }
}

TEST_F(EdfTest, AModelThatIsNowhereTakesThePlaceOfOneThatNobodyWaitsFor) {
  make();
  for (std::uint32_t m = 0; m < 3; ++m) model(linear_model(m, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 2, 0ms);  // models 0 and 1
  const auto run = of_kind<Infer>(arrives(0, 0, 1ms, at(900ms)));
  arrives(1, 0, 2ms, at(900ms));
  const auto unload = arrives(2, 2, 3ms, at(900ms));
  ASSERT_EQ(of_kind<Unload>(unload).size(), 1U);
  EXPECT_EQ(of_kind<Unload>(unload)[0].model, ModelId{1});
  EXPECT_TRUE(of_kind<Load>(unload).empty()) << "its pages are not free yet";
  const auto load = of_kind<Load>(done(of_kind<Unload>(unload)[0].id, 3ms, 4ms));
  ASSERT_EQ(load.size(), 1U);
  EXPECT_EQ(load[0].model, ModelId{2});
  EXPECT_EQ(of_kind<Infer>(done(run[0].id, 1ms, 11ms)).size(), 1U);
}

TEST_F(EdfTest, WhatIsMoreUrgentTakesThePlaceOfWhatWaits) {
  for (const bool first : {true, false}) {
    make();
    for (std::uint32_t m = 0; m < 2; ++m) model(linear_model(m, 0ms, 10ms, 1, 8ms, {1}));
    device(0, 1, 0ms);  // model 0
    const auto run = of_kind<Infer>(arrives(0, 0, 1ms, at(900ms)));
    EXPECT_TRUE(arrives(1, 0, 2ms, at(500ms)).empty());
    EXPECT_TRUE(arrives(2, 1, 3ms, first ? at(400ms) : at(600ms)).empty()) << "the copy is in use";
    const auto orders = done(run[0].id, 1ms, 11ms);
    EXPECT_EQ(of_kind<Infer>(orders).size(), 1U) << "the device has the model of the other";
    EXPECT_TRUE(of_kind<Unload>(orders).empty());
  }
}

TEST_F(EdfTest, AnIdleDeviceGetsACopyInThePlaceOfWhatIsUnused) {
  make();
  for (std::uint32_t m = 0; m < 2; ++m) model(linear_model(m, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms);  // model 0
  device(1, 1, 0ms);  // model 1: it has fewer copies
  EXPECT_EQ(of_kind<Infer>(arrives(0, 0, 1ms, at(900ms)))[0].device, DeviceId{0});
  EXPECT_TRUE(arrives(1, 0, 2ms, at(900ms)).empty()) << "model 1 was loaded a moment ago";
  const auto later = arrives(2, 0, 90ms, at(900ms));
  ASSERT_EQ(of_kind<Unload>(later).size(), 1U);
  EXPECT_EQ(of_kind<Unload>(later)[0].model, ModelId{1});
  EXPECT_EQ(of_kind<Unload>(later)[0].device, DeviceId{1});
}

TEST_F(EdfTest, ALoadThatFailsIsTriedLaterAndAtLastNobodyWaits) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  ActionId load = of_kind<Load>(tell(DeviceChanged{DeviceId{0}, true, 1}, 0ms))[0].id;
  EXPECT_TRUE(arrives(0, 0, 0ms, TimePoint::max()).empty());
  Duration now = 0ms;
  for (const Duration pause : {10ms, 20ms, 40ms, 80ms}) {
    EXPECT_TRUE(done(load, now, now, ActionStatus::failed).empty());
    EXPECT_EQ(wake, at(now + pause));
    now += pause;
    const auto again = of_kind<Load>(tell(Wake{}, now));
    ASSERT_EQ(again.size(), 1U);
    load = again[0].id;
  }
  EXPECT_EQ(of_kind<Refuse>(done(load, now, now, ActionStatus::failed)),
            (std::vector{Refuse{RequestId{0}, Reason::device_failed, TimePoint::max()}}));
  EXPECT_EQ(of_kind<Refuse>(arrives(1, 0, now + 1ms, TimePoint::max())).size(), 1U);
  EXPECT_EQ(of_kind<Load>(arrives(2, 0, now + 160ms, TimePoint::max())).size(), 1U) << "it may be mended";
}

TEST_F(EdfTest, NoDeviceCanHoldTheModel) {
  make();
  model(linear_model(0, 0ms, 10ms, 3, 8ms, {1}));
  device(0, 2, 0ms);
  EXPECT_EQ(arrives(0, 0, 1ms, TimePoint::max()),
            (Actions{Refuse{RequestId{0}, Reason::no_device, TimePoint::max()}}));
}

TEST_F(EdfTest, ALongerRunMakesWayForWhatWouldBeLateBehindIt) {
  struct Case {
    TimePoint runs_until, deadline;  // of the long run's request, and of the short one's
    Duration comes;
    Preemption preemption;
    bool overtakes;
  };
  for (const auto& [runs_until, deadline, comes, preemption, overtakes] :
       {Case{at(900ms), at(50ms), 10ms, Preemption::deadline, true},
        Case{at(900ms), at(50ms), 10ms, Preemption::none, false},
        Case{at(900ms), at(120ms), 10ms, Preemption::deadline, false},     // it has the time to wait
        Case{at(112ms), at(50ms), 10ms, Preemption::deadline, false},      // the long one has not
        Case{at(900ms), at(12ms), 5ms, Preemption::deadline, false},       // a kernel takes 5 ms
        Case{at(900ms), at(105ms), 91ms, Preemption::deadline, false}}) {  // it ends sooner by itself
    make({.preemption = preemption});
    model(linear_model(0, 0ms, 100ms, 1, 8ms, {1}));
    model(linear_model(1, 0ms, 10ms, 1, 8ms, {1}));
    device(0, 2, 0ms);
    const auto run = of_kind<Infer>(arrives(0, 0, 0ms, runs_until));
    ASSERT_EQ(run.size(), 1U);
    const auto orders = arrives(1, 1, comes, deadline);
    const auto sent = of_kind<Infer>(orders);
    ASSERT_EQ(sent.size(), overtakes ? 1U : 0U) << deadline.time_since_epoch().count();
    EXPECT_EQ(of_kind<Preempt>(orders),
              overtakes ? (std::vector{Preempt{run[0].id, DeviceId{0}, at(comes) - any_clock + Duration{1}}})
                        : std::vector<Preempt>{});
    if (!overtakes) continue;
    EXPECT_EQ(sent[0].window.earliest, at(comes) - any_clock)
        << "it is open whatever the device's clock says";
    EXPECT_TRUE(arrives(2, 1, comes + 1ms, deadline).empty()) << "one at a time";
  }
}

TEST_F(EdfTest, NothingMakesWayWhereAnotherDeviceIsFreeInTime) {
  for (const bool soon : {true, false}) {
    make({.preemption = Preemption::deadline});
    model(linear_model(0, 0ms, 100ms, 1, 8ms, {1}));
    model(linear_model(1, 0ms, 10ms, 1, 8ms, {1}));
    model(linear_model(2, 0ms, soon ? 20ms : 60ms, 1, 8ms, {1}));
    device(0, 3, 0ms);
    device(1, 3, 0ms);
    ASSERT_EQ(of_kind<Infer>(arrives(0, 0, 0ms, at(900ms))).size(), 1U);
    ASSERT_EQ(of_kind<Infer>(arrives(1, 2, 0ms, at(900ms))).size(), 1U);
    const auto orders = arrives(2, 1, 5ms, at(50ms));
    EXPECT_EQ(of_kind<Preempt>(orders).size(), soon ? 0U : 1U);
    EXPECT_EQ(of_kind<Infer>(orders).size(), soon ? 0U : 1U);
  }
}

TEST_F(EdfTest, AsManyAsTheLongRunHasTimeForOvertakeIt) {
  struct Case {
    TimePoint runs_until;
    std::size_t rows;
  };
  for (const auto& [runs_until, rows] : {Case{at(900ms), 2}, Case{at(125ms), 1}}) {
    make({.preemption = Preemption::deadline});
    model(linear_model(0, 0ms, 100ms, 1, 8ms, {1}));
    model(linear_model(1, 10ms, 10ms, 2, 8ms, {1, 2}));
    device(0, 3, 0ms);
    ASSERT_EQ(of_kind<Infer>(arrives(0, 0, 0ms, runs_until)).size(), 1U);
    arrives(1, 1, 10ms, at(60ms), Class::normal, true);
    arrives(2, 1, 10ms, at(60ms), Class::normal, true);
    const auto sent = of_kind<Infer>(tell(AllArrived{}, 10ms));
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(sent[0].requests.size(), rows);
  }
}

TEST_F(EdfTest, WhatDidNotSucceedIsTriedAgainThreeTimes) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms);
  auto sent = of_kind<Infer>(arrives(0, 0, 0ms, TimePoint::max()));
  for (int i = 0; i < 2; ++i) {
    sent = of_kind<Infer>(done(sent.at(0).id, 0ms, 10ms, ActionStatus::failed));
    ASSERT_EQ(sent.size(), 1U);
  }
  EXPECT_EQ(done(sent[0].id, 0ms, 30ms, ActionStatus::failed),
            (Actions{Refuse{RequestId{0}, Reason::device_failed, TimePoint::max()}}));
}

TEST_F(EdfTest, WhatADeviceLosesGoesToAnother) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms);
  device(1, 1, 0ms);
  EXPECT_EQ(of_kind<Infer>(arrives(0, 0, 1ms, at(90ms)))[0].device, DeviceId{0});
  const auto sent = of_kind<Infer>(tell(DeviceChanged{DeviceId{0}, false}, 2ms));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].device, DeviceId{1});
  EXPECT_EQ(requests(sent[0]), Ids{0});
}

// The ledger goes on saying that the request of the first came back. What another that is given up was to
// have never got there: the request is lost once.
TEST(Edf, WhereOneEventGivesUpManyDevicesARequestIsSentWhereOneIsWell) {
  Edf edf({.dispatch = {}, .answer = {}, .overrun = 0});
  ledger::Ledger ledger;
  edf.reads(ledger);
  Actions out;
  const auto tell = [&](const Event& event) {
    out.clear();
    edf.decide(event, at(1ms), out);
    for (const Action& order : out) ledger.book(order, at(1ms));
  };
  const auto hears = [&](const Event& event) {
    ledger.apply(event, at(1ms));
    tell(event);
  };
  hears(model_comes(linear_model(0, 0ms, 10ms, 0, 8ms, {1})));
  for (const std::uint32_t id : {0, 1, 2, 3, 4}) hears(DeviceChanged{DeviceId{id}, true, 1});
  hears(RequestArrived{{.id = RequestId{0}, .model = ModelId{0}, .arrival = at(1ms), .deadline = at(90ms)}});
  EXPECT_EQ(of_kind<Infer>(out).at(0).device, DeviceId{0});
  ledger.apply(Wake{}, at(1ms));
  for (const std::uint32_t id : {0, 1, 2, 4}) {
    ledger.book(GiveUp{DeviceId{id}}, at(1ms));
    tell(DeviceChanged{DeviceId{id}, false});
    const auto sent = of_kind<Infer>(out);
    ASSERT_EQ(sent.size(), id == 4 ? 0U : 1U);
    if (id < 4) {
      EXPECT_EQ(sent[0].device, DeviceId{id + 1});
    }
  }
  EXPECT_EQ(ledger.request(RequestId{0})->tries.lost, 1U);
}

TEST_F(EdfTest, ANewVersionComesWhenNothingUsesTheLast) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms);
  const auto run = of_kind<Infer>(arrives(0, 0, 1ms, at(90ms)));
  EXPECT_TRUE(tell(model_comes(linear_model(0, 0ms, 20ms, 1, 8ms, {1})), 2ms).empty());
  EXPECT_TRUE(arrives(1, 0, 3ms, at(90ms)).empty());
  const auto unload = of_kind<Unload>(done(run[0].id, 1ms, 11ms));
  ASSERT_EQ(unload.size(), 1U);
  const auto load = of_kind<Load>(done(unload[0].id, 11ms, 12ms));
  ASSERT_EQ(load.size(), 1U);
  const auto sent = of_kind<Infer>(done(load[0].id, 12ms, 20ms));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].expected, 20ms);
}

TEST_F(EdfTest, RequestsOfAModelThatGoesAreRefused) {
  make();
  model(linear_model(0, 0ms, 10ms, 1, 8ms, {1}));
  device(0, 1, 0ms);
  const auto run = of_kind<Infer>(arrives(0, 0, 1ms, at(90ms)));
  arrives(1, 0, 2ms, at(90ms));
  EXPECT_EQ(of_kind<Refuse>(tell(ModelChanged{ModelId{0}, nullptr}, 3ms)),
            (std::vector{Refuse{RequestId{1}, Reason::no_model, TimePoint::max()}}));
  EXPECT_EQ(of_kind<Refuse>(arrives(2, 0, 4ms, at(90ms))).size(), 1U);
  EXPECT_EQ(of_kind<Refuse>(done(run[0].id, 1ms, 11ms, ActionStatus::failed)),
            (std::vector{Refuse{RequestId{0}, Reason::no_model, TimePoint::max()}}));
}

// Against a plain list.
TEST(Waiting, LinesAndHeadsAreInOrder) {
  Random random(5);
  parts::Waiting waiting;
  std::vector<Request> open;
  const auto key = [](const Request& r) { return std::tuple(r.cls, r.deadline, r.id, r.model); };
  const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random.below(n)); };
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const ModelId model{below(4)};
    const auto cls = static_cast<Class>(below(3));
    const auto line = [&](const Request& r) { return r.model == model && r.cls == cls; };
    const auto there = static_cast<std::size_t>(std::ranges::count_if(open, line));
    ASSERT_EQ(waiting.size(model, cls), there);
    if (const std::uint32_t what = below(4); what < 2) {
      open.push_back({.id = RequestId{i}, .model = model, .cls = cls, .deadline = at(Duration{below(50)})});
      waiting.put(open.back());
    } else if (what == 2 && !open.empty()) {
      const std::size_t which = below(open.size());
      EXPECT_TRUE(waiting.remove(open[which].id));
      EXPECT_FALSE(waiting.remove(open[which].id));
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (there > 0) {
      std::ranges::sort(open, {}, key);
      for (const RequestId id : waiting.take(model, cls, TimePoint::min(), 1 + below(there))) {
        const auto first = std::ranges::find_if(open, line);
        ASSERT_EQ(first->id, id);
        open.erase(first);
      }
    }
    std::ranges::sort(open, {}, key);
    std::set<std::pair<ModelId, Class>> seen;
    auto head = waiting.heads().begin();
    for (const Request& r : open)
      if (seen.emplace(r.model, r.cls).second) {
        ASSERT_NE(head, waiting.heads().end());
        ASSERT_EQ(head->id, r.id);
        ASSERT_EQ(waiting.head(r.model, r.cls)->id, r.id);
        ++head;
      }
    ASSERT_EQ(head, waiting.heads().end());
  }
}

}  // namespace
}  // namespace carillon::schedule
