#include "carillon/device/window_queue.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::device {
namespace {

using Kind = Decision::Kind;

TimePoint at(Duration d) {
  return TimePoint{d};
}

Entry entry(std::uint64_t id, Duration earliest, Duration latest) {
  return {.order = at(earliest), .id = {id}, .window = {at(earliest), at(latest)}};
}

TEST(WindowQueue, HoldsOneActionToItsWindow) {
  const struct {
    Duration earliest, latest, now;
    Kind want;
  } rows[] = {
      {10ms, 20ms, 9999999ns, Kind::wait_until},  // a nanosecond early
      {10ms, 20ms, 10ms, Kind::run},              // both ends belong to the window
      {10ms, 20ms, 15ms, Kind::run},
      {10ms, 20ms, 20ms, Kind::run},
      {10ms, 20ms, 20000001ns, Kind::refuse},  // a nanosecond late
      {10ms, 10ms, 10ms, Kind::run},           // a window of one instant
      {10ms, 9ms, 5ms, Kind::refuse},          // never opens: refused before it is late
      {10ms, 9ms, 50ms, Kind::refuse},
  };
  for (const auto& [earliest, latest, now, want] : rows) {
    WindowQueue queue(1);
    ASSERT_TRUE(queue.push(entry(7, earliest, latest)));
    const Decision decision = queue.next(at(now));
    EXPECT_EQ(decision.kind, want) << earliest.count() << " " << latest.count() << " at " << now.count();
    EXPECT_EQ(queue.size(), want == Kind::wait_until ? 1U : 0U);
    if (want == Kind::wait_until)
      EXPECT_EQ(decision.at, at(earliest));
    else
      EXPECT_EQ(decision.entry.id, ActionId{7});
  }
}

TEST(WindowQueue, IsIdleWhenEmpty) {
  WindowQueue queue(1);
  EXPECT_EQ(queue.next(TimePoint::max()).kind, Kind::idle);
}

TEST(WindowQueue, TakesByEarliestThenId) {
  WindowQueue queue(4);
  ASSERT_TRUE(queue.push(entry(4, 2ms, 9ms)));
  ASSERT_TRUE(queue.push(entry(3, 1ms, 9ms)));
  ASSERT_TRUE(queue.push(entry(1, 2ms, 9ms)));
  ASSERT_TRUE(queue.push(entry(2, 2ms, 9ms)));
  for (const std::uint64_t id : {3, 1, 2, 4}) {
    const Decision decision = queue.next(at(5ms));
    EXPECT_EQ(decision.kind, Kind::run);
    EXPECT_EQ(decision.entry.id, ActionId{id});
  }
}

TEST(WindowQueue, AnActionAheadTakesOverTheWait) {
  WindowQueue queue(2);
  ASSERT_TRUE(queue.push(entry(1, 20ms, 30ms)));
  EXPECT_EQ(queue.next(at(1ms)).at, at(20ms));
  ASSERT_TRUE(queue.push(entry(2, 10ms, 30ms)));
  EXPECT_EQ(queue.next(at(1ms)).at, at(10ms));
  EXPECT_EQ(queue.next(at(12ms)).entry.id, ActionId{2});
  EXPECT_EQ(queue.next(at(12ms)).kind, Kind::wait_until);
}

TEST(WindowQueue, SkipsWhatALongActionDelayedPastItsWindow) {
  // After one action overran to 100 ms: the next two are too late, the third is back on schedule.
  WindowQueue queue(3);
  ASSERT_TRUE(queue.push(entry(1, 80ms, 85ms)));
  ASSERT_TRUE(queue.push(entry(2, 90ms, 95ms)));
  ASSERT_TRUE(queue.push(entry(3, 98ms, 103ms)));
  EXPECT_EQ(queue.next(at(100ms)).kind, Kind::refuse);
  EXPECT_EQ(queue.next(at(100ms)).kind, Kind::refuse);
  const Decision third = queue.next(at(100ms));
  EXPECT_EQ(third.kind, Kind::run);
  EXPECT_EQ(third.entry.id, ActionId{3});
}

TEST(WindowQueue, StartsAtOnceInTheGivenOrder) {
  WindowQueue queue(2);
  const Window open{TimePoint::min(), TimePoint::max()};
  ASSERT_TRUE(queue.push({.order = at(9ms), .id = {1}, .window = open}));
  ASSERT_TRUE(queue.push({.order = at(8ms), .id = {2}, .window = open}));
  EXPECT_EQ(queue.next(at(0ms)).entry.id, ActionId{2});
  EXPECT_EQ(queue.next(at(0ms)).entry.id, ActionId{1});
}

TEST(WindowQueue, IsBounded) {
  WindowQueue queue(2);
  EXPECT_TRUE(queue.push(entry(1, 1ms, 2ms)));
  EXPECT_TRUE(queue.push(entry(2, 1ms, 2ms)));
  EXPECT_FALSE(queue.push(entry(0, 0ms, 2ms)));
  EXPECT_EQ(queue.next(at(1ms)).entry.id, ActionId{1});
  EXPECT_TRUE(queue.push(entry(0, 0ms, 2ms)));
}

// Against a sorted list, with random pushes between decisions.
TEST(WindowQueue, AgreesWithASortedList) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    WindowQueue queue(16);
    std::vector<Entry> list;
    TimePoint now{};
    std::uint64_t id = 0;
    for (int step = 0; step < 300; ++step) {
      if (random.below(2) == 0) {
        const Duration earliest = now.time_since_epoch() + Duration(random.below(20));
        const Entry made = entry(id++, earliest, earliest + Duration(random.below(10)) - Duration(2));
        ASSERT_EQ(queue.push(made), list.size() < 16) << "seed " << seed;
        if (list.size() < 16) list.push_back(made);
      } else {
        now += Duration(random.below(5));
        const auto first = std::ranges::min_element(list, [](const Entry& a, const Entry& b) {
          return std::pair(a.order, a.id) < std::pair(b.order, b.id);
        });
        Kind want = Kind::idle;
        if (first != list.end()) {
          const Window window = first->window;
          if (now > window.latest || window.latest < window.earliest)
            want = Kind::refuse;
          else if (now < window.earliest)
            want = Kind::wait_until;
          else
            want = Kind::run;
        }
        const Decision decision = queue.next(now);
        ASSERT_EQ(decision.kind, want) << "seed " << seed << " step " << step;
        if (want == Kind::run || want == Kind::refuse) {
          ASSERT_EQ(decision.entry.id, first->id) << "seed " << seed << " step " << step;
          list.erase(first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace carillon::device
