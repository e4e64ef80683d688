#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/cli/bench/cluster.h"
#include "carillon/cli/bench/device.h"
#include "carillon/cli/bench/jobs.h"
#include "carillon/cli/bench/scheduler.h"
#include "carillon/cli/bench/structures.h"
#include "carillon/cli/bench/waiting.h"
#include "carillon/cli/commands.h"
#include "carillon/device/lanes/job_sharing.h"
#include "carillon/schedule/registry.h"

namespace carillon::cli {
namespace {

struct BenchArguments {
  std::vector<std::string> schedulers = {"symphony"};
  SchedulerLoad load;
  bool rounds = false;
  bool sweep = false;
  bool json = false;
  int waiting = 0;
  int apps = 1;
};

nlohmann::ordered_json figures_json(const BenchArguments& arguments, const std::string& scheduler,
                                    const SchedulerFigures& m) {
  nlohmann::ordered_json json;
  json["scheduler"] = scheduler;
  json["models"] = m.models;
  json["devices"] = m.devices;
  json["threads"] = arguments.load.threads;
  json["requests"] = m.requests;
  json["requests_per_s"] = static_cast<double>(m.requests) / m.seconds;
  json["ns_per_request"] = m.seconds * 1e9 / static_cast<double>(std::max<std::uint64_t>(1, m.requests));
  if (m.policy_seconds > 0)
    json["policy_ns_per_request"] =
        m.policy_seconds * 1e9 / static_cast<double>(std::max<std::uint64_t>(1, m.requests));
  json["cpu_seconds"] = m.cpu_seconds;
  json["dropped_fraction"] =
      static_cast<double>(m.dropped) / static_cast<double>(std::max<std::uint64_t>(1, m.dropped + m.on_time));
  json["mean_batch"] =
      static_cast<double>(m.on_time) / static_cast<double>(std::max<std::uint64_t>(1, m.batches));
  json["decisions"] = m.decisions;
  if (m.each.count() > 0)
    json["decision_us"] = {{"mean", to_us(m.each.mean())},
                           {"p50", to_us(m.each.percentile(0.5))},
                           {"p99", to_us(m.each.percentile(0.99))},
                           {"max", to_us(m.each.max())}};
  return json;
}

int run_waiting(const BenchArguments& arguments) {
  const auto measured = measure_waiting({.scheduler = arguments.schedulers.front(),
                                         .models = arguments.load.models,
                                         .apps = arguments.apps,
                                         .devices = arguments.load.devices,
                                         .waiting = arguments.waiting,
                                         .decisions = arguments.load.requests / 10});
  if (!measured) {
    fmt::print(stderr, "carillon bench scheduler: {}\n", measured.error().message);
    return exit_usage;
  }
  const LatencyHistogram& times = measured->times;
  if (!arguments.json) {
    fmt::print(
        "{}: {} decisions with {} requests waiting: p50 {:.2f} us, p99 {:.2f} us, longest {:.1f} us of "
        "thread time\n",
        arguments.schedulers.front(), times.count(), arguments.waiting, to_us(times.percentile(0.5)),
        to_us(times.percentile(0.99)), to_us(times.max()));
    return exit_success;
  }
  nlohmann::ordered_json json;
  json["scheduler"] = arguments.schedulers.front();
  json["models"] = arguments.load.models;
  json["applications"] = arguments.apps;
  json["devices"] = arguments.load.devices;
  json["waiting"] = arguments.waiting;
  json["decisions"] = times.count();
  json["mean_us"] = to_us(times.mean());
  json["p50_us"] = to_us(times.percentile(0.5));
  json["p99_us"] = to_us(times.percentile(0.99));
  json["max_us"] = to_us(times.max());
  json["batches"] = measured->batches;
  json["batched"] = measured->batched;
  json["refused"] = measured->refused;
  json["late"] = measured->late;
  fmt::print("{}\n", json.dump(2));
  return exit_success;
}

int run_scheduler(const BenchArguments& arguments) {
  if (arguments.waiting > 0) return run_waiting(arguments);
  std::vector<std::string> schedulers = arguments.schedulers;
  if (schedulers == std::vector<std::string>{"all"}) schedulers = schedule::scheduler_names();
  const bool threads = arguments.load.threads > 1 || arguments.rounds;
  for (const std::string& name : schedulers)
    if (threads && (name != "symphony" || arguments.load.each || arguments.load.fit > 0)) {
      fmt::print(
          stderr,
          "carillon bench scheduler: --threads above 1 and --rounds need --scheduler symphony, without "
          "--each and --fit: other decisions are made event by event, on one thread\n");
      return exit_usage;
    }
  std::vector<std::pair<int, int>> sizes;
  if (arguments.sweep) {
    for (const int n : {1, 10, 100, 1000, 10000}) sizes.emplace_back(n, arguments.load.devices);
    for (const int n : {1, 10, 100, 1000, 10000}) sizes.emplace_back(arguments.load.models, n);
  } else {
    sizes.emplace_back(arguments.load.models, arguments.load.devices);
  }
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!arguments.json)
    fmt::print("{:<12}{:>9}{:>9}{:>14}{:>13}{:>10}{:>8}{}\n", "scheduler", "models", "devices", "requests/s",
               "ns/request", "dropped", "batch",
               arguments.load.each ? fmt::format("{:>12}{:>10}{:>10}", "decision us", "p50", "p99") : "");
  for (const std::string& name : schedulers)
    for (const auto& [models, devices] : sizes) {
      SchedulerLoad load = arguments.load;
      load.models = models;
      load.devices = devices;
      const Result<SchedulerFigures> m =
          threads ? measure_symphony_threads(load) : measure_scheduler(name, load);
      if (!m) {
        fmt::print(stderr, "carillon bench scheduler: {}\n", m.error().message);
        return exit_usage;
      }
      const auto json = figures_json(arguments, name, *m);
      if (!arguments.json) {
        fmt::print("{:<12}{:>9}{:>9}{:>14.0f}{:>13.1f}{:>9.3f}%{:>8.1f}", name, models, devices,
                   json["requests_per_s"].get<double>(), json["ns_per_request"].get<double>(),
                   100 * json["dropped_fraction"].get<double>(), json["mean_batch"].get<double>());
        if (arguments.load.each)
          fmt::print("{:>12.2f}{:>10.2f}{:>10.2f}", to_us(m->each.mean()), to_us(m->each.percentile(0.5)),
                     to_us(m->each.percentile(0.99)));
        fmt::print("\n");
        std::fflush(stdout);
      }
      all.push_back(json);
    }
  if (arguments.json)
    fmt::print("{}\n", (all.size() > 1 ? nlohmann::ordered_json{{"runs", all}} : all.front()).dump(2));
  return exit_success;
}

}  // namespace

