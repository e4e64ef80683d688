#include "carillon/controller/calls/kept_rows.h"

#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

InferCall call_of(std::size_t length, int rows) {
  InferCall call;
  call.model = {3};
  call.rows = rows;
  call.length = static_cast<std::int64_t>(length);
  const std::size_t bytes = length * static_cast<std::size_t>(rows);
  call.inputs.emplace_back(bytes);
  for (std::size_t i = 0; i < bytes; ++i) call.inputs[0][i] = static_cast<std::byte>(i);
  call.outputs.emplace_back(bytes);
  return call;
}

struct KeptRowsTest : ::testing::Test {
  worker::InferCommand command{};
  Window window{TimePoint{}, TimePoint{1ms}};
};

TEST_F(KeptRowsTest, ARowRunsAloneWithItsOwnInputs) {
  KeptRows rows(100);
  EXPECT_FALSE(rows.any());
  rows.want({8});
  EXPECT_TRUE(rows.any());
  EXPECT_FALSE(rows.run({8}, {5}, window, command)) << "it has no answer yet";
  {
    const InferCall call = call_of(4, 2);  // the row outlives it
    rows.answered({7}, call, 0);
    rows.answered({8}, call, 1);
  }
  EXPECT_EQ(rows.size(), 1U) << "only what is wanted";
  ASSERT_TRUE(rows.run({8}, {5}, window, command));
  EXPECT_EQ(command.id, ActionId{5});
  EXPECT_EQ(command.model, ModelId{3});
  EXPECT_EQ(command.window, window);
  EXPECT_EQ(command.batch, 1);
  EXPECT_EQ(command.cls, Class::normal) << "it tells how long those take";
  EXPECT_EQ(command.rows[0].length, 4);
  ASSERT_EQ(command.rows[0].inputs.size(), 1U);
  ASSERT_EQ(command.rows[0].outputs.size(), 1U);
  EXPECT_EQ(command.rows[0].inputs[0][3], std::byte{7});
  command.rows[0].outputs[0][3] = std::byte{1};  // its own memory
  EXPECT_TRUE(rows.run({8}, {6}, window, command)) << "as often as is wanted";
  rows.forget({8});
  EXPECT_FALSE(rows.run({8}, {7}, window, command) || rows.any());
}

TEST_F(KeptRowsTest, WhatEndsOtherwiseIsNotKept) {
  KeptRows rows(100);
  rows.want({1});
  rows.gone({1});
  EXPECT_FALSE(rows.any());
  rows.want({2});
  rows.answered({2}, call_of(4, 1), 0);
  rows.gone({2});  // its call, for another row's sake
  EXPECT_TRUE(rows.run({2}, {1}, window, command));
}

TEST_F(KeptRowsTest, KeepsNoMoreThanThereIsRoomFor) {
  KeptRows rows(8, 2);
  rows.want({1});
  rows.answered({1}, call_of(5, 1), 0);  // 5 bytes in, 5 out
  EXPECT_FALSE(rows.any());
  for (std::uint64_t id = 1; id < 10; ++id) rows.want({id});
  EXPECT_EQ(rows.size(), 2U);
  rows.answered({1}, call_of(4, 3), 2);
  EXPECT_TRUE(rows.run({1}, {1}, window, command));
  KeptRows many(8);
  for (std::uint64_t id = 1; id < 2000; ++id) many.want({id});
  EXPECT_EQ(many.size(), 1024U);
}

}  // namespace
}  // namespace carillon::controller
