#include "carillon/engine/made_up.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/known_texts.h"

namespace carillon::engine {
namespace {

using graph::DataType;
using ::testing::ElementsAre;

std::vector<std::int64_t> whole(int way, std::size_t input, std::size_t count) {
  std::vector<std::int64_t> out(count, 77);
  make_up(way, input, DataType::i64, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(MadeUp, Ways) {
  EXPECT_THAT(whole(0, 0, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(whole(1, 0, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(whole(2, 0, 3), ElementsAre(-1, 1, 1));
  std::set<std::vector<std::int64_t>> pairs;  // of two inputs: one of zeros and one of ones, either way
  for (int way = 3; way < 6; ++way) {
    const auto a = whole(way, 0, 3), b = whole(way, 1, 3);
    EXPECT_TRUE(a == std::vector(3, std::int64_t{a[0]}) && (a[0] == 0 || a[0] == 1));
    pairs.insert({a[0], b[0]});
  }
  EXPECT_TRUE(pairs.contains({0, 1}) || pairs.contains({1, 0}));
  for (int way = 6; way < made_up_ways; ++way) {
    EXPECT_EQ(whole(way, 0, 9), whole(way, 0, 9)) << "the same each time";
    EXPECT_NE(whole(way, 0, 9), whole(way, 1, 9));
    for (const std::int64_t each : whole(way, 0, 99)) EXPECT_TRUE(0 <= each && each < 4) << each;
    std::vector<float> reals(99);
    make_up(way, 0, DataType::f32, std::as_writable_bytes(std::span(reals)));
    for (const float each : reals) EXPECT_TRUE(-2 <= each && each < 2) << each;
  }
}

TEST(MadeUp, EachTypeHasItsOwn) {
  std::array<std::uint8_t, 2> bytes{};
  make_up(2, 0, DataType::u8, std::as_writable_bytes(std::span(bytes)));
  EXPECT_THAT(bytes, ElementsAre(1, 1)) << "it has no -1";
  std::array<float, 2> reals{};
  make_up(2, 0, DataType::f32, std::as_writable_bytes(std::span(reals)));
  EXPECT_THAT(reals, ElementsAre(1, 1));
  std::array<std::uint8_t, 2> flags{};
  make_up(1, 0, DataType::boolean, std::as_writable_bytes(std::span(flags)));
  EXPECT_THAT(flags, ElementsAre(1, 1));
  std::array<graph::TextHandle, 2> texts{};
  make_up(1, 0, DataType::string, std::as_writable_bytes(std::span(texts)));
  EXPECT_EQ(*graph::known_texts().at(texts[1]), "1");
}

// A model that runs on data made up in some ways and notes faults on others. After each run that it refuses, it
// waits to be compiled anew.
struct Fake {
  std::set<int> runs_on, has_faults_on;
  std::vector<int> tried;  // the way of each run
  int way = -1, waits = 0;
  bool stale = false;
  graph::Faults faults;
  TimePoint now{};

  MadeUpModel model() {
    faults.results_unwanted = true;
    return {.fill = [this](int to) { way = to; },
            .run = [this]() -> Result<> {
              EXPECT_FALSE(stale);
              tried.push_back(way);
              now += std::chrono::milliseconds{1 + way};
              if (has_faults_on.contains(way))
                faults.add(graph::Faults::unknown, Error{ErrorCode::invalid_argument, "bad"});
              if (runs_on.contains(way) || has_faults_on.contains(way)) return {};
              stale = true;
              waits = 2;
              return invalid("way " + std::to_string(way));
            },
            .usable = [this]() -> Result<> {
              if (waits-- > 0) return fail(ErrorCode::unavailable, "it is compiled anew");
              stale = false;
              return {};
            },
            .now = [this] { return now; },
            .faults = &faults};
  }
};

TEST(MadeUp, TheFirstWayThatRunsIsMeasured) {
  Fake fake{.runs_on = {2, 5}};
  MadeUpChoice choice;
  const auto took = measure_on_made_up(fake.model(), 2, choice, nullptr);
  ASSERT_TRUE(took) << took.error().message;
  EXPECT_THAT(*took, ElementsAre(std::chrono::milliseconds{3}, std::chrono::milliseconds{3}));
  EXPECT_THAT(fake.tried, ElementsAre(0, 1, 2, 2));
  ASSERT_TRUE(measure_on_made_up(fake.model(), 1, choice, nullptr));
  EXPECT_THAT(fake.tried, ElementsAre(0, 1, 2, 2, 2)) << "it is known now";
}

TEST(MadeUp, WaysWithoutFaultsAreBetter) {
  Fake fake{.runs_on = {3}, .has_faults_on = {0, 1}};
  MadeUpChoice choice;
  ASSERT_TRUE(measure_on_made_up(fake.model(), 2, choice, nullptr));
  EXPECT_THAT(fake.tried, ElementsAre(0, 1, 2, 3, 3));
  Fake always{.has_faults_on = {0, 2}};
  choice = {};
  const auto took = measure_on_made_up(always.model(), 2, choice, nullptr);
  ASSERT_TRUE(took);
  EXPECT_THAT(*took, ElementsAre(std::chrono::milliseconds{1}, std::chrono::milliseconds{1}));
  EXPECT_THAT(always.tried, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0));
  ASSERT_TRUE(measure_on_made_up(always.model(), 1, choice, nullptr));
  EXPECT_EQ(always.tried.size(), 10U) << "that is known, too";
}

TEST(MadeUp, WhatRefusesAllSaysWhy) {
  Fake fake;
  MadeUpChoice choice;
  const auto error = measure_on_made_up(fake.model(), 3, choice, nullptr);
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().message, "way 0");
  std::string refused;
  const auto took = measure_on_made_up(fake.model(), 3, choice, &refused);
  ASSERT_TRUE(took);
  EXPECT_THAT(*took, ElementsAre(std::chrono::milliseconds{1}));
  EXPECT_EQ(refused, "way 0");
}

}  // namespace
}  // namespace carillon::engine
