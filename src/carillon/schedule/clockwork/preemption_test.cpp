// Who goes before what runs, and who does not: Clockwork with Preemption::deadline, by hand and in a
// simulated world.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/clockwork/clockwork.h"
#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/audit.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;
using testing::SimWorld;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Environment told{.dispatch = 0us, .answer = 0us, .overrun = 0, .preemption = Preemption::deadline};

// A device that runs a batch of four of a slow model (model 0, 100 ms) from 100 ms on, due at `due`; then a
// request of a quick one (model 1, 2 ms alone) comes.
struct Hand {
  Clockwork scheduler;
  testing::Shadowed driven{scheduler, 0};  // with a ledger
  Actions out;
  std::uint64_t next_request = 0;
  ActionId slow;

  explicit Hand(TimePoint due, const Environment& environment = told, const ClockworkOptions& options = {})
      : scheduler(environment, options) {
    decide(model_comes(linear_model(0, 20ms, 20ms, 0, 8ms, {1, 2, 4})), at(0ms));
    decide(model_comes(linear_model(1, 1ms, 1ms, 0, 8ms, {1, 2, 4})), at(0ms));
    decide(model_comes(linear_model(2, 1ms, 59ms, 0, 8ms, {1})), at(0ms));
    decide(DeviceChanged{DeviceId{0}, true, 10}, at(0ms));
    // The first of four finds the device idle; the others run together when it has ended.
    arrive(0, at(40ms), TimePoint::max());
    const ActionId first = sent<Infer>().at(0).id;
    for (int i = 0; i < 4; ++i) arrive(0, at(41ms), due);
    decide(ActionDone{first, ActionStatus::success, at(40ms), at(100ms), 60ms}, at(100ms));
    slow = sent<Infer>().at(0).id;
  }
  void decide(const Event& event, TimePoint now) {
    out.clear();
    driven.decide(event, now, out);
  }
  void arrive(std::uint32_t model, TimePoint now, TimePoint deadline) {
    decide(
        RequestArrived{
            {.id = RequestId{next_request++}, .model = ModelId{model}, .arrival = now, .deadline = deadline}},
        now);
  }
  void done(ActionId id, TimePoint start, TimePoint end, Duration took) {
    decide(ActionDone{id, ActionStatus::success, start, end, took}, end);
  }
  template <typename Kind>
  std::vector<Kind> sent() const {
    return testing::of_kind<Kind>(out);
  }
  TimePoint free_at(TimePoint now) const { return scheduler.state().exec(DeviceId{0}).free_at(now); }
};

TEST(ClockworkPreemption, GoesFirstWhereThatMakesNothingLate) {
  const struct {
    const char* what;
    TimePoint slow_due;
    std::uint32_t model;
    TimePoint comes, due;
    bool first;
  } rows[] = {
      {"late behind it, and it can wait", at(300ms), 1, at(110ms), at(130ms), true},
      {"on time behind it", at(300ms), 1, at(110ms), at(202ms), false},
      {"it can wait just so long", at(202ms), 1, at(110ms), at(130ms), true},
      {"it has no deadline", TimePoint::max(), 1, at(110ms), at(130ms), true},
      {"it cannot wait", at(202ms) - 1ns, 1, at(110ms), at(130ms), false},
      {"it could not make way in time", at(300ms), 1, at(110ms), at(117ms) - 1ns, false},
      {"a kernel of 5% before it is just in time", at(300ms), 1, at(110ms), at(117ms), true},
      {"longer than what is left of it", at(500ms), 2, at(145ms), at(213ms) + 50us, false},
      {"it has all but ended", at(300ms), 1, at(196ms), at(201ms), false},
      {"without a deadline", at(300ms), 1, at(110ms), TimePoint::max(), false},
  };
  for (const auto& row : rows) {
    Hand hand(row.slow_due);
    hand.arrive(row.model, row.comes, row.due);
    const auto preempts = hand.sent<Preempt>();
    const auto infers = hand.sent<Infer>();
    EXPECT_EQ(preempts.size(), row.first ? 1U : 0U) << row.what;
    EXPECT_EQ(infers.size(), row.first ? 1U : 0U) << row.what;
    if (!row.first || preempts.empty() || infers.empty()) continue;
    EXPECT_EQ(preempts[0].id, hand.slow) << row.what;
    EXPECT_LT(infers[0].window.earliest, preempts[0].order) << row.what;
    EXPECT_EQ(hand.free_at(row.comes), at(202ms)) << row.what << ": what waits is counted, too";
  }
}

