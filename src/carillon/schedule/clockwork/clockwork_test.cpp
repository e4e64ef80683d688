#include "carillon/schedule/clockwork/clockwork.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/appendix_b.h"
#include "carillon/schedule/testing/audit.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/sim_world.h"

namespace carillon::schedule {
namespace {

using testing::linear_model;
using testing::Outcome;
using testing::SimWorld;

TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr TimePoint no_deadline = TimePoint::max();
constexpr ClockworkOptions by_the_paper{.ahead = 5ms};
constexpr Environment told{.dispatch = 0us, .answer = 250us, .overrun = 0.05};

// A scheduler with one device, driven by hand; wakes that it asked for come with the next event.
struct Hand {
  Clockwork scheduler;
  testing::Shadowed driven{scheduler, 0};  // with a ledger
  Actions out;
  std::uint64_t next_request = 0;
  TimePoint wake = no_deadline;

  Hand(const ClockworkOptions& options, const std::vector<ModelInfo>& models, std::uint64_t pages,
       const Environment& environment = told)
      : scheduler(environment, options) {
    for (const auto& m : models) decide(model_comes(m), at(0ms));
    decide(DeviceChanged{DeviceId{0}, true, pages}, at(0ms));
  }
  const Actions& decide(const Event& event, TimePoint now) {
    out.clear();
    if (wake <= now) {
      wake = no_deadline;
      driven.decide(Wake{}, now, out);
    }
    wake = driven.decide(event, now, out);
    return out;
  }
  RequestId arrive(std::uint32_t model, TimePoint now, TimePoint deadline, std::uint32_t priority = 0) {
    const RequestId id{next_request++};
    decide(
        RequestArrived{
            {.id = id, .model = ModelId{model}, .priority = priority, .arrival = now, .deadline = deadline}},
        now);
    return id;
  }
  void done(ActionId id, TimePoint start, TimePoint end, ActionStatus status = ActionStatus::success) {
    decide(ActionDone{id, status, start, end, end - start}, end);
  }
  template <typename Kind>
  std::vector<Kind> sent() const {
    return testing::of_kind<Kind>(out);
  }
  // Loads a model and leaves the device idle at `now`.
  void warm(std::uint32_t model, TimePoint now) {
    arrive(model, now, no_deadline);
    const auto load = sent<Load>().at(0);
    done(load.id, now, now + load.expected);
    const auto infer = sent<Infer>().at(0);
    done(infer.id, now + load.expected, now + load.expected + infer.expected);
  }
};

TEST(Clockwork, AnIdleDeviceGetsARequestAtOnce) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms)}, 10);
  hand.warm(0, at(0ms));
  const RequestId id = hand.arrive(0, at(100ms), at(150ms));
  const auto infer = hand.sent<Infer>();
  ASSERT_EQ(infer.size(), 1U);
  EXPECT_EQ(infer[0].requests, std::vector<RequestId>{id});
  EXPECT_EQ(infer[0].window.earliest, at(100ms));
  // 150 ms less 3 ms of EXEC, 5% of it, and 0.25 ms for input, output and answering.
  EXPECT_EQ(infer[0].window.latest, at(Duration{150'000'000 - 3'000'000 - 150'000 - 250'000}));
  EXPECT_EQ(infer[0].expected, 3ms);
}

// Where a machine is noisy the way to a device is long at times, and a batch takes long at times. A device
// that is told to wait for as long as that stands idle at all other times.
TEST(Clockwork, NothingIsHeldBackAtADeviceByHowLongTheWayThereMayBe) {
  Hand hand({}, {linear_model(0, 50us, 50us)}, 10, {.dispatch = 8ms, .answer = 250us, .overrun = 0.05});
  hand.warm(0, at(0ms));
  std::size_t sent = 0;
  for (Duration now = 100ms; now < 110ms; now += 1ms) {
    hand.arrive(0, at(now), at(now + 50ms));
    for (const Infer& infer : hand.sent<Infer>()) {
      EXPECT_EQ(infer.window.earliest, at(now));
      ++sent;
    }
  }
  EXPECT_GT(sent, 1U) << "one goes behind another";
}

TEST(Clockwork, BatchesFormWhileTheDeviceIsBusy) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 9ms)}, 10);
  hand.warm(0, at(0ms));
  hand.arrive(0, at(100ms), at(900ms));
  const auto first = hand.sent<Infer>().at(0);
  for (int i = 0; i < 5; ++i) {
    hand.arrive(0, at(101ms), at(900ms));
    EXPECT_TRUE(hand.sent<Infer>().empty()) << "it has work for more than the next 5 ms";
  }
  // Nine milliseconds remain: a wake is asked for when five do.
  hand.decide(Wake{}, at(105ms));
  const auto next = hand.sent<Infer>();
  ASSERT_EQ(next.size(), 1U) << "that is work enough again";
  EXPECT_EQ(next[0].requests.size(), 4U);
  hand.done(first.id, at(100ms), at(110ms));
  EXPECT_TRUE(hand.sent<Infer>().empty());
}

