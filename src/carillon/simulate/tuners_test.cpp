#include "carillon/simulate/tuners.h"

#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::simulate {
namespace {

using ::testing::ElementsAre;
using Kind = TunerOrder::Kind;
using workload::Study;
using workload::StudyAlgorithm;

// Runs a tuner whose trials have the scores that `score` gives them, the first that is wanted first; epochs
// of each trial in the end.
template <typename Score>
std::map<std::uint32_t, std::uint32_t> drive(const Study& study, Score score, std::size_t appetite = 4,
                                             std::vector<std::size_t>* groups = nullptr) {
  const auto tuner = make_tuner(study);
  std::vector<TunerOrder> orders;
  std::map<std::uint32_t, std::uint32_t> epochs, budget;
  std::vector<std::uint32_t> queue;
  tuner->begin(appetite, orders);
  for (std::size_t next = 0;;) {
    for (const TunerOrder& order : orders) {
      if (order.kind == Kind::group) {
        if (groups != nullptr) groups->push_back(order.trials.size());
        for (const std::uint32_t t : order.trials) {
          budget[t] = epochs[t] + order.epochs;
          queue.push_back(t);
        }
      } else if (order.kind == Kind::go_on) {
        budget[order.trials[0]] = epochs[order.trials[0]] + order.epochs;
        queue.push_back(order.trials[0]);
      }
    }
    orders.clear();
    if (next == queue.size()) return epochs;
    const std::uint32_t t = queue[next++];
    epochs[t] = budget[t];
    tuner->reached(t, epochs[t], score(t, epochs[t]), appetite, orders);
  }
}

double by_number(std::uint32_t trial, std::uint32_t) {
  return trial;
}

TEST(Halving, KeepsTheBestOfEachRung) {
  Study study;
  study.algorithm = StudyAlgorithm::halving;
  study.rungs = {{9, 1}, {3, 2}, {1, 6}};
  std::vector<std::size_t> groups;
  const auto epochs = drive(study, by_number, 4, &groups);
  EXPECT_THAT(groups, ElementsAre(9, 3, 1));
  EXPECT_EQ(epochs.at(8), 9U);
  EXPECT_EQ(epochs.at(7), 3U);
  EXPECT_EQ(epochs.at(6), 3U);
  EXPECT_EQ(epochs.at(5), 1U);
}

// Table 1 of Hyperband's paper: R = 81, eta = 3.
TEST(Hyperband, HasTheBracketsOfItsPaper) {
  Study study;
  study.algorithm = StudyAlgorithm::hyperband;
  study.epochs = 81;
  std::vector<std::size_t> groups;
  const auto epochs = drive(study, by_number, 4, &groups);
  EXPECT_THAT(groups, ElementsAre(81, 27, 9, 3, 1, 34, 11, 3, 1, 15, 5, 1, 8, 2, 5));
  EXPECT_EQ(epochs.at(80), 81U);
  EXPECT_EQ(epochs.at(0), 1U);
}

TEST(Asha, StopsThoseThatAreNotAmongTheBestSoFarAndPausesNone) {
  Study study;
  study.algorithm = StudyAlgorithm::asha;
  study.trials = 27;
  study.epochs = 9;
  // Each is better than all before: all go on.
  const auto all = drive(study, by_number, 1);
  EXPECT_EQ(all.size(), 27U);
  for (const auto& [t, epochs] : all) EXPECT_EQ(epochs, 9U) << t;
  // Each is worse: only the first, which nothing was known against, goes on.
  const auto first = drive(
      study, [](std::uint32_t t, std::uint32_t) { return -static_cast<double>(t); }, 1);
  EXPECT_EQ(first.at(0), 9U);
  for (std::uint32_t t = 1; t < 27; ++t) EXPECT_EQ(first.at(t), 1U) << t;
}

TEST(Bohb, PromotesTheBestOfARung) {
  Study study;
  study.algorithm = StudyAlgorithm::bohb;
  study.trials = 9;
  study.epochs = 9;
  const auto epochs = drive(study, by_number, 3);
  std::map<std::uint32_t, int> by_epochs;
  for (const auto& [t, e] : epochs) ++by_epochs[e];
  EXPECT_EQ(epochs.size(), 9U);
  // A third of nine, and those that were among the best when fewer were known.
  EXPECT_GE(by_epochs[9] + by_epochs[3], 3);
  EXPECT_GE(by_epochs[1], 1);
  EXPECT_EQ(epochs.at(8), 9U);
}

// What is not a number is worse than all that is.
TEST(Tuners, NoNumberIsTheWorst) {
  Study study;
  study.algorithm = StudyAlgorithm::halving;
  study.rungs = {{3, 1}, {1, 1}};
  const auto epochs = drive(study, [](std::uint32_t t, std::uint32_t) {
    return t == 2 ? std::numeric_limits<double>::quiet_NaN() : -static_cast<double>(t);
  });
  EXPECT_EQ(epochs.at(0), 2U);
  EXPECT_EQ(epochs.at(2), 1U);
}

TEST(Pbt, TrialsOfTheLowestQuarterFollowTheHighest) {
  Study study;
  study.algorithm = StudyAlgorithm::pbt;
  study.trials = 8;
  study.epochs = 4;
  study.grace = 1;
  const auto tuner = make_tuner(study);
  std::vector<TunerOrder> orders;
  tuner->begin(8, orders);
  EXPECT_EQ(orders.front().trials.size(), 8U);
  for (std::uint32_t t = 1; t < 8; ++t) {
    orders.clear();
    tuner->reached(t, 1, t, 8, orders);
  }
  orders.clear();
  tuner->reached(0, 1, 0, 8, orders);  // the worst of eight
  ASSERT_EQ(orders.size(), 3U);
  EXPECT_EQ(orders[0].kind, Kind::becomes);
  EXPECT_GE(orders[0].source, 6U);
  EXPECT_EQ(orders[1].kind, Kind::pause);
  EXPECT_EQ(orders[2].kind, Kind::group);
  orders.clear();
  tuner->reached(7, 4, 7, 8, orders);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].kind, Kind::end);
}

}  // namespace
}  // namespace carillon::simulate
