#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "carillon/simulate/jobs.h"
#include "carillon/workload/jobs.h"

namespace carillon::simulate {

// What a run of jobs came to. Times of jobs are of those that finished; queueing is of those that ran, from
// when they came to the device (their start-up is no queueing) to their first iteration.
struct JobsReport {
  std::string name, scheduler;
  std::uint64_t seed = 0;
  std::uint64_t jobs = 0, finished = 0, refused = 0, evicted = 0, died = 0, unfinished = 0;
  double makespan_s = 0;  // from the first arrival to the last end
  double mean_jct_s = 0, p50_jct_s = 0, p95_jct_s = 0, max_jct_s = 0;  // from arrival to end
  double mean_queue_s = 0, p95_queue_s = 0, max_queue_s = 0;
  double longest_wait_s = 0;  // of any job, without an iteration
  double mean_slowdown = 0;   // job completion time over what it takes alone, start-up included
  double utilization = 0;     // share of the makespan in which an iteration ran
  double work = 0;            // device time of iterations that ended, alone, over the makespan
  double overhead = 0;        // of a running job's time, what sharing added, over its device time
  std::uint64_t iterations = 0, switches = 0, moves = 0, freezes = 0, events = 0, most_lanes = 0;
  Bytes memory, most_memory;
  // Of requests, where jobs have some.
  std::uint64_t requests = 0;
  double mean_latency_ms = 0, p99_latency_ms = 0, mean_alone_ms = 0;

  struct Job {
    std::string name, model;
    JobFigures figures;
    double arrival_s = 0, jct_s = 0, queue_s = 0;
  };
  std::vector<Job> each;
  double interval_s = 0;
  std::vector<JobInterval> intervals;
};

JobsReport make_jobs_report(const workload::Jobs& jobs, std::string_view scheduler, JobsFigures figures,
                            Duration interval = Duration{0});

// With "each", a list of all jobs, where asked for; with "series" where there were intervals.
nlohmann::ordered_json to_json(const JobsReport& report, bool each);
// Runs of one file, a line each; a single run also with what became of jobs that did not finish.
std::string to_table(std::span<const JobsReport> runs);

// One SVG of a run: job completion times and queueing as CDFs, what ran in the lanes, memory. Needs a run
// with JobRunOptions::timeline.
std::string to_svg(const workload::Jobs& jobs, std::string_view scheduler, const JobsFigures& figures);

}  // namespace carillon::simulate
