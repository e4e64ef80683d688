#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <set>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/base/files.h"
#include "carillon/cli/access_options.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/load/http_get.h"
#include "carillon/cli/seed_option.h"
#include "carillon/provision/best.h"
#include "carillon/provision/observed.h"
#include "carillon/provision/plan_json.h"
#include "carillon/provision/strategies.h"
#include "carillon/simulate/plan_simulation.h"

namespace carillon::cli {
namespace {

volatile std::sig_atomic_t plan_interrupted = 0;

struct PlanArguments {
  std::string workloads;
  std::string from;
  AccessArguments access;
  double from_seconds = 10;
  double slo_ms = 0;
  std::vector<std::string> coefficients, hardware;
  std::string strategy = "best";
  bool json = false;
  std::string plot;
  std::string existing;
  double move_cost = -1;
  double time_limit_s = 10;
  std::optional<double> effort;
  double headroom_pct = 0;
  std::string arrivals;  // empty: not said
  std::optional<double> percentile_pct, model_error_pct;
  std::uint64_t seed = 1;
  bool no_split = false;
  double simulate_s = 0;  // 0: not at all
  double noise = 0.03;
  double error = 0;
  std::string simulated_arrivals;  // empty: those of the plan
  double load = 1;
  std::string batching = "available";
  bool standby = false;
};

// The plan's arrivals where nothing else is said; the published strategies plan for even gaps.
Result<simulate::PlanSimulationOptions> simulation_options(const PlanArguments& arguments,
                                                           const provision::QueueRule* queue) {
  using simulate::PlanBatching;
  simulate::PlanSimulationOptions options{
      .span = from_seconds(arguments.simulate_s),
      .noise = arguments.noise,
      .error = arguments.error,
      .load = arguments.load,
      .batching = arguments.batching == "full" ? PlanBatching::full : PlanBatching::available,
      .standby = arguments.standby,
      .seed = arguments.seed};
  if (queue != nullptr) options.percentile = queue->percentile;
  std::string arrivals = arguments.simulated_arrivals;
  if (arrivals.empty() && queue != nullptr) {
    if (queue->arrivals.recorded)
      return invalid(
          "--simulate: say --simulate-arrivals constant, poisson or gamma:SHAPE; recorded arrivals "
          "are not simulated");
    arrivals = queue->arrivals.text;
  }
  if (arrivals.empty() || arrivals == "constant") return options;
  const auto spec = workload::parse_arrivals(arrivals);
  if (!spec || (spec->kind != workload::ArrivalKind::poisson && spec->kind != workload::ArrivalKind::gamma))
    return invalid("--simulate-arrivals: is '" + arrivals +
                   "', but should be constant, poisson or gamma:SHAPE, such as gamma:0.5");
  options.arrivals = spec->kind;
  options.shape = spec->shape;
  return options;
}

int fail_plan(const Error& error) {
  fmt::print(stderr, "carillon plan: {}\n", error.message);
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

// Whether `word` stands in the text by itself.
bool has_word(const std::string& text, const std::string& word) {
  const auto part_of_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const auto end = at + word.size();
    if ((at == 0 || !part_of_word(text[at - 1])) && (end == text.size() || !part_of_word(text[end])))
      return true;
  }
  return false;
}

// Each type of device with the coefficients that were measured on it: those whose "gpu" is in the type's.
Result<std::vector<provision::DeviceType>> read_types(const PlanArguments& arguments) {
  std::vector<profile::CoefficientSet> sets;
  for (const std::string& file : arguments.coefficients) {
    auto set = profile::read_coefficients(file);
    if (!set) return std::unexpected(std::move(set.error()));
    sets.push_back(*std::move(set));
  }
  if (arguments.hardware.size() > 16)
    return invalid(fmt::format("--hardware is given {} times; there may be at most 16 types of device",
                               arguments.hardware.size()));
  std::vector<provision::DeviceType> types;
  for (const std::string& file : arguments.hardware) {
    auto hardware = profile::read_hardware(file);
    if (!hardware) return std::unexpected(std::move(hardware.error()));
    for (const auto& other : types)
      if (other.hardware.name == hardware->name)
        return invalid(file + ": gpu: is '" + hardware->name +
                       "' like that of another --hardware, but types should differ");
    const profile::CoefficientSet* found = nullptr;
    std::string names;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      names += (i == 0 ? "" : ", ") + arguments.coefficients[i] + " of '" + sets[i].device + "'";
      if (sets[i].device.empty() || !has_word(hardware->name, sets[i].device)) continue;
      if (found != nullptr)
        return invalid(file + ": gpu: is '" + hardware->name +
                       "', which fits several --coefficients: " + names);
      found = &sets[i];
    }
    if (found == nullptr && sets.size() == 1) {
      found = &sets.front();
      if (!sets.front().device.empty())
        fmt::print(stderr, "carillon plan: the coefficients of '{}' are taken for '{}' too\n",
                   sets.front().device, hardware->name);
    }
    if (found == nullptr)
      return invalid(file + ": gpu: is '" + hardware->name +
                     "', but none of the --coefficients is of a device that this names: " + names);
    types.push_back({.hardware = *std::move(hardware), .models = *found});
  }
  return types;
}

struct Made {
  provision::Plan plan;
  std::optional<provision::BestPlan> best;
};

Result<Made> make_plan(const PlanArguments& arguments, std::span<const provision::Workload> workloads,
                       std::span<const provision::DeviceType> types, const provision::Plan* existing,
                       const provision::QueueRule* queue) {
  using Clock = std::chrono::steady_clock;
  if (arguments.strategy == "igniter") return Made{provision::plan_igniter(workloads, types), {}};
  if (arguments.strategy == "ffd+") return Made{provision::plan_ffd(workloads, types), {}};
  if (arguments.strategy == "gpulets+") return Made{provision::plan_gpulets(workloads, types), {}};
  if (arguments.strategy == "gslice+") return Made{provision::plan_gslice(workloads, types), {}};
  const auto started = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - started).count(); };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  double shown = 0;
  bool any = false;
  provision::BestOptions options;
  options.seed = arguments.seed;
  options.headroom = arguments.headroom_pct / 100;
  options.may_split = !arguments.no_split;
  options.queue = queue;
  options.existing = existing;
  options.move_cost = arguments.move_cost;
  options.effort = arguments.effort;
  options.stop = [&] { return plan_interrupted != 0 || passed() >= arguments.time_limit_s; };
  options.progress = [&](const provision::BestOptions::Progress& progress) {
    const double now = passed();
    if (now - shown < (terminal ? 0.2 : 5.0)) return;
    shown = now;
    any = true;
    fmt::print(stderr, "{}{:5.1f}%  {} devices, {:.2f} $/h (at least {:.2f})  {:.0f} s{}",
               terminal ? "\r" : "", 100 * progress.done, progress.devices, progress.cost_usd_per_hour,
               progress.lower_bound_usd_per_hour, now, terminal ? "   " : "\n");
    std::fflush(stderr);
  };
  provision::BestPlan best = provision::plan_best(workloads, types, options);
  if (terminal && any) fmt::print(stderr, "\r{:<70}\r", "");
  return Made{best.plan, std::move(best)};
}

