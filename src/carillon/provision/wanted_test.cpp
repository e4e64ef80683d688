#include "carillon/provision/wanted.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::provision {
namespace {

constexpr double nan_share = std::numeric_limits<double>::quiet_NaN();
constexpr double endless = std::numeric_limits<double>::infinity();

TimePoint at_time(Duration since) {
  return TimePoint{} + since;
}

// Of ten thousand requests in 15 s.
AutoscaleAdvice advice_of(double devices, double bad_rate, double idle_fraction) {
  AutoscaleAdvice advice;
  advice.bad_rate = bad_rate;
  advice.idle_fraction = idle_fraction;
  advice.period = 15s;
  advice.requests = 10'000;
  advice.devices = devices;
  return advice;
}

Wanted make_wanted(const WantedOptions& options = {}) {
  return Wanted::make(options).value();
}

// What a look says, of one that must be good.
int looked(Wanted& wanted, Duration at, int present, const AutoscaleAdvice& advice) {
  const auto number = wanted.look(at_time(at), present, advice);
  EXPECT_TRUE(number) << (number ? "" : number.error().message);
  return number.value_or(-1);
}

TEST(Wanted, NamesAnOptionThatIsOutOfItsRange) {
  const struct {
    WantedOptions options;
    std::string_view says;
  } rows[] = {
      {{.least = 0}, "at least 0 devices: it must be 1 or more"},
      {{.least = -3}, "at least -3 devices: it must be 1 or more"},
      {{.least = 5, .most = 4}, "at most 4 devices, but at least 5"},
      {{.threshold = 0}, "a bad rate of 0 as threshold: it must be above 0 and below 1"},
      {{.threshold = -0.5}, "a bad rate of -0.5 as threshold: it must be above 0 and below 1"},
      {{.threshold = 1}, "a bad rate of 1 as threshold: it must be above 0 and below 1"},
      {{.threshold = nan_share}, "a bad rate of nan as threshold: it must be above 0 and below 1"},
      {{.threshold = endless}, "a bad rate of inf as threshold: it must be above 0 and below 1"},
      {{.quiet = 0s}, "a quiet time of 0 s must be above 0"},
      {{.give_up = -1s}, "a time to give up of -1 s must be above 0"},
      {{.remember = 0s}, "a time to remember of 0 s must be above 0"},
      {{.tolerance = -0.1}, "a tolerance of -0.1: it must be 0 or more, and below 1"},
      {{.tolerance = 1}, "a tolerance of 1: it must be 0 or more, and below 1"},
      {{.tolerance = nan_share}, "a tolerance of nan: it must be 0 or more, and below 1"},
      {{.before = -1}, "-1 devices before: it must be 0 or more"},
  };
  for (const auto& [options, says] : rows) {
    const auto wanted = Wanted::make(options);
    ASSERT_FALSE(wanted) << says;
    EXPECT_EQ(wanted.error(), (Error{ErrorCode::invalid_argument, std::string(says)}));
  }
}

TEST(Wanted, NamesAValueThatIsNoShareAndChangesNothing) {
  const auto with = [](auto change) {
    AutoscaleAdvice advice = advice_of(4, 0.2, 0);
    change(advice);
    return advice;
  };
  const struct {
    int present;
    AutoscaleAdvice advice;
    std::string_view says;
  } rows[] = {
      {4, advice_of(4, nan_share, 0), "a bad rate of nan is no share from 0 to 1"},
      {4, advice_of(4, endless, 0), "a bad rate of inf is no share from 0 to 1"},
      {4, advice_of(4, -0.25, 0), "a bad rate of -0.25 is no share from 0 to 1"},
      {4, advice_of(4, 1.5, 0), "a bad rate of 1.5 is no share from 0 to 1"},
      {4, advice_of(4, 0, nan_share), "an idle fraction of nan is no share from 0 to 1"},
      {4, advice_of(4, 0, -endless), "an idle fraction of -inf is no share from 0 to 1"},
      {4, advice_of(4, 0, -1), "an idle fraction of -1 is no share from 0 to 1"},
      {4, advice_of(4, 0, 2), "an idle fraction of 2 is no share from 0 to 1"},
      {4, advice_of(nan_share, 0, 0), "nan devices on average is no number of devices"},
      {4, advice_of(endless, 0, 0), "inf devices on average is no number of devices"},
      {4, advice_of(-1, 0, 0), "-1 devices on average is no number of devices"},
      {-1, advice_of(4, 0, 0), "-1 devices cannot be present"},
      {4, with([](auto& advice) { advice.period = -2s; }), "a period of -2 s is below 0"},
  };
  Wanted wanted = make_wanted();
  EXPECT_EQ(looked(wanted, 0s, 4, {}), 4);
  for (const auto& [present, advice, says] : rows) {
    const auto number = wanted.look(at_time(15s), present, advice);
    ASSERT_FALSE(number) << says;
    EXPECT_EQ(number.error(), (Error{ErrorCode::invalid_argument, std::string(says)}));
    EXPECT_EQ(wanted.wanted(), 4);
    EXPECT_EQ(wanted.present(), 4);
  }
  EXPECT_EQ(looked(wanted, 15s, 4, advice_of(4, 0.2, 0)), 5) << "a look that was refused is none";
  EXPECT_EQ(wanted.look(at_time(10s), 4, {}).error().message, "a look 5 s before the last one");
}

TEST(Wanted, RatesOfNoRequestsAndOfAllAreShares) {
  Wanted wanted = make_wanted({.most = 100});
  EXPECT_EQ(looked(wanted, 0s, 4, {}), 4);
  EXPECT_EQ(looked(wanted, 15s, 4, advice_of(4, 0, 1)), 4)
      << "nothing to do: in the first quiet time, all stay";
  EXPECT_EQ(looked(wanted, 30s, 4, advice_of(4, 1, 0)), 32) << "all were bad: eight times as many at most";
}

TEST(Wanted, AllThatAreThereAreWantedForTheFirstQuietTime) {
  Wanted wanted = make_wanted({.least = 2});
  EXPECT_EQ(wanted.wanted(), 2);
  EXPECT_EQ(looked(wanted, 0s, 1, {}), 2) << "the least";
  EXPECT_EQ(looked(wanted, 30s, 7, advice_of(5, 0, 1)), 7) << "six more have started since";
  EXPECT_EQ(looked(wanted, 299s, 7, advice_of(7, 0, 1)), 7);
  EXPECT_EQ(looked(wanted, 599s, 7, advice_of(7, 0, 1)), 7);
  EXPECT_EQ(looked(wanted, 600s, 7, advice_of(7, 0, 1)), 2);
}

TEST(Wanted, StaysWhereNothingIsKnown) {
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 3, {});
  for (const Duration at : {1000s, 2000s, 3000s}) EXPECT_EQ(looked(wanted, at, 3, {}), 3);
  AutoscaleAdvice brief = advice_of(3, 1, 0);
  brief.period = 999ms;
  EXPECT_EQ(looked(wanted, 4000s, 3, brief), 3) << "less than a second";
  EXPECT_EQ(looked(wanted, 5000s, 0, advice_of(3, 0, 1)), 3) << "no device is there that could tell";
}

