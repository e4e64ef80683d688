#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/base/files.h"
#include "carillon/base/processors.h"
#include "carillon/cli/admission_option.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/miss_rate_option.h"
#include "carillon/cli/partition_option.h"
#include "carillon/cli/preempt_option.h"
#include "carillon/cli/simulate_jobs.h"
#include "carillon/cli/simulate_studies.h"
#include "carillon/schedule/log/recording.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/subclusters.h"
#include "carillon/simulate/goodput.h"
#include "carillon/simulate/plot.h"
#include "carillon/simulate/report.h"
#include "carillon/simulate/simulation.h"
#include "carillon/workload/jobs.h"
#include "carillon/workload/scenario.h"
#include "carillon/workload/study.h"

namespace carillon::cli {
namespace {

volatile std::sig_atomic_t simulate_interrupted = 0;

struct SimulateArguments {
  std::vector<std::string> scenarios;
  std::vector<std::string> schedulers;
  double rate = 0;
  double duration_s = 0;
  double slo_p99 = 0;
  std::string seeds;
  double noise = 0;
  std::string decision_us;
  int jobs = 0;
  bool json = false;
  bool each_job = false;
  bool each_trial = false;
  std::string plot;
  std::string record;
  double interval_s = 0;
  std::optional<double> start_up_s;  // devices come and go
  double quiet_s = 300, period_s = 15;
  std::string by = "wanted";
  int from = 1;
  double precision = 0.005;
  std::string preempt{
      schedule::name_of(schedule::Preemption::none)};  // as the papers and all figures have it
  std::string admission = "policy";                    // likewise
  std::optional<double> miss_rate;
  bool measured = false;
  std::string partition;                 // groups of devices that divide the models
  std::vector<std::string> repartition;  // "SECONDS=FILE"
};

schedule::Environment simulated_environment(const SimulateArguments& arguments,
                                            const workload::Scenario& scenario,
                                            const std::string& scheduler) {
  schedule::Environment environment = simulate::environment(scenario);
  environment.preemption = preemption_of(arguments.preempt, scheduler);
  environment.admission = admits_on_arrival(arguments.admission, scheduler);
  environment.miss_rate = arguments.miss_rate.value_or(environment.miss_rate);
  environment.measured = arguments.measured;
  return environment;
}

// The files of --partition and --repartition, for a scenario.
struct Divisions {
  schedule::GroupsOfModels first;
  std::vector<std::pair<TimePoint, schedule::GroupsOfModels>> later;
};
Result<Divisions> read_divisions(const SimulateArguments& arguments, const workload::Scenario& scenario) {
  const auto read = [&](const std::string& file) -> Result<schedule::GroupsOfModels> {
    auto division = read_division(file, static_cast<std::size_t>(scenario.devices));
    if (!division) return division;
    for (const auto& [name, group] : division->of)
      if (std::ranges::find(scenario.models, name, &workload::ScenarioModel::name) == scenario.models.end())
        return invalid(fmt::format("{}: {} has no model '{}'", file, scenario.name, name));
    return division;
  };
  auto first = read(arguments.partition);
  if (!first) return in_context("--partition", first.error());
  Divisions out{.first = std::move(*first), .later = {}};
  for (const std::string& text : arguments.repartition) {
    const auto equals = text.find('=');
    double at = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + std::min(equals, text.size()), at);
    if (equals == std::string::npos || error != std::errc{} || end != text.data() + equals ||
        !(at >= 0 && at <= 1e7))
      return invalid("--repartition '" + text + "': write SECONDS=FILE, such as 30=next.json");
    auto next = read(text.substr(equals + 1));
    if (!next) return in_context("--repartition", next.error());
    if (next->groups != out.first.groups)
      return invalid(
          fmt::format("--repartition {}: has {} groups, but --partition has {}; their number stays", text,
                      next->groups, out.first.groups));
    out.later.emplace_back(TimePoint{} + from_seconds(at), std::move(*next));
  }
  return out;
}

Result<std::unique_ptr<schedule::Scheduler>> make_simulated(const SimulateArguments& arguments,
                                                            const workload::Scenario& scenario,
                                                            const std::string& scheduler) {
  const schedule::Environment environment = simulated_environment(arguments, scenario, scheduler);
  if (arguments.partition.empty()) return schedule::make_scheduler(scheduler, environment);
  auto divisions = read_divisions(arguments, scenario);
  if (!divisions) return std::unexpected(std::move(divisions.error()));
  auto made = schedule::make_subclusters(scheduler, environment, std::move(divisions->first));
  if (!made) return std::unexpected(std::move(made.error()));
  for (auto& [at, division] : divisions->later) (*made)->change(std::move(division), at);
  return std::unique_ptr<schedule::Scheduler>(std::move(*made));
}

int fail_simulate(const char* command, const Error& error) {
  fmt::print(stderr, "carillon {}: {}\n", command, error.message);
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

// "7" or "1..8".
Result<std::vector<std::uint64_t>> parse_seeds(const std::string& text) {
  std::uint64_t first = 0, last = 0;
  const auto dots = text.find("..");
  const auto read = [](std::string_view part, std::uint64_t& out) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), out);
    return error == std::errc{} && end == part.data() + part.size();
  };
  const bool good = dots == std::string::npos
                        ? read(text, first)
                        : read(text.substr(0, dots), first) && read(text.substr(dots + 2), last);
  if (dots == std::string::npos) last = first;
  if (!good || last < first || last - first >= 10'000)
    return invalid("--seed '" + text +
                   "': write one seed, such as 7, or a range of at most 10000, such as 1..8");
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t i = 0; i <= last - first; ++i) seeds.push_back(first + i);
  return seeds;
}

