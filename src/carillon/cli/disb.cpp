#include "carillon/simulate/disb.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/cli/commands.h"
#include "carillon/device/sharing/sharing.h"
#include "carillon/profile/kernel_table.h"
#include "carillon/simulate/disb_report.h"
#include "carillon/workload/disb.h"

namespace carillon::cli {
namespace {

volatile std::sig_atomic_t disb_interrupted = 0;
// A file's name need not be UTF-8, but JSON is.
constexpr auto replace_bad = nlohmann::json::error_handler_t::replace;

struct DisbArguments {
  std::string workload;
  bool simulate = false;
  std::vector<std::string> schedulers;
  std::string kernels;
  std::uint64_t seed = 1;
  double duration_s = 0;  // 0: the workload's
  int jobs = 0;
  bool json = false;
  std::string plot;
  int in_flight = device::SharingOptions{}.in_flight;
  double in_flight_us = to_us(device::SharingOptions{}.in_flight_time);
  double best_effort_share = 0;
  bool no_look_ahead = false, no_padding = false, knows_kernel = false;
  double margin = device::SharingOptions{}.margin;
  double slowdown = device::SharingOptions{}.slowdown;
  double noise = 0;
  double interference = simulate::UnitDeviceOptions{}.interference;
  double dispatch_us = to_us(simulate::UnitDeviceOptions{}.dispatch);
  double scale = 1;
};

int fail_disb(const Error& error) {
  fmt::print(stderr, "carillon disb: {}\n", error.message);
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

std::string scheduler_list() {
  std::string all;
  for (const std::string_view name : device::sharing_names())
    all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

// Each once, in the order given; "all" for all of them.
Result<std::vector<std::string>> schedulers_of(const DisbArguments& arguments) {
  std::vector<std::string> wanted;
  const auto want = [&](std::string_view name) {
    if (std::ranges::find(wanted, name) == wanted.end()) wanted.emplace_back(name);
  };
  for (const std::string& name : arguments.schedulers) {
    if (name == "all")
      for (const std::string_view each : device::sharing_names()) want(each);
    else if (std::ranges::find(device::sharing_names(), name) != device::sharing_names().end())
      want(name);
    else
      return invalid("--scheduler '" + name + "': there is none of that name; there are " + scheduler_list() +
                     ", and all");
  }
  if (wanted.empty()) want(simulate::DisbOptions{}.scheduler);
  return wanted;
}

// One that the program brings with it, or a file.
Result<workload::DisbWorkload> read_workload(const DisbArguments& arguments) {
  auto workload = workload::disb_workload(arguments.workload);
  if (!workload) {
    auto file = workload::read_disb(arguments.workload);
    if (!file && file.error().code == ErrorCode::not_found)
      return fail(ErrorCode::not_found, workload.error().message + ", and no such file");
    workload = std::move(file);
  }
  if (!workload) return workload;
  if (arguments.scale != 1) workload::scale_rates(*workload, arguments.scale);
  if (arguments.duration_s > 0) workload::set_length(*workload, from_seconds(arguments.duration_s));
  return workload;
}

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
  std::optional<Result<simulate::DisbReport>> report;
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

simulate::DisbOptions options_of(const DisbArguments& arguments, int of_table) {
  simulate::DisbOptions options;
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
      simulate::DisbOptions options = options_of(arguments, table.units);
      options.scheduler = run.scheduler;
      options.progress = progressed;
      options.user = &place;
      const auto started = std::chrono::steady_clock::now();
      auto figures = simulate::run_disb(workload, table, options);
      if (disb_interrupted != 0) return;
      Result<simulate::DisbReport> report = std::unexpected(Error{});
      if (figures) {
        report = simulate::make_disb_report(workload.name, run.scheduler, arguments.seed, table.units,
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
                                       : std::max<std::size_t>(1, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(jobs, shared.runs.size()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

int simulate_disb(const DisbArguments& arguments) {
  const auto schedulers = schedulers_of(arguments);
  if (!schedulers) return fail_disb(schedulers.error());
  auto workload = read_workload(arguments);
  if (!workload) return fail_disb(workload.error());
  const auto table = arguments.kernels.empty() ? Result<profile::KernelTable>(profile::mi50_kernel_table())
                                               : profile::read_kernel_table(arguments.kernels);
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
  std::vector<simulate::DisbReport> reports;
  for (DisbRun& run : shared.runs) {
    if (!*run.report) return fail_disb(in_context(run.scheduler, run.report->error()).error());
    reports.push_back(**std::move(run.report));
  }

  if (!arguments.plot.empty()) {
    std::ofstream out(arguments.plot);
    out << simulate::to_svg(reports);
    out.close();
    if (!out) return fail_disb({ErrorCode::internal, "cannot write '" + arguments.plot + "'"});
  }
  if (!arguments.json) {
    fmt::print("{}", simulate::to_table(reports));
  } else if (reports.size() == 1) {
    fmt::print("{}\n", simulate::to_json(reports.front()).dump(2, ' ', false, replace_bad));
  } else {
    nlohmann::ordered_json all{{"workload", workload->name}, {"runs", nlohmann::ordered_json::array()}};
    for (const simulate::DisbReport& report : reports) all["runs"].push_back(simulate::to_json(report));
    fmt::print("{}\n", all.dump(2, ' ', false, replace_bad));
  }
  return exit_success;
}

int run_or_say(const DisbArguments& arguments) {
  if (arguments.simulate) return simulate_disb(arguments);
  fmt::print(stderr, "carillon disb: there are no live runs yet; --simulate runs {} in virtual time\n",
             arguments.workload);
  return exit_failure;
}

}  // namespace

void add_disb(CLI::App& program, int& status) {
  auto arguments = std::make_shared<DisbArguments>();
  CLI::App& command = *program.add_subcommand(
      "disb", "Runs a workload of DISB: real-time and best-effort requests, kernel by kernel, on one device");
  command
      .add_option("WORKLOAD", arguments->workload,
                  "A, B, B220, C, D, E or REAL, or a file in DISB's format (scenarios/disb/README.md)")
      ->required();
  command.add_flag("--simulate", arguments->simulate, "In virtual time, on a device of compute units");
  command
      .add_option("--scheduler", arguments->schedulers,
                  "Who shares the device out; repeat to compare several, or 'all': " + scheduler_list() +
                      " (default " + simulate::DisbOptions{}.scheduler + ")")
      ->allow_extra_args(false);  // else it would swallow WORKLOAD
  command.add_option("--kernels", arguments->kernels,
                     "The models' kernels (JSON) instead of those measured on an AMD MI50");
  command.add_option("--seed", arguments->seed, "Of Poisson arrivals and noise")
      ->check(CLI::Range(0.0, 0x1p64))  // else -1 would be the largest
      ->capture_default_str();
  command.add_option("--duration", arguments->duration_s, "Virtual seconds instead of the workload's")
      ->check(CLI::Range(1e-3, 86400.0));
  command
      .add_option(
          "--scale", arguments->scale,
          "Rates times this; a trace's times, and the length unless --duration sets it, are stretched to fit")
      ->check(CLI::Range(1e-3, 1e3))
      ->capture_default_str();
  command
      .add_option("--in-flight", arguments->in_flight,
                  "Launches that a best-effort stream may have in flight")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command
      .add_option("--in-flight-us", arguments->in_flight_us,
                  "No further launch while those in flight take longer than so many microseconds")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--best-effort-share", arguments->best_effort_share,
                  "Part of the device's time that best-effort requests are given, 0 to 0.9")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  command.add_flag("--no-look-ahead", arguments->no_look_ahead,
                   "No best-effort kernel outlasts the real-time kernel beside which it starts");
  command.add_flag("--no-padding", arguments->no_padding, "No best-effort kernels beside real-time ones");
  command.add_flag("--knows-kernel", arguments->knows_kernel,
                   "After an eviction it is known which kernel was the first not to end");
  command
      .add_option("--slowdown", arguments->slowdown,
                  "What real-time runs may take longer on average for best effort's sake, relative to alone: "
                  "less runs beside them where they do")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option(
          "--margin", arguments->margin,
          "What a kernel may take longer than the table says where another depends on it, relative to it")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--interference", arguments->interference,
                  "The device: what a kernel takes longer that starts in company, relative to it")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command
      .add_option("--dispatch-us", arguments->dispatch_us,
                  "The device: from a launch into an idle stream to its kernel's start")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--noise", arguments->noise, "Standard deviation of a kernel's time, relative to it")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--jobs", arguments->jobs, "Runs at a time (default: one a core)")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.add_option("--plot", arguments->plot,
                     "Write an SVG: real-time latency and throughput by scheduler, latency CDF");
  command.footer(
      "A client has one request under way; what is due meanwhile waits, and is dropped once the next is "
      "due.\n"
      "rt-only leaves best-effort requests out: what real-time latency is measured against. The same "
      "workload,\n"
      "scheduler and seed give the same figures (wall_s apart).\n"
      "Examples:\n"
      "  carillon disb A --simulate\n"
      "  carillon disb REAL --simulate --scheduler all --plot real.svg\n"
      "  carillon disb B220 --simulate --scheduler reef --scheduler rt-only --duration 10 --json");
  command.callback([arguments, &status] { status = run_or_say(*arguments); });
}

}  // namespace carillon::cli