TEST(Wanted, RisesAtOnceByThePapersFormula) {
  const struct {
    int present;
    double bad_rate;
    int wanted;
  } rows[] = {{24, 0.2, 30},     // 24 * 0.2 / 0.8 more
              {1, 0.5, 2},       // as much again
              {1, 0.875, 8},     // eight times the load
              {100, 0.02, 111},  // 2.04 more, and nobody acts on less than a tenth
              {100, 0.009, 100}};
  for (const auto& [present, bad_rate, number] : rows) {
    Wanted wanted = make_wanted();
    looked(wanted, 0s, present, {});
    EXPECT_EQ(looked(wanted, 15s, present, advice_of(present, bad_rate, 0)), number) << bad_rate;
    EXPECT_EQ(wanted.coming(), number - present);
  }
}

// Kubernetes' HPA does nothing while its replicas are within a tenth of what is wanted.
TEST(Wanted, ARiseIsBeyondWhatFollowersTolerateOnEveryPath) {
  const struct {
    const char* what;
    int present;
    double bad_rate, idle;
    int wanted;
  } rows[] = {{"one more of nine is more than a tenth", 9, 0.05, 0, 10},
              {"one more of ten is not", 10, 0.05, 0, 12},
              {"of nineteen, one more is needed", 19, 0.02, 0, 21},
              {"two more of twenty are a tenth, and not more", 20, 0.05, 0, 23},
              {"what is more than a tenth stays", 20, 0.2, 0, 25},
              {"one device is idle, so that one more is needed", 30, 0.03, 0.05, 34}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    Wanted wanted = make_wanted();
    looked(wanted, 0s, row.present, {});
    EXPECT_EQ(looked(wanted, 15s, row.present, advice_of(row.present, row.bad_rate, row.idle)), row.wanted);
    EXPECT_EQ(looked(wanted, 30s, row.present, advice_of(row.present, row.bad_rate, row.idle)), row.wanted)
        << "the same need does not rise again";
  }
}

