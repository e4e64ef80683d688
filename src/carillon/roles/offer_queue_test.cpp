#include "carillon/roles/offer_queue.h"

#include <vector>

#include <gtest/gtest.h>

namespace carillon::roles {
namespace {

constexpr TimePoint instant(Duration d) {
  return TimePoint{1s + d};
}

Request row_of(std::uint64_t id, TimePoint now, Duration patience = 100ms) {
  return {.id = RequestId{id}, .model = ModelId{0}, .arrival = now, .deadline = now + patience};
}

class OfferQueueTest : public ::testing::Test {
 protected:
  OfferQueueTest() {
    queue.add_model(1ms);
    queue.begin();
  }
  std::vector<std::uint64_t> next(TimePoint now) {
    std::vector<std::uint64_t> out;
    for (const auto& each : queue.next(now)) {
      EXPECT_FALSE(each.turned_away);
      out.push_back(each.row.value);
    }
    return out;
  }
  OfferQueue queue;
};

TEST_F(OfferQueueTest, NothingGoesBeforeTheFirstCredit) {
  const auto answer = queue.arrive(row_of(0, instant(0ms)), instant(0ms));
  EXPECT_FALSE(answer.goes);
  EXPECT_TRUE(answer.in);
  EXPECT_TRUE(next(instant(0ms)).empty());
  queue.credit({.taken = 0, .most = 2});
  EXPECT_EQ(next(instant(1ms)), std::vector<std::uint64_t>{0});
}

TEST_F(OfferQueueTest, NoMoreThanTheCreditIsUnderWay) {
  queue.credit({.taken = 0, .most = 2});
  for (std::uint64_t id = 0; id < 5; ++id)
    EXPECT_EQ(queue.arrive(row_of(id, instant(0ms)), instant(0ms)).goes, id < 2) << id;
  EXPECT_EQ(queue.under_way(), 2U);
  EXPECT_EQ(queue.waiting(), 3U);
  queue.credit({.taken = 1, .most = 2});
  EXPECT_EQ(next(instant(1ms)), std::vector<std::uint64_t>{2});
  queue.credit({.taken = 2, .most = 3});
  EXPECT_EQ(next(instant(1ms)), (std::vector<std::uint64_t>{3, 4}));
  EXPECT_TRUE(queue.arrive(row_of(5, instant(1ms)), instant(1ms)).goes);
  EXPECT_FALSE(queue.arrive(row_of(6, instant(1ms)), instant(1ms)).goes);
}

TEST_F(OfferQueueTest, WhoeverComesLaterDoesNotOvertake) {
  queue.credit({.taken = 0, .most = 1});
  EXPECT_TRUE(queue.arrive(row_of(0, instant(0ms)), instant(0ms)).goes);
  EXPECT_FALSE(queue.arrive(row_of(1, instant(0ms)), instant(0ms)).goes);
  queue.credit({.taken = 1, .most = 1});
  EXPECT_FALSE(queue.arrive(row_of(2, instant(0ms)), instant(0ms)).goes);
  EXPECT_EQ(next(instant(0ms)), std::vector<std::uint64_t>{1});
}

TEST_F(OfferQueueTest, ARowThatIsGoneGivesItsCreditBack) {
  queue.credit({.taken = 0, .most = 1});
  for (std::uint64_t id = 0; id < 3; ++id) (void)queue.arrive(row_of(id, instant(0ms)), instant(0ms));
  queue.credit({.taken = 1, .most = 1});
  EXPECT_EQ(next(instant(0ms)), std::vector<std::uint64_t>{1});
  queue.give_back();
  EXPECT_EQ(next(instant(0ms)), std::vector<std::uint64_t>{2});
}

TEST_F(OfferQueueTest, ALeaderThatTakesMoreThanWasOfferedGivesNoMoreCredit) {
  queue.credit({.taken = 77, .most = 1});
  EXPECT_TRUE(queue.arrive(row_of(0, instant(0ms)), instant(0ms)).goes);
  EXPECT_FALSE(queue.arrive(row_of(1, instant(0ms)), instant(0ms)).goes);
}

TEST_F(OfferQueueTest, AnotherLeaderBeginsWithoutRows) {
  queue.credit({.taken = 0, .most = 1});
  for (std::uint64_t id = 0; id < 3; ++id) (void)queue.arrive(row_of(id, instant(0ms)), instant(0ms));
  queue.begin();
  EXPECT_EQ(queue.waiting(), 0U);
  EXPECT_EQ(queue.under_way(), 0U);
  queue.credit({.taken = 0, .most = 1});
  EXPECT_TRUE(queue.arrive(row_of(0, instant(0ms)), instant(0ms)).goes);
}

// Ten rows come where one can be decided on. Those that are offered leave in time for their deadlines, and
// the others are turned away.
TEST_F(OfferQueueTest, WhereTheLeaderIsTooSlowRowsAreTurnedAwayAndNobodyWaitsForLong) {
  constexpr int steps = 20'000;
  queue.credit({.taken = 0, .most = 8});
  std::uint64_t id = 0;
  int offered = 0, turned_away = 0;
  Duration longest{0};
  std::vector<TimePoint> came;
  const auto goes = [&](std::uint64_t row, TimePoint now) {
    ++offered;
    longest = std::max<Duration>(longest, now - came[row]);
  };
  for (int step = 0; step < steps; ++step) {
    const TimePoint now = instant(step * 100us);
    for (int i = 0; i < 10; ++i) {
      came.push_back(now);
      const auto answer = queue.arrive(row_of(id++, now), now);
      if (answer.goes) goes(id - 1, now);
      if (!answer.in) ++turned_away;
      if (answer.displaced) ++turned_away;
    }
    if (queue.under_way() > 0) queue.credit({.taken = 1, .most = 8});
    for (const auto& each : queue.next(now)) {
      if (each.turned_away)
        ++turned_away;
      else
        goes(each.row.value, now);
    }
  }
  EXPECT_NEAR(offered, steps, steps / 100);
  EXPECT_NEAR(turned_away, 9 * steps, steps / 10);
  EXPECT_LT(longest, 100ms);
}

}  // namespace
}  // namespace carillon::roles
