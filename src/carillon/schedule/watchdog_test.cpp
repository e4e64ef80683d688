#include "carillon/schedule/watchdog.h"

#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/ledgered.h"

namespace carillon::schedule {
namespace {

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

// 1 s means a look every 125 ms.
class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() { begin_anew(); }
  void begin_anew() {
    ledger = {};
    ledger.apply(DeviceChanged{.device = {0}}, at(0ms));
    dog = Watchdog{1s};
    dog.reads(ledger);
  }
  void send(const Action& action, TimePoint now) {
    ledger.book(action, now);
    dog.sent(now);
  }
  void send(std::uint64_t id, TimePoint now, Duration expected = 10ms, Lane lane = Lane::exec,
            TimePoint opens = TimePoint::min(), TimePoint closes = TimePoint::max()) {
    if (lane == Lane::load) return send(Load{{id}, {0}, {0}, {opens, closes}, expected}, now);
    const Class cls = lane == Lane::real_time     ? Class::real_time
                      : lane == Lane::best_effort ? Class::best_effort
                                                  : Class::normal;
    send(Infer{{id}, {0}, {0}, {}, {opens, closes}, expected, cls}, now);
  }
  void ended(std::uint64_t id, Duration took = Duration{0}) {
    ledger.apply(ActionDone{.id = {id}, .start = {}, .end = {}, .duration = took}, TimePoint{});
  }
  // Looks whenever that is wanted, up to `until`; when the device first hung, or max().
  TimePoint first_hang(TimePoint until) {
    while (dog.wake_at() <= until) {
      const TimePoint now = dog.wake_at();
      if (!dog.look(now).empty()) return now;
    }
    return TimePoint::max();
  }
  ledger::Ledger ledger;
  Watchdog dog{1s};
};

TEST_F(WatchdogTest, SaysNothingOfADeviceAtRest) {
  EXPECT_EQ(dog.wake_at(), TimePoint::max());
  send(1, at(0ms));
  EXPECT_EQ(dog.wake_at(), at(125ms));
  ended(1);
  EXPECT_TRUE(dog.look(at(125ms)).empty());
  EXPECT_EQ(dog.wake_at(), TimePoint::max());
}

TEST_F(WatchdogTest, ADeviceHangsThatIsSilentForTooLong) {
  const struct {
    Duration expected;
    Duration least, most;  // until it is told
  } rows[] = {{10ms, 1s, 1250ms}, {50ms, 1s, 1250ms}, {200ms, 4s, 4250ms}, {3s, 60s, 60250ms}};
  for (const auto& [expected, least, most] : rows) {
    begin_anew();
    send(1, at(0ms), expected);
    const TimePoint told = first_hang(at(100s));
    EXPECT_GE(told, at(least)) << to_ms(expected);
    EXPECT_LE(told, at(most)) << to_ms(expected);
  }
}

// Real-time runs take all of the device, and report; what makes way for them has no time of its own.
TEST_F(WatchdogTest, WhatMakesWayIsGivenTheTimeOfTheOthers) {
  const struct {
    Lane lane;
    Duration urgent;  // of every 100 ms
    Duration least, most;
  } rows[] = {{Lane::exec, 100ms, 1h, 1h},
              {Lane::exec, 50ms, 2s, 2600ms},
              {Lane::exec, 0ms, 1s, 1250ms},
              {Lane::best_effort, 50ms, 1h, 1h}};  // the device reports something
  for (const auto& [lane, urgent, least, most] : rows) {
    begin_anew();
    send(1, at(0ms), 10ms, lane);
    std::uint64_t id = 2;
    TimePoint hung = TimePoint::max();
    for (TimePoint now = at(0ms); now < at(30s) && hung == TimePoint::max(); now += 100ms) {
      if (urgent > 0ms) {
        send(id, now, 10ms, Lane::real_time);
        ended(id++, urgent);
      }
      hung = first_hang(now + 100ms);
    }
    if (least == 1h) {
      EXPECT_EQ(hung, TimePoint::max());
    } else {
      EXPECT_GE(hung, at(least));
      EXPECT_LE(hung, at(most));
    }
  }
}

// As one whose core somebody else on the machine has, while another's is free.
TEST_F(WatchdogTest, BestEffortMayBeOvertakenForAsLongAsTheDeviceReports) {
  send(1, at(0ms), 10ms, Lane::best_effort);
  TimePoint now = at(0ms);
  for (std::uint64_t id = 2; now < at(60s); now += 100ms) {
    send(id, now, 10ms, Lane::best_effort, now);
    ended(id++, 10ms);
    ASSERT_EQ(first_hang(now + 100ms), TimePoint::max());
  }
  const TimePoint told = first_hang(now + 100s);
  EXPECT_GE(told, now + 9s);
  EXPECT_LE(told, now + 11s);
}

TEST_F(WatchdogTest, BestEffortIsGivenTenTimesAsLong) {
  send(1, at(0ms), 10ms, Lane::best_effort);
  const TimePoint told = first_hang(at(100s));
  EXPECT_GE(told, at(10s));
  EXPECT_LE(told, at(10250ms));
}

TEST_F(WatchdogTest, EveryReportBeginsAnew) {
  std::uint64_t id = 0;
  send(++id, at(0ms));
  for (TimePoint now = at(900ms); now < at(20s); now += 900ms) {
    EXPECT_EQ(first_hang(now), TimePoint::max());
    send(++id, now);
    ended(id - 1);
  }
}

TEST_F(WatchdogTest, AWindowThatIsNotOpenIsNoReasonToReport) {
  send(1, at(0ms), 10ms, Lane::exec, at(5s));
  const TimePoint told = first_hang(at(10s));
  EXPECT_GE(told, at(6s));
  EXPECT_LE(told, at(6250ms));
}

TEST_F(WatchdogTest, LoadsThatGoOnDoNotHideAnExecThatHangs) {
  send(1, at(0ms));
  send(2, at(0ms), 10ms, Lane::load);
  TimePoint told = TimePoint::max();
  for (std::uint64_t id = 3; id < 100 && told == TimePoint::max(); ++id) {
    const TimePoint now = at(100ms * static_cast<std::int64_t>(id - 2));
    told = first_hang(now);
    ended(id - 1);
    send(id, now, 10ms, Lane::load);
  }
  EXPECT_LE(told, at(1300ms));
}

TEST_F(WatchdogTest, AnUnloadMayWaitForALongExec) {
  send(1, at(0ms), 1s);
  send(2, at(0ms), Duration{0}, Lane::load);
  EXPECT_EQ(first_hang(at(19s)), TimePoint::max());
}

TEST_F(WatchdogTest, TimeInWhichNobodyLookedDoesNotCount) {
  send(1, at(0ms));
  EXPECT_EQ(first_hang(at(500ms)), TimePoint::max());
  // The process was stopped for a minute. Its devices are given what is left of their second.
  EXPECT_TRUE(dog.look(at(60s)).empty());
  const TimePoint told = first_hang(at(100s));
  EXPECT_GT(told, at(60s));
  EXPECT_LE(told, at(61s));
}

TEST_F(WatchdogTest, WhatIsOverdueIsNotHiddenByWhatFollows) {
  send(1000, at(0ms), 10ms, Lane::exec, at(0ms), at(300ms));
  TimePoint told = TimePoint::max();
  for (std::uint64_t id = 2; id < 100 && told == TimePoint::max(); ++id) {
    const TimePoint now = at(100ms * static_cast<std::int64_t>(id - 1));
    send(id, now);
    ended(id);
    told = first_hang(now);
  }
  EXPECT_GE(told, at(1300ms));
  EXPECT_LE(told, at(1600ms));
}

TEST_F(WatchdogTest, WhatOthersOvertookForLongIsMissing) {
  for (const bool makes_way : {false, true}) {
    begin_anew();
    send(1, at(0ms), 10ms, Lane::load);
    if (makes_way) ledger.book(Preempt{.id = {1}, .device = {0}}, at(0ms));
    TimePoint told = TimePoint::max();
    for (std::uint64_t id = 2; id < 100 && told == TimePoint::max(); ++id) {
      const TimePoint now = at(100ms * static_cast<std::int64_t>(id - 1));
      send(id, now, 10ms, Lane::load);
      ended(id);
      told = first_hang(now);
    }
    if (makes_way) {
      EXPECT_EQ(told, TimePoint::max());
      continue;
    }
    EXPECT_GE(told, at(1s));
    EXPECT_LE(told, at(1500ms));
  }
}

TEST_F(WatchdogTest, WhatIsSentToGoFirstOvertakesNobody) {
  send(1, at(0ms), 10ms, Lane::exec, at(0ms));
  for (std::uint64_t id = 2; id < 100; ++id) {
    const TimePoint now = at(100ms * static_cast<std::int64_t>(id - 1));
    send(id, now, 10ms, Lane::exec, at(-1ns));
    ended(id);
    EXPECT_EQ(first_hang(now), TimePoint::max());
  }
}

// Each look, somebody tells that one of the lane's threads had no processor for this share of the time.
TEST_F(WatchdogTest, TimeWithoutAProcessorDoesNotCount) {
  const struct {
    int percent;
    Duration least, most;  // until it is told; 1h: never
  } rows[] = {{100, 1h, 1h}, {98, 49s, 52s}, {50, 2s, 2300ms}, {0, 1s, 1250ms}};
  for (const auto& [percent, least, most] : rows) {
    begin_anew();
    send(1, at(0ms));
    TimePoint told = TimePoint::max();
    for (TimePoint last = at(0ms); told == TimePoint::max() && last < at(120s);) {
      const TimePoint now = dog.wake_at();
      dog.excuse({.device = {0}, .lane = Lane::exec, .starved = (now - last) * percent / 100});
      if (!dog.look(now).empty()) told = now;
      last = now;
    }
    if (least == 1h) {
      EXPECT_EQ(told, TimePoint::max());
      // Once a processor is free again, the rest of the limit counts.
      const TimePoint hung = first_hang(at(200s));
      EXPECT_GE(hung, at(121s));
      EXPECT_LE(hung, at(121500ms));
      continue;
    }
    EXPECT_GE(told, at(least)) << percent;
    EXPECT_LE(told, at(most)) << percent;
  }
}

// Where whoever looks is starved itself, what gets nowhere is still found, by the time that it had.
TEST_F(WatchdogTest, LateLooksDoNotExcuseForEver) {
  send(1, at(0ms));
  int looks = 0;
  for (TimePoint now = at(2s);; now += 2s) {
    ++looks;
    dog.excuse({.device = {0}, .lane = Lane::exec, .starved = 1900ms});
    if (!dog.look(now).empty() || looks > 100) break;
  }
  EXPECT_EQ(looks, 11) << "100 ms each; to the first it was fresh";
}

TEST_F(WatchdogTest, WhatWasTakenOfAProcessorInOneLaneIsNoExcuseForAnother) {
  for (const Lane lane : {Lane::load, Lane::real_time, Lane::best_effort}) {
    begin_anew();
    send(1, at(0ms));
    TimePoint told = TimePoint::max();
    while (told == TimePoint::max() && dog.wake_at() < at(10s)) {
      const TimePoint now = dog.wake_at();
      dog.excuse({.device = {0}, .lane = lane, .starved = 125ms, .moved = true});
      dog.excuse({.device = {7}, .lane = Lane::exec, .starved = 125ms, .moved = true});
      if (!dog.look(now).empty()) told = now;
    }
    EXPECT_LE(told, at(1250ms));
  }
}

// Threads may be looked at late, and what was starved before the device had anything to do is none of it.
TEST_F(WatchdogTest, OneExcuseDoesNotLastForLong) {
  send(1, at(0ms));
  dog.excuse({.device = {0}, .lane = Lane::exec, .starved = 1h});
  const TimePoint told = first_hang(at(100s));
  EXPECT_GE(told, at(1200ms));
  EXPECT_LE(told, at(1500ms));
}

TEST_F(WatchdogTest, WhatGetsOnDoesNotHangHoweverLongItTakes) {
  send(1, at(0ms), 10ms, Lane::exec, at(0ms), at(100ms));  // its window is over while it runs
  while (dog.wake_at() < at(60s)) {
    dog.excuse({.device = {0}, .lane = Lane::exec, .moved = true});
    ASSERT_TRUE(dog.look(dog.wake_at()).empty()) << to_ms(dog.wake_at() - at(0ms));
  }
  const TimePoint told = first_hang(at(100s));
  EXPECT_GE(told, at(60800ms));
  EXPECT_LE(told, at(61300ms));
}

// That the lane's work gets on says nothing of what is not in it any more.
TEST_F(WatchdogTest, WhatOthersOvertookIsMissingThoughTheyGetOn) {
  send(1, at(0ms));
  TimePoint told = TimePoint::max();
  for (std::uint64_t id = 2; id < 100 && told == TimePoint::max(); ++id) {
    const TimePoint now = at(100ms * static_cast<std::int64_t>(id - 1));
    send(id, now);
    ended(id);
    dog.excuse({.device = {0}, .lane = Lane::exec, .moved = true});
    told = first_hang(now);
  }
  EXPECT_GE(told, at(1s));
  EXPECT_LE(told, at(1500ms));
}

TEST_F(WatchdogTest, AnUnloadWaitsForRunsThatGetOnOrAreStarved) {
  for (const bool moved : {false, true}) {
    for (const Lane runs : {Lane::exec, Lane::real_time, Lane::best_effort}) {
      begin_anew();
      send(Unload{{1}, {0}, {0}}, at(0ms));
      while (dog.wake_at() < at(30s)) {
        dog.excuse({.device = {0}, .lane = runs, .starved = moved ? 0ms : 125ms, .moved = moved});
        ASSERT_TRUE(dog.look(dog.wake_at()).empty());
      }
      EXPECT_LE(first_hang(at(100s)), at(31500ms));
    }
  }
}

TEST_F(WatchdogTest, ADeviceThatStartsAnewHasNothingToReport) {
  send(1, at(0ms));
  ledger.apply(DeviceChanged{.device = {3}}, at(0ms));
  send(Infer{{2}, {3}, {0}, {}, {at(0ms), TimePoint::max()}, 1ms}, at(0ms));
  ledger.apply(DeviceChanged{.device = {0}}, at(0ms));
  ledger.apply(DeviceChanged{.device = {7}}, at(0ms));  // one that never had anything
  ended(1);                                             // late, and not heeded
  while (dog.wake_at() < at(1s)) EXPECT_TRUE(dog.look(dog.wake_at()).empty());
  EXPECT_EQ(dog.look(at(1250ms)), std::vector<DeviceId>{{3}});
}

TEST_F(WatchdogTest, ADeviceThatStartsAnewIsGivenItsTimeAnew) {
  send(1, at(0ms));
  EXPECT_EQ(first_hang(at(900ms)), TimePoint::max());
  ledger.apply(DeviceChanged{.device = {0}}, at(900ms));
  send(2, at(900ms));
  EXPECT_GE(first_hang(at(100s)), at(1900ms));
}

// What stands in the place of another that was overdue is not.
TEST_F(WatchdogTest, EachActionHasATimeOfItsOwn) {
  send(1, at(0ms), 10ms, Lane::exec, at(0ms), at(100ms));
  EXPECT_EQ(first_hang(at(700ms)), TimePoint::max());
  ended(1);
  send(2, at(700ms), 10ms, Lane::exec, at(700ms), at(710ms));
  EXPECT_GE(first_hang(at(100s)), at(1700ms));
}

TEST(Watchdog, NobodyLooksWhereThatIsTurnedOff) {
  Watchdog dog{Duration{0}};
  dog.sent(at(0ms));
  EXPECT_EQ(dog.wake_at(), TimePoint::max());
}

// A policy that keeps every device busy with one INFER, and says what it hears.
class Busy final : public Scheduler {
 public:
  std::string_view name() const override { return "busy"; }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override {
    heard.push_back(event);
    if (const auto* change = std::get_if<DeviceChanged>(&event); change != nullptr && change->alive)
      out.emplace_back(Infer{{next_++}, change->device, {0}, {{0}}, {now, TimePoint::max()}, 1ms});
    return wake;
  }
  std::vector<Event> heard;
  TimePoint wake = TimePoint::max();