TEST(Wanted, ARiseWhileDevicesAreOnTheirWayIsBeyondTheNumberBefore) {
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 16, {});
  EXPECT_EQ(looked(wanted, 15s, 16, advice_of(16, 0.2, 0)), 20);
  // Replicas are 20 by now, four of which start. One device more would be within a tenth of them.
  EXPECT_EQ(looked(wanted, 30s, 16, advice_of(16, 0.235, 0)), 23);
  EXPECT_EQ(wanted.coming(), 7);
}

TEST(Wanted, ARiseAfterDevicesCameIsBeyondToleranceToo) {
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 16, {});
  EXPECT_EQ(looked(wanted, 15s, 16, advice_of(16, 0.2, 0)), 20);
  // They came 5 s ago: the work of before counts, which is 16/(1 - 0.24) devices' worth, so 22.
  EXPECT_EQ(looked(wanted, 30s, 20, advice_of(16, 0.24, 0)), 23);
}

TEST(Wanted, AnotherDivisionThatNeedsMoreIsHeeded) {
  Wanted wanted = make_wanted({.quiet = 60s});
  looked(wanted, 0s, 20, {});
  ASSERT_TRUE(wanted.limit(21, 100));
  EXPECT_EQ(wanted.wanted(), 23);
  EXPECT_EQ(looked(wanted, 30s, 23, advice_of(23, 0, 0.5)), 23);
  EXPECT_EQ(looked(wanted, 100s, 23, advice_of(23, 0, 0.5)), 21) << "the least";
  ASSERT_TRUE(wanted.limit(22, 22));
  EXPECT_EQ(wanted.wanted(), 22) << "no more than may be";
}

TEST(Wanted, WithoutToleranceTheNumberIsWhatIsNeeded) {
  Wanted wanted = make_wanted({.tolerance = 0});
  looked(wanted, 0s, 100, {});
  EXPECT_EQ(looked(wanted, 15s, 100, advice_of(100, 0.02, 0)), 103);
}

TEST(Wanted, BeginsWithWhatAnotherWantedBefore) {
  Wanted wanted = make_wanted({.most = 50, .quiet = 60s, .before = 12});
  EXPECT_FALSE(wanted.begun());
  EXPECT_EQ(looked(wanted, 0s, 5, {}), 12);
  EXPECT_EQ(wanted.coming(), 7);
  EXPECT_EQ(looked(wanted, 20s, 12, advice_of(12, 0, 0.9)), 12);
  EXPECT_EQ(wanted.start_up(), 0s) << "nobody knows when they were asked for";
  EXPECT_EQ(looked(wanted, 59s, 15, advice_of(12, 0, 0.9)), 15) << "more are there";
  EXPECT_EQ(looked(wanted, 130s, 15, advice_of(15, 0, 0.9)), 2);
  Wanted held = make_wanted({.most = 8, .before = 12});
  EXPECT_EQ(looked(held, 0s, 5, {}), 8);
}

TEST(Wanted, FewBadRequestsMayBeChance) {
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 1, {});
  AutoscaleAdvice few = advice_of(1, 0.2, 0.2);
  few.requests = 5;
  EXPECT_EQ(looked(wanted, 15s, 1, few), 1) << "one of five";
  few.requests = 10;
  EXPECT_EQ(looked(wanted, 16s, 1, few), 2) << "two of ten";
}