TEST(Clockwork, AsksToBeWokenWhenAnExecutorRunsLow) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 9ms)}, 10);
  hand.warm(0, at(0ms));
  hand.arrive(0, at(100ms), at(900ms));
  hand.arrive(0, at(101ms), at(900ms));
  EXPECT_EQ(hand.wake, at(105ms));
}

// What is sent early does without what comes meanwhile, and is in the way of those with less time.
TEST(Clockwork, WorkIsSentNoEarlierThanTheWayToTheDeviceTakes) {
  for (const auto& [dispatch, ahead] : {std::pair{0us, 500us}, {3000us, 3000us}, {20'000us, 5000us}}) {
    Hand hand({}, {linear_model(0, 1ms, 29ms)}, 10, {.dispatch = dispatch, .answer = 250us, .overrun = 0.05});
    hand.warm(0, at(0ms));
    hand.arrive(0, at(100ms), at(900ms));
    ASSERT_EQ(hand.sent<Infer>().size(), 1U);
    const TimePoint end = at(130ms) + dispatch;  // EXEC starts when the message is there
    hand.arrive(0, at(110ms), at(900ms));
    EXPECT_TRUE(hand.sent<Infer>().empty());
    EXPECT_EQ(hand.wake, end - ahead) << dispatch.count();
  }
}

// Wakes follow where dispatch is measured to take longer: for models on one device, and for those everywhere.
TEST(Clockwork, WorkIsSentEarlierWhereTheWayIsSeenToTakeLonger) {
  for (const std::uint64_t pages : {1, 0}) {
    const Environment live{
        .dispatch = 100us, .answer = 250us, .overrun = 0.05, .measured = true, .client = 100us};
    Hand hand({}, {linear_model(0, 1ms, 29ms, pages)}, 10, live);
    if (pages > 0) hand.warm(0, at(0ms));
    // How long before the device is free the second of two is sent.
    const auto ahead = [&hand](TimePoint now, Duration dispatch) {
      hand.arrive(0, now, now + 800ms);
      const auto first = hand.sent<Infer>().at(0);
      hand.arrive(0, now + 10ms, now + 800ms);
      const TimePoint asked = hand.wake;
      hand.decide(Wake{}, asked);
      const auto second = hand.sent<Infer>();
      EXPECT_EQ(second.size(), 1U);
      hand.done(first.id, now, now + 30ms);
      if (!second.empty()) hand.done(second[0].id, now + 30ms, now + 60ms);
      return now + dispatch + 30ms - asked;
    };
    EXPECT_EQ(ahead(at(1s), 100us), 500us) << pages;
    hand.arrive(0, at(2s), at(3s));
    hand.done(hand.sent<Infer>().at(0).id, at(2s) + 3ms, at(2s) + 33ms);
    EXPECT_EQ(ahead(at(3s), 3ms), 3ms) << pages << ": at once where it is worse than told";
    for (int i = 0; i < 600; ++i) {
      const TimePoint now = at(4s) + i * 100ms;
      hand.arrive(0, now, now + 800ms);
      hand.done(hand.sent<Infer>().at(0).id, now, now + 30ms);
    }
    EXPECT_EQ(ahead(at(80s), 0ms), 500us) << pages << ": and no longer than that";
  }
}

TEST(Clockwork, AColdModelIsLoadedAndItsInferFollows) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms, 1, 8ms)}, 10);
  hand.arrive(0, at(1ms), at(100ms));
  const auto load = hand.sent<Load>();
  ASSERT_EQ(load.size(), 1U);
  EXPECT_EQ(load[0].window.earliest, at(1ms));
  EXPECT_TRUE(hand.sent<Infer>().empty());
  EXPECT_EQ(hand.wake, at(9ms) - 500us);
  hand.decide(Wake{}, at(9ms) - 500us);
  const auto infer = hand.sent<Infer>();
  ASSERT_EQ(infer.size(), 1U);
  EXPECT_EQ(infer[0].window.earliest, at(9ms)) << "the expected end of the LOAD";
}

TEST(Clockwork, RefusesOnArrivalWhatCannotBeOnTimeAndSaysWhenItWouldEnd) {
  const Duration span = 3ms + 150us + 250us;
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms, 1, 8ms), linear_model(1, 1ms, 2ms, 99, 8ms)}, 10);
  hand.arrive(0, at(0ms), at(8ms + span) - 1ns);
  auto refused = hand.sent<Refuse>();
  ASSERT_EQ(refused.size(), 1U) << "cold, and a nanosecond short";
  EXPECT_EQ(refused[0].reason, Reason::cannot_finish);
  EXPECT_EQ(refused[0].would_finish, at(8ms + span));
  hand.arrive(1, at(0ms), no_deadline);
  refused = hand.sent<Refuse>();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].reason, Reason::no_device);
  EXPECT_EQ(refused[0].would_finish, TimePoint::max());
  hand.arrive(0, at(0ms), at(8ms + span));
  EXPECT_TRUE(hand.sent<Refuse>().empty()) << "just in time";
  hand.arrive(0, at(0ms), at(-5ms));
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U) << "a deadline in the past";
  hand.arrive(0, at(0ms), TimePoint::min());
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U);
  hand.arrive(0, at(0ms), TimePoint::max() - 1ns);
  EXPECT_TRUE(hand.sent<Refuse>().empty());
}

