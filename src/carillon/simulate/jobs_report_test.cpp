#include "carillon/simulate/jobs_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace carillon::simulate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two that finished at 10 and 30 s, one that was refused and one evicted.
struct SmallRun {
  workload::Jobs jobs;
  JobsFigures figures;

  SmallRun() {
    jobs.name = "small";
    jobs.seed = 3;
    jobs.device.memory = gib(1);
    figures.first = TimePoint{};
    figures.last = TimePoint{} + 30s;
    figures.busy = 15s;
    figures.device_time = 12s;
    for (int i = 0; i < 4; ++i) {
      workload::Job job;
      job.name = "j" + std::to_string(i);
      job.model = "<m>";
      job.iteration = 2s;
      jobs.jobs.push_back(job);
      JobFigures f;
      f.ended = TimePoint{} + 5s;
      figures.jobs.push_back(f);
    }
    jobs.jobs[1].arrival = TimePoint{} + 10s;
    for (int i = 0; i < 2; ++i) {
      JobFigures& f = figures.jobs[static_cast<std::size_t>(i)];
      f.outcome = JobOutcome::finished;
      f.came = TimePoint{} + 10s * i;
      f.began = f.came + 4s * i;
      f.ended = TimePoint{} + (i == 0 ? 10s : 30s);
      f.device_time = 5s;
      f.busy = i == 0 ? 5s : 7s;
      f.iterations = 3;
    }
    figures.jobs[2].outcome = JobOutcome::refused;
    figures.jobs[2].reason = device::JobReason::too_large;
    figures.jobs[2].fits = {mib(1), mib(1023)};
    figures.jobs[3].outcome = JobOutcome::evicted;
    figures.jobs[3].reason = device::JobReason::hangs;
    figures.stretches = {{0, 0, TimePoint{}, TimePoint{} + 10s},
                         {1, 1, TimePoint{} + 14s, TimePoint{} + 30s}};
    figures.memory = {{TimePoint{}, mib(10), mib(100), gib(1)},
                      {TimePoint{} + 10s, mib(20), mib(100), mib(512)}};
    figures.intervals = {{0, 0, 3}, {1, 1, 2}, {1, 0, 1}};
  }
};

TEST(JobsReport, CountsAndTimesAreThoseOfTheRun) {
  SmallRun run;
  const JobsReport r = make_jobs_report(run.jobs, "fifo", run.figures);
  EXPECT_EQ(r.jobs, 4U);
  EXPECT_EQ(r.finished, 2U);
  EXPECT_EQ(r.refused, 1U);
  EXPECT_EQ(r.evicted, 1U);
  EXPECT_DOUBLE_EQ(r.makespan_s, 30);
  EXPECT_DOUBLE_EQ(r.mean_jct_s, 15);
  EXPECT_DOUBLE_EQ(r.p95_jct_s, 20);
  EXPECT_DOUBLE_EQ(r.mean_queue_s, 2);
  EXPECT_DOUBLE_EQ(r.max_queue_s, 4);
  EXPECT_DOUBLE_EQ(r.utilization, 0.5);
  EXPECT_DOUBLE_EQ(r.work, 0.4);
  EXPECT_DOUBLE_EQ(r.mean_slowdown, 3);
  EXPECT_DOUBLE_EQ(r.overhead, 0);
}

TEST(JobsReport, JsonHasEachJobAndTheSeriesWhereAskedFor) {
  SmallRun run;
  const auto plain = to_json(make_jobs_report(run.jobs, "fifo", run.figures), false);
  EXPECT_EQ(plain["scheduler"], "fifo");
  EXPECT_EQ(plain["seed"], 3);
  EXPECT_FALSE(plain.contains("each") || plain.contains("series") || plain.contains("requests"));
  const auto full = to_json(make_jobs_report(run.jobs, "fifo", run.figures, 20s), true);
  ASSERT_EQ(full["each"].size(), 4U);
  EXPECT_EQ(full["each"][1]["began_s"], 14);
  EXPECT_TRUE(full["each"][2]["began_s"].is_null());
  EXPECT_EQ(full["each"][2]["reason"], "too_large");
  EXPECT_EQ(full["each"][2]["fits_ephemeral_bytes"], 1023U << 20);
  ASSERT_EQ(full["series"].size(), 2U);
  EXPECT_EQ(full["series"][1]["iterations"]["j1"], 2);
}

TEST(JobsReport, TheTableSaysWhatFits) {
  SmallRun run;
  const JobsReport r = make_jobs_report(run.jobs, "fifo", run.figures);
  const std::string one = to_table(std::vector{r});
  EXPECT_THAT(
      one, HasSubstr("j2: refused after 0 iterations: too_large (what fits: 1.0 MiB persistent, 1023.0 MiB "
                     "ephemeral)"));
  EXPECT_THAT(one, HasSubstr("1 refused  1 evicted"));
  EXPECT_THAT(to_table(std::vector{r, r}), Not(HasSubstr("j2")));
}

TEST(JobsReport, ThePlotHasItsPanelsAndEscapesNames) {
  SmallRun run;
  run.jobs.name = "a<b";
  const std::string svg = to_svg(run.jobs, "fifo", run.figures);
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  for (const char* part :
       {"a&lt;b under fifo, seed 3", "Completion times", "Lanes, a colour a job", "persistent", "capacity"})
    EXPECT_THAT(svg, HasSubstr(part));
  // Nothing ran: still a picture.
  JobsFigures nothing;
  nothing.jobs.resize(4);
  EXPECT_THAT(to_svg(run.jobs, "fifo", nothing), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace carillon::simulate
