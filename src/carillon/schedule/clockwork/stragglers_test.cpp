#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/clockwork/clockwork.h"
#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/audit.h"
#include "carillon/schedule/testing/models.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;

TimePoint at(Duration d) {
  return TimePoint{d};
}
// Two models of 1 ms and one of 40 ms, loaded on a device that is measured; driven by hand.
struct AfterAStall {
  static constexpr Environment live{.dispatch = 100us,
                                    .answer = 200us,
                                    .overrun = 0.05,
                                    .shortest = 4ms,
                                    .measured = true,
                                    .client = 100us};
  Clockwork scheduler{live};
  testing::Shadowed driven{scheduler, 0};  // with a ledger
  Actions out;
  TimePoint wake = TimePoint::max();
  std::uint64_t next_request = 0;

  explicit AfterAStall(std::uint64_t pages = 10, std::uint64_t pages_each = 1) {
    for (std::uint32_t i = 0; i < 3; ++i)
      decide(model_comes(linear_model(i, 0ms, i == 2 ? 40ms : 1ms, pages_each)), at(0ms));
    decide(DeviceChanged{DeviceId{0}, true, pages}, at(0ms));
    TimePoint now = at(10ms);
    for (std::uint32_t i = 0; i < 3; ++i) {
      arrive(i, now, TimePoint::max());
      if (pages_each > 0) end(now += 5ms, sent<Load>().at(0).id, 4ms);
      const Infer infer = sent<Infer>().at(0);
      end(now += infer.expected + 200us, infer.id, infer.expected);
    }
    // Enough to be measured, and in between a machine that was away for 80 ms.
    for (int i = 0; i < 200; ++i) {
      now += 5ms;
      arrive(0, now, now + 1s);
      const auto infer = sent<Infer>().at(0);
      const bool stalled = i == 150;
      const TimePoint heard = now + (stalled ? Duration{80ms} : Duration{1200us});
      end(heard, infer.id, stalled ? Duration{79ms} : Duration{1ms});
      now = std::max(now, heard);
    }
    EXPECT_GT(scheduler.state().margins().at(DeviceId{0}).span(1ms), 50ms) << "the stall is believed";
    EXPECT_LT(scheduler.state().margins().usual(DeviceId{0}).span(1ms), 2ms);
    start = now + 10ms;
  }
  TimePoint start;

  const Actions& decide(const Event& event, TimePoint now) {
    out.clear();
    if (wake <= now) {
      wake = TimePoint::max();
      driven.decide(Wake{}, now, out);
    }
    wake = driven.decide(event, now, out);
    return out;
  }
  RequestId arrive(std::uint32_t model, TimePoint now, TimePoint deadline, bool more = false) {
    const RequestId id{next_request++};
    decide(RequestArrived{{.id = id, .model = ModelId{model}, .arrival = now, .deadline = deadline}, more},
           now);
    return id;
  }
  void end(TimePoint heard, ActionId id, Duration took, ActionStatus status = ActionStatus::success) {
    decide(ActionDone{id, status, heard - 100us - took, heard - 100us, took}, heard);
  }
  template <typename Kind>
  std::vector<Kind> sent() const {
    return testing::of_kind<Kind>(out);
  }
};

TEST(Stragglers, AnIdleDeviceRunsWhatMarginsWouldRefuse) {
  for (const std::uint64_t pages : {1, 0}) {
    AfterAStall hand(10, pages);
    const RequestId id = hand.arrive(0, hand.start, hand.start + 10ms);
    const auto infer = hand.sent<Infer>();
    ASSERT_EQ(infer.size(), 1U) << pages;
    EXPECT_EQ(infer[0].requests, std::vector{id});
    EXPECT_LE(infer[0].window.latest, hand.start + 9ms) << "it would be late";
    EXPECT_GE(infer[0].window.latest, hand.start + 8ms);
  }
}

TEST(Stragglers, EvenWhatIsUsualMayBeTooMuch) {
  AfterAStall hand;
  hand.arrive(0, hand.start, hand.start + 1ms);
  const auto refused = hand.sent<Refuse>();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].reason, Reason::cannot_finish);
}

// Rows of one request come together, and run together.
TEST(Stragglers, RowsRunInOneBatch) {
  AfterAStall hand;
  for (int i = 0; i < 4; ++i) hand.arrive(1, hand.start, hand.start + 15ms, true);
  hand.decide(AllArrived{}, hand.start);
  ASSERT_EQ(hand.sent<Infer>().size(), 1U);
  EXPECT_EQ(hand.sent<Infer>()[0].requests.size(), 4U);
}