TEST(Clockwork, CountsPendingWorkOnArrival) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 29ms)}, 10);
  hand.warm(0, at(0ms));
  hand.arrive(0, at(100ms), at(900ms));  // until 130 ms
  const Duration span = 30ms + 1500us + 250us;
  hand.arrive(0, at(110ms), at(130ms + span) - 1ns);
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_EQ(hand.sent<Refuse>()[0].would_finish, at(130ms + span));
  hand.arrive(0, at(110ms), at(130ms + span));
  EXPECT_TRUE(hand.sent<Refuse>().empty());
}

TEST(Clockwork, RefusesAWaitingRequestWhenItsLastStartHasPassed) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 29ms)}, 10);
  hand.warm(0, at(0ms));
  hand.arrive(0, at(100ms), at(900ms));
  const auto running = hand.sent<Infer>().at(0);
  const RequestId id = hand.arrive(0, at(110ms), at(170ms));
  const TimePoint last_start = at(170ms - 31500us - 250us);
  hand.decide(Wake{}, at(125ms));  // sent ahead of time
  ASSERT_EQ(hand.sent<Infer>().size(), 1U);
  EXPECT_EQ(hand.sent<Infer>()[0].window.latest, last_start);
  const auto second = hand.sent<Infer>()[0];
  // The first runs over; the worker could not start the second in its window.
  hand.done(running.id, at(100ms), at(141ms));
  hand.done(second.id, at(141ms), at(141ms), ActionStatus::too_late);
  const auto refused = hand.sent<Refuse>();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].request, id);
  EXPECT_EQ(refused[0].reason, Reason::rejected_late);
  EXPECT_GT(refused[0].would_finish, at(170ms));
}

TEST(Clockwork, AsksToBeWokenForARefusal) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 29ms)}, 10);
  hand.warm(0, at(0ms));
  hand.arrive(0, at(200ms), at(2s));  // runs until 230 ms
  const RequestId b = hand.arrive(0, at(201ms), at(2s));
  const RequestId passed_over = hand.arrive(0, at(201ms), at(262ms));
  const RequestId d = hand.arrive(0, at(201ms), at(2s));
  EXPECT_TRUE(hand.sent<Refuse>().empty()) << "alone it could still be in time";
  hand.decide(Wake{}, at(225ms));
  ASSERT_EQ(hand.sent<Infer>().size(), 1U);
  EXPECT_EQ(hand.sent<Infer>()[0].requests, (std::vector<RequestId>{b, d})) << "two are more than one";
  EXPECT_TRUE(hand.sent<Refuse>().empty());
  EXPECT_EQ(hand.wake, at(262ms - 31500us - 250us)) << "its last start";
  hand.decide(Wake{}, hand.wake);
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_EQ(hand.sent<Refuse>()[0].request, passed_over);
  EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::deadline_passed);
}

TEST(Clockwork, WithADeadlineGoesBeforeWithout) {
  ClockworkOptions options{.ahead = 0ms};
  Hand hand(options, {linear_model(0, 1ms, 2ms), linear_model(1, 1ms, 2ms)}, 10);
  for (std::uint32_t m = 0; m < 2; ++m) hand.warm(m, at(100ms * m));
  hand.arrive(0, at(1s), no_deadline);
  const auto running = hand.sent<Infer>().at(0);
  const RequestId without = hand.arrive(1, at(1s), no_deadline);
  const RequestId with = hand.arrive(1, at(1s), at(1s + 60ms));
  hand.done(running.id, at(1s), at(1s + 3ms));
  const auto first = hand.sent<Infer>();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].requests, std::vector{with});
  EXPECT_NE(first[0].window.latest, TimePoint::max());
  hand.done(first[0].id, at(1s + 3ms), at(1s + 6ms));
  const auto second = hand.sent<Infer>();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].requests, std::vector{without});
  EXPECT_EQ(second[0].window.latest, TimePoint::max());
}

TEST(Clockwork, PriorityBreaksTies) {
  ClockworkOptions options{.ahead = 0ms};
  Hand hand(options, {linear_model(0, 1ms, 2ms), linear_model(1, 1ms, 2ms)}, 10);
  hand.warm(0, at(0ms));
  hand.warm(1, at(100ms));
  hand.arrive(0, at(1s), no_deadline);
  const auto running = hand.sent<Infer>().at(0);
  hand.arrive(0, at(1s), at(2s), 5);
  hand.arrive(1, at(1s), at(2s), 2);
  hand.done(running.id, at(1s), at(1s + 3ms));
  EXPECT_EQ(hand.sent<Infer>().at(0).model, ModelId{1});
}

