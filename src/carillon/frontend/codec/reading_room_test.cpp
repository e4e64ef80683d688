#include "carillon/frontend/codec/reading_room.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "carillon/base/random.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

TEST(ParseRoom, IsAsLargeAsTheMostDemandingBodyNeeds) {
  const auto budget = std::make_shared<ByteBudget>(std::size_t{8} << 20, std::size_t{1} << 20);  // 7 MiB
  const auto room = std::make_shared<ParseRoom>(budget);
  constexpr std::size_t unit = std::size_t{1} << 20;
  auto modest = room->admit(2 * unit, unit);
  auto demanding = room->admit(5 * unit, unit);
  ASSERT_TRUE(modest && demanding);
  EXPECT_EQ(room->bytes(), 5 * unit) << "both have it by turns";
  // Beside the body, of 2 MiB, and what is left to others, 1 MiB.
  auto most = room->admit(100 * unit, 2 * unit);
  ASSERT_TRUE(most);
  EXPECT_EQ(most->bytes(), 4 * unit);
  most.reset();
  EXPECT_EQ(room->bytes(), 5 * unit);
  Reservation others(budget);
  ASSERT_TRUE(others.grow(2 * unit));
  EXPECT_FALSE(room->admit(6 * unit, 0));
  EXPECT_TRUE(room->admit(5 * unit, 0));
  demanding.reset();
  EXPECT_EQ(room->bytes(), 2 * unit);
  modest.reset();
  EXPECT_EQ(budget->used(), 2 * unit);
}

// Bodies that fill everything are read all the same: those that find no room have their turn.
TEST(ParseRoom, WhatWasAdmittedIsRead) {
  constexpr std::size_t unit = std::size_t{1} << 20;
  const auto budget = std::make_shared<ByteBudget>(8 * unit, unit);
  const auto room = std::make_shared<ParseRoom>(budget);
  std::vector<Reservation> bodies;
  std::vector<std::unique_ptr<ParseRoom::Admission>> admitted;
  for (int i = 0; i < 3; ++i) {
    bodies.emplace_back(budget);
    ASSERT_TRUE(bodies.back().grow(unit));
    admitted.push_back(room->admit(4 * unit, unit));
    ASSERT_TRUE(admitted.back());
  }
  Reservation rest(budget);
  EXPECT_FALSE(rest.grow(100'000)) << "there is nothing else";
  ReadingRoom unadmitted(&bodies[0], unit);
  EXPECT_FALSE(unadmitted.take(unit, "reading"));
  std::atomic<int> inside = 0, read = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      ReadingRoom reading(&bodies[i], unit, admitted[i].get());
      ASSERT_TRUE(reading.take(3 * unit, "reading"));
      EXPECT_EQ(inside.fetch_add(1), 0) << "one after the other";
      EXPECT_TRUE(reading.take_copy(unit, "a tensor"));
      EXPECT_FALSE(reading.take_copy(unit, "more than was admitted"));
      std::this_thread::yield();
      inside.fetch_sub(1);
      read.fetch_add(1);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(read, 3);
}

TEST(ParseRoom, WhatTakesMoreThanItWasAdmittedForIsReadWhereNothingElseIs) {
  constexpr std::size_t unit = std::size_t{1} << 20;
  const auto budget = std::make_shared<ByteBudget>(8 * unit, unit);  // 7 of them
  const auto room = std::make_shared<ParseRoom>(budget);
  Reservation body(budget);
  ASSERT_TRUE(body.grow(unit));
  const auto admitted = room->admit(100 * unit, unit);
  ASSERT_TRUE(admitted);
  ASSERT_EQ(admitted->bytes(), 5 * unit);
  {
    ReadingRoom reading(&body, unit, admitted.get());
    EXPECT_TRUE(reading.take(6 * unit, "reading"));
    EXPECT_EQ(room->bytes(), 0U);
  }
  EXPECT_EQ(budget->used(), unit);
}

// What simdjson's tape and texts have in them, counted by walking through the document.
std::size_t walked(const simdjson::dom::element& element) {
  switch (element.type()) {
    case simdjson::dom::element_type::ARRAY: {
      std::size_t sum = 16;
      for (const auto inner : simdjson::dom::array(element)) sum += walked(inner);
      return sum;
    }
    case simdjson::dom::element_type::OBJECT: {
      std::size_t sum = 16;
      for (const auto [key, value] : simdjson::dom::object(element))
        sum += 8 + 5 + key.size() + walked(value);
      return sum;
    }
    case simdjson::dom::element_type::STRING:
      return 8 + 5 + std::string_view(element).size();
    case simdjson::dom::element_type::INT64:
    case simdjson::dom::element_type::UINT64:
    case simdjson::dom::element_type::DOUBLE:
      return 16;
    case simdjson::dom::element_type::BOOL:
    case simdjson::dom::element_type::NULL_VALUE:
      return 8;
  }
  return 0;
}

std::string some_json(Random& random, int depth) {
  const auto kind = random.below(depth > 0 ? 7 : 5);
  if (kind <= 2) return std::to_string(random.below(10));
  if (kind == 3) return random.below(2) == 0 ? "true" : "-1.5e3";
  if (kind == 4) return "\"a,b\\\"[:\\\\\"";
  std::string text = kind == 5 ? "[" : "{";
  const auto size = random.below(6);
  for (std::uint64_t i = 0; i < size; ++i) {
    if (i > 0) text += ", ";
    if (kind == 6) text += "\"k" + std::to_string(i) + "\":";
    text += some_json(random, depth - 1);
  }
  return text + (kind == 5 ? "]" : "}");
}

TEST(JsonReadingCost, IsAtLeastWhatTheParserKeeps) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    const std::string json = some_json(random, 4);
    simdjson::dom::parser parser;
    simdjson::dom::element root;
    ASSERT_EQ(parser.parse(json).get(root), simdjson::SUCCESS) << json;
    EXPECT_GE(json_reading_cost(json), walked(root)) << "seed " << seed << ": " << json;
  }
}