TEST(ClockworkPreemption, IsOffUnlessItIsAskedFor) {
  Environment off = told;
  off.preemption = Preemption::none;
  Hand hand(at(300ms), off);
  hand.arrive(1, at(110ms), at(130ms));
  EXPECT_TRUE(hand.sent<Preempt>().empty());
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U);
}

TEST(ClockworkPreemption, TheNextGoesBehindTheFirstAndBeforeTheRest) {
  Hand hand(at(300ms));
  hand.arrive(1, at(110ms), at(130ms));
  const Infer first = hand.sent<Infer>().at(0);
  hand.arrive(1, at(115ms) + 500us, at(135ms));
  const auto second = hand.sent<Infer>();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_TRUE(hand.sent<Preempt>().empty()) << "it waits already";
  EXPECT_EQ(second[0].window.earliest, first.window.earliest) << "behind the first by its id";
  EXPECT_EQ(hand.free_at(at(116ms)), at(204ms));
  // As reports come, the rest of the slow one is what is left: 85 ms, as it ran for 15.
  hand.done(first.id, at(115ms), at(117ms), 2ms);
  hand.done(second[0].id, at(117ms), at(119ms), 2ms);
  EXPECT_EQ(hand.free_at(at(119ms)), at(204ms));
  hand.done(hand.slow, at(100ms), at(204ms), 100ms);
  EXPECT_EQ(hand.scheduler.state().exec_estimate(DeviceId{0}, ModelId{0}, 2), 100ms)
      << "its own time is learnt, not that in which it waited";
  EXPECT_TRUE(hand.scheduler.state().exec(DeviceId{0}).idle());
}

TEST(ClockworkPreemption, GoesBehindAllThatItCanWaitFor) {
  Hand hand(at(300ms));
  for (int i = 0; i < 3; ++i) {
    hand.arrive(1, at(110ms) + i * 100us, at(130ms));
    EXPECT_EQ(hand.sent<Infer>().size(), 1U) << i;
    EXPECT_EQ(hand.sent<Preempt>().size(), i == 0 ? 1U : 0U) << i;
  }
  const auto& pending = hand.scheduler.state().exec(DeviceId{0}).pending();
  ASSERT_EQ(pending.size(), 4U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pending[static_cast<std::size_t>(i)].end, at(117ms + i * 2ms));
  EXPECT_EQ(pending[3].id, hand.slow);
}

TEST(ClockworkPreemption, WhatIsOnItsWayIsToldToMakeWayToo) {
  Environment away = told;
  away.dispatch = 2ms;
  Hand hand(at(300ms), away);
  hand.arrive(1, at(100ms) + 500us, at(130ms));  // the slow one begins at 102 ms
  EXPECT_EQ(hand.sent<Infer>().size(), 1U);
  EXPECT_EQ(hand.sent<Preempt>().size(), 1U);
}

TEST(ClockworkPreemption, WhatWaitsBehindALateRunMakesWay) {
  Environment away = told;
  away.dispatch = 1ms;
  Hand hand(at(400ms), away);  // the slow one should end at 201 ms
  for (int i = 0; i < 4; ++i) hand.arrive(0, at(150ms), at(600ms));
  hand.decide(Wake{}, at(200ms) + 200us);
  const ActionId next = hand.sent<Infer>().at(0).id;
  hand.arrive(1, at(205ms), at(230ms));
  ASSERT_EQ(hand.sent<Preempt>().size(), 1U);
  EXPECT_EQ(hand.sent<Preempt>()[0].id, next);
  const ActionId quick = hand.sent<Infer>().at(0).id;
  hand.done(hand.slow, at(101ms), at(207ms), 106ms);
  hand.done(quick, at(207ms), at(209ms), 2ms);
  EXPECT_EQ(hand.free_at(at(209ms)), at(309ms)) << "it had not begun";
}

