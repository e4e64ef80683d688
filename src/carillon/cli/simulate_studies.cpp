#include "carillon/cli/simulate_studies.h"

#include <utility>

#include "carillon/cli/simulate_runs.h"
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
    const auto read = read_seeds(file, seeds, [](const std::string& name, std::optional<std::uint64_t> seed) {
      return workload::read_study(name, seed);
    });
    if (!read) return std::unexpected(read.error());
    for (const std::string& scheduler :
         schedulers.empty() ? std::vector{read->front().scheduler} : schedulers) {
      if (const auto made = tune::make_tuning(scheduler, simulate::tune_options(read->front())); !made)
        return invalid(file + ": " + made.error().message);
      for (const workload::Study& study : *read)
        runs.push_back({.study = study, .scheduler = scheduler, .report = {}, .svg = {}});
    }
  }
  return runs;
}

Result<> run_study_runs(std::vector<StudyRun>& runs, const StudyRunning& how) {
  return run_each(runs, how.at_a_time, how.go_on, [&](StudyRun& run, const TellRun& tell) -> Result<> {
    const auto tuning = tune::make_tuning(run.scheduler, simulate::tune_options(run.study));
    simulate::StudyRunOptions options;
    options.timeline = how.plots;
    options.progress = [&](TimePoint) { return tell(""); };
    options.go_on = how.go_on;
    auto figures = simulate::run_study(run.study, **tuning, options);
    if (!figures) return in_context(run.study.name + " under " + run.scheduler, figures.error());
    if (how.plots) run.svg = simulate::to_svg(run.study, run.scheduler, *figures);
    run.report = simulate::make_study_report(run.study, run.scheduler, std::move(*figures));
    return {};
  });
}

std::string studies_as_json(const std::vector<StudyRun>& runs, bool each_trial) {
  return runs_as_json(runs, each_trial);
}

std::string studies_as_tables(const std::vector<StudyRun>& runs) {
  return runs_as_tables(runs, [](const StudyRun& run) { return run.study.name; });
}

}  // namespace carillon::cli
