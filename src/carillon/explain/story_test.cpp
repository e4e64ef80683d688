#include "carillon/explain/story.h"

#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace carillon::explain {
namespace {

using schedule::ActionKind;
using schedule::ActionStatus;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr TimePoint at(Duration d) {
  return TimePoint{1s + d};
}

// The example of docs/explain.md: held for company, then behind another model, and its run is too long.
RequestFacts request_4711() {
  return {.number = 4711,
          .id = "frame-17",
          .application = "camera",
          .key = "team-a",
          .model = "resnet50",
          .version = 1,
          .arrived_unix_us = 1'764'000'000'123'456,
          .arrival = at(0ms),
          .deadline = at(30ms),
          .deadline_from = DeadlineFrom::timeout,
          .handed = at(0ms),
          .at_door = at(0ms),
          .decided = at(40us),
          .ended = at(33120us),
          .outcome = Outcome::late};
}
ActionFacts action(TimePoint exec_start, TimePoint exec_end) {
  return {.entry = 9,
          .kind = ActionKind::infer,
          .device = 0,
          .model = "resnet50",
          .rows = 4,
          .sent = at(9ms),
          .window = {at(9ms), at(18ms)},
          .predicted = 11800us,
          .status = ActionStatus::success,
          .ended = exec_end,
          .input_start = at(9120us),
          .input_end = at(9300us),
          .exec_start = exec_start,
          .exec_end = exec_end,
          .output_start = exec_end,
          .output_end = exec_end + 100us,
          .requests = {4708, 4709, 4711, 4712}};
}
Story story_4711() {
  const std::vector own{action(at(17290us), at(32900us))};
  ActionFacts other = action(at(2ms), at(17280us));
  other.entry = 8;
  other.model = "bert";
  other.rows = 2;
  other.predicted = 12ms;
  other.requests = {1, 2};
  const std::vector others{other};
  Story told = tell(request_4711(), {.own = own, .others = others, .came_later = 1, .now = at(40ms)});
  told.device_name = "cpu";
  return told;
}

// A step that only the table shows is one that a reader of the sentences does not hear of.
TEST(Story, TellsEachStepInItsSentences) {
  const Story whole = story_4711();
  const std::size_t all = sentences(whole).size();
  for (std::size_t i = 0; i < whole.steps.size(); ++i) {
    Story without = whole;
    without.steps.erase(without.steps.begin() + static_cast<std::ptrdiff_t>(i));
    const auto told = sentences(without);
    const bool fewer = told.size() < all || told != sentences(whole);
    EXPECT_TRUE(fewer) << name_of(whole.steps[i].what);
  }
}

TEST(Story, SaysWhatItWaitedForAndWhatMadeItLate) {
  const std::string text = to_text(story_4711());
  EXPECT_THAT(text, HasSubstr("Request 4711 (id \"frame-17\") for model resnet50 version 1 of application "
                              "\"camera\" came at 2025-11-24 16:00:00.123456 UTC, with a deadline 30.000 ms "
                              "later (its parameter timeout)."));
  EXPECT_THAT(text, HasSubstr("Its answer came after 33.120 ms, 3.120 ms after its deadline."));
  EXPECT_THAT(text, HasSubstr("From 2.000 ms to 17.280 ms device 0 (cpu) ran bert, a batch of 2."));
  EXPECT_THAT(text,
              HasSubstr("It ran on device 0 (cpu), in a batch of 4 with 4708, 4709, 4712, from 17.290 ms "
                        "to 32.900 ms: 15.610 ms, 3.810 ms more than the 11.800 ms that were expected."));
  EXPECT_THAT(text, HasSubstr("Had its run taken what was expected, it would have been on time."));
  EXPECT_THAT(text, HasSubstr("From 9.120 ms to 9.300 ms its inputs were copied to device 0 (cpu), which took "
                              "0.180 ms."));
  EXPECT_THAT(text, HasSubstr("Copying its results back took 0.100 ms, and answering 0.120 ms more."));
  EXPECT_THAT(text, HasSubstr("exec   0       |"));
}

// Whoever reads the JSON reads the documentation: the fields of its example, and no others.
TEST(Story, HasTheFieldsThatAreDocumented) {
  std::ifstream file(CARILLON_SOURCE_DIR "/docs/explain.md");
  std::stringstream all;
  all << file.rdbuf();
  const std::string docs = all.str();
  const auto begin = docs.find("```json") + 7;
  const auto documented = nlohmann::ordered_json::parse(docs.substr(begin, docs.find("```", begin) - begin));
  const nlohmann::ordered_json told = to_json(story_4711());
  const auto keys = [](const nlohmann::ordered_json& json) {
    std::vector<std::string> out;
    for (const auto& [key, value] : json.items()) out.push_back(key);
    return out;
  };
  EXPECT_EQ(keys(told), keys(documented));
  EXPECT_EQ(keys(told["steps"][0]), keys(documented["steps"][0]));
  EXPECT_EQ(keys(told["window"]), keys(documented["window"]));
  for (const auto& key : keys(told)) {
    EXPECT_EQ(told[key].is_number(), documented[key].is_number()) << key;
    EXPECT_EQ(told[key].is_string(), documented[key].is_string()) << key;
  }
  for (const auto& key : keys(to_short_json(story_4711()))) EXPECT_TRUE(told.contains(key)) << key;
  // Every name that there is has its place in the text.
  const auto explained = [&](std::string_view name) {
    std::string quoted = "`";
    quoted.append(name).append("`");
    return docs.find(quoted) != std::string::npos;
  };
  for (int i = 0; i <= static_cast<int>(Step::What::answer); ++i)
    EXPECT_TRUE(explained(name_of(static_cast<Step::What>(i)))) << name_of(static_cast<Step::What>(i));
  for (int i = 1; i <= static_cast<int>(last_cause); ++i)
    EXPECT_TRUE(explained(name_of(static_cast<Cause>(i)))) << name_of(static_cast<Cause>(i));
  for (int i = 0; i <= static_cast<int>(last_outcome); ++i)
    EXPECT_TRUE(explained(name_of(static_cast<Outcome>(i)))) << name_of(static_cast<Outcome>(i));
}

TEST(Story, HasItsNumbersInMicroseconds) {
  const nlohmann::ordered_json told = to_json(story_4711());
  EXPECT_EQ(told["deadline_us"], 30000);
  EXPECT_EQ(told["took_us"], 33120);
  EXPECT_EQ(told["predicted_us"], 11800);
  EXPECT_EQ(told["companions"], nlohmann::ordered_json::parse("[4708,4709,4712]"));
  EXPECT_EQ(told["would_take_us"], nullptr);
  EXPECT_EQ(told["window"]["latest_us"], 18000);
}

TEST(Story, KeepsOthersToThemselves) {
  Story told = story_4711();
  withhold(told, [](std::string_view model) { return model != "bert"; }, false);
  const std::string json = to_json(told).dump();
  EXPECT_THAT(json, Not(HasSubstr("bert")));
  EXPECT_THAT(json, Not(HasSubstr("4708")));
  EXPECT_THAT(json, HasSubstr("another model"));
}

TEST(Story, OfARefusalSaysWhetherWaitingHelps) {
  RequestFacts request = request_4711();
  request.outcome = Outcome::refused;
  request.cause = Cause::cannot_finish;
  request.ended = at(100us);
  request.would_take = 42ms;
  request.retry_after = 12ms;
  request.expected =
      Expectation{.exec = 5ms, .batch = 1, .devices = 2, .holding = 1, .busy = 31ms, .actions = 3};
  const std::string text = to_text(tell(request, {.own = {}, .others = {}, .came_later = {}, .now = at(1s)}));
  EXPECT_THAT(text, HasSubstr("It was refused after 0.100 ms (cannot_finish)"));
  EXPECT_THAT(text,
              HasSubstr("It would have finished 42.000 ms after its arrival, 12.000 ms after its deadline"));
  EXPECT_THAT(text, HasSubstr("1 of 2 devices alive held the model; of these, device 0 had least to do: 3 "
                              "actions, expected to run for 31.000 ms"));
  EXPECT_THAT(text, HasSubstr("after 12.000 ms it would fit"));
}

// What is left of a refusal once waiting and the run are taken off, and whether that was what refused it.
TEST(Story, OfARefusalNamesTheMargin) {
  RequestFacts request = request_4711();
  request.outcome = Outcome::refused;
  request.cause = Cause::cannot_finish;
  request.ended = at(100us);
  const struct {
    Duration would_take;
    Expectation expected;
    std::string says;  // empty: nothing
  } rows[] = {
      {31ms,
       {.exec = 28ms, .batch = 1, .devices = 1, .holding = 1},
       "Beyond waiting and that run 2.900 ms were kept for the ways to the device and back and for runs that "
       "take "
       "longer than expected (the policy's margin, as measured of late): it is what refused the request, "
       "which had "
       "1.900 ms to spare without it."},
      // As it had too little time anyway.
      {43ms,
       {.exec = 40ms, .batch = 1, .devices = 1, .holding = 1},
       "Beyond waiting and that run 2.900 ms were kept for the ways to the device and back and for runs that "
       "take "
       "longer than expected (the policy's margin, as measured of late)."},
      {31ms,
       {.exec = 5ms, .batch = 1, .devices = 1, .holding = 1, .busy = 24ms, .actions = 2},
       "run at least 1.900 ms were kept"},
      {31ms, {.exec = 28ms, .batch = 1, .devices = 1, .holding = 0}, ""},
      {31ms, {.exec = 5ms, .batch = 1, .devices = 1, .holding = 1, .busy = 40ms, .actions = 2}, ""},
  };
  for (const auto& row : rows) {
    request.would_take = row.would_take;
    request.expected = row.expected;
    const Story told = tell(request, {.own = {}, .others = {}, .came_later = {}, .now = at(1s)});
    const auto json = to_json(told);
    if (row.says.empty()) {
      EXPECT_THAT(to_text(told), Not(HasSubstr("margin")));
      EXPECT_EQ(json["expected"]["margin_us"], nullptr);
      continue;
    }
    EXPECT_THAT(to_text(told), HasSubstr(row.says));
    EXPECT_EQ(json["expected"]["margin_us"], margin(request)->count() / 1000);
  }
}

TEST(Story, StaysShortWhereADeviceWasBusyForLong) {
  std::vector<ActionFacts> others;
  for (int i = 0; i < 500; ++i) others.push_back(action(at(i * 20us), at((i + 1) * 20us)));
  const std::vector own{action(at(17290us), at(32900us))};
  const Story told = tell(request_4711(), {.own = own, .others = others, .came_later = {}, .now = at(1s)});
  EXPECT_LE(told.steps.size(), most_steps);
  EXPECT_GT(told.left_out, 400U);
}

// A clock that jumps, or a record that was half written, must not make a story that cannot be told.
TEST(Story, TakesTimesInAnyOrder) {
  RequestFacts request = request_4711();
  request.decided = at(-5ms);
  request.ended = at(-1ms);
  const std::vector own{action(at(3ms), at(2ms))};
  EXPECT_FALSE(to_text(tell(request, {.own = own, .others = {}, .came_later = {}, .now = at(0ms)})).empty());
  request.deadline = request.arrival;
  EXPECT_FALSE(to_text(tell(request, {.own = {}, .others = own, .came_later = {}, .now = at(0ms)})).empty());
}

}  // namespace
}  // namespace carillon::explain
