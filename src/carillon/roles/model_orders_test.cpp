#include "carillon/roles/model_orders.h"

#include <gtest/gtest.h>

namespace carillon::roles {
namespace {

using transport::ModelOrder;
using transport::ModelOrdered;

// Peer 1 is a frontend; 11 and 12 are workers.
class ModelOrdersTest : public ::testing::Test {
 protected:
  ModelOrdersTest() {
    join(11, "w1");
    join(12, "w2");
  }
  void join(PeerId worker, std::string id, std::uint64_t incarnation = 0) {
    orders.joined(worker, {.cluster = "c", .id = std::move(id), .incarnation = incarnation}, now, out);
  }
  void ask(const ModelOrder& order) { orders.ask(1, order, now, out); }
  // Those of a kind to a peer, since the last look at them.
  template <typename What>
  std::vector<What> take(PeerId to) {
    std::vector<What> found;
    std::erase_if(out, [&](const auto& each) {
      const auto* what = each.first == to ? std::get_if<What>(&each.second) : nullptr;
      if (what != nullptr) found.push_back(*what);
      return what != nullptr;
    });
    return found;
  }
  // What a worker was told last, it answers so. Returns of which model that was, "-" before one to unload.
  std::string answer(PeerId worker, Result<> result = {}) {
    const auto told = take<ModelOrder>(worker);
    if (told.size() != 1) return std::to_string(told.size()) + " orders";
    EXPECT_TRUE(orders.answered(worker, {told[0].order, std::move(result)}, now, out));
    return (told[0].unload ? "-" : "") + told[0].model;
  }
  // All workers of before carry it out.
  void carry_out(const ModelOrder& order) {
    ask(order);
    for (const PeerId worker : {11, 12}) answer(worker);
    EXPECT_TRUE(take<ModelOrdered>(1).at(0).result);
  }

  ModelOrders orders;
  ModelOrders::Outbox out;
  TimePoint now{1s};
};

TEST_F(ModelOrdersTest, AnOrderIsCarriedOutOnceAllHaveAnsweredAndOneDid) {
  ask({.order = 7, .model = "m"});
  answer(11, fail(ErrorCode::not_found, "there is no such model"));
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  answer(12);
  const auto done = take<ModelOrdered>(1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].order, 7U);
  EXPECT_TRUE(done[0].result);
  EXPECT_EQ(orders.under_way(), 0U);
}

TEST_F(ModelOrdersTest, AnOrderThatNobodyCarriesOutFailsWithTheWordOfOne) {
  ask({.order = 7, .model = "m"});
  answer(12, fail(ErrorCode::not_found, "there is no such model"));
  answer(11, fail(ErrorCode::not_found, "there is no such model"));
  const auto done = take<ModelOrdered>(1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].result.error().code, ErrorCode::not_found);
  EXPECT_EQ(done[0].result.error().message, "worker w1: there is no such model");
  // w1 may have carried the order out. The client hears of that, not that w2 lacks the model.
  ask({.order = 8, .model = "m"});
  answer(12, fail(ErrorCode::not_found, "there is no such model"));
  orders.left(11, now, out);
  EXPECT_EQ(take<ModelOrdered>(1).at(0).result.error().message,
            "worker w1 has gone, and may have carried out the order");
  ask({.order = 9, .model = "m"});
  orders.left(12, now, out);
  EXPECT_EQ(take<ModelOrdered>(1).at(0).result.error().message,
            "worker w2 has gone, and may have carried out the order");
}

TEST_F(ModelOrdersTest, AnUnloadFailsWhileAWorkerServesTheModel) {
  ask({.order = 7, .model = "m", .unload = true});
  answer(11);
  answer(12, fail(ErrorCode::not_found, "it does not serve 'm'"));
  EXPECT_TRUE(take<ModelOrdered>(1).at(0).result);
  join(13, "w3");
  EXPECT_EQ(answer(13), "-m");
  ask({.order = 8, .model = "m", .unload = true});
  answer(11, fail(ErrorCode::not_found, "it does not serve 'm'"));
  answer(12, fail(ErrorCode::unavailable, "it takes no orders"));
  answer(13);
  const auto done = take<ModelOrdered>(1);
  ASSERT_EQ(done.size(), 1U);
  ASSERT_FALSE(done[0].result);
  EXPECT_EQ(done[0].result.error().message, "worker w2: it takes no orders");
}

