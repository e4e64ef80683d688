#include "carillon/cli/simulate_studies.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/tune/tuning.h"

namespace carillon::cli {

std::string tune_policy_list() {
  std::string all;
  for (const std::string_view name : tune::tune_policy_names())
    all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

Result<std::vector<StudyRun>> make_study_runs(const std::vector<std::string>& files,
                                              const std::vector<std::string>& schedulers,
                                              const std::vector<std::uint64_t>& seeds) {
  std::vector<StudyRun> runs;
  for (const std::string& file : files) {
    std::vector<workload::Study> read;
    const auto add = [&](std::optional<std::uint64_t> seed) -> Result<> {
      auto study = workload::read_study(file, seed);
      if (!study) return std::unexpected(std::move(study.error()));
      read.push_back(std::move(*study));
      return {};
    };
    if (seeds.empty())
      if (auto added = add(std::nullopt); !added) return std::unexpected(std::move(added.error()));
    for (const std::uint64_t seed : seeds)
      if (auto added = add(seed); !added) return std::unexpected(std::move(added.error()));
    for (const std::string& scheduler :
         schedulers.empty() ? std::vector{read.front().scheduler} : schedulers) {
      if (const auto made = tune::make_tuning(scheduler, simulate::tune_options(read.front())); !made)
        return invalid(file + ": " + made.error().message);
      for (const workload::Study& study : read)
        runs.push_back({.study = study, .scheduler = scheduler, .report = {}, .svg = {}});
    }
  }
  return runs;
}

Result<> run_study_runs(std::vector<StudyRun>& runs, const StudyRunning& how) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::mutex mutex;
  std::optional<Error> error;
  std::atomic<std::size_t> next{0}, done{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < runs.size() && how.go_on(); i = next++) {
      StudyRun& run = runs[i];
      const auto tuning = tune::make_tuning(run.scheduler, simulate::tune_options(run.study));
      simulate::StudyRunOptions options;
      options.timeline = how.plots;
      options.progress = [&](TimePoint) {
        if (terminal) {
          const std::lock_guard lock(mutex);
          fmt::print(stderr, "\r{} of {} runs done   ", done.load(), runs.size());
        }
        return how.go_on();
      };
      auto figures = simulate::run_study(run.study, **tuning, options);
      if (!figures) {
        const std::lock_guard lock(mutex);
        error = in_context(run.study.name + " under " + run.scheduler, figures.error()).error();
        return;
      }
      if (how.plots) run.svg = simulate::to_svg(run.study, run.scheduler, *figures);
      run.report = simulate::make_study_report(run.study, run.scheduler, std::move(*figures));
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

std::string studies_as_json(const std::vector<StudyRun>& runs, bool each_trial) {
  if (runs.size() == 1) return simulate::to_json(runs.front().report, each_trial).dump(2) + "\n";
  nlohmann::ordered_json all;
  all["runs"] = nlohmann::ordered_json::array();
  for (const StudyRun& run : runs) all["runs"].push_back(simulate::to_json(run.report, each_trial));
  return all.dump(2) + "\n";
}

std::string studies_as_tables(const std::vector<StudyRun>& runs) {
  std::string text;
  for (std::size_t first = 0; first < runs.size();) {
    std::vector<simulate::StudyReport> of_one;
    std::size_t last = first;
    while (last < runs.size() && runs[last].study.name == runs[first].study.name)
      of_one.push_back(runs[last++].report);
    text += simulate::to_table(of_one);
    first = last;
  }
  return text;
}

}  // namespace carillon::cli