// The workloads that a running server sees, from two looks at its metrics.
Result<std::vector<provision::Workload>> observe(const PlanArguments& arguments,
                                                 std::span<const provision::DeviceType> types) {
  using Clock = std::chrono::steady_clock;
  const auto look = [&]() -> Result<std::map<std::string, provision::ObservedModel>> {
    const auto text = http_get(arguments.from, arguments.access);
    if (!text) return in_context("--from", text.error());
    return provision::parse_metrics(*text, arguments.from);
  };
  auto first = look();
  if (!first) return std::unexpected(first.error());
  const auto started = Clock::now();
  fmt::print(stderr, "watching {} for {:g} s\n", arguments.from, arguments.from_seconds);
  std::this_thread::sleep_for(std::chrono::duration<double>(arguments.from_seconds));
  auto second = look();
  if (!second) return std::unexpected(second.error());
  const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
  const auto json = provision::observed_workloads(
      *first, *second, seconds,
      arguments.slo_ms > 0 ? std::optional(from_ms(arguments.slo_ms)) : std::nullopt);
  if (!json) return in_context("--from " + arguments.from, json.error());
  return provision::parse_workloads(*json, arguments.from, types);
}

// The rule by which `best` plans for requests that queue; nothing for the paper's constraints.
Result<std::optional<provision::QueueRule>> queue_rule(const PlanArguments& arguments) {
  const bool said = arguments.percentile_pct || arguments.model_error_pct;
  if (arguments.strategy != "best") {
    if (said || !arguments.arrivals.empty())
      return invalid("--arrivals, --percentile and --model-error go with --strategy best alone: " +
                     arguments.strategy + " plans as it was published, for even gaps");
    return std::nullopt;
  }
  if (arguments.arrivals == "model") {
    if (said)
      return invalid(
          "--percentile and --model-error do not go with --arrivals model, whose constraints have "
          "neither");
    return std::nullopt;
  }
  auto arrivals = provision::read_arrivals(arguments.arrivals.empty() ? "poisson" : arguments.arrivals);
  if (!arrivals) return in_context("--arrivals", arrivals.error());
  return provision::QueueRule{.arrivals = *std::move(arrivals),
                              .percentile = arguments.percentile_pct.value_or(99) / 100,
                              .model_error = arguments.model_error_pct.value_or(0) / 100};
}