TEST(Wanted, FallsAfterAQuietTimeToTheMostThatWasNeededWithinIt) {
  Wanted wanted = make_wanted({.quiet = 100s});
  looked(wanted, 0s, 10, {});
  EXPECT_EQ(looked(wanted, 90s, 10, advice_of(10, 0, 0)), 10);
  EXPECT_EQ(looked(wanted, 120s, 10, advice_of(10, 0, 0.5)), 10);  // 5 and a quarter: 6
  EXPECT_EQ(looked(wanted, 150s, 10, advice_of(10, 0, 0.3)), 10);  // 7 and a quarter: 8
  EXPECT_EQ(looked(wanted, 180s, 10, advice_of(10, 0, 0.9)), 10);  // 1 and a quarter: 2
  EXPECT_EQ(looked(wanted, 190s, 10, advice_of(10, 0, 0.9)), 10) << "all were needed 100 s ago";
  EXPECT_EQ(looked(wanted, 191s, 10, advice_of(10, 0, 0.9)), 8);
  EXPECT_EQ(looked(wanted, 250s, 8, advice_of(8, 0, 0.875)), 8);
  EXPECT_EQ(looked(wanted, 251s, 8, advice_of(8, 0, 0.875)), 2);
  EXPECT_EQ(looked(wanted, 400s, 2, advice_of(2, 0, 1)), 1) << "never all";
}

TEST(Wanted, StaysWithinItsLimits) {
  Wanted wanted = make_wanted({.least = 3, .most = 6, .quiet = 10s});
  looked(wanted, 0s, 3, {});
  EXPECT_EQ(looked(wanted, 15s, 3, advice_of(3, 0.8, 0)), 6);
  EXPECT_EQ(wanted.coming(), 3);
  EXPECT_EQ(looked(wanted, 30s, 9, advice_of(9, 0, 0)), 6) << "more are there than may be";
  EXPECT_EQ(looked(wanted, 100s, 6, advice_of(6, 0, 1)), 3);
  ASSERT_TRUE(wanted.limit(4, 8));
  EXPECT_EQ(wanted.wanted(), 4) << "a division needs more";
  ASSERT_TRUE(wanted.limit(1, 2));
  EXPECT_EQ(wanted.wanted(), 2);
  EXPECT_EQ(wanted.limit(5, 2).error().message, "at most 2 devices, but at least 5");
  EXPECT_EQ(wanted.wanted(), 2);
}

TEST(Wanted, DevicesOnTheirWayAreNotCountedTwice) {
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 1, {});
  for (int at = 15; at < 300; at += 15) {
    EXPECT_EQ(looked(wanted, at * 1s, 1, advice_of(1, 0.875, 0)), 8);
    EXPECT_EQ(wanted.coming(), 7);
  }
}

TEST(Wanted, DevicesThatHaveJustComeAreNotAskedForAgain) {
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 1, {});
  EXPECT_EQ(looked(wanted, 15s, 1, advice_of(1, 0.875, 0)), 8);
  // All seven come. The last 15 s still tell of one device, then of one and a little, and of a bad rate that
  // would ask for 64.
  EXPECT_EQ(looked(wanted, 45s, 8, advice_of(1, 0.875, 0)), 8);
  EXPECT_EQ(looked(wanted, 50s, 8, advice_of(10.0 / 3, 7.0 / 12, 0)), 8);
  EXPECT_EQ(looked(wanted, 55s, 8, advice_of(17.0 / 3, 7.0 / 24, 0)), 8);
  EXPECT_EQ(looked(wanted, 60s, 8, advice_of(8, 0, 0)), 8);
  EXPECT_EQ(wanted.coming(), 0);
}

TEST(Wanted, StartUpsAreMeasuredAndLengthenTheQuietTime) {
  Wanted wanted = make_wanted({.quiet = 60s});
  looked(wanted, 0s, 1, {});
  EXPECT_EQ(wanted.start_up(), 0s);
  looked(wanted, 20s, 1, advice_of(1, 0.75, 0));
  EXPECT_EQ(wanted.coming(), 3);
  EXPECT_EQ(wanted.quiet(at_time(50s)), 60s);
  looked(wanted, 100s, 3, advice_of(1, 0.75, 0));
  EXPECT_EQ(wanted.start_up(), 80s);
  looked(wanted, 110s, 4, advice_of(2, 0.5, 0));
  EXPECT_EQ(wanted.start_up(), 90s);
  EXPECT_EQ(wanted.coming(), 0);
  EXPECT_EQ(wanted.quiet(at_time(110s)), 90s);
  EXPECT_EQ(looked(wanted, 120s, 4, advice_of(4, 0, 0.75)), 4);
  EXPECT_EQ(looked(wanted, 200s, 4, advice_of(4, 0, 0.75)), 4) << "four were needed at 110 s";
  EXPECT_EQ(looked(wanted, 201s, 4, advice_of(4, 0, 0.75)), 2);
}

