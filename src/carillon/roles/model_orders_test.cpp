#include "carillon/roles/model_orders.h"

#include <gtest/gtest.h>

namespace carillon::roles {
namespace {

using transport::ModelOrder;
using transport::ModelOrdered;

class ModelOrdersTest : public ::testing::Test {
 protected:
  const std::map<PeerId, std::string> workers{{11, "w1"}, {12, "w2"}};

  void ask(const ModelOrder& order) { orders.ask(1, order, workers, out); }
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
  // What a worker was told last, it answers so.
  void answer(PeerId worker, Result<> result) {
    const auto told = take<ModelOrder>(worker);
    ASSERT_EQ(told.size(), 1U);
    EXPECT_TRUE(orders.answered(worker, {told[0].order, std::move(result)}, out));
  }

  ModelOrders orders;
  ModelOrders::Outbox out;
};

TEST_F(ModelOrdersTest, AnOrderIsCarriedOutOnceAllHaveAnsweredAndOneDid) {
  ask({.order = 7, .model = "m"});
  answer(11, fail(ErrorCode::not_found, "there is no such model"));
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  answer(12, {});
  const auto done = take<ModelOrdered>(1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].order, 7U);
  EXPECT_TRUE(done[0].result);
  EXPECT_EQ(orders.under_way(), 0U);
}

TEST_F(ModelOrdersTest, AnOrderThatNobodyCarriesOutFailsWithTheWordOfOne) {
  ask({.order = 7, .model = "m"});
  answer(12, fail(ErrorCode::not_found, "there is no such model"));
  orders.left(11, out);
  const auto done = take<ModelOrdered>(1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].result.error().code, ErrorCode::not_found);
  EXPECT_EQ(done[0].result.error().message, "worker w2: there is no such model");
  ask({.order = 8, .model = "m"});
  orders.left(11, out);
  orders.left(12, out);
  EXPECT_EQ(take<ModelOrdered>(1).at(0).result.error().message, "worker w1 has gone");
}

TEST_F(ModelOrdersTest, AWorkerThatComesLaterIsToldOfWhatHolds) {
  ask({.order = 1, .model = "a"});
  answer(11, {});
  answer(12, {});
  ask({.order = 2, .model = "b"});
  answer(11, fail(ErrorCode::internal, "bad"));
  answer(12, fail(ErrorCode::internal, "bad"));
  ask({.order = 3, .model = "a", .unload = true, .dependents = true});
  answer(11, {});
  answer(12, {});
  take<ModelOrdered>(1);
  orders.joined(13, "w3", out);
  const auto told = take<ModelOrder>(13);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].model, "a");
  EXPECT_TRUE(told[0].unload && told[0].dependents);
  EXPECT_TRUE(orders.answered(13, {told[0].order, {}}, out));
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(orders.under_way(), 0U);
}

TEST_F(ModelOrdersTest, AnOrderThatIsUnderWayWaitsForAWorkerThatComes) {
  ask({.order = 7, .model = "m"});
  orders.joined(13, "w3", out);
  answer(11, {});
  answer(12, {});
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  answer(13, {});
  EXPECT_EQ(take<ModelOrdered>(1).size(), 1U);
}

TEST_F(ModelOrdersTest, WhatDoesNotFitChangesNothing) {
  EXPECT_FALSE(orders.answered(11, {1, {}}, out));
  ask({.order = 7, .model = "m"});
  const std::uint64_t number = take<ModelOrder>(11).at(0).order;
  EXPECT_FALSE(orders.answered(13, {number, {}}, out)) << "it was not asked";
  EXPECT_TRUE(orders.answered(11, {number, {}}, out));
  EXPECT_FALSE(orders.answered(11, {number, {}}, out)) << "twice";
  EXPECT_EQ(orders.under_way(), 1U);
}

TEST_F(ModelOrdersTest, TooManyAndThoseWithoutAWorkerAreRefused) {
  orders.ask(1, {.order = 7, .model = "m"}, {}, out);
  EXPECT_EQ(take<ModelOrdered>(1).at(0).result.error().code, ErrorCode::unavailable);
  for (std::size_t i = 0; i < ModelOrders::most_under_way; ++i) ask({.order = i, .model = "m"});
  EXPECT_TRUE(take<ModelOrdered>(1).empty());
  ask({.order = 1000, .model = "m"});
  const auto refused = take<ModelOrdered>(1);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].order, 1000U);
  EXPECT_EQ(refused[0].result.error().code, ErrorCode::resource_exhausted);
}

}  // namespace
}  // namespace carillon::roles
