#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/simulate/jobs_report.h"
#include "carillon/workload/jobs.h"

// `carillon simulate` on files of jobs that share a device.
namespace carillon::cli {

struct JobRun {
  workload::Jobs jobs;
  std::string scheduler;
  simulate::JobsReport report;
  std::string svg;
};

// "fifo, srtf, ...".
std::string job_policy_list();

// Every file under every scheduler (the file's own where none is given) with every seed (likewise). Errors: a
// file that cannot be read, an unknown scheduler.
Result<std::vector<JobRun>> make_job_runs(const std::vector<std::string>& files,
                                          const std::vector<std::string>& schedulers,
                                          const std::vector<std::uint64_t>& seeds);

struct JobRunning {
  int at_a_time = 1;
  Duration interval{0};
  bool plots = false;
  bool (*go_on)() = nullptr;  // asked now and then
};
// Runs them, and says on a terminal how far it is.
Result<> run_job_runs(std::vector<JobRun>& runs, const JobRunning& how);

// One object, or {"runs": [...]}.
std::string jobs_as_json(const std::vector<JobRun>& runs, bool each_job);
std::string jobs_as_tables(const std::vector<JobRun>& runs);

}  // namespace carillon::cli