TEST(ClockworkPreemption, ARunMakesWaySoOftenAtMost) {
  for (const int most : {1, 3}) {
    Hand hand(at(900ms), told, {.preemptions = most});
    int preempted = 0;
    TimePoint now = at(105ms);
    for (int i = 0; i < 5; ++i, now += 15ms) {
      hand.arrive(1, now, now + 12ms);
      const auto infers = hand.sent<Infer>();
      preempted += static_cast<int>(hand.sent<Preempt>().size());
      if (!infers.empty()) hand.done(infers[0].id, now + 5ms, now + 7ms, 2ms);
    }
    EXPECT_EQ(preempted, most);
  }
}

// Quick requests come without end, each just before the last one's report: what they overtake at the device,
// without a deadline, waits for a second beyond its time and no longer.
TEST(ClockworkPreemption, WhatHasNoDeadlineMakesWayOnlyAsLongAsItHasPatience) {
  Hand hand(TimePoint::max());
  std::vector<ActionId> under_way;
  int first = 0;
  TimePoint now = at(110ms);
  for (; now < at(5s); now += 2ms) {
    hand.arrive(1, now, now + 20ms);
    const auto infers = hand.sent<Infer>();
    if (infers.empty() && under_way.empty()) break;
    for (const Infer& infer : infers) under_way.push_back(infer.id), ++first;
    if (now < at(115ms) || under_way.empty()) continue;
    hand.done(under_way.front(), now, now + 2ms, 2ms);
    under_way.erase(under_way.begin());
    for (const Infer& infer : hand.sent<Infer>()) under_way.push_back(infer.id), ++first;
  }
  EXPECT_GT(first, 100);
  EXPECT_LE(now, at(100ms) + 1s + 100ms);
}

TEST(ClockworkPreemption, WhatEndedMeanwhileIsNoHarm) {
  Hand hand(at(300ms));
  hand.arrive(1, at(110ms), at(130ms));
  const Infer quick = hand.sent<Infer>().at(0);
  hand.done(hand.slow, at(100ms), at(112ms), 12ms);
  EXPECT_LE(hand.free_at(at(112ms)), at(117ms));
  hand.done(quick.id, at(112ms), at(114ms), 2ms);
  EXPECT_TRUE(hand.scheduler.state().exec(DeviceId{0}).idle());
}

TEST(ClockworkPreemption, ARefusedOneLeavesTheRestAsItWas) {
  Hand hand(at(300ms));
  hand.arrive(1, at(110ms), at(130ms));
  const Infer quick = hand.sent<Infer>().at(0);
  hand.decide(ActionDone{quick.id, ActionStatus::too_late, at(140ms), at(140ms), 0ms}, at(140ms));
  EXPECT_EQ(hand.free_at(at(140ms)), at(200ms));
}

// Quick requests beside a slow model on one device: without preemption those that come while a long batch
// runs are lost, with it none is, and none of the slow ones either.
TEST(ClockworkPreemption, SavesQuickRequestsAndCostsNoSlowOne) {
  for (const Preemption preemption : {Preemption::none, Preemption::deadline}) {
    Clockwork scheduler({.dispatch = 200us, .answer = 200us, .overrun = 0, .preemption = preemption});
    SimWorld world(scheduler, {.latency = 100us},
                   {linear_model(0, 15ms, 5ms, 1, 8ms, {1, 2, 4}), linear_model(1, 1ms, 1ms)});
    for (std::uint32_t m = 0; m < 2; ++m)
      world.arrive({.model = ModelId{m}, .deadline = TimePoint::max()}, at(0ms));
    for (int i = 0; i < 100; ++i) {
      for (int k = 0; k < 3; ++k)
        world.arrive({.model = ModelId{0}, .deadline = at(400ms + i * 100ms)}, at(200ms + i * 100ms));
      world.arrive({.model = ModelId{1}, .deadline = at(245ms + i * 100ms)}, at(225ms + i * 100ms));
    }
    world.run();
    EXPECT_TRUE(world.problems().empty()) << world.problems_text();
    EXPECT_EQ(world.count().late, 0);
    if (preemption == Preemption::none)
      EXPECT_GE(world.count().refused, 90);
    else
      EXPECT_EQ(world.count().refused, 0);
  }
}

}  // namespace
}  // namespace carillon::schedule
