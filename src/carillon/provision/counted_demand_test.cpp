#include "carillon/provision/counted_demand.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::provision {
namespace {

// A leader that looks each second. Its first look is at 0.
class CountedDemandTest : public ::testing::Test {
 protected:
  void begin(const std::vector<WantedFigures>& before = {}, const DemandOptions& options = {}) {
    demand = CountedDemand(before, options);
    now = TimePoint{};
  }
  // So long, with so many rows a second of which `bad` are bad, on so many devices of which each is busy for
  // that share.
  void pass(Duration span, std::vector<int> present, int rows = 0, int bad = 0, double busy = 0) {
    for (const TimePoint end = now + span; now < end; now += 1s) {
      demand.look(now, present);
      if (rows > 0) demand.ran(0, 0, static_cast<std::size_t>(rows - bad), from_seconds(busy * present[0]));
      for (int i = 0; i < rows; ++i) demand.ended(0, 0, i < bad);
    }
    demand.look(now, present);
  }
  int wanted(std::size_t group = 0) const {
    const auto figures = demand.figures();
    return group < figures.size() ? figures[group].wanted : 0;
  }

  CountedDemand demand;
  TimePoint now{};
};

TEST_F(CountedDemandTest, ThereIsNoNumberBeforeADeviceIsThereAndTheLoadIsKnown) {
  pass(60s, {0});
  EXPECT_TRUE(demand.figures().empty()) << "without a device nobody can say";
  begin();
  pass(14s, {4});
  EXPECT_TRUE(demand.figures().empty()) << "its workers may be on their way";
  pass(1s, {4});
  ASSERT_EQ(demand.figures().size(), 1U);
  EXPECT_EQ(demand.figures()[0], (WantedFigures{.group = "0", .wanted = 4, .present = 4}));
}

TEST_F(CountedDemandTest, ANewLeaderBeginsWithTheLargerOfItsDevicesAndTheLastNumber) {
  const struct {
    std::vector<WantedFigures> told;
    int present, wanted, coming;
  } rows[] = {{{{.group = "0", .wanted = 9}}, 4, 9, 5},
              {{{.group = "0", .wanted = 3}}, 4, 4, 0},
              {{{.group = "0", .wanted = 9}}, 0, 9, 9},
              {{{.group = "1", .wanted = 9}}, 4, 0, 0}};  // of another group: nothing is known yet
  for (const auto& row : rows) {
    SCOPED_TRACE(::testing::Message() << row.present << " are there");
    begin(row.told);
    pass(0s, {row.present});
    EXPECT_EQ(wanted(), row.wanted);
    if (row.wanted == 0) continue;
    EXPECT_EQ(demand.figures()[0].coming, row.coming);
    EXPECT_EQ(demand.figures()[0].start_up, 0s);
    pass(1s, {row.wanted});
    EXPECT_EQ(demand.figures()[0].start_up, 0s) << "nobody knows when they were asked for";
    // Without a load all stay for the first quiet time, and then nearly all go.
    pass(297s, {row.wanted});
    EXPECT_EQ(wanted(), row.wanted);
    pass(310s, {row.wanted});
    EXPECT_EQ(wanted(), 1);
  }
}

TEST_F(CountedDemandTest, WhatCannotHaveBeenWantedIsForgotten) {
  begin({{.group = "0", .wanted = 0},
         {.group = "0", .wanted = -3},
         {.group = "", .wanted = 4},
         {.group = "0", .wanted = CountedDemand::most_told + 1},
         {.group = "0", .wanted = std::numeric_limits<int>::max()}});
  pass(0s, {2});
  EXPECT_TRUE(demand.figures().empty());
  pass(15s, {2});
  EXPECT_EQ(wanted(), 2);
}

TEST_F(CountedDemandTest, BadRowsRaiseTheNumberAndIdleDevicesLowerIt) {
  pass(15s, {4}, 1000, 0, 1.0);
  EXPECT_EQ(wanted(), 4);
  pass(5s, {4}, 1000, 500, 1.0);
  EXPECT_GE(wanted(), 5);
  pass(15s, {4}, 1000, 500, 1.0);
  EXPECT_EQ(wanted(), 8);
  pass(30s, {8}, 2000, 0, 1.0);
  EXPECT_EQ(wanted(), 8);
  pass(600s, {8}, 500, 0, 0.25);
  EXPECT_LE(wanted(), 4);
  EXPECT_GE(wanted(), 3);
}

TEST_F(CountedDemandTest, ThePeriodAndTheQuietTimeAreOptions) {
  begin({}, {.period = 3s, .quiet = 8s});
  pass(2s, {2});
  EXPECT_EQ(wanted(), 0);
  pass(2s, {2}, 100, 50, 1);
  pass(3s, {2}, 100, 50, 1);
  const int most = wanted();
  EXPECT_GT(most, 2);
  pass(6s, {most}, 100, 0, 0.1);
  EXPECT_EQ(wanted(), most);
  pass(8s, {most}, 100, 0, 0.1);
  EXPECT_EQ(wanted(), 1);
}

TEST_F(CountedDemandTest, RowsOfALongModelCountForMore) {
  // Model 1 takes nine times as long. In the end all of its rows are refused, which are a tenth of the rows.
  for (int second = 0; second < 40; ++second) {
    demand.look(now += 1s, std::vector{4});
    if (second < 20) demand.ran(0, 1, 40, 360ms);
    demand.ran(0, 0, 3600, 3600ms);
    for (int i = 0; i < 3600; ++i) demand.ended(0, 0, false);
    for (int i = 0; i < 400; ++i) demand.ended(0, 1, second >= 20);
  }
  EXPECT_GE(wanted(), 7) << "half of the work is missing";
}

TEST_F(CountedDemandTest, NothingHappensAndNothingIsSaid) {
  demand.ran(0, 0, 0, 5ms);   // a run without a result
  demand.ran(0, 0, 3, -5ms);  // an impossible time
  pass(20s, {1});
  EXPECT_EQ(wanted(), 1);
}

TEST_F(CountedDemandTest, GroupsComeAndGo) {
  pass(15s, {2, 3});
  EXPECT_EQ(wanted(0), 2);
  EXPECT_EQ(wanted(1), 3);
  demand.ended(7, 0, true);  // a group that is not there
  pass(1s, {2});
  EXPECT_EQ(demand.figures().size(), 1U);
  pass(1s, {2, 5});
  EXPECT_EQ(wanted(1), 5) << "another division's second group";
}

TEST_F(CountedDemandTest, DevicesComeAndGo) {
  pass(15s, {4}, 1000, 0, 0.9);
  pass(1s, {1}, 1000, 0, 0.9);
  EXPECT_EQ(demand.figures()[0].wanted, 4);
  EXPECT_EQ(demand.figures()[0].coming, 3);
  pass(5s, {0});
  EXPECT_EQ(demand.figures()[0].wanted, 4) << "without a device nobody says less";
  EXPECT_EQ(demand.figures()[0].present, 0);
  pass(5s, {4}, 1000, 0, 0.9);
  EXPECT_EQ(demand.figures()[0].coming, 0);
}

}  // namespace
}  // namespace carillon::provision
