#include "carillon/cli/simulate_jobs.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

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
    std::vector<workload::Jobs> read;
    const auto add = [&](std::optional<std::uint64_t> seed) -> Result<> {
      auto jobs = workload::read_jobs(file, seed);
      if (!jobs) return std::unexpected(std::move(jobs.error()));
      read.push_back(std::move(*jobs));
      return {};
    };
    if (seeds.empty())
      if (auto added = add(std::nullopt); !added) return std::unexpected(std::move(added.error()));
    for (const std::uint64_t seed : seeds)
      if (auto added = add(seed); !added) return std::unexpected(std::move(added.error()));
    for (const std::string& scheduler :
         schedulers.empty() ? std::vector{read.front().scheduler} : schedulers) {
      const auto made = device::make_job_sharing(scheduler, simulate::job_options(read.front()));
      if (!made) return invalid(file + ": " + made.error().message);
      for (const workload::Jobs& jobs : read) {
        JobRun run;
        run.jobs = jobs;
        run.scheduler = scheduler;
        runs.push_back(std::move(run));
      }
    }
  }
  return runs;
}

Result<> run_job_runs(std::vector<JobRun>& runs, const JobRunning& how) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::mutex mutex;
  std::optional<Error> error;
  std::atomic<std::size_t> next{0}, done{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < runs.size() && how.go_on(); i = next++) {
      JobRun& run = runs[i];
      const auto sharing = device::make_job_sharing(run.scheduler, simulate::job_options(run.jobs));
      simulate::JobRunOptions options;
      options.timeline = how.plots;
      options.interval = how.interval;
      options.progress = [&](double share) {
        if (terminal) {
          const std::lock_guard lock(mutex);
          fmt::print(stderr, "\r{} of {} runs done, this one {:.0f}%   ", done.load(), runs.size(),
                     100 * share);
        }
        return how.go_on();
      };
      auto figures = simulate::run_jobs(run.jobs, **sharing, options);
      if (!figures) {
        const std::lock_guard lock(mutex);
        error = in_context(run.jobs.name + " under " + run.scheduler, figures.error()).error();
        return;
      }
      if (how.plots) run.svg = simulate::to_svg(run.jobs, run.scheduler, *figures);
      run.report = simulate::make_jobs_report(run.jobs, run.scheduler, std::move(*figures), how.interval);
      ++done;
    }
  };
  std::vector<std::thread> threads;
  const auto workers = std::min<std::size_t>(static_cast<std::size_t>(how.at_a_time), runs.size());
  for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (terminal) fmt::print(stderr, "\r{:<60}\r", "");
  if (error) return std::unexpected(std::move(*error));
  if (!how.go_on())
    return fail(ErrorCode::cancelled,
                fmt::format("interrupted; {} of {} runs were done", done.load(), runs.size()));
  return {};
}

std::string jobs_as_json(const std::vector<JobRun>& runs, bool each_job) {
  if (runs.size() == 1) return simulate::to_json(runs.front().report, each_job).dump(2) + "\n";
  nlohmann::ordered_json all;
  all["runs"] = nlohmann::ordered_json::array();
  for (const JobRun& run : runs) all["runs"].push_back(simulate::to_json(run.report, each_job));
  return all.dump(2) + "\n";
}

std::string jobs_as_tables(const std::vector<JobRun>& runs) {
  std::string text;
  for (std::size_t first = 0; first < runs.size();) {
    std::vector<simulate::JobsReport> of_one;
    std::size_t last = first;
    while (last < runs.size() && runs[last].jobs.name == runs[first].jobs.name)
      of_one.push_back(runs[last++].report);
    text += simulate::to_table(of_one);
    first = last;
  }
  return text;
}

}  // namespace carillon::cli
