#include "carillon/simulate/jobs.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/device/lanes/testing/job_checker.h"
#include "carillon/workload/jobs.h"

namespace carillon::simulate {
namespace {

using device::JobCommand;
using device::JobEvent;
using device::JobId;
using device::LaneId;
using Kind = device::JobCommand::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TimePoint at_ms(double ms) {
  return TimePoint{} + from_ms(ms);
}

// A policy that does what a test says, and writes down what it is told ("10 ended 0 stopped"), but for jobs
// that are ready.
class Scripted final : public device::JobSharing {
 public:
  using Answer = std::function<TimePoint(Scripted&, const JobEvent&, TimePoint, device::JobCommands&)>;
  explicit Scripted(Answer answer) : answer_(std::move(answer)) {}

  TimePoint on(const JobEvent& event, TimePoint now, device::JobCommands& out) override {
    const std::string text = text_of(event);
    if (!text.empty()) told.push_back(fmt::format("{:g} {}", to_ms(now - TimePoint{}), text));
    return answer_(*this, event, now, out);
  }
  std::vector<device::JobView> jobs(TimePoint) const override { return {}; }
  std::optional<JobId> next_after(JobId) const override { return std::nullopt; }
  const device::Lanes& lanes() const override { return lanes_; }

  // Commands in few words.
  static JobCommand of(Kind kind, std::uint32_t job, std::uint32_t lane = 0) {
    return {.kind = kind,
            .job = JobId{job},
            .lane = LaneId{lane},
            .offset = {},
            .size = {},
            .reason = {},
            .fits = {}};
  }
  static JobCommand open(std::uint32_t lane, Bytes size) {
    JobCommand command = of(Kind::open, 0, lane);
    command.size = size;
    return command;
  }

  std::vector<std::string> told;
  std::vector<device::IterationEnded> ended;

 private:
  std::string text_of(const JobEvent& event) {
    if (const auto* e = std::get_if<device::JobCame>(&event)) return fmt::format("came {}", e->job.value);
    if (const auto* e = std::get_if<device::IterationEnded>(&event)) {
      if (ready_.insert(e->job).second) return "";
      ended.push_back(*e);
      return fmt::format("ended {}{}{}", e->job.value, e->stopped ? " stopped" : "",
                         e->iterations == 0 ? " before" : "");
    }
    if (const auto* e = std::get_if<device::JobGone>(&event)) return fmt::format("gone {}", e->job.value);
    if (const auto* e = std::get_if<device::MemoryAsked>(&event))
      return fmt::format("asked {} {}+{}", e->job.value, e->memory.persistent.count,
                         e->memory.ephemeral.count);
    if (std::holds_alternative<device::DeviceWanted>(event)) return "wanted";
    if (const auto* e = std::get_if<device::DeviceFree>(&event))
      return e->until == TimePoint::max() ? "free"
                                          : fmt::format("free until {:g}", to_ms(e->until - TimePoint{}));
    if (const auto* e = std::get_if<device::CapacityChanged>(&event))
      return fmt::format("capacity {}", e->capacity.count);
    return "wake";
  }

  Answer answer_;
  std::set<JobId> ready_;
  device::Lanes lanes_{gib(1)};
};

// It says so, out of its lane, before its first iteration.
bool is_ready(const JobEvent& event) {
  const auto* ended = std::get_if<device::IterationEnded>(&event);
  return ended != nullptr && ended->stopped && !ended->idle && ended->iterations == 0;
}

// Every job has a lane of its own, and runs as soon as it comes, whatever the others do.
TimePoint side_by_side(Scripted&, const JobEvent& event, TimePoint, device::JobCommands& out) {
  if (const auto* came = std::get_if<device::JobCame>(&event)) {
    const std::uint32_t job = came->job.value;
    out.push_back(Scripted::open(job, gib(1)));
    out.push_back(Scripted::of(Kind::admit, job, job));
  } else if (is_ready(event)) {
    const std::uint32_t job = std::get<device::IterationEnded>(event).job.value;
    out.push_back(Scripted::of(Kind::grant, job, job));
  } else if (const auto* gone = std::get_if<device::JobGone>(&event)) {
    out.push_back(Scripted::of(Kind::close, 0, gone->job.value));
  }
  return TimePoint::max();
}

// One lane; who came last runs, and who ran before goes on when it is gone.
struct LastFirst {
  std::vector<std::uint32_t> stack;
  bool opened = false, free = true;