// "15.5", or "measured".
Result<> parse_decision_us(const std::string& text, simulate::Options& options) {
  if (text.empty()) return {};
  options.measured_decisions = text == "measured";
  if (options.measured_decisions) return {};
  double us = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), us);
  if (error != std::errc{} || end != text.data() + text.size() || !(us >= 0 && us <= 1e6))
    return invalid("--decision-us '" + text + "': write microseconds from 0 to 1e6, or 'measured'");
  options.decision_time = from_ns(us * 1e3);
  return {};
}

struct Run {
  workload::Scenario scenario;
  std::string scheduler;
  simulate::Report report;
  double progress = 0;
  bool done = false;
};

// Every scenario under every scheduler with every seed. `searches`: for the rate that it bears.
Result<std::vector<Run>> make_runs(const SimulateArguments& arguments, bool searches) {
  std::vector<std::uint64_t> seeds;
  if (!arguments.seeds.empty()) {
    auto parsed = parse_seeds(arguments.seeds);
    if (!parsed) return std::unexpected(std::move(parsed.error()));
    seeds = std::move(*parsed);
  }
  const std::optional<std::uint64_t> first_seed = seeds.empty() ? std::nullopt : std::optional(seeds.front());
  std::vector<Run> runs;
  for (const std::string& file : arguments.scenarios) {
    const auto read = [&](std::optional<std::uint64_t> seed) -> Result<workload::Scenario> {
      workload::Overrides overrides{.duration = {}, .seed = seed, .slo_p99 = {}};
      if (arguments.duration_s > 0) overrides.duration = from_seconds(arguments.duration_s);
      if (arguments.slo_p99 > 0) overrides.slo_p99 = arguments.slo_p99;
      auto scenario = workload::read_scenario(file, overrides);
      if (!scenario || (!searches && arguments.rate <= 0)) return scenario;
      const std::size_t scaling = workload::scaling_models(*scenario);
      if (scaling == 0)
        return invalid(file +
                       ": there is no rate to set: every model has a rate of its own, or clients that wait");
      if (scaling < scenario->models.size() && seed == first_seed)
        fmt::print(stderr, "{}: {} of {} models keep rates of their own\n", file,
                   scenario->models.size() - scaling, scenario->models.size());
      if (arguments.rate > 0) workload::set_rate(*scenario, arguments.rate);
      return scenario;
    };
    const auto scenario = read(first_seed);
    if (!scenario) return std::unexpected(scenario.error());
    const auto schedulers =
        arguments.schedulers.empty() ? std::vector{scenario->scheduler} : arguments.schedulers;
    for (const std::string& scheduler : schedulers) {
      const auto made = make_simulated(arguments, *scenario, scheduler);
      if (!made) return invalid(made.error().message);
      if (auto preempts = check_preempt(arguments.preempt, scheduler); !preempts)
        return std::unexpected(std::move(preempts.error()));
      if (auto admits = check_admission(arguments.admission, scheduler); !admits)
        return std::unexpected(std::move(admits.error()));
      for (const std::uint64_t seed : seeds.empty() ? std::vector{scenario->seed} : seeds) {
        Run run{.scenario = *scenario, .scheduler = scheduler, .report = {}};
        if (seed != scenario->seed) {  // a trace is dealt by the seed
          auto other = read(seed);
          if (!other) return std::unexpected(other.error());
          run.scenario = std::move(*other);
        }
        runs.push_back(std::move(run));
      }
    }
  }
  return runs;
}