TEST(Clockwork, ACancelledRequestIsDroppedBeforeItRuns) {
  ClockworkOptions options{.ahead = 0ms};
  Hand hand(options, {linear_model(0, 1ms, 2ms)}, 10);
  hand.warm(0, at(0ms));
  hand.arrive(0, at(1s), at(2s));
  const auto running = hand.sent<Infer>().at(0);
  const RequestId gone = hand.arrive(0, at(1s), at(2s));
  hand.decide(RequestCancelled{gone}, at(1s));
  hand.decide(RequestCancelled{gone}, at(1s));
  hand.decide(RequestCancelled{running.requests[0]}, at(1s));
  hand.done(running.id, at(1s), at(1s + 3ms), ActionStatus::failed);
  EXPECT_TRUE(hand.sent<Infer>().empty());
  EXPECT_TRUE(hand.sent<Refuse>().empty());
}

TEST(Clockwork, AFailedInferIsTriedAgainButNotForEver) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms)}, 10);
  hand.warm(0, at(0ms));
  const RequestId id = hand.arrive(0, at(1s), no_deadline);
  for (int i = 0; i < 2; ++i) {
    const auto infer = hand.sent<Infer>();
    ASSERT_EQ(infer.size(), 1U);
    hand.done(infer[0].id, at(1s), at(1s + 1ms), ActionStatus::failed);
  }
  const auto infer = hand.sent<Infer>();
  ASSERT_EQ(infer.size(), 1U);
  hand.done(infer[0].id, at(1s), at(1s + 1ms), ActionStatus::failed);
  EXPECT_TRUE(hand.sent<Infer>().empty());
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_EQ(hand.sent<Refuse>()[0].request, id);
  EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::device_failed);
}

TEST(Clockwork, AModelThatCannotBeLoadedHasItsRequestsRefused) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms)}, 10);
  hand.arrive(0, at(0ms), no_deadline);
  TimePoint now = at(0ms);
  int loads = 0;
  for (int step = 0; step < 50 && hand.sent<Refuse>().empty(); ++step) {
    if (const auto load = hand.sent<Load>(); !load.empty()) {
      ++loads;
      now += 8ms;
      hand.done(load[0].id, now - 8ms, now, ActionStatus::failed);
    } else {
      ASSERT_NE(hand.wake, no_deadline) << "a pause must end";
      now = hand.wake;
      hand.decide(Wake{}, now);
    }
  }
  EXPECT_EQ(loads, 5);
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::device_failed);
}

TEST(Clockwork, EvictsTheLeastRecentlyUsedAndLoadsWhenItIsGone) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms), linear_model(1, 1ms, 2ms), linear_model(2, 1ms, 2ms)},
            2);
  hand.warm(0, at(0ms));
  hand.warm(1, at(100ms));
  hand.arrive(0, at(200ms), no_deadline);
  hand.done(hand.sent<Infer>().at(0).id, at(200ms), at(203ms));
  hand.arrive(2, at(300ms), at(500ms));
  const auto unload = hand.sent<Unload>();
  ASSERT_EQ(unload.size(), 1U);
  EXPECT_EQ(unload[0].model, ModelId{1});
  EXPECT_TRUE(hand.sent<Load>().empty()) << "its pages are free when the worker says so";
  hand.done(unload[0].id, at(300ms), at(300ms));
  EXPECT_EQ(hand.sent<Load>().at(0).model, ModelId{2});
}

TEST(Clockwork, LoadsWhatIsTooSlowToLoadForThoseToCome) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms, 1, 50ms), linear_model(1, 1ms, 2ms, 1, 50ms)}, 1);
  hand.arrive(0, at(0ms), at(2ms));
  EXPECT_TRUE(hand.sent<Load>().empty()) << "3 ms of EXEC do not fit: loading it would not help";
  hand.arrive(0, at(0ms), at(10ms));
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  ASSERT_EQ(hand.sent<Load>().size(), 1U);
  EXPECT_EQ(hand.sent<Load>()[0].window.latest, no_deadline);
  hand.done(hand.sent<Load>()[0].id, at(0ms), at(50ms));
  hand.arrive(0, at(60ms), at(70ms));
  ASSERT_EQ(hand.sent<Infer>().size(), 1U);
  hand.done(hand.sent<Infer>()[0].id, at(60ms), at(63ms));
  // Another that is refused takes its place once it was not used for a second: no sooner, or the two would
  // take each other's place for ever.
  hand.arrive(1, at(70ms), at(80ms));
  EXPECT_TRUE(hand.sent<Unload>().empty());
  hand.arrive(1, at(1070ms), at(1080ms));
  ASSERT_EQ(hand.sent<Unload>().size(), 1U);
  hand.done(hand.sent<Unload>()[0].id, at(1070ms), at(1070ms));
  ASSERT_EQ(hand.sent<Load>().size(), 1U);
  EXPECT_EQ(hand.sent<Load>()[0].model, ModelId{1});
}