  TimePoint operator()(Scripted&, const JobEvent& event, TimePoint, device::JobCommands& out) {
    if (const auto* came = std::get_if<device::JobCame>(&event)) {
      if (!std::exchange(opened, true)) out.push_back(Scripted::open(0, gib(1)));
      out.push_back(Scripted::of(Kind::admit, came->job.value));
    } else if (const auto* ended = std::get_if<device::IterationEnded>(&event)) {
      if (std::ranges::count(stack, ended->job.value) == 0) {
        if (!stack.empty() && !free) out.push_back(Scripted::of(Kind::recall, stack.back()));
        stack.push_back(ended->job.value);
      } else {
        free = free || ended->stopped;
      }
    } else if (const auto* gone = std::get_if<device::JobGone>(&event)) {
      std::erase(stack, gone->job.value);
      free = true;
    }
    if (free && !stack.empty()) {
      out.push_back(Scripted::of(Kind::grant, stack.back()));
      free = false;
    }
    return TimePoint::max();
  }
};

workload::Job job(double arrival_ms, std::uint64_t iterations, double iteration_ms, double utilization = 1) {
  workload::Job j;
  j.arrival = at_ms(arrival_ms);
  j.iterations = iterations;
  j.iteration = from_ms(iteration_ms);
  j.utilization = utilization;
  j.persistent = mib(1);
  j.ephemeral = mib(1);
  return j;
}

workload::Jobs jobs_of(std::vector<workload::Job> list) {
  workload::Jobs jobs;
  jobs.device.memory = gib(1);
  jobs.device.switching = Duration{0};
  for (std::size_t i = 0; i < list.size(); ++i) list[i].name = fmt::format("j{}", i);
  jobs.jobs = std::move(list);
  return jobs;
}

JobsFigures run(const workload::Jobs& jobs, Scripted& policy, const JobRunOptions& options = {}) {
  auto figures = run_jobs(jobs, policy, options);
  EXPECT_TRUE(figures) << figures.error().message;
  return std::move(*figures);
}

TEST(Jobs, SideBySideTheyTakeTheSumOfTheirShares) {
  // 4 and 2 iterations of 10 ms; `arrival` of the second; when both end.
  const struct {
    double first_share, second_share, arrival, first_ends, second_ends;
  } rows[] = {
      {0.5, 0.5, 0, 40, 20},    // they fit beside each other
      {1, 1, 0, 60, 40},        // each at half its pace, until the second is gone
      {0.75, 0.75, 0, 50, 30},  // at two thirds
      {1, 0.5, 0, 50, 30},      // the same for both, whoever takes how much
      {1, 1, 15, 60, 55},       // from the middle of the first's second iteration on
      {1, 1, 40, 40, 60},       // one after the other
  };
  for (const auto& row : rows) {
    const auto jobs = jobs_of({job(0, 4, 10, row.first_share), job(row.arrival, 2, 10, row.second_share)});
    Scripted policy(side_by_side);
    const JobsFigures f = run(jobs, policy);
    const std::string which = fmt::format("{} {} {}", row.first_share, row.second_share, row.arrival);
    EXPECT_EQ(f.jobs[0].ended, at_ms(row.first_ends)) << which;
    EXPECT_EQ(f.jobs[1].ended, at_ms(row.second_ends)) << which;
    EXPECT_EQ(f.jobs[0].outcome, JobOutcome::finished) << which;
    EXPECT_EQ(f.jobs[0].device_time, 40ms) << which;
    EXPECT_EQ(f.jobs[0].busy, at_ms(row.first_ends) - TimePoint{}) << which;
    EXPECT_EQ(f.busy, f.last - f.first) << which;
    EXPECT_EQ(f.last, std::max(at_ms(row.first_ends), at_ms(row.second_ends))) << which;
  }
}

TEST(Jobs, RecalledOnesLeaveTheLaneAtTheEndOfTheirIteration) {
  auto jobs = jobs_of({job(0, 3, 10), job(15, 1, 10)});
  jobs.device.switching = 1ms;
  Scripted policy(LastFirst{});
  const JobsFigures f = run(jobs, policy);
  EXPECT_THAT(policy.told, ElementsAre("0 came 0", "10 ended 0", "15 came 1", "20 ended 0 stopped",
                                       "31 ended 1", "31 gone 1", "42 ended 0", "42 gone 0"));
  EXPECT_EQ(f.jobs[1].began, at_ms(21));
  EXPECT_EQ(f.jobs[1].longest_wait, 6ms);
  EXPECT_EQ(f.jobs[0].longest_wait, 12ms);
  EXPECT_EQ(f.jobs[0].busy, 30ms);
  EXPECT_EQ(f.switches, 2U);
  EXPECT_EQ(f.busy, 40ms);
  EXPECT_EQ(f.jobs[0].grants, 2U);
}

TEST(Jobs, OneThatHasNotBegunIsOutOfItsLaneAtOnce) {
  auto jobs = jobs_of({job(0, 2, 10), job(5, 1, 10), job(12, 1, 10)});
  jobs.device.switching = 4ms;  // the second would begin at 14
  Scripted policy(LastFirst{});
  const JobsFigures f = run(jobs, policy);
  EXPECT_THAT(policy.told, ElementsAre("0 came 0", "5 came 1", "10 ended 0 stopped", "12 came 2",
                                       "12 ended 1 stopped before", "26 ended 2", "26 gone 2", "40 ended 1",
                                       "40 gone 1", "54 ended 0", "54 gone 0"));
  EXPECT_EQ(f.jobs[1].iterations, 1U);
}

TEST(Jobs, StartUpTakesNoDeviceTime) {
  auto jobs = jobs_of({job(0, 1, 10), job(1, 1, 10)});
  jobs.jobs[0].startup = 30ms;
  Scripted policy(side_by_side);
  const JobsFigures f = run(jobs, policy);
  EXPECT_THAT(policy.told,
              ElementsAre("1 came 1", "11 ended 1", "11 gone 1", "30 came 0", "40 ended 0", "40 gone 0"));
  EXPECT_EQ(f.jobs[0].came, at_ms(30));
  EXPECT_EQ(f.first, TimePoint{});
}

TEST(Jobs, SomeStartUpOnlyOnceTheyAreAdmitted) {
  auto jobs = jobs_of({job(0, 1, 10)});
  jobs.jobs[0].startup = 30ms;
  jobs.jobs[0].starts_admitted = true;
  std::vector<TimePoint> ready;
  Scripted policy([&](Scripted& self, const JobEvent& event, TimePoint now, device::JobCommands& out) {
    if (is_ready(event)) ready.push_back(now);
    return side_by_side(self, event, now, out);
  });
  const JobsFigures f = run(jobs, policy);
  EXPECT_THAT(policy.told, ElementsAre("0 came 0", "40 ended 0", "40 gone 0"));
  EXPECT_THAT(ready, ElementsAre(at_ms(30)));
  EXPECT_EQ(f.jobs[0].began, f.jobs[0].came);
  EXPECT_EQ(f.jobs[0].longest_wait, 0ms);
}

TEST(Jobs, FrozenOnesGoOnWhereTheyWere) {
  auto jobs = jobs_of({job(0, 2, 10), job(6, 1, 10)});
  jobs.device.wanted = {{at_ms(5), at_ms(8)}, {at_ms(9), at_ms(11)}};
  jobs.device.foretold = true;
  std::vector<std::uint32_t> granted;
  bool wanted = false;
  Scripted policy([&](Scripted& self, const JobEvent& event, TimePoint now, device::JobCommands& out) {
    side_by_side(self, event, now, out);
    if (is_ready(event)) {
      granted.push_back(std::get<device::IterationEnded>(event).job.value);
      if (wanted) out.push_back(Scripted::of(Kind::freeze, granted.back()));
    }
    const bool wants = std::holds_alternative<device::DeviceWanted>(event);
    if (wants || std::holds_alternative<device::DeviceFree>(event)) {
      wanted = wants;
      for (const std::uint32_t g : granted) out.push_back(Scripted::of(wants ? Kind::freeze : Kind::thaw, g));
    }
    return TimePoint::max();
  });
  const JobsFigures f = run(jobs, policy);
  // The first has 5 ms at 5, both go at half from 8 to 9 and from 11 on: 5.5 and 0.5 of 10 then.
  EXPECT_THAT(policy.told,
              ElementsAre("0 free until 5", "0 came 0", "5 wanted", "6 came 1", "8 free until 9", "9 wanted",
                          "11 free", "20 ended 0", "30 ended 1", "30 gone 1", "35 ended 0", "35 gone 0"));
  EXPECT_EQ(policy.ended[0].busy, 15ms);  // 5 + 1 + 9
  EXPECT_EQ(f.jobs[0].busy, 30ms);
  EXPECT_EQ(f.busy, 30ms);
}

TEST(Jobs, MemoryIsAskedForBeforeItIsUsedAndToldAfter) {
  auto jobs = jobs_of({job(0, 4, 10)});
  jobs.jobs[0].grows = workload::JobGrowth{2, 10};
  Scripted policy([&](Scripted& self, const JobEvent& event, TimePoint now, device::JobCommands& out) {
    side_by_side(self, event, now, out);
    if (std::holds_alternative<device::JobCame>(event)) out[0].size = mib(1);
    if (std::holds_alternative<device::MemoryAsked>(event)) out.push_back(Scripted::open(0, mib(10)));
    return TimePoint::max();
  });
  const JobsFigures f = run(jobs, policy);
  EXPECT_THAT(policy.told, ElementsAre("0 came 0", "10 ended 0", "20 ended 0", "20 asked 0 1048576+10485760",
                                       "30 ended 0", "40 ended 0", "40 gone 0"));
  EXPECT_EQ(policy.ended[1].memory.ephemeral, mib(1));
  EXPECT_EQ(policy.ended[2].memory.ephemeral, mib(10));
  EXPECT_EQ(f.jobs[0].outcome, JobOutcome::finished);
}

TEST(Jobs, WhoGetsNoMemoryIsEvicted) {
  auto jobs = jobs_of({job(0, 4, 10), job(0, 4, 10)});
  jobs.jobs[0].grows = workload::JobGrowth{1, 10};
  Scripted policy([&](Scripted& self, const JobEvent& event, TimePoint now, device::JobCommands& out) {
    side_by_side(self, event, now, out);
    if (std::holds_alternative<device::JobCame>(event)) out[0].size = mib(1);
    if (std::holds_alternative<device::MemoryAsked>(event)) {
      JobCommand evict = Scripted::of(Kind::evict, 0);
      evict.reason = device::JobReason::no_memory;
      out.push_back(evict);
      out.push_back(Scripted::of(Kind::close, 0, 0));
    }
    return TimePoint::max();
  });
  const JobsFigures f = run(jobs, policy);
  EXPECT_EQ(f.jobs[0].outcome, JobOutcome::evicted);
  EXPECT_EQ(f.jobs[0].reason, device::JobReason::no_memory);
  EXPECT_EQ(f.jobs[0].ended, at_ms(20));
  EXPECT_EQ(f.jobs[0].iterations, 1U);
  EXPECT_EQ(f.jobs[1].ended, at_ms(50));  // alone from 20 on
}

TEST(Jobs, SomeDieAndSomeHang) {
  auto jobs = jobs_of({job(0, 4, 10), job(0, 4, 10)});
  jobs.jobs[0].dies_after = 1;
  jobs.jobs[1].hangs_after = 0;
  Scripted policy(side_by_side);
  const JobsFigures f = run(jobs, policy);
  EXPECT_THAT(policy.told, ElementsAre("0 came 0", "0 came 1", "10 ended 0", "15 gone 0"));
  EXPECT_EQ(f.jobs[0].outcome, JobOutcome::died);
  EXPECT_EQ(f.jobs[0].ended, at_ms(15));
  EXPECT_EQ(f.jobs[1].outcome, JobOutcome::unfinished);
  EXPECT_EQ(f.jobs[1].iterations, 0U);
  EXPECT_EQ(f.device_time, 10ms);
}

TEST(Jobs, JobsThatAreNeverLetRunEndTheRun) {
  const auto jobs = jobs_of({job(0, 4, 10)});
  Scripted deaf([](Scripted&, const JobEvent&, TimePoint, device::JobCommands&) { return TimePoint::max(); });
  EXPECT_EQ(run(jobs, deaf).jobs[0].outcome, JobOutcome::unfinished);
  // One that is woken every second for nothing, and one that is woken at once.
  Scripted sleepless([](Scripted& self, const JobEvent&, TimePoint now, device::JobCommands&) {
    self.told.clear();
    return now + 1s;
  });
  EXPECT_EQ(run(jobs, sleepless).jobs[0].outcome, JobOutcome::unfinished);
  Scripted hasty([](Scripted& self, const JobEvent&, TimePoint now, device::JobCommands&) {
    self.told.clear();
    return now;
  });
  const auto figures = run_jobs(jobs, hasty);
  ASSERT_FALSE(figures);
  EXPECT_THAT(figures.error().message, HasSubstr("again and again"));
}

TEST(Jobs, RequestsWaitForTheirJobs) {
  auto jobs = jobs_of({job(0, 3, 10), job(0, 1, 40)});
  jobs.jobs[0].requests = workload::JobRequests{{workload::ArrivalKind::uniform, 1, 0}, 50};  // 20, 40, 60 ms
  jobs.jobs[1].arrival = at_ms(35);
  jobs.jobs[1].utilization = 1;
  Scripted policy(side_by_side);
  const JobsFigures f = run(jobs, policy);
  // Beside the other, which runs alone but for these: 10, 20, 20 ms.
  EXPECT_THAT(f.jobs[0].latencies, ElementsAre(10ms, 20ms, 20ms));
  EXPECT_EQ(f.jobs[0].ended, at_ms(80));
  EXPECT_EQ(f.jobs[0].busy, 50ms);
  EXPECT_EQ(f.jobs[1].ended, at_ms(95));
  EXPECT_EQ(f.busy, 70ms);
}

TEST(Jobs, DriftAndNoiseChangeIterations) {
  auto jobs = jobs_of({job(0, 4, 10)});
  jobs.jobs[0].drift = {{1, 2}, {3, 0.5}};
  Scripted policy(side_by_side);
  EXPECT_EQ(run(jobs, policy).jobs[0].ended, at_ms(10 + 20 + 20 + 5));
  jobs.jobs[0].drift.clear();
  jobs.jobs[0].iterations = 4000;
  jobs.jobs[0].noise = 0.2;
  Scripted noisy(side_by_side), again(side_by_side), other(side_by_side);
  const Duration took = run(jobs, noisy).jobs[0].device_time;
  EXPECT_NEAR(to_ms(took), 40000, 400);
  EXPECT_EQ(run(jobs, again).jobs[0].device_time, took);
  jobs.seed = 2;
  EXPECT_NE(run(jobs, other).jobs[0].device_time, took);
}

TEST(Jobs, WhatIsToldIsWhatTheFileSays) {
  auto jobs = jobs_of({job(0, 2, 10), job(0, 1, 10), job(0, 1, 10)});
  jobs.jobs[0].weight = 3;
  jobs.jobs[0].remaining_factor = 2;
  jobs.jobs[1].tells_memory = false;
  jobs.jobs[2].tells_remaining = false;
  std::vector<device::JobSpec> specs;
  Scripted policy([&](Scripted& self, const JobEvent& event, TimePoint now, device::JobCommands& out) {
    if (const auto* came = std::get_if<device::JobCame>(&event)) specs.push_back(came->spec);
    return side_by_side(self, event, now, out);
  });
  run(jobs, policy);
  EXPECT_EQ(specs.at(0).remaining, 40ms);
  EXPECT_EQ(specs[0].weight, 3);
  EXPECT_EQ(specs[0].ephemeral, mib(1));
  EXPECT_FALSE(specs[1].persistent || specs[1].ephemeral);
  EXPECT_EQ(specs[1].remaining, 10ms);
  EXPECT_FALSE(specs[2].remaining);
  for (const auto& e : policy.ended)
    if (e.job.value == 2) {
      EXPECT_FALSE(e.remaining);
    }
  EXPECT_EQ(std::ranges::find(policy.ended, JobId{0}, &device::IterationEnded::job)->remaining, 20ms);
}

TEST(Jobs, ALengthEndsTheRun) {
  auto jobs = jobs_of({job(0, 10, 10), job(200, 1, 10)});
  jobs.length = 35ms;
  Scripted policy(side_by_side);
  const JobsFigures f = run(jobs, policy);
  EXPECT_EQ(f.jobs[0].outcome, JobOutcome::unfinished);
  EXPECT_EQ(f.jobs[0].iterations, 3U);
  EXPECT_EQ(f.jobs[0].ended, at_ms(35));
  EXPECT_EQ(f.busy, 35ms);
}

TEST(Jobs, TimelinesAndIntervalsTellWhatRan) {
  auto jobs = jobs_of({job(0, 3, 10), job(15, 1, 10)});
  Scripted policy(LastFirst{});
  JobRunOptions options;
  options.timeline = true;
  options.interval = 20ms;
  const JobsFigures f = run(jobs, policy, options);
  ASSERT_EQ(f.stretches.size(), 3U);
  EXPECT_EQ(f.stretches[0].until, at_ms(20));
  EXPECT_EQ(f.stretches[1].job, 1U);
  EXPECT_EQ(f.stretches[1].from, at_ms(20));
  EXPECT_EQ(f.stretches[2].until, at_ms(40));
  ASSERT_EQ(f.intervals.size(), 3U);
  EXPECT_EQ(f.intervals[0].iterations, 2U);  // an end at 20 counts to the interval before
  EXPECT_EQ(f.intervals[1].interval, 1U);
}

// The policies themselves, under the eyes of a checker, on the jobs of scenarios/salus.
class Checked final : public device::JobSharing {
 public:
  Checked(std::unique_ptr<device::JobSharing> sharing, const device::JobOptions& options)
      : sharing_(std::move(sharing)), checker_(options) {}