int jobs_of(int wanted) {
  return wanted > 0 ? wanted : usable_processors();
}

Result<> write_plot(const std::string& file, const std::string& svg) {
  if (file.empty()) return {};
  if (auto written = write_file(file, svg); !written) return in_context("--plot", written.error());
  return {};
}

// What files of jobs and of studies have in common with scenarios: seeds, and nothing of requests. `key` is
// what their files have.
Result<std::vector<std::uint64_t>> seeds_alone(const SimulateArguments& arguments, const char* key) {
  for (const auto& [given, name] : {std::pair{arguments.rate > 0, "--rate"},
                                    {arguments.duration_s > 0, "--duration"},
                                    {arguments.slo_p99 > 0, "--slo-p99"},
                                    {arguments.noise > 0, "--noise"},
                                    {!arguments.decision_us.empty(), "--decision-us"},
                                    {!arguments.record.empty(), "--record"},
                                    {!arguments.partition.empty(), "--partition"},
                                    {arguments.start_up_s.has_value(), "--autoscale"}})
    if (given) return invalid(fmt::format("{} is for scenarios of requests, not for files of {}", name, key));
  if (arguments.seeds.empty()) return std::vector<std::uint64_t>{};
  return parse_seeds(arguments.seeds);
}

// Files of jobs that share a device instead of scenarios.
int simulate_all_jobs(const SimulateArguments& arguments) {
  const auto usage = [](std::string message) {
    return fail_simulate("simulate", {ErrorCode::invalid_argument, std::move(message)});
  };
  const auto seeds = seeds_alone(arguments, "[[jobs]]");
  if (!seeds) return fail_simulate("simulate", seeds.error());
  auto runs = make_job_runs(arguments.scenarios, arguments.schedulers, *seeds);
  if (!runs) return fail_simulate("simulate", runs.error());
  if (!arguments.plot.empty() && runs->size() != 1)
    return usage(fmt::format("--plot draws one run; this would be {}", runs->size()));
  if (arguments.interval_s > 0 && !arguments.json) return usage("--interval shows in --json alone, of jobs");
  std::signal(SIGINT, [](int) { simulate_interrupted = 1; });
  JobRunning how{.at_a_time = jobs_of(arguments.jobs),
                 .interval = from_seconds(arguments.interval_s),
                 .plots = !arguments.plot.empty(),
                 .go_on = [] { return simulate_interrupted == 0; }};
  if (auto done = run_job_runs(*runs, how); !done) return fail_simulate("simulate", done.error());
  if (auto written = write_plot(arguments.plot, runs->front().svg); !written)
    return fail_simulate("simulate", written.error());
  fmt::print("{}", arguments.json ? jobs_as_json(*runs, arguments.each_job) : jobs_as_tables(*runs));
  return exit_success;
}

// Files of studies.
int simulate_all_studies(const SimulateArguments& arguments) {
  const auto usage = [](std::string message) {
    return fail_simulate("simulate", {ErrorCode::invalid_argument, std::move(message)});
  };
  const auto seeds = seeds_alone(arguments, "[study]");
  if (!seeds) return fail_simulate("simulate", seeds.error());
  if (arguments.interval_s > 0)
    return usage("--interval is for scenarios and jobs, not for files of [study]");
  if (arguments.each_job) return usage("--each-job is for files of [[jobs]]; of studies it is --each-trial");
  auto runs = make_study_runs(arguments.scenarios, arguments.schedulers, *seeds);
  if (!runs) return fail_simulate("simulate", runs.error());
  if (!arguments.plot.empty() && runs->size() != 1)
    return usage(fmt::format("--plot draws one run; this would be {}", runs->size()));
  std::signal(SIGINT, [](int) { simulate_interrupted = 1; });
  StudyRunning how{.at_a_time = jobs_of(arguments.jobs), .plots = !arguments.plot.empty(), .go_on = [] {
                     return simulate_interrupted == 0;
                   }};
  if (auto done = run_study_runs(*runs, how); !done) return fail_simulate("simulate", done.error());
  if (auto written = write_plot(arguments.plot, runs->front().svg); !written)
    return fail_simulate("simulate", written.error());
  fmt::print("{}", arguments.json ? studies_as_json(*runs, arguments.each_trial) : studies_as_tables(*runs));
  return exit_success;
}