TEST(Wanted, DevicesThatWereLostAreAskedForAndNotMeasured) {
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 4, {});
  EXPECT_EQ(looked(wanted, 30s, 2, advice_of(4, 0, 0.1)), 4);
  EXPECT_EQ(wanted.coming(), 2);
  EXPECT_EQ(looked(wanted, 90s, 4, advice_of(3, 0, 0.1)), 4);
  EXPECT_EQ(wanted.coming(), 0);
  EXPECT_EQ(wanted.start_up(), 0s);
}

TEST(Wanted, ADeviceThatNeverComesIsGivenUp) {
  Wanted wanted = make_wanted({.quiet = 60s, .give_up = 200s});
  looked(wanted, 0s, 2, {});
  EXPECT_EQ(looked(wanted, 100s, 2, advice_of(2, 0.5, 0)), 4);
  EXPECT_EQ(looked(wanted, 120s, 3, advice_of(2, 0.5, 0)), 4) << "one came";
  // The load falls. Whoever waits for a device that takes so long keeps what was needed when it was asked
  // for.
  EXPECT_EQ(looked(wanted, 290s, 3, advice_of(3, 0, 0.9)), 4);
  EXPECT_EQ(wanted.coming(), 1);
  EXPECT_EQ(wanted.quiet(at_time(290s)), 190s);
  EXPECT_EQ(looked(wanted, 300s, 3, advice_of(3, 0.05, 0)), 4);
  EXPECT_EQ(wanted.coming(), 0);
  EXPECT_EQ(wanted.given_up(), 1) << "it is wanted, and nobody waits for it";
  EXPECT_EQ(looked(wanted, 315s, 3, advice_of(3, 0.05, 0)), 4);
  EXPECT_EQ(wanted.given_up(), 1);
  EXPECT_EQ(looked(wanted, 330s, 3, advice_of(3, 0.4, 0)), 5);
  EXPECT_EQ(wanted.coming(), 1) << "one more is asked for, and only this one is on its way";
  EXPECT_EQ(looked(wanted, 380s, 4, advice_of(3, 0, 0.9)), 5);
  EXPECT_EQ(wanted.start_up(), 50s);
  EXPECT_EQ(looked(wanted, 391s, 4, advice_of(4, 0, 0.9)), 1);
  EXPECT_EQ(wanted.given_up(), 0);
}

TEST(Wanted, HandsInBothDirections) {
  Wanted wanted = make_wanted({.quiet = 60s});
  looked(wanted, 0s, 4, {});
  EXPECT_EQ(looked(wanted, 61s, 4, advice_of(4, 0, 0.1)), 4);
  EXPECT_EQ(looked(wanted, 70s, 12, advice_of(4, 0, 0.1)), 4) << "eight more than anybody needs";
  EXPECT_EQ(looked(wanted, 85s, 12, advice_of(12, 0, 0.7)), 4);
  EXPECT_EQ(looked(wanted, 100s, 1, advice_of(12, 0, 0.7)), 4) << "and then too few";
  EXPECT_EQ(wanted.coming(), 3);
  EXPECT_EQ(looked(wanted, 116s, 1, advice_of(1, 0.73, 0)), 4);
  EXPECT_EQ(wanted.coming(), 3);
  // Two of them come while a hand takes the first away: one more is there.
  EXPECT_EQ(looked(wanted, 130s, 2, advice_of(1, 0.73, 0)), 4);
  EXPECT_EQ(wanted.coming(), 2);
  EXPECT_EQ(looked(wanted, 140s, 9, advice_of(2, 0.5, 0)), 4);
  EXPECT_EQ(wanted.coming(), 0);
  EXPECT_EQ(wanted.start_up(), 0s) << "none was asked for because the number rose";
}

TEST(Wanted, BadRequestsThatDevicesCannotMendEndTheRise) {
  // One model's requests never are on time, whatever is there: 5% of all. The devices are hardly busy.
  Wanted wanted = make_wanted();
  int devices = 2;
  looked(wanted, 0s, devices, {});
  for (int at = 15; at < 7200; at += 15)
    devices = looked(wanted, at * 1s, devices, advice_of(devices, 0.05, 1 - 0.5 / devices));
  EXPECT_LE(devices, 4);
}