// Batches up to what the coefficients allow may be far from what was measured.
void warn_of_unmeasured(std::span<const provision::Workload> workloads,
                        std::span<const provision::DeviceType> types) {
  std::set<std::string> names;
  for (const auto& workload : workloads)
    for (const auto& type : types)
      if (const auto* model = type.find(workload.model); model != nullptr && model->measured_batch == 0)
        names.insert(workload.model);
  if (names.empty()) return;
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  fmt::print(stderr,
             "carillon plan: the coefficients do not say the largest batch that was measured "
             "(\"largest_measured_batch\"), so that larger ones may be planned: {}\n",
             list);
}

int run_plan(const PlanArguments& arguments) {
  if (arguments.strategy != "best" && (!arguments.existing.empty() || arguments.headroom_pct > 0 ||
                                       arguments.no_split || arguments.move_cost >= 0))
    return fail_plan({ErrorCode::invalid_argument,
                      "--existing, --move-cost, --headroom and --no-split go with --strategy best alone"});
  if (arguments.move_cost >= 0 && arguments.existing.empty())
    return fail_plan({ErrorCode::invalid_argument, "--move-cost goes with --existing alone"});
  const auto queue = queue_rule(arguments);
  if (!queue) return fail_plan(queue.error());
  const provision::QueueRule* rule = *queue ? &**queue : nullptr;
  const auto options = simulation_options(arguments, rule);
  if (arguments.simulate_s > 0 && !options) return fail_plan(options.error());
  const auto types = read_types(arguments);
  if (!types) return fail_plan(types.error());
  if (arguments.workloads.empty() == arguments.from.empty())
    return fail_plan(
        {ErrorCode::invalid_argument,
         "say what to plan for: either a file of WORKLOADS, or --from with a running server's metrics"});
  const auto workloads = arguments.from.empty() ? provision::read_workloads(arguments.workloads, *types)
                                                : observe(arguments, *types);
  if (!workloads) return fail_plan(workloads.error());
  if (arguments.strategy == "best") warn_of_unmeasured(*workloads, *types);
  provision::PlanReport report{
      .strategy = arguments.strategy, .changes = !arguments.existing.empty(), .queue = rule};
  provision::Plan existing;
  if (report.changes) {
    auto read = provision::read_existing(arguments.existing, *workloads, *types, report.removed);
    if (!read) return fail_plan(read.error());
    existing = *std::move(read);
  }
  // Ctrl-C ends the search; the best plan so far is printed.
  std::signal(SIGINT, [](int) { plan_interrupted = 1; });
  const auto started = std::chrono::steady_clock::now();
  const auto made = make_plan(arguments, *workloads, *types, report.changes ? &existing : nullptr, rule);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (!made) return fail_plan(made.error());
  if (made->best) report.best = &*made->best;
  if (!arguments.plot.empty())
    if (auto written = write_file(arguments.plot, provision::to_svg(made->plan, *workloads, *types, report));
        !written)
      return fail_plan(in_context("--plot", written.error()).error());
  std::optional<simulate::PlanSimulation> simulated;
  if (arguments.simulate_s > 0) {
    auto result = simulate::simulate_plan(made->plan, *workloads, *types, *options);
    if (!result) return fail_plan(in_context("--simulate", result.error()).error());
    simulated = *std::move(result);
  }
  if (arguments.json) {
    std::string told = provision::to_json(made->plan, *workloads, *types, report);
    if (simulated) {
      auto document = nlohmann::ordered_json::parse(told);
      document["simulated"] =
          nlohmann::ordered_json::parse(simulate::to_json(*simulated, *workloads, *options));
      told = document.dump(2);
    }
    fmt::print("{}\n", told);
  } else {
    fmt::print("{}", provision::to_table(made->plan, *workloads, *types, report));
    if (simulated) fmt::print("\n{}", simulate::to_table(*simulated, *workloads, *options));
  }
  return exit_success;
}

}  // namespace