int simulate_all(const SimulateArguments& arguments) {
  const auto of_jobs =
      std::ranges::count_if(arguments.scenarios, [](const auto& file) { return workload::has_jobs(file); });
  const auto of_studies =
      std::ranges::count_if(arguments.scenarios, [](const auto& file) { return workload::has_study(file); });
  if (arguments.each_trial && of_studies == 0)
    return fail_simulate("simulate", {ErrorCode::invalid_argument, "--each-trial is for files of [study]"});
  if (of_studies == std::ssize(arguments.scenarios)) return simulate_all_studies(arguments);
  if (of_studies > 0)
    return fail_simulate("simulate", {ErrorCode::invalid_argument,
                                      "some of the files have [study] and some have not; run them apart"});
  if (of_jobs == std::ssize(arguments.scenarios)) return simulate_all_jobs(arguments);
  if (of_jobs > 0)
    return fail_simulate("simulate", {ErrorCode::invalid_argument,
                                      "some of the files have [[jobs]] and some have not; run them apart"});
  if (arguments.each_job)
    return fail_simulate("simulate", {ErrorCode::invalid_argument, "--each-job is for files of [[jobs]]"});
  for (const auto& [given, name] :
       {std::pair{!arguments.record.empty(), "--record"}, {arguments.start_up_s.has_value(), "--autoscale"}})
    if (given && !arguments.partition.empty())
      return fail_simulate(
          "simulate", {ErrorCode::invalid_argument, std::string("--partition does not go with ") + name});
  auto runs = make_runs(arguments, false);
  if (!runs) return fail_simulate("simulate", runs.error());
  if (!arguments.plot.empty() && runs->size() != 1)
    return fail_simulate("simulate", {ErrorCode::invalid_argument,
                                      "--plot draws one run; this would be " + std::to_string(runs->size())});
  if (arguments.interval_s > 0 && !arguments.json && arguments.plot.empty())
    return fail_simulate(
        "simulate", {ErrorCode::invalid_argument, "--interval shows in --json and in --plot FILE alone"});
  if (arguments.start_up_s && !arguments.json)
    return fail_simulate("simulate",
                         {ErrorCode::invalid_argument, "--autoscale shows in --json alone: give both"});
  std::optional<simulate::UsualOptions> usual;
  if (arguments.by != "wanted") {
    auto read = simulate::parse_usual(arguments.by);
    if (!read) return fail_simulate("simulate", in_context("--autoscale-by", read.error()).error());
    usual = *read;
  }
  if (arguments.start_up_s)
    for (const Run& run : *runs)
      if (!run.scenario.faults.empty())
        return fail_simulate(
            "simulate", {ErrorCode::invalid_argument, "--autoscale: " + run.scenario.name +
                                                          " plans faults of devices, which may be away"});
  for (const Run& run : *runs)
    if (arguments.interval_s > 0 && to_seconds(run.scenario.duration) / arguments.interval_s *
                                            static_cast<double>(run.scenario.models.size() + 1) >
                                        2e7)
      return fail_simulate(
          "simulate",
          {ErrorCode::invalid_argument,
           fmt::format("--interval {:g}: {} models over {:g} s would make more than 20 million "
                       "entries; take a longer interval",
                       arguments.interval_s, run.scenario.models.size(), to_seconds(run.scenario.duration))});
  if (!arguments.record.empty() && runs->size() != 1)
    return fail_simulate("simulate", {ErrorCode::invalid_argument, "--record logs one run; this would be " +
                                                                       std::to_string(runs->size())});
  simulate::Options common;
  if (const auto parsed = parse_decision_us(arguments.decision_us, common); !parsed)
    return fail_simulate("simulate", parsed.error());
  std::signal(SIGINT, [](int) { simulate_interrupted = 1; });
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::mutex mutex;
  std::optional<Error> error;  // of the log
  std::atomic<std::size_t> next{0};
  std::string svg;
  const auto started = std::chrono::steady_clock::now();
  auto shown = started;
  const auto show = [&] {
    const auto wall = std::chrono::steady_clock::now();
    if (wall - shown < (terminal ? std::chrono::milliseconds{200} : std::chrono::milliseconds{5000})) return;
    shown = wall;
    double progress = 0;
    std::size_t done = 0;
    for (const Run& run : *runs) {
      progress += run.progress;
      done += run.done ? 1 : 0;
    }
    fmt::print(stderr, "{}{:5.1f}%  {} of {} runs done  {:.0f} s{}", terminal ? "\r" : "",
               100 * progress / static_cast<double>(runs->size()), done, runs->size(),
               std::chrono::duration<double>(wall - started).count(), terminal ? "   " : "\n");
    std::fflush(stderr);
  };
  const auto work = [&] {
    for (std::size_t i = next++; i < runs->size() && simulate_interrupted == 0; i = next++) {
      Run& run = (*runs)[i];
      auto scheduler = make_simulated(arguments, run.scenario, run.scheduler);
      if (!scheduler) {  // a file has changed since it was checked
        const std::lock_guard lock(mutex);
        error = scheduler.error();
        return;
      }
      if (!arguments.record.empty()) {
        scheduler = schedule::log::RecordingScheduler::open(
            arguments.record, std::move(*scheduler), run.scheduler,
            simulated_environment(arguments, run.scenario, run.scheduler));
        if (!scheduler) {
          error = in_context("--record", scheduler.error()).error();
          return;
        }
      }
      simulate::Options options = common;
      options.faults.noise = arguments.noise;
      options.interval = from_seconds(arguments.interval_s);
      if (arguments.start_up_s)
        options.scaling = {.wanted = {.quiet = from_seconds(arguments.quiet_s)},
                           .devices = arguments.from,
                           .period = from_seconds(arguments.period_s),
                           .start_up = from_seconds(*arguments.start_up_s),
                           .usual = usual};
      if (!arguments.plot.empty()) options.timeline = static_cast<std::size_t>(40 * run.scenario.devices);
      options.progress = [&](double share) {
        const std::lock_guard lock(mutex);
        run.progress = share;
        show();
        return simulate_interrupted == 0;
      };
      simulate::Figures figures = simulate::run(run.scenario, **scheduler, options);
      simulate::Report report = simulate::make_report(run.scenario, run.scheduler, figures, options.interval);
      if (!arguments.plot.empty())
        svg = simulate::to_svg(run.scenario, run.scheduler, figures, options.interval);
      const std::lock_guard lock(mutex);
      run.report = std::move(report);
      run.progress = 1;
      run.done = simulate_interrupted == 0;
      show();
    }
  };
  std::vector<std::thread> threads;
  const auto workers = std::min<std::size_t>(static_cast<std::size_t>(jobs_of(arguments.jobs)), runs->size());
  for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (terminal) fmt::print(stderr, "\r{:<60}\r", "");
  if (error) return fail_simulate("simulate", *error);
  if (simulate_interrupted != 0) {
    fmt::print(stderr, "carillon simulate: interrupted; {} of {} runs were done\n",
               std::count_if(runs->begin(), runs->end(), [](const Run& r) { return r.done; }), runs->size());
    return exit_failure;
  }
  if (auto written = write_plot(arguments.plot, svg); !written)
    return fail_simulate("simulate", written.error());
  if (arguments.json) {
    if (runs->size() == 1) {
      fmt::print("{}\n", simulate::to_json(runs->front().report).dump(2));
    } else {
      nlohmann::ordered_json all;
      all["runs"] = nlohmann::ordered_json::array();
      for (const Run& run : *runs) all["runs"].push_back(simulate::to_json(run.report));
      fmt::print("{}\n", all.dump(2));
    }
    return exit_success;
  }
  for (const Run& run : *runs) fmt::print("{}", simulate::to_table(run.report));
  return exit_success;
}