TEST_F(ModelOrdersTest, AWorkerThatComesLaterIsToldOfWhatHolds) {
  carry_out({.order = 1, .model = "a"});
  ask({.order = 2, .model = "b"});
  answer(11, fail(ErrorCode::internal, "bad"));
  answer(12, fail(ErrorCode::internal, "bad"));
  take<ModelOrdered>(1);
  carry_out({.order = 3, .model = "a", .unload = true});
  join(13, "w3");
  const auto told = take<ModelOrder>(13);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].model, "a");
  EXPECT_TRUE(told[0].unload);
  EXPECT_TRUE(orders.answered(13, {told[0].order, {}}, now, out));
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(orders.under_way(), 0U);
}

TEST_F(ModelOrdersTest, AnOrderThatIsUnderWayWaitsForAWorkerThatComes) {
  ask({.order = 7, .model = "m"});
  join(13, "w3");
  answer(11);
  answer(12);
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  answer(13);
  EXPECT_EQ(take<ModelOrdered>(1).size(), 1U);
}

// Workers refuse orders beyond those that they have room for.
TEST_F(ModelOrdersTest, AWorkerIsToldOneOrderAtATimeAndClientsOrdersFirst) {
  for (const char* model : {"a", "b", "c"}) carry_out({.order = 1, .model = model});
  join(13, "w3");
  ask({.order = 2, .model = "d"});
  ask({.order = 3, .model = "e"});
  EXPECT_EQ(answer(13), "a");
  EXPECT_EQ(answer(13), "d");
  EXPECT_EQ(answer(13), "e");
  EXPECT_EQ(answer(13), "b");
  EXPECT_EQ(answer(13), "c");
  EXPECT_EQ(answer(13), "0 orders");
}

// Else a client's order would be refused while a worker is told of many models.
TEST_F(ModelOrdersTest, WhatHoldsTakesNoRoomOfClients) {
  for (std::size_t i = 0; i <= ModelOrders::most_under_way; ++i)
    carry_out({.order = i, .model = "m" + std::to_string(i)});
  join(13, "w3");
  ask({.order = 1000, .model = "m"});
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  EXPECT_EQ(orders.under_way(), 1U);
}

// Whatever the worker answers first, and to which.
TEST_F(ModelOrdersTest, TheLastOrderOfAModelHoldsForAWorkerThatIsYetToBeToldOfTheOneBefore) {
  carry_out({.order = 1, .model = "a"});
  carry_out({.order = 2, .model = "b"});
  join(13, "w3");
  join(14, "w4");
  ask({.order = 3, .model = "b", .unload = true});
  for (const PeerId late : {13, 14}) EXPECT_EQ(answer(late), "a");
  EXPECT_EQ(answer(13, fail(ErrorCode::not_found, "it is not known")), "-b");
  EXPECT_EQ(answer(13), "0 orders") << "b is being unloaded";
  EXPECT_EQ(answer(14), "-b");
  for (const PeerId worker : {11, 12}) answer(worker);
  EXPECT_TRUE(take<ModelOrdered>(1).at(0).result);
  for (const PeerId late : {13, 14}) EXPECT_EQ(answer(late), "0 orders");
  join(15, "w5");
  EXPECT_EQ(answer(15), "a");
  EXPECT_EQ(answer(15), "-b");
  // Where the last order fails, the one before holds.
  join(16, "w6");
  ask({.order = 4, .model = "a", .unload = true});
  EXPECT_EQ(answer(16), "a");
  for (const PeerId worker : {11, 12, 13, 14, 15, 16}) answer(worker, fail(ErrorCode::internal, "bad"));
  EXPECT_FALSE(take<ModelOrdered>(1).at(0).result);
  join(17, "w7");
  EXPECT_EQ(answer(17), "a");
}

// A load by an order may bring other files than those that the worker serves.
TEST_F(ModelOrdersTest, AProcessWhoseStreamBrokeIsToldOnlyWhatItHasNotAnswered) {
  for (const char* model : {"a", "b"}) carry_out({.order = 1, .model = model});
  join(13, "w3", 5);
  EXPECT_EQ(answer(13), "a");
  orders.left(13, now, out);
  take<ModelOrder>(13);
  carry_out({.order = 2, .model = "c"});
  join(14, "w3", 5);
  EXPECT_EQ(answer(14), "b");
  EXPECT_EQ(answer(14), "c");
  EXPECT_EQ(answer(14), "0 orders");
  // An order of a client, which ends while the worker is away.
  ask({.order = 3, .model = "d"});
  orders.left(14, now, out);
  take<ModelOrder>(14);
  for (const PeerId worker : {11, 12}) answer(worker);
  join(15, "w3", 5);
  EXPECT_EQ(answer(15), "d");
  EXPECT_EQ(answer(15), "0 orders");
  // Another process of that name has nothing of it.
  orders.left(15, now, out);
  join(16, "w3", 6);
  for (const char* model : {"a", "b", "c", "d"}) EXPECT_EQ(answer(16), model);
}