void add_bench(CLI::App& program, int& status) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App& bench = *program.add_subcommand("bench", "Measures parts of Carillon by themselves");
  bench.require_subcommand(1);
  CLI::App& command = *bench.add_subcommand("scheduler",
                                            "Scheduler and dispatcher alone, in process: requests a second, "
                                            "and how it grows with models and devices");
  command
      .add_option("--scheduler", arguments->schedulers,
                  "Policy; repeat for several, or 'all' of them: " + schedule::scheduler_list())
      ->capture_default_str();
  command.add_option("--models", arguments->load.models, "Models, all like ResNet50 (1.053 b + 5.072 ms)")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--devices", arguments->load.devices, "Devices, which cost no time of their own")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command
      .add_option("--requests", arguments->load.requests, "Requests in all; the first tenth is not measured")
      ->check(CLI::Range(1000, 100'000'000))
      ->capture_default_str();
  command
      .add_option("--load", arguments->load.share, "Share of what the devices could serve in batches of 16")
      ->check(CLI::Range(0.001, 10.0))
      ->capture_default_str();
  command
      .add_option(
          "--fit", arguments->load.fit,
          "The share of the models whose weights a device can hold, which then have to be loaded (8 ms "
          "each); 0: all, and nothing needs loading")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_flag(
      "--each", arguments->load.each,
      "Also each decision's thread time: mean, median and 99th percentile (the requests a second "
      "then include reading the clock)");
  command.add_option("--threads", arguments->load.threads, "Threads; more than one for symphony alone")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option("--round-us", arguments->load.round_us,
                  "With many threads: virtual time between exchanges of messages")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command.add_flag(
      "--rounds", arguments->rounds,
      "In rounds on one thread too, as many threads work: what the second thread adds by itself");
  command
      .add_option("--waiting", arguments->waiting,
                  "Instead: what single decisions cost, in thread time, while so many requests wait, always; "
                  "over a tenth of --requests decisions")
      ->check(CLI::Range(0, 1'000'000));
  command.add_option("--apps", arguments->apps, "With --waiting: applications in all")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_flag("--sweep", arguments->sweep, "1 to 10,000 models, then 1 to 10,000 devices");
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.footer(
      "Virtual time: arrivals are Poisson, devices only pass time. The time counted is that of the whole "
      "loop, the\n"
      "benchmark's own queue of ends included. Where models are many, SLOs grow so that batches can still be "
      "gathered.\n"
      "Examples:\n"
      "  carillon bench scheduler\n"
      "  carillon bench scheduler --scheduler symphony --sweep --json\n"
      "  carillon bench scheduler --scheduler all --each --models 1000 --devices 100 --requests 1000000\n"
      "  carillon bench scheduler --scheduler orloj --models 1000 --apps 4096 --waiting 10000 --json");
  command.callback([arguments, &status] { status = run_scheduler(*arguments); });
  CLI::App& queue = *bench.add_subcommand(
      "queue",
      "Orloj's priority queue alone: inserting, erasing and asking, by the number of waiting requests");
  queue.add_flag("--json", arguments->json, "Print one JSON object");
  queue.footer("Examples:\n  carillon bench queue\n  carillon bench queue --json");
  queue.callback([arguments, &status] { status = bench_queue(arguments->json, 1); });
  CLI::App& door = *bench.add_subcommand(
      "door", "What it takes to let a request in, and to turn one away where decisions cannot keep up");
  door.add_flag("--json", arguments->json, "Print one JSON object");
  door.footer("Examples:\n  carillon bench door\n  carillon bench door --json");
  door.callback([arguments, &status] { status = bench_door(arguments->json); });
  auto load = std::make_shared<DeviceLoad>();
  CLI::App& device = *bench.add_subcommand(
      "device", "The device core alone: what it takes of its thread for an INFER, an eviction, a LOAD");
  device.add_option("--actions", load->actions, "Actions of each kind; the first tenth is not measured")
      ->check(CLI::Range(1000, 1'000'000'000))
      ->capture_default_str();
  device.add_option("--waiting", load->waiting, "INFERs that wait for EXEC at a time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  device.add_option("--models", load->models, "Models")->check(CLI::Range(1, 200))->capture_default_str();
  device.add_flag("--json", load->json, "Print one JSON object");
  device.footer(
      "Executors are done with what they are told at once: only the core's own time is counted.\n"
      "Examples:\n  carillon bench device\n  carillon bench device --waiting 500 --json");
  device.callback([load, &status] { status = bench_device(*load); });
  auto sharing = std::make_shared<JobsLoad>();
  CLI::App& jobs = *bench.add_subcommand(
      "jobs", "The core of training jobs that share a device: events a second, by policy and number of jobs");
  std::string policies;
  for (const std::string_view name : device::job_policy_names())
    policies += (policies.empty() ? "" : ", ") + std::string(name);
  jobs.add_option("--scheduler", sharing->policies,
                  "Policy; repeat for several, or 'all' of them: " + policies)
      ->capture_default_str();
  jobs.add_option("--jobs", sharing->jobs, "Jobs that are here at a time; who ends is followed by another")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  jobs.add_option("--events", sharing->events, "Events in all; the first tenth is not measured")
      ->check(CLI::Range(std::uint64_t{1000}, std::uint64_t{10'000'000'000}))
      ->capture_default_str();
  jobs.add_option("--seed", sharing->seed, "Of the jobs' needs and lengths")->capture_default_str();
  jobs.add_flag("--json", sharing->json, "Print one JSON object");
  jobs.footer("Examples:\n  carillon bench jobs\n  carillon bench jobs --scheduler best --jobs 10000 --json");
  jobs.callback([sharing, &status] { status = bench_jobs(*sharing); });
  add_bench_cluster(bench, status);
  bench.footer(
      "Examples:\n  carillon bench scheduler --sweep\n  carillon bench queue\n  carillon bench door\n"
      "  carillon bench device\n  carillon bench jobs\n  carillon bench cluster");
}

}  // namespace carillon::cli