int find_all(const SimulateArguments& arguments) {
  auto runs = make_runs(arguments, true);
  if (!runs) return fail_simulate("goodput", runs.error());
  std::signal(SIGINT, [](int) { simulate_interrupted = 1; });
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (Run& run : *runs) {
    simulate::GoodputOptions options;
    options.jobs = jobs_of(arguments.jobs);
    options.precision = arguments.precision;
    options.progress = [&](double rate, bool passed, double low, double high) {
      fmt::print(stderr, "  {} under {}: {:.1f}/s {}; between {:.1f} and {}\n", run.scenario.name,
                 run.scheduler, rate, passed ? "passes" : "does not", low,
                 high > 0 ? fmt::format("{:.1f}", high) : std::string("?"));
      return simulate_interrupted == 0;
    };
    const auto make = [&] {
      return *schedule::make_scheduler(run.scheduler,
                                       simulated_environment(arguments, run.scenario, run.scheduler));
    };
    const simulate::Goodput found = simulate::find_goodput(run.scenario, make, run.scheduler, options);
    if (found.interrupted) {
      fmt::print(stderr, "carillon goodput: interrupted\n");
      return exit_failure;
    }
    if (found.rate > 0 && found.fewest_requests < 1000)
      fmt::print(stderr,
                 "carillon goodput: a model had only {} requests in a run: make duration_s longer for a firm "
                 "figure\n",
                 found.fewest_requests);
    if (arguments.json) {
      nlohmann::ordered_json json;
      json["scenario"] = run.scenario.name;
      json["scheduler"] = run.scheduler;
      json["seed"] = run.scenario.seed;
      json["goodput_rps"] = found.rate;
      json["runs"] = found.runs;
      json["fewest_requests"] = found.fewest_requests;
      json["run"] = found.rate > 0 ? simulate::to_json(found.report) : nlohmann::ordered_json();
      all.push_back(std::move(json));
    } else {
      fmt::print("{} under {}: goodput {:.1f} requests/s\n", run.scenario.name, run.scheduler, found.rate);
    }
  }
  if (arguments.json)
    fmt::print("{}\n", (all.size() == 1 ? all.front() : nlohmann::ordered_json{{"searches", all}}).dump(2));
  return exit_success;
}

