#include "carillon/cli/simulate_jobs.h"

#include <utility>

#include "carillon/cli/simulate_runs.h"
#include "carillon/device/lanes/job_sharing.h"

namespace carillon::cli {

std::string job_policy_list() {
  std::string all;
  for (const std::string_view name : device::job_policy_names())
    all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

Result<std::vector<JobRun>> make_job_runs(const std::vector<std::string>& files,
                                          const std::vector<std::string>& schedulers,
                                          const std::vector<std::uint64_t>& seeds) {
  std::vector<JobRun> runs;
  for (const std::string& file : files) {
    const auto read = read_seeds(file, seeds, [](const std::string& name, std::optional<std::uint64_t> seed) {
      return workload::read_jobs(name, seed);
    });
    if (!read) return std::unexpected(read.error());
    for (const std::string& scheduler :
         schedulers.empty() ? std::vector{read->front().scheduler} : schedulers) {
      if (const auto made = device::make_job_sharing(scheduler, simulate::job_options(read->front())); !made)
        return invalid(file + ": " + made.error().message);
      for (const workload::Jobs& jobs : *read)
        runs.push_back({.jobs = jobs, .scheduler = scheduler, .report = {}, .svg = {}});
    }
  }
  return runs;
}

Result<> run_job_runs(std::vector<JobRun>& runs, const JobRunning& how) {
  return run_each(runs, how.at_a_time, how.go_on, [&](JobRun& run, const TellRun& tell) -> Result<> {
    const auto sharing = device::make_job_sharing(run.scheduler, simulate::job_options(run.jobs));
    simulate::JobRunOptions options;
    options.timeline = how.plots;
    options.interval = how.interval;
    options.progress = [&](double share) { return tell(fmt::format(", this one {:.0f}%", 100 * share)); };
    auto figures = simulate::run_jobs(run.jobs, **sharing, options);
    if (!figures) return in_context(run.jobs.name + " under " + run.scheduler, figures.error());
    if (how.plots) run.svg = simulate::to_svg(run.jobs, run.scheduler, *figures);
    run.report = simulate::make_jobs_report(run.jobs, run.scheduler, std::move(*figures), how.interval);
    return {};
  });
}

std::string jobs_as_json(const std::vector<JobRun>& runs, bool each_job) {
  return runs_as_json(runs, each_job);
}

std::string jobs_as_tables(const std::vector<JobRun>& runs) {
  return runs_as_tables(runs, [](const JobRun& run) { return run.jobs.name; });
}

}  // namespace carillon::cli
