#include "carillon/roles/elsewhere.h"

#include <gtest/gtest.h>

#include "carillon/schedule/testing/models.h"

namespace carillon::roles {
namespace {

// Four models of one page each. Device 0 leaves.
class ElsewhereTest : public ::testing::Test {
 protected:
  using Models = std::vector<ModelId>;
  static constexpr ModelId a{0}, b{1}, c{2}, d{3};

  ElsewhereTest() {
    ledger.planned_by({}, true);
    for (std::uint32_t i = 0; i < 4; ++i) {
      const auto change = ledger::model_comes(schedule::testing::linear_model(i, 1ms, 1ms));
      ledger.apply(change, now);
      ledger.plan(change);
    }
  }
  void comes(std::uint32_t device, std::uint64_t pages, Models held) {
    ledger.apply(ledger::DeviceChanged{DeviceId{device}, true, pages, 1, std::move(held)}, now);
  }
  Elsewhere look() {
    return load_elsewhere(ledger, {DeviceId{0}}, [&](DeviceId, ModelId model) { return model != lacks; });
  }
  static void expect_one(const Elsewhere& found, ModelId model, std::uint32_t device, const Models& instead) {
    ASSERT_EQ(found.loads.size(), 1U);
    EXPECT_EQ(found.loads[0].model, model);
    EXPECT_EQ(found.loads[0].device, DeviceId{device});
    EXPECT_EQ(found.loads[0].instead, instead);
  }

  ledger::Ledger ledger;
  TimePoint now{1s};
  ModelId lacks{99};  // no worker of another device has it
};

TEST_F(ElsewhereTest, WhatIsNowhereElseGoesWhereMostIsFree) {
  comes(0, 2, {a, b});
  comes(1, 4, {a});
  comes(2, 2, {});
  const Elsewhere found = look();
  expect_one(found, b, 1, {});
  EXPECT_TRUE(found.waiting.empty());
  EXPECT_TRUE(found.without.empty());
}

TEST_F(ElsewhereTest, ADeviceIsAskedForOneModelAtATime) {
  comes(0, 2, {a, b});
  comes(1, 2, {});
  Elsewhere found = look();
  expect_one(found, a, 1, {});
  EXPECT_EQ(found.waiting, Models{b});
  // It is being loaded.
  ledger.book(ledger::Load{{1}, {1}, a, {now, TimePoint::max()}, 8ms}, now);
  found = look();
  EXPECT_TRUE(found.loads.empty());
  EXPECT_EQ(found.waiting, (Models{a, b}));
  ledger.apply(ledger::ActionDone{{1}, ledger::ActionStatus::success, now, now, 8ms}, now);
  expect_one(look(), b, 1, {});
}

TEST_F(ElsewhereTest, WhatIsInUseAsMuchStays) {
  comes(0, 2, {a, b});
  comes(1, 2, {c, d});
  const Elsewhere found = look();
  EXPECT_TRUE(found.loads.empty());
  EXPECT_TRUE(found.waiting.empty());
  EXPECT_EQ(found.without, (Models{a, b}));
}

TEST_F(ElsewhereTest, WhatWasNotUsedForLongMakesRoom) {
  comes(0, 2, {});
  comes(1, 1, {c});
  now += 5s;
  comes(2, 1, {d});
  now += 5s;
  comes(0, 1, {a});
  expect_one(look(), a, 1, {c});
  comes(1, 1, {b});
  EXPECT_EQ(look().without, Models{a}) << "d was used 5 s before";
}

TEST_F(ElsewhereTest, ACopyMakesRoomAsLongAsAnotherStays) {
  comes(0, 2, {a, b});
  comes(1, 1, {c});
  comes(2, 1, {c});
  expect_one(look(), a, 1, {c});
  comes(1, 1, {a});
  EXPECT_EQ(look().without, Models{b}) << "c is on device 2 alone";
}

TEST_F(ElsewhereTest, ADeviceThatCannotLoadItIsNotAsked) {
  comes(0, 2, {a, b});
  comes(1, 2, {});
  lacks = b;
  ledger.book(ledger::Load{{1}, {1}, a, {now, TimePoint::max()}, 8ms}, now);
  ledger.apply(ledger::ActionDone{{1}, ledger::ActionStatus::failed, now, now, 8ms}, now);
  EXPECT_EQ(look().without, (Models{a, b}));
  comes(2, 2, {});
  expect_one(look(), a, 2, {});
}

}  // namespace
}  // namespace carillon::roles