// Behind what runs it waits for a device, and is refused when even that would be too late.
TEST(Stragglers, WaitForADeviceUntilItIsTooLate) {
  for (const bool in_time : {true, false}) {
    AfterAStall hand;
    const TimePoint start = hand.start;
    hand.arrive(2, start, TimePoint::max());
    const ActionId runs = hand.sent<Infer>().at(0).id;
    const RequestId id = hand.arrive(0, start + 10ms, start + 60ms);
    EXPECT_TRUE(hand.out.empty()) << "it waits";
    ASSERT_LE(hand.wake, start + 41ms);
    hand.end(start + (in_time ? 41ms : 59ms), runs, in_time ? 40ms : 58ms);
    if (in_time) {
      ASSERT_EQ(hand.sent<Infer>().size(), 1U);
      EXPECT_EQ(hand.sent<Infer>()[0].requests, std::vector{id});
    } else {
      EXPECT_TRUE(hand.sent<Infer>().empty());
      ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
      EXPECT_EQ(hand.sent<Refuse>()[0].request, id);
      EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::deadline_passed);
    }
  }
}

// Refused by a wake of its own, before its deadline.
TEST(Stragglers, AreRefusedBeforeTheirDeadline) {
  AfterAStall hand;
  hand.arrive(2, hand.start, TimePoint::max());
  hand.arrive(0, hand.start + 10ms, hand.start + 60ms);
  hand.arrive(2, hand.start + 11ms, hand.start + 3s);  // has the device first, for 40 ms
  TimePoint asked{};
  for (int i = 0; i < 10 && hand.sent<Refuse>().empty(); ++i) {
    asked = hand.wake;
    ASSERT_LT(asked, hand.start + 60ms);
    hand.out.clear();
    hand.wake = hand.driven.decide(Wake{}, asked, hand.out);
  }
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_GT(asked, hand.start + 57ms);
}

// A device that somebody waits for is not lent: margins count there.
TEST(Stragglers, AreRefusedWhereOthersWait) {
  AfterAStall hand;
  hand.arrive(2, hand.start, TimePoint::max());
  hand.arrive(1, hand.start + 1ms, hand.start + 1s);
  EXPECT_TRUE(hand.out.empty()) << "it waits behind the long one";
  hand.arrive(0, hand.start + 2ms, hand.start + 60ms);
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::cannot_finish);
}

// One that was admitted waits on where margins grow too late for it; others go first.
TEST(Stragglers, OthersGoFirst) {
  AfterAStall hand;
  hand.arrive(2, hand.start, TimePoint::max());
  const ActionId runs = hand.sent<Infer>().at(0).id;
  const RequestId straggler = hand.arrive(0, hand.start + 1ms, hand.start + 60ms);
  const RequestId other = hand.arrive(1, hand.start + 2ms, hand.start + 1s);
  hand.end(hand.start + 41ms, runs, 40ms);
  const auto infer = hand.sent<Infer>();
  ASSERT_GE(infer.size(), 1U);
  EXPECT_EQ(infer[0].requests, std::vector{other});
  hand.end(hand.start + 43ms, infer[0].id, 1ms);
  ASSERT_EQ(hand.sent<Infer>().size(), 1U);
  EXPECT_EQ(hand.sent<Infer>()[0].requests, std::vector{straggler});
}

TEST(Stragglers, AreGoneWithTheirClientTheirModelOrTheirDevice) {
  for (const int what : {0, 1, 2, 3}) {
    AfterAStall hand;
    hand.arrive(2, hand.start, TimePoint::max());
    const ActionId runs = hand.sent<Infer>().at(0).id;
    const RequestId id = hand.arrive(0, hand.start + 1ms, hand.start + 60ms);
    const TimePoint now = hand.start + 2ms;
    if (what == 0) hand.decide(RequestCancelled{id, ModelId{0}}, now);
    if (what == 1) {
      hand.decide(ModelChanged{ModelId{0}, nullptr}, now);
      ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
      EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::no_model);
    }
    if (what == 2) {
      hand.decide(DeviceChanged{DeviceId{0}, false, 0}, now);
      const auto refused = hand.sent<Refuse>();
      EXPECT_TRUE(std::ranges::any_of(
          refused, [&](const Refuse& r) { return r.request == id && r.reason == Reason::no_device; }));
    }
    if (what == 3) {
      // In another version it is to be loaded anew: for that it is too late.
      hand.decide(model_comes(linear_model(0, 0ms, 1ms)), now);
    }
    if (what != 2) hand.end(hand.start + 41ms, runs, 40ms);
    for (const Infer& infer : hand.sent<Infer>())
      EXPECT_EQ(std::ranges::count(infer.requests, id), what == 3 ? 1 : 0) << what;
  }
}

}  // namespace
}  // namespace carillon::schedule