TEST(Wanted, WhileDevicesAreIdleItGrowsByOneAtATime) {
  // Eight are there, and seven of them still load what they need: nearly all requests are bad.
  Wanted wanted = make_wanted();
  looked(wanted, 0s, 8, {});
  EXPECT_EQ(looked(wanted, 15s, 8, advice_of(8, 0.875, 0.875)), 9);
  EXPECT_EQ(looked(wanted, 30s, 8, advice_of(8, 0.875, 0.875)), 9);
}

TEST(Wanted, ANumberThatWasTooSmallIsNotTriedAgainForAnHour) {
  Wanted wanted = make_wanted({.quiet = 60s});
  looked(wanted, 0s, 4, {});
  // Four devices have 3.2 devices' worth to do, and that is too much.
  EXPECT_EQ(looked(wanted, 100s, 4, advice_of(4, 0.05, 0.24)), 5);
  for (int at = 130; at < 3700; at += 15)
    EXPECT_EQ(looked(wanted, at * 1s, 5, advice_of(5, 0, 0.34)), 5);  // 3.3
  EXPECT_EQ(looked(wanted, 3800s, 5, advice_of(5, 0, 0.34)), 4);
  // With less to do, fewer do within the hour.
  EXPECT_EQ(looked(wanted, 3815s, 4, {}), 4);
  EXPECT_EQ(looked(wanted, 3830s, 4, advice_of(4, 0.05, 0.24)), 5);
  EXPECT_EQ(looked(wanted, 3840s, 5, {}), 5);
  EXPECT_EQ(looked(wanted, 3900s, 5, advice_of(5, 0, 0.5)), 4);  // 2.5
}

TEST(WantedByGroup, GroupsDoNotKnowEachOther) {
  auto groups = WantedByGroup::make({.quiet = 60s}).value();
  EXPECT_EQ(groups.look(at_time(0s), "0", 2, {}), 2);
  EXPECT_EQ(groups.look(at_time(0s), "1", 6, {}), 6);
  EXPECT_EQ(groups.look(at_time(70s), "0", 2, advice_of(2, 0.5, 0)), 4);
  EXPECT_EQ(groups.look(at_time(70s), "1", 6, advice_of(6, 0, 0.9)), 1);
  ASSERT_TRUE(groups.limit("1", 3, 6));
  ASSERT_TRUE(groups.limit("2", 5, 9)) << "before its first look";
  EXPECT_EQ(groups.look(at_time(71s), "2", 1, {}), 5);
  const auto told = wanted_figures(groups);
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[0].group, "0");
  EXPECT_EQ(told[0].wanted, 4);
  EXPECT_EQ(told[0].coming, 2);
  EXPECT_EQ(told[1].wanted, 3);
  EXPECT_EQ(told[2].wanted, 5);
  groups.remove("0");
  groups.remove("0");
  EXPECT_EQ(groups.groups().size(), 2U);
  EXPECT_EQ(groups.look(at_time(80s), "0", 2, advice_of(2, 0, 0.9)), 2)
      << "nothing is remembered of the first";
}

TEST(WantedByGroup, AGroupBeginsWithWhatAnotherWanted) {
  auto groups = WantedByGroup::make({}).value();
  ASSERT_TRUE(groups.begin("0", 6));
  EXPECT_TRUE(wanted_figures(groups).empty()) << "nobody has looked";
  EXPECT_EQ(groups.look(at_time(0s), "0", 2, {}), 6);
  ASSERT_TRUE(groups.begin("0", 60));
  EXPECT_EQ(groups.look(at_time(1s), "0", 2, {}), 6) << "it has begun already";
  EXPECT_EQ(groups.begin("1", -2).error().message, "group '1': -2 devices before: it must be 0 or more");
  const auto told = wanted_figures(groups);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0], (WantedFigures{.group = "0", .wanted = 6, .present = 2, .coming = 4}));
}