TEST(Clockwork, OneDeviceIsEnoughToMakeRoomFor) {
  std::vector<ModelInfo> models;
  for (std::uint32_t m = 0; m < 5; ++m) models.push_back(linear_model(m, 1ms, 2ms, 1, 50ms));
  Hand hand(by_the_paper, models, 1);
  for (std::uint32_t d = 1; d < 4; ++d) hand.decide(DeviceChanged{DeviceId{d}, true, 1}, at(0ms));
  for (std::uint32_t m = 0; m < 4; ++m) {  // each device gets one
    hand.arrive(m, at(0ms), at(10ms));
    ASSERT_EQ(hand.sent<Load>().size(), 1U);
    hand.done(hand.sent<Load>()[0].id, at(0ms), at(0ms));
  }
  hand.arrive(4, at(2s), at(2s + 10ms));
  EXPECT_EQ(hand.sent<Unload>().size(), 1U) << "too slow to load";
  hand.done(hand.sent<Unload>()[0].id, at(2s), at(2s));
  EXPECT_TRUE(hand.sent<Unload>().empty());
  ASSERT_EQ(hand.sent<Load>().size(), 1U);
  hand.done(hand.sent<Load>()[0].id, at(2s), at(2s));
  hand.arrive(0, at(4s), at(4s + 200ms));
  hand.arrive(1, at(4s), at(4s + 200ms));
  hand.arrive(2, at(4s), at(4s + 200ms));
  hand.arrive(3, at(4s), at(4s + 200ms));  // three of these are there; the fourth is waited for
  EXPECT_LE(hand.sent<Unload>().size(), 1U);
}

TEST(Clockwork, ADeviceThatWentIsReplacedByAnother) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms)}, 10);
  hand.decide(DeviceChanged{DeviceId{1}, true, 10}, at(0ms));
  hand.warm(0, at(0ms));
  hand.arrive(0, at(1s), at(2s));
  const auto infer = hand.sent<Infer>().at(0);
  EXPECT_EQ(infer.device, DeviceId{0});
  hand.decide(DeviceChanged{DeviceId{0}, false, 0}, at(1s + 1ms));
  EXPECT_EQ(hand.sent<Load>().at(0).device, DeviceId{1});
  hand.decide(DeviceChanged{DeviceId{1}, false, 0}, at(1s + 2ms));
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::no_device);
}

// What still waits can only go to the devices that are left, and is refused when it is too late for those.
TEST(Clockwork, ADeviceThatWentTakesItsSpeedAlong) {
  // Of the first, a batch of one takes 10 ms; the second occupies a device for 100 ms. Both are everywhere.
  Hand hand(by_the_paper, {linear_model(0, 1ms, 9ms, 0), linear_model(1, 1ms, 99ms, 0)}, 10);
  hand.decide(DeviceChanged{DeviceId{1}, true, 10}, at(0ms));
  const auto occupy = [&hand](TimePoint now) {
    hand.arrive(1, now, no_deadline);
    return hand.sent<Infer>().at(0);
  };
  const Infer first = occupy(at(0ms));
  EXPECT_EQ(first.device, DeviceId{0});
  for (int i = 0; i < 3; ++i) {  // three times as long as on the other device
    const TimePoint now = at(1ms + i * 31ms);
    hand.arrive(0, now, no_deadline);
    const Infer measured = hand.sent<Infer>().at(0);
    EXPECT_EQ(measured.device, DeviceId{1});
    hand.done(measured.id, now, now + 30ms);
  }
  hand.done(first.id, at(0ms), at(100ms));

  occupy(at(1s));
  EXPECT_EQ(occupy(at(1s)).device, DeviceId{1});
  const RequestId id = hand.arrive(0, at(1s + 1ms), at(1s + 115ms));
  EXPECT_TRUE(hand.sent<Refuse>().empty()) << "the first device can do it";
  hand.decide(DeviceChanged{DeviceId{0}, false, 0}, at(1s + 2ms));
  EXPECT_TRUE(hand.sent<Refuse>().empty()) << "the other's work may end early";
  const TimePoint last_start = at(1s + 115ms - 31500us - 250us);
  EXPECT_EQ(hand.wake, last_start);
  hand.decide(Wake{}, last_start);
  ASSERT_EQ(hand.sent<Refuse>().size(), 1U);
  EXPECT_EQ(hand.sent<Refuse>()[0].request, id);
  EXPECT_EQ(hand.sent<Refuse>()[0].reason, Reason::deadline_passed);
}