TEST(JsonReadingCost, TellsNumbersFromText) {
  std::string digits = "[0";
  for (int i = 0; i < 10'000; ++i) digits += ",0";
  EXPECT_GT(json_reading_cost(digits), 10 * digits.size());
  const std::string text = "\"" + std::string(10'000, ',') + "\"";
  EXPECT_LT(json_reading_cost(text), 3 * text.size());
  EXPECT_GT(json_reading_cost(text), text.size());
  for (const char* damaged : {"\"", "\"\\", "[[[", "1 1 1", ""}) EXPECT_GE(json_reading_cost(damaged), 16U);
}

TEST(ReadingRoom, IsTakenBesideTheBodyAndGivenBack) {
  const auto budget = std::make_shared<ByteBudget>(std::size_t{8} << 20, std::size_t{4} << 20);
  Reservation body(budget);
  ASSERT_TRUE(body.grow(std::size_t{1} << 20));
  {
    ReadingRoom reading(&body, body.bytes());
    EXPECT_TRUE(reading.take(std::size_t{3} << 20, "reading"));
    EXPECT_EQ(budget->used(), std::size_t{4} << 20);
    const auto never = reading.take(std::size_t{100} << 20, "reading the JSON");
    ASSERT_FALSE(never);
    EXPECT_EQ(never.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(never.error().message, HasSubstr("blobs"));
    // A copy that can never have room takes what there is.
    EXPECT_TRUE(reading.take_copy(std::size_t{100} << 20, "input 'x'"));
    EXPECT_EQ(budget->used(), budget->largest());
    ReadingRoom another(&body, body.bytes());
    const auto now = another.take(std::size_t{1} << 20, "reading the JSON");
    ASSERT_FALSE(now);
    EXPECT_EQ(now.error().code, ErrorCode::resource_exhausted);
  }
  EXPECT_EQ(budget->used(), std::size_t{1} << 20);
  EXPECT_FALSE(ReadingRoom(&body, 1000).heeds());
  EXPECT_FALSE(ReadingRoom(nullptr, std::size_t{1} << 30).heeds());
}

TEST(HoldInputs, HoldsWhatTheTensorsTakeBeyondTheBody) {
  const auto budget = std::make_shared<ByteBudget>(std::size_t{1} << 20, std::size_t{1} << 20);
  Reservation body(budget);
  ASSERT_TRUE(body.grow(1000));
  InferRequest request;
  request.call = std::make_unique<controller::InferCall>();
  request.call->inputs.emplace_back(800);
  ASSERT_TRUE(hold_inputs(request, &body));
  EXPECT_EQ(budget->used(), 1000U);
  request.call->inputs.emplace_back(3200);
  ASSERT_TRUE(hold_inputs(request, &body));
  EXPECT_EQ(budget->used(), 4000U);
  request = {};
  EXPECT_EQ(budget->used(), 1000U);
}

}  // namespace
}  // namespace carillon::frontend