TEST(WantedByGroup, ErrorsNameTheGroup) {
  EXPECT_EQ(WantedByGroup::make({.threshold = 0}).error().message,
            "a bad rate of 0 as threshold: it must be above 0 and below 1");
  auto groups = WantedByGroup::make({}).value();
  EXPECT_EQ(groups.look(at_time(0s), "new", 2, advice_of(2, nan_share, 0)).error().message,
            "group 'new': a bad rate of nan is no share from 0 to 1");
  EXPECT_TRUE(groups.groups().empty());
  EXPECT_EQ(groups.limit("new", 0, 3).error().message,
            "group 'new': at least 0 devices: it must be 1 or more");
  ASSERT_TRUE(groups.look(at_time(0s), "old", 2, {}));
  EXPECT_EQ(groups.look(at_time(1s), "old", -2, {}).error().message,
            "group 'old': -2 devices cannot be present");
  EXPECT_EQ(groups.limit("old", 4, 3).error().message, "group 'old': at most 3 devices, but at least 4");
}

// Devices that each do a hundred requests a second, which come as a Poisson process and may wait for 100 ms.
// Every 15 s somebody does as the published formula of Kubernetes' HPA says: as many as are wanted, unless
// the number is within a tenth of the replicas. Devices take a while to start, and end at once.
class Cluster {
 public:
  using Load = std::function<double(Duration)>;  // in devices' worth of work
  Cluster(const WantedOptions& options, int devices, Duration start_up, std::uint64_t seed)
      : wanted_(make_wanted(options)), random_(seed), start_up_(start_up), running_(devices) {}

  void run(Duration length, const Load& load) {
    const Duration end = now_ + length;
    for (; now_ < end; now_ += slice) {
      if (now_ % 15s == 0s) scale();
      std::erase_if(starting_, [&](Duration ready) {
        if (ready > now_) return false;
        ++running_;
        return true;
      });
      serve(load(now_));
    }
  }

  Wanted& wanted() { return wanted_; }
  int running() const { return running_; }
  const std::vector<int>& numbers() const { return numbers_; }  // that were wanted, at each scaling
  double bad_rate() const { return static_cast<double>(bad_) / static_cast<double>(requests_); }
  void count_anew() {
    numbers_.clear();
    requests_ = bad_ = 0;
  }
  // How often the wanted number began to rise after it had fallen, or to fall after it had risen.
  int turns() const {
    int turns = 0, direction = 0;
    for (std::size_t i = 1; i < numbers_.size(); ++i) {
      const int step = numbers_[i] - numbers_[i - 1];
      if (step == 0) continue;
      turns += direction != 0 && (step > 0) != (direction > 0) ? 1 : 0;
      direction = step;
    }
    return turns;
  }
  // No device that is asked for from now on ever comes.
  void break_starts() { start_up_ = 1000h; }

 private:
  static constexpr Duration slice = 100ms;
  static constexpr double rate = 100;

  void scale() {
    const auto number =
        wanted_.look(at_time(now_), running_, window_.observe(at_time(now_), running_, counters_));
    ASSERT_TRUE(number);
    numbers_.push_back(*number);
    const double replicas = running_ + static_cast<double>(std::ssize(starting_));
    if (std::abs(1 - *number / replicas) <= 0.1) return;
    while (running_ + std::ssize(starting_) > *number) {
      if (starting_.empty())
        --running_;
      else
        starting_.pop_back();
    }
    while (running_ + std::ssize(starting_) < *number) starting_.push_back(now_ + start_up_);
  }

  void serve(double load) {
    std::uint64_t came = 0;
    const double mean = load * rate * to_seconds(slice);
    for (double left = mean; mean > 0; ++came)
      if ((left -= random_.exponential(1)) < 0) break;
    const double room = running_ * rate * to_seconds(slice);
    const double waiting = backlog_ + static_cast<double>(came);
    const double served = std::min(waiting, room);
    // What waits longer than 100 ms is refused: as much as a slice's room.
    const auto refused = static_cast<std::uint64_t>(std::max(0.0, waiting - served - room));
    backlog_ = waiting - served - static_cast<double>(refused);
    counters_.requests += came;
    counters_.bad += refused;
    counters_.busy += from_seconds(served / rate);
    requests_ += came;
    bad_ += refused;
  }

