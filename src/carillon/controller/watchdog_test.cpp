#include "carillon/controller/watchdog.h"

#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

using Lane = Watchdog::Lane;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

// One device unless a test adds more. The options' 1 s means a look every 125 ms.
class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() { dog.add_device(); }
  void send(std::uint64_t id, TimePoint now, Duration expected = 10ms, Lane lane = Lane::exec,
            TimePoint opens = TimePoint::min()) {
    dog.sent({0}, {.id = {id}, .lane = lane, .opens = opens, .expected = expected}, now);
  }
  // Looks whenever that is wanted, up to `until`; when the device first hung, or max().
  TimePoint first_hang(TimePoint until) {
    while (dog.wake_at() <= until) {
      const TimePoint now = dog.wake_at();
      if (!dog.look(now).hangs.empty()) return now;
    }
    return TimePoint::max();
  }
  Watchdog dog{WatchdogOptions{}};
};

TEST_F(WatchdogTest, SaysNothingOfADeviceAtRest) {
  EXPECT_EQ(dog.wake_at(), TimePoint::max());
  send(1, at(0ms));
  EXPECT_EQ(dog.wake_at(), at(125ms));
  dog.ended({0}, {1});
  EXPECT_EQ(dog.wake_at(), TimePoint::max());
}

TEST_F(WatchdogTest, ADeviceHangsThatIsSilentForTooLong) {
  const struct {
    Duration expected;
    Duration least, most;  // until it is told
  } rows[] = {{10ms, 1s, 1250ms}, {50ms, 1s, 1250ms}, {200ms, 4s, 4250ms}, {3s, 60s, 60250ms}};
  for (const auto& [expected, least, most] : rows) {
    Watchdog fresh{WatchdogOptions{}};
    std::swap(dog, fresh);
    dog.add_device();
    send(1, at(0ms), expected);
    const TimePoint told = first_hang(at(100s));
    EXPECT_GE(told, at(least)) << to_ms(expected);
    EXPECT_LE(told, at(most)) << to_ms(expected);
  }
}

TEST_F(WatchdogTest, EveryReportBeginsAnew) {
  std::uint64_t id = 0;
  send(++id, at(0ms));
  for (TimePoint now = at(900ms); now < at(20s); now += 900ms) {
    EXPECT_EQ(first_hang(now), TimePoint::max());
    send(++id, now);
    dog.ended({0}, {id - 1});
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
    dog.ended({0}, {id - 1});
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
  EXPECT_TRUE(dog.look(at(60s)).hangs.empty());
  const TimePoint told = first_hang(at(100s));
  EXPECT_GT(told, at(60s));
  EXPECT_LE(told, at(61s));
}

TEST_F(WatchdogTest, ADeviceThatWentIsProbedUntilItIsWell) {
  dog.add_device();
  send(1, at(0ms));
  dog.down({0}, at(1s));
  EXPECT_TRUE(dog.under_way({0}).empty());
  EXPECT_EQ(dog.wake_at(), at(1100ms));
  EXPECT_EQ(dog.look(at(1100ms)).probes, std::vector<DeviceId>{{0}});
  EXPECT_EQ(dog.wake_at(), TimePoint::max());  // until there is an answer
  dog.probed({0}, false, at(2s));
  EXPECT_EQ(dog.wake_at(), at(2100ms));
  EXPECT_EQ(dog.look(at(2100ms)).probes.size(), 1U);
  dog.probed({0}, true, at(2200ms));
  EXPECT_EQ(dog.wake_at(), TimePoint::max());
  send(2, at(3s));  // it is up, and its silence of before is forgotten
  EXPECT_EQ(first_hang(at(3900ms)), TimePoint::max());
}

TEST_F(WatchdogTest, OneThatGoesAgainAndAgainWaitsLonger) {
  TimePoint now = at(0ms);
  std::vector<Duration> waits;
  for (int i = 0; i < 10; ++i) {
    dog.down({0}, now);
    waits.push_back(dog.wake_at() - now);
    now = dog.wake_at();
    EXPECT_EQ(dog.look(now).probes.size(), 1U);
    dog.probed({0}, true, now);
    now += 1s;
  }
  EXPECT_EQ(waits,
            (std::vector<Duration>{100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 6400ms, 10s, 10s, 10s}));
  now += 60s;  // it was well for long
  dog.down({0}, now);
  EXPECT_EQ(dog.wake_at(), now + 100ms);
}

TEST(Watchdog, NobodyLooksWhereThatIsTurnedOff) {
  Watchdog dog{WatchdogOptions{.least = Duration{0}}};
  dog.add_device();
  dog.sent({0}, {.id = {1}, .lane = Lane::exec, .opens = at(0ms), .expected = 1ms}, at(0ms));
  EXPECT_EQ(dog.wake_at(), TimePoint::max());
}

}  // namespace
}  // namespace carillon::controller