void add_plan(CLI::App& program, int& status) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App& command = *program.add_subcommand(
      "plan", "How many devices a set of SLOs needs, which models share one, with which shares and batches");
  command.add_option("WORKLOADS", arguments->workloads, "JSON file of models, rates and SLOs");
  command.add_option("--from", arguments->from,
                     "In place of WORKLOADS: the metrics of a running server, such as "
                     "http://127.0.0.1:8002/metrics; plans for the rates that it sees");
  add_access_options(command, arguments->access);
  command.add_option("--from-seconds", arguments->from_seconds, "How long to watch it")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command
      .add_option("--slo-ms", arguments->slo_ms, "With --from: the SLO of models that have none of their own")
      ->check(CLI::Range(1e-3, 1e7));
  command
      .add_option("--coefficients", arguments->coefficients,
                  "What the models need on a type of device (JSON); repeat for several types")
      ->allow_extra_args(false)  // else they would swallow WORKLOADS
      ->required();
  command
      .add_option(
          "--hardware", arguments->hardware,
          "A type of device with its price (JSON); repeat for several, of which any number can be had")
      ->allow_extra_args(false)
      ->required();
  command
      .add_option("--strategy", arguments->strategy,
                  "best: the cheapest plan that is found; igniter: the paper's to the letter; ffd+, "
                  "gpulets+, gslice+: "
                  "its baselines")
      ->check(CLI::IsMember({"best", "igniter", "ffd+", "gpulets+", "gslice+"}))
      ->capture_default_str();
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.add_option("--plot", arguments->plot, "Write an SVG: a bar a device, divided by shares");
  command.add_option(
      "--existing", arguments->existing,
      "A plan in force (what --json printed): change it as little as is worth it, and count the moves");
  command
      .add_option(
          "--move-cost", arguments->move_cost,
          "With --existing: US dollars per hour that a move must save (default: a tenth of the cheapest "
          "device's price; 0: the cheapest plan, then the fewest moves)")
      ->check(CLI::Range(0.0, 1e9));
  command
      .add_option("--headroom", arguments->headroom_pct,
                  "Percent by which rates may exceed what is said of them")
      ->check(CLI::Range(0.0, 1000.0));
  command.add_option(
      "--arrivals", arguments->arrivals,
      "How requests arrive, with --strategy best: constant, poisson (default), gamma:SHAPE (below "
      "1 is bursty), or a FILE of arrival times in seconds, one a line; model: the paper's "
      "constraints, a batch within half the SLO");
  command
      .add_option("--percentile", arguments->percentile_pct,
                  "Percent of each workload's requests that must be within its SLO (default: 99)")
      ->check(CLI::Range(50.0, 99.99));
  command
      .add_option("--model-error", arguments->model_error_pct,
                  "Percent by which the interference model may err: the deviation of its error (default: 0)")
      ->check(CLI::Range(0.0, 50.0));
  command.add_flag("--no-split", arguments->no_split, "Never serve one workload on several devices");
  command
      .add_option(
          "--time-limit", arguments->time_limit_s,
          "Seconds after which the search ends with the best plan so far (a greedy one is made in any case)")
      ->check(CLI::Range(0.0, 1e7))
      ->capture_default_str();
  command
      .add_option(
          "--effort", arguments->effort,
          "How long the search goes on, in groups of devices planned anew per device; 0: greedy plans alone "
          "(default: 10, but at most 200 groups; take 30 or more for plans that last)")
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--seed", arguments->seed, "Of the search and of --simulate")
      ->check(check_seed)
      ->capture_default_str();
  CLI::Option& simulated =
      *command
           .add_option(
               "--simulate", arguments->simulate_s,
               "Then serve the plan for so many seconds of virtual time, with devices that do what "
               "the interference model says, give or take noise, and tell each workload's P99 and rate")
           ->check(CLI::Range(0.001, 1e6));
  command.add_option("--simulate-noise", arguments->noise, "Deviation of a batch's time over its mean")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(&simulated)
      ->capture_default_str();
  command
      .add_option("--simulate-error", arguments->error,
                  "Deviation of the model's own error: each workload's batches all take a factor drawn once")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(&simulated)
      ->capture_default_str();
  command
      .add_option("--simulate-arrivals", arguments->simulated_arrivals,
                  "constant gaps, poisson or gamma:SHAPE (default: what was planned for; constant with the "
                  "published strategies)")
      ->needs(&simulated);
  command.add_option("--simulate-load", arguments->load, "Part of the planned rates that comes")
      ->check(CLI::Range(0.01, 1.0))
      ->needs(&simulated)
      ->capture_default_str();
  command
      .add_option("--simulate-batching", arguments->batching,
                  "available: a free device starts with what is there; full: it waits for the planned batch")
      ->check(CLI::IsMember({"available", "full"}))
      ->needs(&simulated)
      ->capture_default_str();
  command
      .add_flag("--simulate-standby", arguments->standby,
                "Simulate a second time with 10% of a device more, or what is left of it, for workloads that "
                "broke their SLO: iGniter's answer to prediction errors")
      ->needs(&simulated);
  command.footer(
      "WORKLOADS is {\"workloads\": [{\"id\": \"W1\", \"model\": \"alexnet\", \"slo_ms\": 10, \"rate_rps\": "
      "1200}]}. The same input, seed and effort give the same plan, unless "
      "the time\n"
      "limit or Ctrl-C ends the search. docs/provisioning.md tells more.\n"
      "Examples (in profiles/igniter):\n"
      "  carillon plan table3.json --coefficients workloads.json --hardware v100.json\n"
      "  carillon plan table3.json --coefficients workloads.json --hardware v100.json --strategy igniter "
      "--json\n"
      "  carillon plan next.json --coefficients a.json --hardware a100.json --coefficients t.json --hardware "
      "t4.json\n"
      "  carillon plan next.json --coefficients workloads.json --hardware v100.json --existing plan.json "
      "--plot plan.svg\n"
      "  carillon plan --from http://127.0.0.1:8002/metrics --coefficients workloads.json --hardware "
      "v100.json\n"
      "  carillon plan table3.json --coefficients workloads.json --hardware v100.json --simulate 30");
  command.callback([arguments, &status] { status = run_plan(*arguments); });
}

}  // namespace carillon::cli