void add_common(CLI::App& command, SimulateArguments& arguments) {
  command.add_option("SCENARIO", arguments.scenarios, "Scenario files")->required();
  command.add_option(
      "--scheduler", arguments.schedulers,
      "Policy instead of the scenario's; repeat to compare several: " + schedule::scheduler_list());
  command.add_option("--duration", arguments.duration_s, "Virtual seconds instead of the scenario's")
      ->check(CLI::Range(1e-6, 1e7));
  command
      .add_option(
          "--slo-p99", arguments.slo_p99,
          "SLO of the models that have slo_p99, as a multiple of the 99th percentile of one request's time")
      ->check(CLI::Range(1e-6, 1e6));
  add_preempt_option(command, arguments.preempt);
  add_admission_option(command, arguments.admission);
  add_miss_rate_option(command, arguments.miss_rate, "the scenario's, or 0.005");
  command.add_flag(
      "--measured", arguments.measured,
      "The policy goes by what it measures of the time that runs take beyond their estimates and of "
      "the ways there and back, as a server does; else by what the scenario says");
  command.add_option("--seed", arguments.seeds, "Seed instead of the scenario's, or a range such as 1..8");
  command.add_option("--jobs", arguments.jobs, "Runs at a time (default: one a core)")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--json", arguments.json, "Print one JSON object");
}

}  // namespace