 private:
  std::uint64_t next_ = 0;
};

struct WatchedTest : ::testing::Test {
  Busy* policy = new Busy;
  Ledgered watched{std::make_unique<Watched>(std::unique_ptr<Scheduler>(policy), 1s)};
  Actions out;
  // Wakes it whenever it wants, up to `until`; the device that it gave up first.
  std::optional<DeviceId> given_up(TimePoint until) {
    while (wake <= until) {
      out.clear();
      const TimePoint now = wake;
      wake = watched.decide(Wake{}, now, out);
      for (const Action& action : out)
        if (const auto* up = std::get_if<GiveUp>(&action)) return up->device;
    }
    return std::nullopt;
  }
  TimePoint wake = TimePoint::max();
};

TEST_F(WatchedTest, ADeviceThatHangsIsGivenUpAndThePolicyHearsThatItWent) {
  wake = watched.decide(DeviceChanged{{0}, true, 0}, at(0ms), out);
  EXPECT_EQ(given_up(at(900ms)), std::nullopt);
  EXPECT_EQ(policy->heard.size(), 1U) << "wakes that it did not ask for";
  EXPECT_EQ(given_up(at(1300ms)), DeviceId{0});
  ASSERT_EQ(policy->heard.size(), 2U);
  EXPECT_FALSE(std::get<DeviceChanged>(policy->heard.back()).alive);
  EXPECT_EQ(given_up(at(10s)), std::nullopt) << "nothing is under way there any more";
  out.clear();
  wake = watched.decide(DeviceChanged{{0}, true, 0}, at(11s), out);
  EXPECT_EQ(given_up(at(12300ms)), DeviceId{0});
}

TEST_F(WatchedTest, WhatIsReportedDoesNotHang) {
  watched.decide(DeviceChanged{{0}, true, 0}, at(0ms), out);
  wake = watched.decide(ActionDone{.id = {0}, .start = {}, .end = {}, .duration = 1ms}, at(900ms), out);
  EXPECT_EQ(given_up(at(10s)), std::nullopt);
}

TEST_F(WatchedTest, AWakeTellsWhoIsSlow) {
  wake = watched.decide(DeviceChanged{{0}, true, 0}, at(0ms), out);
  while (wake < at(10s)) {
    out.clear();
    wake = watched.decide(Wake{{{.device = {0}, .lane = Lane::exec, .starved = 125ms}}}, wake, out);
    ASSERT_TRUE(out.empty());
  }
  EXPECT_EQ(given_up(at(12s)), DeviceId{0});
}

TEST_F(WatchedTest, ThePolicyHasItsWakes) {
  policy->wake = at(200ms);
  wake = watched.decide(DeviceChanged{{0}, true, 0}, at(0ms), out);
  EXPECT_EQ(wake, at(125ms));
  wake = watched.decide(Wake{}, wake, out);
  EXPECT_EQ(policy->heard.size(), 1U);
  EXPECT_EQ(wake, at(200ms));
  policy->wake = TimePoint::max();
  wake = watched.decide(Wake{}, at(210ms), out);  // late
  EXPECT_TRUE(std::holds_alternative<Wake>(policy->heard.back()));
  EXPECT_EQ(wake, at(250ms));
}

// The policy's wake is late, and so by then is the watchdog's; the policy has no use for its own any more.
TEST_F(WatchedTest, AWakeThatIsLateIsNotAskedForAnew) {
  policy->wake = at(120ms);
  EXPECT_EQ(watched.decide(DeviceChanged{{0}, true, 0}, at(0ms), out), at(120ms));
  policy->wake = at(200ms);
  EXPECT_EQ(watched.decide(RequestCancelled{{0}, {0}}, at(130ms), out), at(120ms)) << "it has yet to come";
  EXPECT_EQ(watched.decide(Wake{}, at(131ms), out), at(200ms));
}

}  // namespace
}  // namespace carillon::schedule
