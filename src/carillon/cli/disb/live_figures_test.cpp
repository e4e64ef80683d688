#include <gtest/gtest.h>

#include "carillon/cli/disb/live.h"

namespace carillon::cli {
namespace {

TimePoint at(Duration since_start) {
  return TimePoint{} + 1s + since_start;
}

// A real-time client, and two best-effort ones of one model.
workload::DisbWorkload three_clients() {
  return {.name = "w",
          .length = 1s,
          .clients = {{.name = "a_rt", .model = "urgent", .cls = Class::real_time},
                      {.name = "b_be", .model = "long", .cls = Class::best_effort},
                      {.name = "c_be", .model = "long", .cls = Class::best_effort}}};
}

LiveRequest request(std::size_t client, Duration received, Duration start, Duration end,
                    Duration paused = 0ms) {
  return {.client = client,
          .planned = at(received),
          .times = {.received = at(received),
                    .exec_start = at(start),
                    .exec_end = at(end),
                    .output_end = at(end),
                    .paused = paused}};
}

LiveFigures figures_of_these(std::vector<LiveRequest> requests,
                             LiveDevice device = {.units = 2, .real_time_width = 2}) {
  LiveRun run{.start = at(0ms), .length = 1s, .requests = std::move(requests)};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto own = std::ranges::count(run.requests, i, &LiveRequest::client);
    run.clients.push_back({.requests = static_cast<std::uint64_t>(own)});
  }
  const std::vector<std::string> names{"urgent", "long"};
  return figures_of(three_clients(), names, std::vector<std::size_t>{0, 1, 1}, device, std::move(run));
}

TEST(LiveFigures, APreemptionFindsBestEffortWorkAndNoRealTimeWork) {
  const auto told = figures_of_these({
      request(0, 5ms, 6ms, 9ms),       // nobody is there
      request(1, 10ms, 20ms, 60ms),    //
      request(0, 15ms, 16ms, 18ms),    // it has not begun
      request(0, 30ms, 31ms, 40ms),    // it runs: a preemption
      request(0, 35ms, 40ms, 45ms),    // but another real-time request is there
      request(0, 60ms, 61ms, 62ms),    // it has just ended
      request(2, 62ms, 70ms, 90ms),    // the other client's
      request(0, 80ms, 80500us, 85ms)  // a preemption
  });
  EXPECT_EQ(told.figures.preemptions, (std::vector<Duration>{1ms, 500us}));
  EXPECT_EQ(told.live.preemption_max_us, 1000);
  std::uint64_t counted = 0;
  for (const auto& bin : told.live.preemption_histogram) {
    counted += bin.count;
    const bool of_one = bin.at_most_us == 500 || bin.at_most_us == 1000;
    EXPECT_EQ(bin.count, of_one ? 1U : 0U);
  }
  EXPECT_EQ(counted, 2U);
}

TEST(LiveFigures, WhatPausesCost) {
  const auto told = figures_of_these({
      request(1, 0ms, 0ms, 100ms),            // undisturbed: 100 ms
      request(2, 0ms, 100ms, 200ms),          //
      request(1, 100ms, 200ms, 340ms, 30ms),  // ran 110 ms: 10 ms again
      request(0, 250ms, 250ms, 280ms),
  });
  EXPECT_EQ(told.live.paused_runs, 1U);
  EXPECT_EQ(told.live.paused, 30ms);
  EXPECT_EQ(told.live.lost, 10ms);
  const auto& models = told.figures.models;
  EXPECT_EQ(models[0].real_time, 60ms);  // 30 ms on two threads
  EXPECT_EQ(models[1].best_effort, 310ms);
  EXPECT_EQ(models[1].padded, 0ms);
  EXPECT_EQ(models[1].killed, 1U);
}

TEST(LiveFigures, WithoutAnUndisturbedRunNobodyKnowsWhatPausesCost) {
  const auto told = figures_of_these({request(1, 0ms, 0ms, 100ms, 10ms), request(2, 0ms, 0ms, 110ms, 20ms)});
  EXPECT_EQ(told.live.paused, 30ms);
  EXPECT_EQ(told.live.lost, std::nullopt);
}

TEST(LiveFigures, WhatRunsBesideRealTimeWorkIsPadding) {
  const auto told = figures_of_these({
      request(1, 0ms, 0ms, 100ms),
      request(0, 20ms, 20ms, 30ms),
      request(0, 90ms, 90ms, 120ms),
  });
  EXPECT_EQ(told.figures.models[1].padded, 20ms);
}

TEST(LiveFigures, LatencyIsFromThePlannedArrivalAndWhatEndsLateIsUnfinished) {
  LiveRequest waited = request(0, 30ms, 31ms, 40ms);
  waited.planned = at(10ms);
  const auto told = figures_of_these({waited, request(0, 990ms, 995ms, 1001ms)});
  const auto& client = told.figures.clients[0];
  EXPECT_EQ(client.latencies, std::vector<Duration>{30ms});
  EXPECT_EQ(client.unfinished, 1U);
  EXPECT_EQ(client.requests, 2U);
}

}  // namespace
}  // namespace carillon::cli