TEST(Clockwork, AnOverloadedModelIsLoadedOnASecondDevice) {
  Clockwork scheduler{told};
  SimWorld world(scheduler, {.pages = {4, 4}}, {linear_model(0, 1ms, 4ms)});
  // One device answers 800 a second in batches of 16.
  for (int i = 0; i < 2400; ++i) {
    const TimePoint t = at(50ms + i * 833us);
    world.arrive({.model = ModelId{0}, .deadline = t + 50ms}, t);
  }
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  EXPECT_EQ(world.loads(), 2);
  EXPECT_GT(world.count().on_time, 2300);
}

// Reports come 4 ms after the end, where 1 ms was told: within a few executions decisions leave room for it.
TEST(Clockwork, LeavesRoomForWhatItSeesOfTheWayBack) {
  const Environment live{.dispatch = 0us, .answer = 1ms, .overrun = 0.05, .measured = true, .client = 500us};
  Hand hand(by_the_paper, {linear_model(0, 1ms, 9ms)}, 10, live);
  const auto latest = [&hand](TimePoint now) {
    hand.arrive(0, now, now + 50ms);
    EXPECT_EQ(hand.sent<Infer>().size(), 1U);
    return hand.sent<Infer>().at(0).window.latest - now;
  };
  hand.warm(0, at(0ms));
  EXPECT_EQ(latest(at(1s)), 50ms - 10ms - 500us - 1ms) << "as told";
  const auto serve = [&hand](TimePoint from, int times, Duration exec, Duration way_back) {
    for (int i = 0; i < times; ++i) {
      const TimePoint now = from + i * 50ms;
      if (i > 0) hand.arrive(0, now, now + 50ms);
      const auto infer = hand.sent<Infer>();
      ASSERT_EQ(infer.size(), 1U) << i;
      hand.decide(ActionDone{infer[0].id, ActionStatus::success, now, now + exec, exec},
                  now + exec + way_back);
    }
  };
  serve(at(1s), 1, 10ms, 4ms);
  EXPECT_EQ(latest(at(2s)), 50ms - 10ms - 500us - 4500us) << "4 ms were seen, and 0.5 ms nobody sees";
  // A request that this leaves no time for is refused when it comes, once it is seen to be usual.
  serve(at(2s), 5, 10ms, 4ms);
  hand.arrive(0, at(2s + 250ms), at(2s + 264ms));
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U);
  // Where nothing was heard for a while it is tried, as told; what comes of it is believed again.
  hand.arrive(0, at(3s), at(3s + 14ms));
  EXPECT_EQ(hand.sent<Refuse>().size(), 0U);
  serve(at(3s), 1, 10ms, 4ms);
  hand.arrive(0, at(3s + 100ms), at(3s + 114ms));
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U) << "the next trial is twice as far away";
  hand.arrive(0, at(4s), at(4s + 15ms));
  serve(at(4s), 1, 10ms, 4ms);
  // What was told counts for nothing any more once enough has been seen; the way back is quick from now on.
  hand.arrive(0, at(5s), at(5s + 50ms));
  serve(at(5s), 600, 10ms, 100us);
  EXPECT_EQ(latest(at(60s)), 50ms - 10ms - 600us);
}

TEST(Clockwork, AModelMayComeWhileServing) {
  Hand hand(by_the_paper, {linear_model(0, 1ms, 2ms)}, 10);
  hand.warm(0, at(0ms));
  hand.decide(model_comes(linear_model(1, 1ms, 2ms)), at(50ms));
  hand.warm(1, at(100ms));
  hand.arrive(1, at(1s), at(2s));
  EXPECT_EQ(hand.sent<Infer>().size(), 1U);
}

