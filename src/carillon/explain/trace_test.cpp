#include "carillon/explain/trace.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace carillon::explain {
namespace {

using schedule::ActionKind;
using schedule::ActionStatus;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr TimePoint at(Duration d) {
  return TimePoint{1s + d};
}

ActionFacts infer(std::uint64_t entry, std::uint32_t device, TimePoint start, TimePoint end,
                  std::vector<std::uint64_t> requests) {
  return {.entry = entry,
          .kind = ActionKind::infer,
          .device = device,
          .model = "m\"1\"",
          .rows = static_cast<int>(requests.size()),
          .predicted = end - start,
          .status = ActionStatus::success,
          .input_start = start - 1ms,
          .input_end = start,
          .exec_start = start,
          .exec_end = end,
          .output_start = end,
          .output_end = end,
          .requests = std::move(requests)};
}
RequestFacts request(std::uint64_t number, TimePoint arrival, TimePoint ended) {
  return {
      .number = number, .model = "m\"1\"", .arrival = arrival, .ended = ended, .outcome = Outcome::on_time};
}

// What the format asks of every trace.
void check(const nlohmann::json& trace) {
  double last = 0;
  std::map<std::pair<int, int>, std::vector<std::string>> open;
  std::set<std::uint64_t> flows;
  for (const auto& event : trace.at("traceEvents")) {
    const auto phase = event.at("ph").get<std::string>();
    ASSERT_TRUE(event.at("pid").is_number_integer() && event.at("tid").is_number_integer());
    if (phase == "M") {
      ASSERT_TRUE(event.at("args").at("name").is_string());
      continue;
    }
    const double ts = event.at("ts").get<double>();
    ASSERT_GE(ts, last) << event;
    last = ts;
    auto& stack = open[{event["pid"].get<int>(), event["tid"].get<int>()}];
    if (phase == "B") {
      ASSERT_TRUE(stack.empty()) << "slices of a thread do not overlap: " << event;
      stack.push_back(event.at("name").get<std::string>());
    } else if (phase == "E") {
      ASSERT_FALSE(stack.empty()) << event;
      stack.pop_back();
    } else if (phase == "s") {
      ASSERT_FALSE(stack.empty()) << "a flow begins in a slice: " << event;
      ASSERT_TRUE(flows.insert(event.at("id").get<std::uint64_t>()).second);
    } else if (phase == "t" || phase == "f") {
      ASSERT_FALSE(stack.empty()) << event;
      ASSERT_TRUE(flows.contains(event.at("id").get<std::uint64_t>())) << event;
    } else {
      ASSERT_EQ(phase, "C") << event;
      ASSERT_GE(event.at("args").at("waiting").get<int>(), 0) << event;
    }
  }
  for (const auto& [thread, stack] : open) EXPECT_TRUE(stack.empty()) << thread.first << ' ' << thread.second;
}

std::vector<std::string> thread_names(const nlohmann::json& trace) {
  std::vector<std::string> out;
  for (const auto& event : trace["traceEvents"])
    if (event["name"] == "thread_name") out.push_back(event["args"]["name"].get<std::string>());
  return out;
}

TEST(Trace, DrawsDevicesRequestsArrowsAndCounters) {
  const std::vector requests{request(1, at(0ms), at(10ms)), request(2, at(1ms), at(10ms)),
                             request(3, at(3ms), at(12ms))};
  std::vector actions{infer(1, 0, at(2ms), at(9ms), {1, 2}), infer(2, 0, at(9ms), at(12ms), {3})};
  actions.push_back({.entry = 3,
                     .kind = ActionKind::load,
                     .device = 1,
                     .model = "m2",
                     .status = ActionStatus::success,
                     .exec_start = at(0ms),
                     .exec_end = at(5ms)});
  const auto trace = nlohmann::json::parse(
      to_trace({.requests = requests, .actions = actions, .device_names = {{0, "cpu"}}, .now = at(20ms)}));
  check(trace);
  EXPECT_THAT(thread_names(trace),
              ElementsAre("open", "open 2", "open 3", "INPUT", "EXEC", "OUTPUT", "LOAD"));
  std::map<std::string, int> count;
  int waiting = 0;
  for (const auto& event : trace["traceEvents"]) {
    ++count[event["ph"].get<std::string>()];
    if (event["ph"] == "C") waiting = std::max(waiting, event["args"]["waiting"].get<int>());
  }
  EXPECT_EQ(count["s"], 3);
  EXPECT_EQ(count["f"], 3);
  EXPECT_EQ(waiting, 2);
}

TEST(Trace, PutsWhatOverlapsOnFurtherThreads) {
  const std::vector actions{infer(1, 0, at(2ms), at(9ms), {1}), infer(2, 0, at(3ms), at(5ms), {2}),
                            infer(3, 0, at(6ms), at(7ms), {3})};
  const auto trace = nlohmann::json::parse(
      to_trace({.requests = {}, .actions = actions, .device_names = {}, .now = at(9ms)}));
  check(trace);
  EXPECT_THAT(thread_names(trace), Contains("EXEC 2"));
  EXPECT_THAT(thread_names(trace), Not(Contains("EXEC 3")));
}

TEST(Trace, OfNothingIsStillATrace) {
  check(nlohmann::json::parse(to_trace({.requests = {}, .actions = {}, .device_names = {}, .now = at(0ms)})));
}

TEST(Trace, EndsWhatHasNotEnded) {
  RequestFacts open = request(1, at(0ms), never);
  open.outcome = Outcome::open;
  ActionFacts runs = infer(1, 0, at(2ms), never, {1});
  runs.exec_end = runs.output_start = runs.output_end = never;
  runs.status.reset();
  const std::vector requests{open};
  const std::vector actions{runs};
  check(nlohmann::json::parse(
      to_trace({.requests = requests, .actions = actions, .device_names = {}, .now = at(5ms)})));
}

TEST(Trace, DrawsManyAtATimeOnAsManyLinesAsThereMayBe) {
  std::vector<RequestFacts> requests;
  for (std::uint64_t i = 0; i < 500; ++i)
    requests.push_back(request(i + 1, at(static_cast<std::int64_t>(i) * 1us), at(10ms)));
  const auto trace = nlohmann::json::parse(
      to_trace({.requests = requests, .actions = {}, .device_names = {}, .now = at(20ms)}));
  check(trace);
  EXPECT_EQ(thread_names(trace).size(), 64U);
}

TEST(Trace, NamesNoModelThatMayNotBeSeen) {
  const std::vector requests{request(1, at(0ms), at(10ms))};
  const std::vector actions{infer(1, 0, at(2ms), at(9ms), {1})};
  const std::string text = to_trace({.requests = requests,
                                     .actions = actions,
                                     .device_names = {},
                                     .now = at(20ms),
                                     .may_see = [](std::string_view) { return false; }});
  check(nlohmann::json::parse(text));
  EXPECT_THAT(text, Not(HasSubstr("m\\\"1")));
}

}  // namespace
}  // namespace carillon::explain
