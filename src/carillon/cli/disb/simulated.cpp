#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/base/processors.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/disb/arguments.h"

namespace carillon::cli {
namespace {

volatile std::sig_atomic_t disb_interrupted = 0;

// What the workload's clients run must be in the table; then those that should not meet are put apart.
Result<> match(workload::DisbWorkload& workload, const profile::KernelTable& table,
               const std::string& where) {
  std::string known;
  for (const auto& model : table.models) known += (known.empty() ? "" : ", ") + model.names.front();
  for (const workload::DisbClient& client : workload.clients)
    if (table.find(client.model) == nullptr)
      return invalid("client '" + client.name + "' runs '" + client.model + "', which " + where +
                     " does not have; it has " + known);
  workload::stagger(workload, [&](std::string_view model) { return table.find(model)->latency; });
  return {};
}

struct DisbRun {
  std::string scheduler;
  std::optional<Result<research::DisbReport>> report;
  double progress = 0;
};

// What the threads that simulate share.
struct Shared {
  std::mutex mutex;
  std::vector<DisbRun> runs;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown = started;

  // With the lock held.
  void show() {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown < (terminal ? std::chrono::milliseconds{200} : std::chrono::milliseconds{5000})) return;
    shown = now;
    double progress = 0;
    std::size_t done = 0;
    for (const DisbRun& run : runs) {
      progress += run.progress;
      done += run.report ? 1 : 0;
    }
    fmt::print(stderr, "{}{:5.1f}%  {} of {} runs done  {:.0f} s{}", terminal ? "\r" : "",
               100 * progress / static_cast<double>(runs.size()), done, runs.size(),
               std::chrono::duration<double>(now - started).count(), terminal ? "   " : "\n");
    std::fflush(stderr);
  }
};

struct Place {
  Shared* shared;
  DisbRun* run;
};

bool progressed(double done, void* user) {
  const auto [shared, run] = *static_cast<const Place*>(user);
  const std::lock_guard lock(shared->mutex);
  run->progress = done;
  shared->show();
  return disb_interrupted == 0;
}

research::DisbOptions options_of(const DisbArguments& arguments, int of_table) {
  research::DisbOptions options;
  options.seed = arguments.seed;
  options.device.noise = arguments.noise;
  options.device.interference = arguments.interference;
  options.device.dispatch = from_ns(1e3 * arguments.dispatch_us);
  options.sharing.margin = arguments.margin;
  options.sharing.slowdown = arguments.slowdown;
  options.sharing.units = of_table;
  options.sharing.in_flight = arguments.in_flight;
  options.sharing.in_flight_time = from_ns(1e3 * arguments.in_flight_us);
  options.sharing.dispatch = options.device.dispatch;
  options.sharing.knows_kernel = arguments.knows_kernel;
  options.sharing.look_ahead = !arguments.no_look_ahead;
  options.sharing.padding = !arguments.no_padding;
  options.sharing.best_effort_share = arguments.best_effort_share;
  return options;
}

// Runs all of shared.runs, several at a time.
void simulate_runs(Shared& shared, const DisbArguments& arguments, const workload::DisbWorkload& workload,
                   const profile::KernelTable& table) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < shared.runs.size() && disb_interrupted == 0; i = next++) {
      DisbRun& run = shared.runs[i];
      Place place{&shared, &run};
      research::DisbOptions options = options_of(arguments, table.units);
      options.scheduler = run.scheduler;
      options.progress = progressed;
      options.user = &place;
      const auto started = std::chrono::steady_clock::now();
      auto figures = research::run_disb(workload, table, options);
      if (disb_interrupted != 0) return;
      Result<research::DisbReport> report = std::unexpected(Error{});
      if (figures) {
        report = research::make_disb_report(workload.name, run.scheduler, arguments.seed, table.units,
                                            *std::move(figures));
        report->wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
      } else {
        report = std::unexpected(std::move(figures.error()));
      }
      const std::lock_guard lock(shared.mutex);
      run.report = std::move(report);
      run.progress = 1;
      shared.show();
    }
  };
  const auto jobs = arguments.jobs > 0 ? static_cast<std::size_t>(arguments.jobs)
                                       : static_cast<std::size_t>(usable_processors());
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(jobs, shared.runs.size()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int simulate_disb(const DisbArguments& arguments) {
  const auto schedulers = schedulers_of(arguments);
  if (!schedulers) return fail_disb(schedulers.error());
  if (auto checked = check_plot(arguments); !checked) return fail_disb(checked.error());
  auto workload = read_workload(arguments);
  if (!workload) return fail_disb(workload.error());
  const auto scale = scale_of(arguments);
  if (!scale) return fail_disb(scale.error());
  if (*scale) workload::scale_rates(*workload, **scale);
  if (arguments.duration_s > 0) workload::set_length(*workload, from_seconds(arguments.duration_s));
  const auto table = read_kernels(arguments);
  if (!table) return fail_disb(table.error());
  const auto matched = match(
      *workload, *table, arguments.kernels.empty() ? "the program's table of kernels" : arguments.kernels);
  if (!matched) return fail_disb(matched.error());

  std::signal(SIGINT, [](int) { disb_interrupted = 1; });
  Shared shared;
  for (const std::string& scheduler : *schedulers)
    shared.runs.push_back({.scheduler = scheduler, .report = {}});
  simulate_runs(shared, arguments, *workload, *table);
  if (shared.terminal) fmt::print(stderr, "\r{:<60}\r", "");
  if (disb_interrupted != 0) {
    fmt::print(stderr, "carillon disb: interrupted; {} of {} runs were done\n",
               std::ranges::count_if(shared.runs, [](const DisbRun& run) { return run.report.has_value(); }),
               shared.runs.size());
    return exit_failure;
  }
  std::vector<research::DisbReport> reports;
  for (DisbRun& run : shared.runs) {
    if (!*run.report) return fail_disb(in_context(run.scheduler, run.report->error()).error());
    reports.push_back(**std::move(run.report));
  }

  return show_runs(arguments, reports);
}

}  // namespace carillon::cli