// The ordered sets of bounds find what a scan of the paper's one strategy queue finds.
TEST(Clockwork, ChoosesWhatTheStrategyQueueChooses) {
  Random random(77);
  const ClockworkOptions options{.ahead = 0ms, .queues_spared = 0};
  int chosen = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<ModelInfo> models;
    const auto count = static_cast<std::uint32_t>(2 + random.below(7));
    for (std::uint32_t m = 0; m < count; ++m)
      models.push_back(linear_model(m, Duration{static_cast<std::int64_t>(random.below(3'000'000))},
                                    Duration{static_cast<std::int64_t>(1 + random.below(8'000'000))}, 1, 8ms,
                                    {1, 2, 4, 8}));
    Hand hand(options, models, 100);
    TimePoint now = at(0ms);
    for (std::uint32_t m = 0; m < count; ++m) {
      hand.warm(m, now);
      now += 100ms;
    }
    std::vector<std::vector<Waiting>> waiting(count);
    hand.arrive(0, now, no_deadline);
    auto running = hand.sent<Infer>().at(0);
    std::uint64_t sequence = count + 1;
    for (int batch = 0; batch < 12; ++batch) {
      const std::uint64_t n = random.below(12);
      for (std::uint64_t i = 0; i < n; ++i) {
        const auto m = static_cast<std::uint32_t>(random.below(count));
        const TimePoint due = now + Duration{static_cast<std::int64_t>(random.below(120)) * 500'000};
        const auto priority = static_cast<std::uint32_t>(random.below(3));
        const RequestId id = hand.arrive(m, now, due, priority);
        ASSERT_TRUE(hand.sent<Infer>().empty());
        if (hand.sent<Refuse>().empty()) waiting[m].push_back({due, priority, sequence++, id});
      }
      const TimePoint end = now + running.expected;
      std::vector<testing::QueuedModel> queue;
      for (std::uint32_t m = 0; m < count; ++m) {
        std::vector<BatchCost> costs;
        for (const auto& b : models[m].batches) {
          const Duration exec =
              hand.scheduler.state().exec_estimate(DeviceId{0}, ModelId{m}, static_cast<int>(costs.size()));
          costs.push_back({b.batch, told.span(exec)});
        }
        queue.push_back({ModelId{m}, waiting[m], costs, end});
      }
      const auto want = testing::first_eligible(queue);
      hand.done(running.id, now, end);
      now = end;
      const auto infer = hand.sent<Infer>();
      ASSERT_EQ(infer.empty(), !want.has_value()) << "round " << round;
      for (const Refuse& r : hand.sent<Refuse>())
        for (auto& w : waiting) std::erase_if(w, [&](const Waiting& x) { return x.id == r.request; });
      if (!want) break;
      ++chosen;
      ASSERT_EQ(infer[0].model, want->model) << "round " << round;
      ASSERT_EQ(infer[0].requests, want->members) << "round " << round;
      ASSERT_EQ(infer[0].window.latest, want->start);
      std::erase_if(waiting[want->model.index()], [&](const Waiting& x) {
        return std::find(want->members.begin(), want->members.end(), x.id) != want->members.end();
      });
      running = infer[0];
    }
  }
  EXPECT_GT(chosen, 1000);
}

TEST(Clockwork, RequestsWithoutADeadlineDoNotStarve) {
  Clockwork scheduler{told};
  SimWorld world(scheduler, {}, {linear_model(0, 1ms, 4ms), linear_model(1, 1ms, 4ms)});
  // Model 0 alone asks for three times what the device can do.
  for (int i = 0; i < 12'000; ++i) {
    const TimePoint t = at(50ms + i * 250us);
    world.arrive({.model = ModelId{0}, .deadline = t + 50ms}, t);
  }
  for (int i = 0; i < 20; ++i)
    world.arrive({.model = ModelId{1}, .deadline = no_deadline}, at(100ms + i * 10ms));
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  for (const auto& log : world.requests())
    if (log.request.model == ModelId{1}) {
      EXPECT_EQ(log.outcome, Outcome::on_time);
      EXPECT_LT(log.answered, at(2500ms)) << "while the flood goes on";
    }
}

// Of two models that are nowhere the first's request is withdrawn: the second's patience counts from its own.
TEST(Clockwork, AWithdrawnRequestIsNotWaitedFor) {
  // The first model runs for seconds. The second has a request that waits behind it, and so keeps its pages.
  Hand hand({},
            {linear_model(0, 1ms, 2999ms), linear_model(1, 1ms, 29ms), linear_model(2, 1ms, 2ms),
             linear_model(3, 1ms, 2ms)},
            2);
  hand.warm(0, at(0ms));
  hand.warm(1, at(4s));
  hand.arrive(0, at(5s), no_deadline);
  ASSERT_EQ(hand.sent<Infer>().size(), 1U);
  hand.arrive(1, at(5s), at(12s));
  const RequestId withdrawn = hand.arrive(2, at(5010ms), no_deadline);
  hand.decide(RequestCancelled{withdrawn, ModelId{2}}, at(5020ms));
  hand.arrive(3, at(5030ms), no_deadline);
  EXPECT_TRUE(hand.sent<Unload>().empty());
  const TimePoint out_of_patience = at(6030ms);
  while (hand.wake < out_of_patience) {
    hand.decide(Wake{}, hand.wake);
    EXPECT_TRUE(hand.sent<Unload>().empty());
  }
  EXPECT_EQ(hand.wake, out_of_patience);
  hand.decide(Wake{}, hand.wake);
  ASSERT_EQ(hand.sent<Unload>().size(), 1U);
  EXPECT_EQ(hand.sent<Unload>()[0].model, ModelId{1});
}

