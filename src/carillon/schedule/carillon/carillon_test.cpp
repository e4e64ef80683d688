#include "carillon/schedule/carillon/carillon.h"

#include <vector>

#include <gtest/gtest.h>

#include "carillon/schedule/testing/actions.h"
#include "carillon/schedule/testing/models.h"
#include "carillon/schedule/testing/policy_test.h"

namespace carillon::schedule {
namespace {

using testing::at;
using testing::linear_model;
using testing::of_kind;

class CarillonTest : public testing::PolicyTest<Carillon> {};

TEST_F(CarillonTest, NothingWaitsForMoreOfAModelThatIsNotAskedFor) {
  make();
  model(linear_model(0, 1ms, 10ms, 1, 8ms, {1, 2, 4}));
  device(0, 1, 0ms);
  EXPECT_EQ(of_kind<Infer>(arrives(0, 0, 5ms, at(500ms))).size(), 1U) << "the first of all";
}

TEST_F(CarillonTest, WhatNoDeviceIsFreeForInTimeIsRefusedAtOnce) {
  struct Case {
    Duration deadline;
    Preemption preemption;
    std::uint32_t model;
    bool refused;
  };
  for (const auto& [deadline, preemption, asked, refused] :
       {Case{150ms, Preemption::none, 0, true}, Case{250ms, Preemption::none, 0, false},
        Case{150ms, Preemption::deadline, 0, true},     // a run makes no way for another as long
        Case{50ms, Preemption::deadline, 1, false}}) {  // but for a shorter one
    make({.preemption = preemption});
    model(linear_model(0, 0ms, 100ms, 1, 8ms, {1}));
    model(linear_model(1, 0ms, 10ms, 1, 8ms, {1}));
    device(0, 2, 0ms);
    ASSERT_EQ(of_kind<Infer>(arrives(0, 0, 0ms, at(900ms))).size(), 1U);
    const auto said = of_kind<Refuse>(arrives(1, asked, 5ms, at(deadline)));
    ASSERT_EQ(said.size(), refused ? 1U : 0U) << deadline.count();
    if (refused) {
      EXPECT_EQ(said[0], (Refuse{RequestId{1}, Reason::cannot_finish, at(200ms)}));
    }
  }
}

TEST_F(CarillonTest, WhatAnotherDeviceIsFreeForInTimeIsKept) {
  make();
  model(linear_model(0, 0ms, 100ms, 1, 8ms, {1}));
  model(linear_model(1, 0ms, 20ms, 1, 8ms, {1}));
  device(0, 2, 0ms);
  device(1, 2, 0ms);
  ASSERT_EQ(of_kind<Infer>(arrives(0, 0, 0ms, at(900ms))).size(), 1U);
  ASSERT_EQ(of_kind<Infer>(arrives(1, 1, 0ms, at(900ms))).size(), 1U);
  EXPECT_TRUE(of_kind<Refuse>(arrives(2, 0, 5ms, at(150ms))).empty());
}

}  // namespace
}  // namespace carillon::schedule
