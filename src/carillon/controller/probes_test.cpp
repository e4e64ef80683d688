#include "carillon/controller/probes.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/controller/testing/fakes.h"

namespace carillon::controller {
namespace {

using schedule::ActionStatus;

InferCall call_of(std::int64_t length, int rows = 1) {
  InferCall call;
  call.model = {3};
  call.rows = rows;
  call.length = length;
  const auto bytes = static_cast<std::size_t>(length * rows);
  call.inputs.emplace_back(bytes);
  for (std::size_t i = 0; i < bytes; ++i) call.inputs[0][i] = static_cast<std::byte>(i);
  call.outputs.emplace_back(bytes);
  return call;
}

worker::ActionResult result_of(const Probes& probes, ActionStatus status, Duration took = 5ms) {
  worker::ActionResult result{.id = probes.action(), .status = status, .times = {}, .error = {}};
  result.times.exec_end = result.times.exec_start + took;
  return result;
}

struct ProbesTest : ::testing::Test {
  worker::InferCommand command{};
  Window window{TimePoint{}, TimePoint{1ms}};
};

TEST_F(ProbesTest, ARowRunsAloneWithItsOwnInputs) {
  Probes probes({.share = 1});
  EXPECT_FALSE(probes.due({}));
  {
    const InferCall call = call_of(4, 2);  // only its first row is kept, and outlives it
    probes.offer(call, {7});
  }
  ASSERT_TRUE(probes.due({}));
  EXPECT_FALSE(probes.due({.open = 1}) || probes.due({.running = 1})) << "idle time only";
  probes.begin({1}, window, command);
  EXPECT_FALSE(probes.due({}));
  EXPECT_TRUE(probes.running() && probes.is_probe(command.id));
  EXPECT_FALSE(probes.is_probe({1'000'000}));
  EXPECT_EQ(command.model, ModelId{3});
  EXPECT_EQ(command.batch, 1);
  EXPECT_EQ(command.rows[0].length, 4);
  ASSERT_EQ(command.rows[0].inputs.size(), 1U);
  EXPECT_EQ(command.rows[0].inputs[0][3], std::byte{3});
  const auto sample = probes.end(result_of(probes, ActionStatus::success, 9ms));
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(sample->app, AppId{7});
  EXPECT_EQ(sample->solo, 9ms);
  EXPECT_FALSE(probes.due({}) || probes.running());
}

// Else short requests, which fit into short gaps, would be seen more often than they are.
TEST_F(ProbesTest, WhatIsCutShortRunsAgainNext) {
  Probes probes({.share = 1, .attempts = 3});
  probes.offer(call_of(4), {1});
  probes.offer(call_of(2), {2});
  for (int attempt = 0; attempt < 2; ++attempt) {
    probes.begin({0}, window, command);
    EXPECT_EQ(command.rows[0].length, 4);
    EXPECT_FALSE(probes.end(result_of(probes, ActionStatus::stopped)).has_value());
  }
  probes.begin({0}, window, command);
  EXPECT_FALSE(probes.end(result_of(probes, ActionStatus::too_late)).has_value());  // given up
  probes.begin({0}, window, command);
  EXPECT_EQ(command.rows[0].length, 2);
  EXPECT_FALSE(probes.end(result_of(probes, ActionStatus::failed)).has_value());  // at once
  EXPECT_FALSE(probes.due({}));
}

TEST_F(ProbesTest, KeepsASampleOfBoundedSize) {
  Probes none({.share = 0});
  for (int i = 0; i < 100; ++i) none.offer(call_of(4), {1});
  EXPECT_FALSE(none.due({}));

  Probes small({.share = 1, .largest_row = 8});
  small.offer(call_of(5), {1});
  EXPECT_FALSE(small.due({}));

  const auto kept = [&](std::uint64_t seed) {
    Probes probes({.share = 0.3, .backlog = 50, .seed = seed});
    std::vector<std::int64_t> lengths;
    for (int i = 1; i <= 100; ++i) probes.offer(call_of(i), {1});
    while (probes.due({})) {
      probes.begin({0}, window, command);
      lengths.push_back(command.rows[0].length);
      probes.end(result_of(probes, ActionStatus::success));
    }
    return lengths;
  };
  EXPECT_EQ(kept(1), kept(1));
  EXPECT_NE(kept(1), kept(2));
  EXPECT_GT(kept(1).size(), 15U);
  EXPECT_LT(kept(1).size(), 45U);

  Probes full({.share = 1, .backlog = 2});
  for (int i = 1; i <= 5; ++i) full.offer(call_of(i), {1});
  for (int i = 0; i < 2; ++i) {
    full.begin({0}, window, command);
    full.end(result_of(full, ActionStatus::success));
  }
  EXPECT_FALSE(full.due({}));
}

}  // namespace
}  // namespace carillon::controller