// Its loads may hang, and it beats on.
TEST_F(ModelOrdersTest, AWorkerThatDoesNotAnswerIsNamedAndWaitedForNoMore) {
  EXPECT_EQ(orders.wake_at(), TimePoint::max());
  ask({.order = 7, .model = "m"});
  answer(11);
  const TimePoint due = now + ModelOrders::answers_within;
  EXPECT_EQ(orders.wake_at(), due);
  orders.wake(now = due - 1ns, out);
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  orders.wake(now = due, out);
  EXPECT_TRUE(take<ModelOrdered>(1).at(0).result) << "the other worker has loaded it";
  EXPECT_EQ(orders.wake_at(), TimePoint::max());
  // What comes later does not wait for it. It has been told one order, and gets no other.
  EXPECT_EQ(take<ModelOrder>(12).size(), 1U);
  now += 10s;
  ask({.order = 8, .model = "n", .unload = true});
  answer(11);
  const auto done = take<ModelOrdered>(1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].result.error().code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(done[0].result.error().message,
            "worker w2 has not answered an order for 310 s, and may carry it out yet");
  EXPECT_TRUE(take<ModelOrder>(12).empty());
  // Once it answers, it is told of what holds.
  EXPECT_TRUE(orders.answered(12, {1, {}}, now, out));
  EXPECT_EQ(answer(12), "-n");
  ask({.order = 9, .model = "o"});
  answer(11);
  EXPECT_TRUE(take<ModelOrdered>(1).empty()) << "it is waited for again";
  answer(12);
  EXPECT_EQ(take<ModelOrdered>(1).size(), 1U);
}

TEST_F(ModelOrdersTest, ALateAnswerCountsForAnOrderThatWaitsForOthers) {
  ask({.order = 7, .model = "m"});
  take<ModelOrder>(11);
  now += 1s;
  join(13, "w3");
  take<ModelOrder>(13);
  orders.wake(now += ModelOrders::answers_within - 1s, out);
  EXPECT_TRUE(take<ModelOrdered>(1).empty()) << "w3 has time left";
  EXPECT_TRUE(orders.answered(11, {1, {}}, now, out));
  EXPECT_TRUE(orders.answered(13, {1, fail(ErrorCode::internal, "bad")}, now, out));
  EXPECT_TRUE(take<ModelOrdered>(1).at(0).result);
  EXPECT_EQ(orders.under_way(), 0U);
  orders.left(12, now, out);
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
}

TEST_F(ModelOrdersTest, WhatDoesNotFitChangesNothing) {
  EXPECT_FALSE(orders.answered(11, {1, {}}, now, out));
  ask({.order = 7, .model = "m"});
  ask({.order = 8, .model = "n"});
  const std::uint64_t number = take<ModelOrder>(11).at(0).order;
  EXPECT_FALSE(orders.answered(13, {number, {}}, now, out)) << "it is not there";
  EXPECT_FALSE(orders.answered(11, {number + 1, {}}, now, out)) << "it was not told of that yet";
  EXPECT_TRUE(orders.answered(11, {number, {}}, now, out));
  EXPECT_FALSE(orders.answered(11, {number, {}}, now, out)) << "twice";
  EXPECT_EQ(orders.under_way(), 2U);
}

TEST_F(ModelOrdersTest, TooManyAndThoseWithoutAWorkerAreRefused) {
  for (std::size_t i = 0; i < ModelOrders::most_under_way; ++i) ask({.order = i, .model = "m"});
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  ask({.order = 1000, .model = "m"});
  const auto refused = take<ModelOrdered>(1);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].order, 1000U);
  EXPECT_EQ(refused[0].result.error().code, ErrorCode::resource_exhausted);
  for (const PeerId worker : {11, 12}) orders.left(worker, now, out);
  EXPECT_EQ(take<ModelOrdered>(1).size(), ModelOrders::most_under_way);
  ask({.order = 7, .model = "m"});
  EXPECT_EQ(take<ModelOrdered>(1).at(0).result.error().code, ErrorCode::unavailable);
}

}  // namespace
}  // namespace carillon::roles
