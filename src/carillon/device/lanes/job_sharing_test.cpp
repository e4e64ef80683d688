#include "carillon/device/lanes/job_sharing.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/seeds.h"
#include "carillon/device/lanes/testing/job_world.h"

namespace carillon::device {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::run_world;
using testing::WorldEnd;
using testing::WorldFigures;
using testing::WorldJob;
using testing::WorldOptions;

struct JobsTest : ::testing::Test {
  static constexpr TimePoint at(Duration d) { return TimePoint{d}; }
  // Seconds from the start.
  static double ended(const WorldFigures& figures, std::size_t job) {
    return to_seconds(figures.jobs[job].at - TimePoint{});
  }
  static WorldOptions under(const std::string& policy, Bytes capacity = mib(1000)) {
    WorldOptions options{.policy = policy};
    options.sharing.capacity = capacity;
    return options;
  }
  // `length` of device time in iterations of 10 ms.
  static WorldJob job(Duration comes, Duration length, JobMemory memory = {mib(50), mib(300)},
                      double demand = 1) {
    return {.comes = at(comes),
            .iterations = static_cast<int>(length / milliseconds(10)),
            .iteration = milliseconds(10),
            .demand = demand,
            .memory = memory};
  }
  static WorldFigures run(const std::vector<WorldJob>& jobs, const WorldOptions& options) {
    auto figures = run_world(jobs, options, at(hours(100)));
    EXPECT_EQ(figures.broken, std::nullopt);
    return figures;
  }
};

// --- Policies

TEST_F(JobsTest, FifoIsOneAfterTheOther) {
  const auto f = run({job(0s, 10s), job(1s, 2s), job(2s, 1s)}, under("fifo"));
  EXPECT_NEAR(ended(f, 0), 10, 1e-6);
  EXPECT_NEAR(ended(f, 1), 12, 1e-6);
  EXPECT_NEAR(ended(f, 2), 13, 1e-6);
}

TEST_F(JobsTest, SrtfLetsTheShorterOneFirstAtTheNextBoundary) {
  const auto f = run({job(0s, 10s), job(1005ms, 2s), job(1500ms, 1s)}, under("srtf"));
  EXPECT_NEAR(ended(f, 2), 2.5, 0.011);
  EXPECT_NEAR(ended(f, 1), 4.01, 0.011);
  EXPECT_NEAR(ended(f, 0), 13, 1e-6);
}

TEST_F(JobsTest, SrtfTakesThoseOfUnknownLengthLast) {
  auto unknown = job(0s, 1s);
  unknown.says_remaining = false;
  const auto f = run({unknown, job(0s, 5s)}, under("srtf"));
  EXPECT_LT(ended(f, 1), ended(f, 0));
}

// Figure 2.9: halves, then thirds, and back.
TEST_F(JobsTest, FairSharesInHalvesAndThirds) {
  std::vector<WorldJob> jobs{job(0s, 40s), job(15s, 30s), job(30s, 20s)};
  const auto options = under("fair");
  const auto had = [&](Duration from, Duration to, std::size_t which) {
    const auto a = run_world(jobs, options, at(from)), b = run_world(jobs, options, at(to));
    return to_seconds(b.jobs[which].held - a.jobs[which].held);
  };
  EXPECT_NEAR(had(0s, 14s, 0), 14, 0.01);
  for (const std::size_t i : {0, 1}) EXPECT_NEAR(had(16s, 26s, i), 5, 0.11) << i;
  for (const std::size_t i : {0, 1, 2}) EXPECT_NEAR(had(31s, 43s, i), 4, 0.11) << i;
  const auto f = run(jobs, options);
  EXPECT_NEAR(ended(f, 0) + ended(f, 1) + ended(f, 2), 3 * 90, 60) << "all end near the end";
  EXPECT_NEAR(to_seconds(f.end - TimePoint{}), 90, 1e-6) << "no time is lost";
}

TEST_F(JobsTest, FairByWeight) {
  auto heavy = job(0s, 30s), light = job(0s, 30s);
  heavy.weight = 3;
  const auto f = run_world({heavy, light}, under("fair"), at(20s));
  EXPECT_NEAR(to_seconds(f.jobs[0].held), 15, 0.2);
  EXPECT_NEAR(to_seconds(f.jobs[1].held), 5, 0.2);
}

// What a light one had alone is millions of seconds by weight, beside which a heavy one's iterations vanish.
TEST_F(JobsTest, FairTellsTheHeavyFromTheLight) {
  for (const auto policy : {"fair", "pack"}) {
    SCOPED_TRACE(policy);
    auto sharing = make_job_sharing(policy, {.capacity = mib(100), .quantum = milliseconds(50)}).value();
    JobCommands out;
    TimePoint time = at(0s);
    const JobMemory memory{mib(1), mib(90)};
    for (const std::uint32_t id : {0U, 1U}) {
      sharing->on(JobCame{{id},
                          {.persistent = memory.persistent,
                           .ephemeral = memory.ephemeral,
                           .weight = id == 0 ? least_job_weight : most_job_weight}},
                  time, out);
      sharing->on(IterationEnded{.job = {id}, .stopped = true, .iterations = 0}, time, out);
      if (id == 0)
        sharing->on(IterationEnded{.job = {0}, .busy = hours(1000), .memory = memory}, time += hours(1000),
                    out);
    }
    int heavy = 0, light = 0;
    for (TimePoint wake = time; light < 3 && heavy < 200'000;) {
      for (const JobView& view : sharing->jobs(time)) {
        if (view.state != JobState::running && view.state != JobState::recalled) continue;
        const bool is_light = view.job.value == 0;
        ++(is_light ? light : heavy);
        const Duration took = is_light ? Duration{10'000} : Duration{200'000'000};
        time += took;
        out.clear();
        if (wake <= time) sharing->on(JobWake{}, time, out);
        const bool recalled = view.state == JobState::recalled || !out.empty();
        wake = sharing->on(
            IterationEnded{.job = view.job, .stopped = recalled, .busy = took, .memory = memory}, time, out);
        break;
      }
    }
    // Each 10 us of the light one are 10,000 s of the heavy one, which begins where the light one is, and may
    // be 50 s ahead.
    EXPECT_EQ(light, 3);
    EXPECT_NEAR(heavy, 2 * 50'000 + 250, 500);
  }
}

// Two run side by side, each in a lane of its own; one that needs most of the memory, and little time, does
// not wait for them to end.
TEST_F(JobsTest, BestRunsTheShortestEvenWhereLanesOfCompanionsAreInItsWay) {
  const WorldJob large = job(0s, 100s, {mib(50), mib(400)}, 0.4),
                 little = job(20s, 1s, {mib(50), mib(800)}, 0.4);
  const auto f = run({large, large, little}, under("best", mib(1000)));
  ASSERT_EQ(f.broken, std::nullopt);
  EXPECT_LT(to_seconds(f.jobs[2].at - TimePoint{}), 25);
  EXPECT_LT(to_seconds(f.jobs[0].at - TimePoint{}), 125) << "they run side by side before and after";
  EXPECT_LT(to_seconds(f.jobs[1].at - TimePoint{}), 125);
}

TEST_F(JobsTest, PackRunsWhatFitsSideBySide) {
  const WorldJob small = job(0s, 10s, {mib(50), mib(200)}, 0.4);
  const auto f = run({small, small, small, small, small}, under("pack", mib(1100)));
  // Four lanes, with demands of 1.6 on one device: three have 10 s of work at 1/1.6; the fourth has two jobs,
  // which take turns, and then 10 s left of 20.
  std::vector<double> ends;
  for (std::size_t i = 0; i < 5; ++i) ends.push_back(ended(f, i));
  std::ranges::sort(ends);
  EXPECT_NEAR(ends[0], 16, 0.2);
  EXPECT_NEAR(ends[2], 16, 0.2);
  EXPECT_NEAR(ends[4], 26, 0.2);
}

TEST_F(JobsTest, PackLetsSmallOnesPastOneThatDoesNotFitAndNotForEver) {
  auto options = under("pack");
  options.sharing.longest_wait = seconds(30);
  std::vector<WorldJob> jobs{job(0s, 20s, {mib(100), mib(500)}), job(1s, 5s, {mib(100), mib(900)})};
  for (int i = 0; i < 100; ++i) jobs.push_back(job(milliseconds(500 * i), 2s, {mib(10), mib(100)}, 0.2));
  const auto f = run(jobs, options);
  EXPECT_LT(f.jobs[2].first_ran, at(1s));
  EXPECT_TRUE(f.jobs[1].finished);
  EXPECT_LT(f.jobs[1].first_ran, f.jobs[101].first_ran);
}

TEST_F(JobsTest, BestPacksWhereThatPaysAndNotWhereItDoesNot) {
  std::vector<WorldJob> half, whole;
  for (int i = 0; i < 10; ++i) {
    half.push_back(job(0s, 20s, {mib(20), mib(150)}, 0.5));
    whole.push_back(job(0s, 20s, {mib(20), mib(150)}, 1.0));
  }
  EXPECT_LT(to_seconds(run(half, under("best")).end - TimePoint{}), 110)
      << "two at a time, nearly all the time";
  const auto best = run(whole, under("best")), srtf = run(whole, under("srtf"));
  double all_best = 0, all_srtf = 0;
  for (std::size_t i = 0; i < 10; ++i) all_best += ended(best, i), all_srtf += ended(srtf, i);
  EXPECT_LT(all_best, all_srtf * 1.03);
  EXPECT_LT(best.end, at(201s));
}

TEST_F(JobsTest, BestDoesNotNeedToKnowLengths) {
  std::vector<WorldJob> jobs{job(0s, 300s)};
  for (int i = 0; i < 20; ++i) jobs.push_back(job(seconds(10 + i), 2s));
  for (WorldJob& j : jobs) j.says_remaining = false;
  const auto best = run(jobs, under("best"));
  for (std::size_t i = 1; i < jobs.size(); ++i) EXPECT_LT(ended(best, i), 100) << i;
}

TEST_F(JobsTest, BestLetsNobodyWaitForEver) {
  auto options = under("best");
  options.sharing.longest_wait = seconds(60);
  options.sharing.catch_up = 10;
  std::vector<WorldJob> jobs{job(0s, 100s)};
  for (int i = 0; i < 400; ++i) jobs.push_back(job(seconds(i), 1s));  // there is always a shorter one
  const auto f = run_world(jobs, options, at(400s));
  EXPECT_EQ(f.broken, std::nullopt);
  // 6 s whenever it had nothing for 60; what it gets to be measured beside others counts as having had
  // something.
  EXPECT_GT(f.jobs[0].held, seconds(20));
  options.sharing.longest_wait = hours(6);
  EXPECT_LT(run_world(jobs, options, at(400s)).jobs[0].held, seconds(10))
      << "it would have had next to nothing";
}

// It waits for requests, and says so: others are not kept from the device meanwhile.
TEST_F(JobsTest, WhoIsIdleIsNotWaitedFor) {
  for (const auto policy : job_policy_names()) {
    if (policy == "fifo") continue;  // one after the other, to their ends
    SCOPED_TRACE(policy);
    auto sharing = make_job_sharing(policy, {.capacity = mib(1000)}).value();
    JobCommands out;
    TimePoint time = at(0s);
    const auto hear = [&](const JobEvent& event) {
      out.clear();
      sharing->on(event, time += milliseconds(10), out);
    };
    for (const std::uint32_t id : {0U, 1U}) {
      hear(JobCame{{id}, {.persistent = mib(10), .ephemeral = mib(10)}});
      hear(IterationEnded{.job = {id}, .stopped = true, .iterations = 0});
    }
    int runs[2] = {};
    for (int i = 0; i < 2000; ++i) {
      for (const std::uint32_t id : {0U, 1U}) {
        const JobState state = sharing->jobs(time)[id].state;
        // The second has something to do every now and then.
        if (state == JobState::starting && (id == 0 || i % 50 == 0))
          hear(IterationEnded{.job = {id}, .stopped = true, .iterations = 0});
        if (state != JobState::running && state != JobState::recalled) continue;
        ++runs[id];
        hear(IterationEnded{.job = {id},
                            .stopped = true,
                            .idle = true,
                            .busy = milliseconds(10),
                            .memory = {mib(10), mib(10)}});
      }
    }
    EXPECT_GT(runs[0], 800) << "of 1,000 that there is time for";
    EXPECT_GT(runs[1], 20) << "of 40";
  }
}

// Nor is one that best wants to measure by itself, beside one that always has something to do.
// Forty that have nothing to do yet: whoever has is let in at once, however many were before.
TEST_F(JobsTest, WhoHasNothingToDoYetKeepsNobodyOut) {
  for (const auto policy : {"pack", "fair", "best"}) {
    SCOPED_TRACE(policy);
    auto sharing = make_job_sharing(policy, {.capacity = mib(1000)}).value();
    JobCommands out;
    for (std::uint32_t id = 0; id < 40; ++id) {
      sharing->on(JobCame{{id}, {.persistent = mib(10), .ephemeral = mib(10), .remaining = seconds(1 + id)}},
                  at(0s), out);
      ASSERT_TRUE(std::ranges::any_of(out, [&](const JobCommand& c) {
        return c.kind == JobCommand::Kind::admit && c.job == JobId{id};
      })) << id;
      sharing->on(IterationEnded{.job = {id}, .stopped = true, .idle = true, .iterations = 0}, at(0s), out);
    }
    EXPECT_TRUE(
        std::ranges::none_of(out, [](const JobCommand& c) { return c.kind == JobCommand::Kind::grant; }));
    out.clear();
    sharing->on(IterationEnded{.job = {39}, .stopped = true, .iterations = 0}, at(1s), out);
    EXPECT_EQ(
        std::ranges::count_if(out, [](const JobCommand& c) { return c.kind == JobCommand::Kind::grant; }), 1);
  }
}

TEST_F(JobsTest, WhoIsIdleIsNotWaitedForToBeMeasured) {
  auto sharing = make_job_sharing("best", {.capacity = mib(1000)}).value();
  JobCommands out;
  TimePoint time = at(0s);
  const auto hear = [&](const JobEvent& event) {
    out.clear();
    sharing->on(event, time += milliseconds(10), out);
  };
  for (const std::uint32_t id : {0U, 1U}) {  // the first goes before the second
    hear(JobCame{{id}, {.persistent = mib(10), .ephemeral = mib(10), .remaining = seconds(1000 * (1 + id))}});
    hear(IterationEnded{.job = {id}, .stopped = true, .iterations = 0});
  }
  int runs[2] = {}, rounds = 0;
  for (; rounds < 4000; ++rounds) {
    bool none = true;
    for (const std::uint32_t id : {0U, 1U}) {
      const JobState state = sharing->jobs(time)[id].state;
      if (id == 1 && state == JobState::starting && rounds % 40 == 0)
        hear(IterationEnded{.job = {id}, .stopped = true, .iterations = 0});
      if (state != JobState::running && state != JobState::recalled) continue;
      none = false;
      ++runs[id];
      hear(IterationEnded{.job = {id},
                          .stopped = id == 1 || state == JobState::recalled,
                          .idle = id == 1,
                          .busy = milliseconds(10),
                          .memory = {mib(10), mib(10)}});
    }
    if (none) hear(JobWake{});
  }
  EXPECT_GT(runs[0], rounds * 9 / 10);
  EXPECT_GT(runs[1], 5) << "else nobody was measured";
}

// --- Memory

TEST_F(JobsTest, WhatFitsNoDeviceIsRefusedWithWhatWould) {
  auto sharing = make_job_sharing("fair", {.capacity = mib(100)}).value();
  JobCommands out;
  sharing->on(JobCame{{7}, {.persistent = mib(60), .ephemeral = mib(41)}}, at(0s), out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].kind, JobCommand::Kind::refuse);
  EXPECT_EQ(out[0].reason, JobReason::too_large);
  EXPECT_EQ(out[0].fits, (JobMemory{mib(60), mib(40)}));
  out.clear();
  sharing->on(JobCame{{8}, {.persistent = Bytes{~std::uint64_t{0}}, .ephemeral = mib(41)}}, at(0s), out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].kind, JobCommand::Kind::refuse);
}

TEST_F(JobsTest, OnlyWhoTakesTooMuchGoes) {
  auto greedy = job(0s, 5s, {mib(50), mib(100)});
  greedy.grows_at = 100;
  greedy.grows_to = {mib(50), mib(1000)};
  for (const auto policy : job_policy_names()) {
    const auto f = run({job(0s, 5s), greedy, job(0s, 5s)}, under(std::string(policy)));
    EXPECT_TRUE(f.jobs[0].finished && f.jobs[2].finished) << policy;
    EXPECT_FALSE(f.jobs[1].finished) << policy;
    EXPECT_EQ(f.jobs[1].reason, JobReason::no_memory) << policy;
  }
}

TEST_F(JobsTest, ALaneGrowsForWhoAsksWhereThereIsRoom) {
  auto grows = job(0s, 5s, {mib(50), mib(100)});
  grows.grows_at = 100;
  grows.grows_to = {mib(60), mib(500)};
  for (const auto policy : job_policy_names()) {
    const auto f = run({grows, job(0s, 5s)}, under(std::string(policy)));
    EXPECT_TRUE(f.jobs[0].finished && f.jobs[1].finished) << policy;
  }
}

TEST_F(JobsTest, AGapThatKeepsAJobOutIsClosedAtABoundary) {
  auto sharing = make_job_sharing("pack", {.capacity = mib(1000)}).value();
  JobCommands out;
  TimePoint time = at(0s);
  const auto hear = [&](const JobEvent& event) {
    out.clear();
    sharing->on(event, time += milliseconds(1), out);
  };
  const auto said = [&](JobCommand::Kind kind, std::uint32_t job) {
    return std::ranges::any_of(out,
                               [&](const JobCommand& c) { return c.kind == kind && c.job == JobId{job}; });
  };
  for (const std::uint32_t id : {0U, 1U}) {
    hear(JobCame{{id}, {.persistent = mib(0), .ephemeral = mib(300)}});
    hear(IterationEnded{.job = {id}, .stopped = true, .iterations = 0});
  }
  hear(JobGone{{0}});
  // 850 in all; but the other's lane ends at 600.
  hear(JobCame{{2}, {.persistent = mib(500), .ephemeral = mib(50)}});
  EXPECT_FALSE(said(JobCommand::Kind::admit, 2));
  EXPECT_TRUE(said(JobCommand::Kind::recall, 1));
  hear(IterationEnded{.job = {1}, .stopped = true, .memory = {mib(0), mib(300)}});
  EXPECT_TRUE(said(JobCommand::Kind::admit, 2));
  EXPECT_TRUE(said(JobCommand::Kind::grant, 1));
  EXPECT_EQ(sharing->lanes().lane(sharing->lanes().lane_of({1})).offset, Bytes{});
}

TEST_F(JobsTest, TheLastToComeInGoesWhereTheCapacityFalls) {
  auto options = under("fair");
  options.capacities = {{at(2s), mib(420)}};
  const auto f = run({job(0s, 5s), job(1s, 5s), job(1s, 5s)}, options);
  EXPECT_TRUE(f.jobs[0].finished);
  EXPECT_TRUE(f.jobs[1].finished);
  EXPECT_EQ(f.jobs[2].reason, JobReason::capacity_fell);
}

// --- Faults

TEST_F(JobsTest, WhoHangsIsFrozenOrEvictedAndTheOthersGoOn) {
  auto hangs = job(0s, 5s);
  hangs.hangs_at = 50;
  for (const auto policy : job_policy_names())
    for (const bool evict : {false, true}) {
      auto options = under(std::string(policy));
      options.sharing.hang_after = seconds(2);
      options.sharing.evict_hanging = evict;
      const auto f = run_world({hangs, job(0s, 5s), job(0s, 5s)}, options, at(100s));
      SCOPED_TRACE(std::string(policy) + (evict ? ", evicted" : ", frozen"));
      EXPECT_EQ(f.broken, std::nullopt);
      EXPECT_EQ(f.jobs[0].reason, evict ? JobReason::hangs : JobReason::none);
      if (policy == "fifo" && !evict) continue;  // the one before has not ended
      EXPECT_TRUE(f.jobs[1].finished && f.jobs[2].finished);
    }
}

TEST_F(JobsTest, AFirstIterationHasTenTimesAsLong) {
  auto compiles = job(0s, 1s);
  compiles.iteration = seconds(15);
  compiles.iterations = 2;
  auto options = under("fair");
  options.sharing.hang_after = seconds(2);
  options.sharing.evict_hanging = true;
  const auto f = run({compiles, job(0s, 1s)}, options);
  EXPECT_TRUE(f.jobs[0].finished);
}

TEST_F(JobsTest, EverythingStandsStillWhileTheDeviceIsWanted) {
  for (const auto policy : job_policy_names()) {
    auto options = under(std::string(policy));
    options.wanted = {at(1003ms), at(3003ms), at(4s), at(4500ms)};
    const auto f = run({job(0s, 2s), job(0s, 2s)}, options);
    EXPECT_NEAR(to_seconds(f.end - TimePoint{}), 6.5, 0.02) << policy;
  }
}

// What a job says is not to be trusted.
TEST_F(JobsTest, NonsenseIsPassedOverOrEvictsWhoSaysIt) {
  for (const auto policy : job_policy_names()) {
    SCOPED_TRACE(policy);
    auto sharing = make_job_sharing(policy, {.capacity = mib(1000)}).value();
    JobCommands out;
    TimePoint now = at(0s);
    const auto hear = [&](const JobEvent& event) {
      out.clear();
      now += milliseconds(1);
      sharing->on(event, now, out);
      return out.size();
    };
    EXPECT_EQ(hear(IterationEnded{.job = {3}}), 0U) << "not here";
    EXPECT_EQ(hear(JobGone{{3}}), 0U);
    EXPECT_EQ(hear(MemoryAsked{{3}, {mib(1), mib(1)}}), 0U);
    EXPECT_EQ(hear(DeviceFree{}), 0U) << "it was";
    EXPECT_EQ(hear(JobWake{}), 0U);
    EXPECT_EQ(hear(JobCame{{3}, {.persistent = mib(10), .ephemeral = mib(10)}}), 1U);
    EXPECT_EQ(hear(JobCame{{3}, {}}), 0U) << "here already";
    EXPECT_EQ(hear(IterationEnded{.job = {3}, .iterations = 5, .busy = 1s}), 0U) << "it was never granted";
    EXPECT_EQ(hear(IterationEnded{.job = {3}, .stopped = true, .iterations = 0}), 2U) << "open, grant";
    EXPECT_EQ(hear(IterationEnded{.job = {3}, .iterations = 5, .busy = hours(1000)}), 0U);
    EXPECT_LT(sharing->jobs(now)[0].attained, 1s) << "device time is counted here";
    EXPECT_THAT(hear(IterationEnded{.job = {3}, .iterations = 1, .busy = -1s}), ::testing::Ge(1U));
    EXPECT_EQ(out[0].kind, JobCommand::Kind::evict);
    EXPECT_EQ(out[0].reason, JobReason::bad_report);
    EXPECT_TRUE(sharing->jobs(now).empty());
    EXPECT_EQ(sharing->lanes().lanes_open(), 0U);
    for (const double weight : {0.0, -1.0, 1e-7, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
      EXPECT_EQ(hear(JobCame{{4}, {.weight = weight}}), 1U);
      EXPECT_EQ(out[0].kind, JobCommand::Kind::refuse);
    }
    // As long as can be said: nothing overflows, which the sanitizers see.
    const Duration ages = Duration::max();
    EXPECT_EQ(hear(JobCame{{6}, {.persistent = mib(1), .ephemeral = mib(1), .remaining = ages}}), 1U);
    EXPECT_EQ(hear(IterationEnded{.job = {6}, .stopped = true, .iterations = 0}), 2U);
    EXPECT_EQ(hear(IterationEnded{.job = {6}, .busy = ages, .remaining = ages}), 0U);
    EXPECT_GT(sharing->jobs(now)[0].remaining, ages / 2);
    hear(JobGone{{6}});
    EXPECT_EQ(hear(CapacityChanged{Bytes{~std::uint64_t{0}}}), 0U);
    EXPECT_EQ(hear(CapacityChanged{Bytes{}}), 0U);
    EXPECT_EQ(hear(JobCame{{5}, {}}), 1U);
    EXPECT_EQ(out[0].kind, JobCommand::Kind::refuse) << "nothing fits no memory";
  }
}

TEST_F(JobsTest, OptionsThatCannotBe) {
  EXPECT_FALSE(make_job_sharing("lifo", {.capacity = mib(1)}).has_value());
  EXPECT_NE(
      make_job_sharing("lifo", {.capacity = mib(1)}).error().message.find("fifo, srtf, pack, fair, best"),
      std::string::npos);
  EXPECT_FALSE(make_job_sharing("fifo", {}).has_value());
  EXPECT_FALSE(make_job_sharing("fair", {.capacity = mib(1), .quantum = Duration{1}}).has_value());
  EXPECT_FALSE(make_job_sharing("best", {.capacity = mib(1), .longest_wait = Duration{0}}).has_value());
}

// --- Random worlds

struct RandomWorld {
  std::vector<WorldJob> jobs;
  WorldOptions options;
  bool may_stick = false;  // a job that hangs and stays
};

RandomWorld random_world(std::uint64_t seed, const std::string& policy) {
  Random random(seed);
  const auto between = [&](double low, double high) { return low + (high - low) * random.uniform(); };
  const auto one_in = [&](std::uint64_t n) { return random.below(n) == 0; };
  RandomWorld world;
  WorldOptions& o = world.options;
  o.policy = policy;
  o.sharing.capacity = mib(1000 + random.below(4000));
  o.sharing.hang_after = seconds(2);
  o.sharing.evict_hanging = one_in(2);
  o.sharing.contiguous = !one_in(3);
  o.sharing.longest_wait = one_in(3) ? seconds(5) : Duration{hours(6)};
  const std::size_t count = one_in(50) ? 300 : 1 + random.below(30);
  for (std::size_t i = 0; i < count; ++i) {
    WorldJob job{.comes = TimePoint{from_ms(between(0, 20'000))},
                 .startup = from_ms(between(0, 500)),
                 .iterations = static_cast<int>(1 + random.below(count > 100 ? 5 : 200)),
                 .iteration = from_ms(between(1, 100)),
                 .demand = between(0.2, 1),
                 .memory = {mib(random.below(400)), mib(1 + random.below(1500))},
                 .says_memory = !one_in(4),
                 .says_remaining = !one_in(3),
                 .weight = one_in(3) ? between(0.5, 4) : 1};
    if (one_in(10)) job.dies_at = static_cast<int>(random.below(50));
    if (one_in(15)) {
      job.hangs_at = static_cast<int>(random.below(50));
      world.may_stick = world.may_stick || !o.sharing.evict_hanging;
    }
    if (one_in(8)) {
      job.grows_at = static_cast<int>(random.below(50));
      job.grows_to = {job.memory.persistent * (1 + random.below(3)),
                      job.memory.ephemeral * (1 + random.below(9))};
    }
    world.jobs.push_back(job);
  }
  if (one_in(2)) {
    TimePoint t{};
    for (std::uint64_t k = 0, times = 2 * random.below(30); k < times; ++k)
      o.wanted.push_back(t += from_ms(between(1, k % 2 == 0 ? 1000 : 50)));
  }
  if (one_in(4))
    o.capacities.push_back({TimePoint{from_ms(between(0, 20'000))}, mib(500 + random.below(3000))});
  if (one_in(3)) o.mangled = random.below(1U << 30);
  o.loses = one_in(2);
  if (one_in(10))
    for (WorldJob& job : world.jobs) job.weight = std::pow(10, between(-6, 3));
  return world;
}

class JobWorlds : public ::testing::TestWithParam<std::string> {};

// No promise is broken, and every job comes to an end, once.
TEST_P(JobWorlds, PromisesHold) {
  const auto [first, last] = carillon::testing::seeds_from("CARILLON_JOB_SEEDS", {0, 999});
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const RandomWorld world = random_world(seed, GetParam());
    const WorldFigures figures = run_world(world.jobs, world.options, TimePoint{hours(20)});
    ASSERT_EQ(figures.broken, std::nullopt) << "seed " << seed;
    if (world.may_stick) continue;
    if (figures.lost > 0 && !world.options.sharing.evict_hanging) continue;
    // The last of all may hang, as it is in nobody's way.
    const auto stuck = [&](const WorldJob& job) {
      return (job.hangs_at || figures.lost > 0) &&
             figures.jobs[static_cast<std::size_t>(&job - world.jobs.data())].at == TimePoint::max();
    };
    if (std::ranges::count_if(world.jobs, stuck) == 1) {
      ASSERT_EQ(std::ranges::count(figures.jobs, TimePoint::max(), &WorldEnd::at), 1) << "seed " << seed;
      continue;
    }
    for (std::size_t i = 0; i < world.jobs.size(); ++i)
      ASSERT_NE(figures.jobs[i].at, TimePoint::max()) << "seed " << seed << ": job " << i << " never ended";
  }
}

// Whoever had waited for too long kept its turn for ever where it was frozen in it.
TEST(JobWorldsFound, ATurnEndsThoughTheDeviceWasWantedInIt) {
  for (const std::uint64_t seed : {155454, 202258, 273491, 307691, 421353, 438782, 455439}) {
    const RandomWorld world = random_world(seed, "best");
    EXPECT_EQ(run_world(world.jobs, world.options, TimePoint{hours(20)}).broken, std::nullopt)
        << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, JobWorlds, ::testing::Values("fifo", "srtf", "pack", "fair", "best"),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace carillon::device