  TimePoint on(const JobEvent& event, TimePoint now, device::JobCommands& out) override {
    note(checker_.heard(event), now);
    const std::size_t before = out.size();
    const TimePoint wake = sharing_->on(event, now, out);
    note(checker_.said({out.begin() + static_cast<std::ptrdiff_t>(before), out.end()}), now);
    return wake;
  }
  std::vector<device::JobView> jobs(TimePoint now) const override { return sharing_->jobs(now); }
  std::optional<JobId> next_after(JobId job) const override { return sharing_->next_after(job); }
  const device::Lanes& lanes() const override { return sharing_->lanes(); }

  std::string broken;

 private:
  void note(const std::optional<std::string>& what, TimePoint now) {
    if (what && broken.empty()) broken = fmt::format("at {:g} ms: {}", to_ms(now - TimePoint{}), *what);
  }
  std::unique_ptr<device::JobSharing> sharing_;
  device::testing::JobChecker checker_;
};

TEST(Jobs, EveryPolicyKeepsItsPromisesOnTheFilesInTheTree) {
  for (const char* file : {"beyond_faults", "beyond_lent", "beyond_one_fits", "beyond_mixed_gain",
                           "beyond_nothing_known", "fig2_9_fair"}) {
    const auto jobs =
        workload::read_jobs(std::string(CARILLON_SOURCE_DIR) + "/scenarios/salus/" + file + ".toml", 3);
    ASSERT_TRUE(jobs) << jobs.error().message;
    for (const std::string_view policy : device::job_policy_names()) {
      const std::string which = fmt::format("{} under {}", file, policy);
      auto sharing = device::make_job_sharing(policy, job_options(*jobs));
      ASSERT_TRUE(sharing) << sharing.error().message;
      Checked checked(std::move(*sharing), job_options(*jobs));
      const auto figures = run_jobs(*jobs, checked);
      ASSERT_TRUE(figures) << which << ": " << figures.error().message;
      EXPECT_EQ(checked.broken, "") << which;
      for (std::size_t i = 0; i < jobs->jobs.size(); ++i) {
        const workload::Job& job = jobs->jobs[i];
        const JobFigures& f = figures->jobs[i];
        if (job.dies_after || job.hangs_after || job.grows) continue;
        // Memory that falls costs jobs that have it, and what was not told may be too much.
        if (f.reason == device::JobReason::capacity_fell || !job.tells_memory) continue;
        EXPECT_EQ(f.outcome, JobOutcome::finished) << which << ": " << job.name;
        EXPECT_EQ(f.iterations, job.iterations) << which << ": " << job.name;
        EXPECT_GE(f.ended - f.came, f.busy) << which << ": " << job.name;
        EXPECT_GE(f.busy + Duration{1000}, f.device_time) << which << ": " << job.name;
      }
      EXPECT_GE(figures->last - figures->first, figures->busy) << which;
    }
  }
}

// Of Table 2.1, also where jobs that need most of the memory come while others run side by side (seed 11).
TEST(Jobs, BestIsAheadOfTheShortestFirst) {
  for (const std::uint64_t seed : {1, 11, 13}) {
    const auto jobs = workload::read_jobs(std::string(CARILLON_SOURCE_DIR) + "/scenarios/salus/table2_1.toml", seed);
    ASSERT_TRUE(jobs) << jobs.error().message;
    const auto mean_under = [&](const char* policy) {
      auto sharing = device::make_job_sharing(policy, job_options(*jobs));
      const auto figures = run_jobs(*jobs, **sharing);
      EXPECT_TRUE(figures) << figures.error().message;
      double sum = 0;
      for (const JobFigures& f : figures->jobs) sum += to_seconds(f.ended - f.came);
      return sum / static_cast<double>(figures->jobs.size());
    };
    EXPECT_LT(mean_under("best"), mean_under("srtf")) << "seed " << seed;
  }
}

}  // namespace
}  // namespace carillon::simulate