TEST(Clockwork, AFloodWithoutDeadlinesLeavesMostOfTheTimeToThoseWithOne) {
  Clockwork scheduler{told};
  SimWorld world(scheduler, {}, {linear_model(0, 1ms, 4ms), linear_model(1, 1ms, 4ms)});
  for (int i = 0; i < 10'000; ++i)
    world.arrive({.model = ModelId{1}, .deadline = no_deadline}, at(50ms + i * 300us));
  for (int i = 0; i < 300; ++i) {
    const TimePoint t = at(100ms + i * 10ms);
    world.arrive({.model = ModelId{0}, .deadline = t + 100ms}, t);
  }
  world.run();
  EXPECT_TRUE(world.problems().empty()) << world.problems_text();
  int on_time = 0;
  for (const auto& log : world.requests())
    on_time += log.request.model == ModelId{0} && log.outcome == Outcome::on_time ? 1 : 0;
  EXPECT_GE(on_time, 290);
}

// Batches of one model whose rows run one after the other, 10 ms each, but for the sizes that have a plan.
TimesChanged times_of(Duration four, Duration eight) {
  return {ModelId{0}, {{1, 10ms}, {2, 20ms}, {4, four}, {8, eight}}};
}

// Eight requests wait behind a run that ends at 110 ms, and have 50 ms then.
void wait_behind_a_run(Hand& hand) {
  hand.warm(0, at(0ms));
  hand.arrive(0, at(100ms), no_deadline);
  for (int i = 0; i < 8; ++i) hand.arrive(0, at(101ms), at(160ms));
}

TEST(Clockwork, WhatWaitsGoesInALargerBatchOnceThereIsAPlan) {
  const ModelInfo model = linear_model(0, 10ms, 0ms, 1, 8ms, {1, 2, 4, 8});
  for (const bool changes : {false, true}) {
    Hand hand(by_the_paper, {model}, 10);
    wait_behind_a_run(hand);
    if (changes) {
      hand.decide(times_of(40ms, 20ms), at(102ms));
      EXPECT_TRUE(hand.sent<Infer>().empty()) << "the device has enough to do";
    }
    hand.decide(Wake{}, at(105ms));
    const auto sent = hand.sent<Infer>();
    ASSERT_FALSE(sent.empty());
    EXPECT_EQ(sent[0].requests.size(), changes ? 8U : 4U);
    EXPECT_EQ(sent[0].expected, changes ? 20ms : 40ms);
  }
}

// The device is about to be free, and nothing that waits is in time: until the event.
TEST(Clockwork, WhatWaitsIsOfferedWhenTimesChange) {
  const ModelInfo model = linear_model(0, 10ms, 0ms, 1, 8ms, {1, 2, 4, 8});
  Hand hand(by_the_paper, {model}, 10);
  hand.warm(0, at(0ms));
  const RequestId first = hand.arrive(0, at(100ms), at(118ms));
  const auto running = hand.sent<Infer>().at(0);
  EXPECT_EQ(running.requests, std::vector<RequestId>{first});
  const RequestId waits = hand.arrive(0, at(101ms), at(121ms));  // by 110.5 ms at the latest
  hand.decide(RequestCancelled{waits, ModelId{0}}, at(101ms));
  const RequestId other = hand.arrive(0, at(101ms), at(125ms));
  hand.decide(Wake{}, at(105ms));
  ASSERT_EQ(hand.sent<Infer>().size(), 1U);
  EXPECT_EQ(hand.sent<Infer>()[0].requests, std::vector<RequestId>{other});
  hand.arrive(0, at(106ms), at(127ms));
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U) << "behind both it would end at 130 ms";
  // A row takes less from now on; what is under way takes what was expected of it.
  hand.decide(TimesChanged{ModelId{0}, {{1, 2ms}, {2, 4ms}, {4, 8ms}, {8, 16ms}}}, at(107ms));
  hand.arrive(0, at(107ms), at(127ms));
  EXPECT_TRUE(hand.sent<Refuse>().empty());
  hand.decide(TimesChanged{ModelId{0}, {{1, 21ms}, {2, 42ms}, {4, 84ms}, {8, 168ms}}}, at(108ms));
  EXPECT_EQ(hand.sent<Refuse>().size(), 1U) << "it cannot be in time any more";
}

TEST(Clockwork, ABatchThatWasSentBeforeDoesNotTeachTheNewPlan) {
  const ModelInfo model = linear_model(0, 10ms, 0ms, 1, 8ms, {1, 2, 4, 8});
  Hand hand(by_the_paper, {model}, 10);
  hand.warm(0, at(0ms));
  const auto send_four = [&](TimePoint now) {
    for (int i = 0; i < 4; ++i)
      hand.decide(RequestArrived{{.id = RequestId{hand.next_request++},
                                  .model = ModelId{0},
                                  .arrival = now,
                                  .deadline = now + 500ms},
                                 true},
                  now);
    hand.decide(AllArrived{}, now);
    return hand.sent<Infer>().at(0);
  };
  const Infer before = send_four(at(100ms));
  EXPECT_EQ(before.expected, 40ms);
  hand.decide(times_of(25ms, 80ms), at(110ms));
  hand.done(before.id, at(100ms), at(140ms));
  EXPECT_EQ(hand.scheduler.state().exec_estimate(DeviceId{0}, ModelId{0}, 2), 25ms);
  const Infer after = send_four(at(150ms));
  EXPECT_EQ(after.expected, 25ms);
  hand.done(after.id, at(150ms), at(178ms));
  EXPECT_EQ(hand.scheduler.state().exec_estimate(DeviceId{0}, ModelId{0}, 2), 28ms);
}

}  // namespace
}  // namespace carillon::schedule