  Wanted wanted_;
  AutoscaleWindow window_{15s};
  AutoscaleWindow::Counters counters_;
  Random random_;
  Duration start_up_;
  Duration now_{0};
  int running_;
  std::vector<Duration> starting_;  // when they are ready
  double backlog_ = 0;
  std::vector<int> numbers_;
  std::uint64_t requests_ = 0, bad_ = 0;
};

// The fewest devices whose bad rate stays within 1% at that load, found by trying.
int fewest(double load) {
  for (int devices = std::max(1, static_cast<int>(load)); true; ++devices) {
    Cluster fixed({.least = devices, .most = devices}, devices, 1s, 7);
    fixed.run(300s, [load](Duration) { return load; });
    if (fixed.bad_rate() <= 0.01) return devices;
  }
}

TEST(WantedInACluster, StepsUpToEightTimesAndBackChangeDirectionOnceAStep) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Cluster cluster({.quiet = 120s}, 2, 40s, seed);
    cluster.run(300s, [](Duration) { return 1.6; });
    for (const double load : {3.2, 12.8, 6.4, 12.8, 1.6}) {
      SCOPED_TRACE(::testing::Message() << "load " << load << ", seed " << seed);
      cluster.count_anew();
      cluster.run(600s, [load](Duration) { return load; });
      EXPECT_LE(cluster.turns(), 1);
      EXPECT_NEAR(cluster.wanted().wanted(), fewest(load), 1);
    }
  }
}

TEST(WantedInACluster, ALargeStepIsReachedTwoPeriodsAfterAStartUp) {
  Cluster cluster({.quiet = 300s}, 2, 40s, 3);
  cluster.run(300s, [](Duration) { return 1.6; });
  cluster.run(15s + 40s + 30s, [](Duration) { return 12.8; });
  EXPECT_NEAR(cluster.running(), fewest(12.8), 1);
  cluster.count_anew();
  cluster.run(300s, [](Duration) { return 12.8; });
  EXPECT_LE(cluster.bad_rate(), 0.01);
}

TEST(WantedInACluster, NoiseDoesNotFlap) {
  for (const double load : {0.7, 2.5, 2.9, 5.95, 12.0, 30.5}) {
    SCOPED_TRACE(load);
    Cluster cluster({}, fewest(load), 40s, 11);
    cluster.run(600s, [load](Duration) { return load; });
    cluster.count_anew();
    cluster.run(2700s, [load](Duration) { return load; });
    EXPECT_LE(cluster.turns(), 1);
    const auto [least, most] = std::ranges::minmax(cluster.numbers());
    EXPECT_LE(most - least, 1 + most / 10) << "a rise is more than a tenth";
    EXPECT_LE(cluster.bad_rate(), 0.01);
  }
}

TEST(WantedInACluster, ABurstShorterThanAStartUpRaisesTheNumberOnce) {
  Cluster cluster({.quiet = 60s}, 3, 100s, 5);
  cluster.run(300s, [](Duration) { return 2.2; });
  cluster.count_anew();
  const auto bursts = [](Duration at) { return at % 80s < 30s ? 9.0 : 2.2; };
  cluster.run(800s, bursts);
  EXPECT_EQ(cluster.turns(), 0) << "ten bursts, each 80 s after the other: devices take longer to start";
  EXPECT_GE(cluster.running(), 9);
  cluster.count_anew();
  cluster.run(600s, [](Duration) { return 2.2; });
  EXPECT_EQ(cluster.turns(), 0);
  EXPECT_NEAR(cluster.running(), fewest(2.2), 2);
}

TEST(WantedInACluster, DevicesThatNeverComeHoldNothingUp) {
  Cluster cluster({.quiet = 60s, .give_up = 200s}, 3, 40s, 9);
  cluster.run(300s, [](Duration) { return 2.2; });
  cluster.break_starts();
  cluster.count_anew();
  cluster.run(400s, [](Duration) { return 6.0; });
  EXPECT_EQ(cluster.turns(), 0);
  EXPECT_EQ(cluster.running(), 3);
  EXPECT_EQ(cluster.wanted().coming(), 0);
  EXPECT_NEAR(cluster.wanted().given_up(), fewest(6.0) - 3, 1);
  cluster.run(400s, [](Duration) { return 1.2; });
  EXPECT_NEAR(cluster.running(), fewest(1.2), 1);
  EXPECT_EQ(cluster.wanted().given_up(), 0);
}

}  // namespace
}  // namespace carillon::provision