void add_simulate(CLI::App& program, int& status) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App& command =
      *program.add_subcommand("simulate", "Runs a scenario in virtual time, under the scheduler that serves");
  add_common(command, *arguments);
  command
      .add_option("--rate", arguments->rate, "Requests a second over all models instead of the scenario's")
      ->check(CLI::Range(1e-9, 1e9));
  command
      .add_option("--noise", arguments->noise,
                  "Executions and loads take 1 + NOISE * |normal| of the profile's time")
      ->check(CLI::Range(0.0, 10.0));
  command.add_option(
      "--decision-us", arguments->decision_us,
      "Virtual microseconds that each decision takes (default 0), or 'measured': what it took of "
      "this machine's CPU, and then its distribution is told");
  command.add_option(
      "--plot", arguments->plot,
      "Write an SVG of one run: latency CDF, batch sizes, device timeline; of jobs: completion times, "
      "lanes, memory; of a study: a heat map, the timeline, the best metric");
  command.add_flag("--each-job", arguments->each_job,
                   "Of files of [[jobs]]: also tells of each job (\"each\" in the JSON)");
  command.add_flag("--each-trial", arguments->each_trial,
                   "Of files of [study]: also tells of each trial, and when the best metric rose");
  command
      .add_option("--interval", arguments->interval_s,
                  "Also tells what happened in each so many virtual seconds (\"series\" in the JSON; a plot)")
      ->check(CLI::Range(1e-3, 1e7));
  auto* const autoscale =
      command
          .add_option("--autoscale", arguments->start_up_s,
                      "Devices come and go as many are wanted, up to the scenario's; one that is asked for "
                      "takes so many seconds to come (\"scaling\" in the JSON)")
          ->check(CLI::Range(0.0, 1e6));
  command.add_option("--autoscale-period", arguments->period_s, "Seconds between two looks (default 15)")
      ->check(CLI::Range(0.1, 1e6))
      ->needs(autoscale);
  command
      .add_option("--autoscale-quiet", arguments->quiet_s,
                  "Seconds that fewer devices have to be enough before fewer are wanted (default 300)")
      ->check(CLI::Range(0.1, 1e6))
      ->needs(autoscale);
  command
      .add_option("--autoscale-by", arguments->by,
                  "What sets the number of devices: wanted, or, to compare, a usual signal with its target: "
                  "concurrency:REQUESTS, utilization:SHARE or queue:MS (default wanted)")
      ->needs(autoscale);
  command.add_option("--autoscale-from", arguments->from, "Devices at the start (default 1)")
      ->check(CLI::Range(1, 1'000'000))
      ->needs(autoscale);
  command.add_option("--record", arguments->record,
                     "Log every event and action of one run's scheduler to this file, for 'carillon replay'");
  auto* const partition =
      command.add_option("--partition", arguments->partition,
                         "Divide the models over groups of devices, by this file of 'carillon partition "
                         "--json'; device D is in group D modulo the number of groups");
  command
      .add_option("--repartition", arguments->repartition,
                  "SECONDS=FILE: change the division to that of FILE after so many seconds, with as many "
                  "groups; may be repeated")
      ->needs(partition);
  command.footer(
      "The same scenario, scheduler and seed give the same figures (wall_s apart). docs/scenarios.md has the "
      "format.\n"
      "A file with [[jobs]] has training jobs that share a device (docs/salus.md), under " +
      job_policy_list() + ".\nA file with [study] has a tuner's trials over devices (docs/fluid.md), under " +
      tune_policy_list() +
      ".\n"
      "Examples:\n"
      "  carillon simulate scenarios/symphony_table2_resnet50.toml\n"
      "  carillon simulate scenarios/symphony_table2_resnet50.toml --scheduler symphony --scheduler "
      "clockwork --json\n"
      "  carillon simulate a.toml b.toml --seed 1..8 --json\n"
      "  carillon simulate a.toml --rate 3000 --plot run.svg\n"
      "  carillon simulate scenarios/salus/table2_1.toml --scheduler srtf --scheduler pack --scheduler best\n"
      "  carillon simulate scenarios/fluid/fig3_5.toml --scheduler fifo --scheduler static --scheduler best");
  command.callback([arguments, &status] { status = simulate_all(*arguments); });
}

void add_goodput(CLI::App& program, int& status) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App& command = *program.add_subcommand(
      "goodput",
      "Finds the highest total rate at which every model's p99 is within its SLO, in virtual time");
  add_common(command, *arguments);
  command
      .add_option("--precision", arguments->precision, "The search ends when it is sure to so great a share")
      ->check(CLI::Range(1e-4, 0.5))
      ->capture_default_str();
  command.footer(
      "A refused request counts as never answered.\n"
      "Example:\n"
      "  carillon goodput scenarios/symphony_table2_resnet50.toml --scheduler symphony --scheduler clockwork "
      "--json");
  command.callback([arguments, &status] { status = find_all(*arguments); });
}

}  // namespace carillon::cli
