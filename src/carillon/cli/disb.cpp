#include "carillon/research/disb.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "carillon/cli/commands.h"
#include "carillon/cli/device_options.h"
#include "carillon/cli/disb/arguments.h"
#include "carillon/cli/seed_option.h"
#include "carillon/server/cuda_device.h"

namespace carillon::cli {
namespace {

// What only a simulated device has.
void add_simulated_options(CLI::App& command, DisbArguments& arguments, CLI::Option& simulate) {
  const auto own = [&](CLI::Option* option) { option->needs(&simulate)->group("Of --simulate"); };
  own(command
          .add_option("--in-flight", arguments.in_flight,
                      "Launches that a best-effort stream may have in flight")
          ->check(CLI::Range(1, 512))
          ->capture_default_str());
  own(command
          .add_option("--in-flight-us", arguments.in_flight_us,
                      "No further launch while those in flight take longer than so many microseconds")
          ->check(CLI::Range(0.0, 1e6))
          ->capture_default_str());
  own(command
          .add_option("--best-effort-share", arguments.best_effort_share,
                      "Part of the device's time that best-effort requests are given, 0 to 0.9")
          ->check(CLI::Range(0.0, 0.9))
          ->capture_default_str());
  own(command.add_flag("--no-look-ahead", arguments.no_look_ahead,
                       "No best-effort kernel outlasts the real-time kernel beside which it starts"));
  own(command.add_flag("--no-padding", arguments.no_padding, "No best-effort kernels beside real-time ones"));
  own(command.add_flag("--knows-kernel", arguments.knows_kernel,
                       "After an eviction it is known which kernel was the first not to end"));
  own(command
          .add_option("--slowdown", arguments.slowdown,
                      "What real-time runs may take longer on average for best effort's sake, relative to "
                      "alone: less runs beside them where they do")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str());
  own(command
          .add_option("--margin", arguments.margin,
                      "What a kernel may take longer than the table says where another depends on it, "
                      "relative to it")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str());
  own(command
          .add_option("--interference", arguments.interference,
                      "The device: what a kernel takes longer that starts in company, relative to it")
          ->check(CLI::Range(0.0, 10.0))
          ->capture_default_str());
  own(command
          .add_option("--dispatch-us", arguments.dispatch_us,
                      "The device: from a launch into an idle stream to its kernel's start")
          ->check(CLI::Range(0.0, 1e6))
          ->capture_default_str());
  own(command.add_option("--noise", arguments.noise, "Standard deviation of a kernel's time, relative to it")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str());
  own(command.add_option("--jobs", arguments.jobs, "Runs at a time (default: one a core)")
          ->check(CLI::Range(1, 1024)));
}

void add_live_options(CLI::App& command, DisbArguments& arguments, CLI::Option& simulate) {
  const auto own = [&](CLI::Option* option) { option->excludes(&simulate)->group("Of live runs"); };
  own(command
          .add_option("--models", arguments.models,
                      "Model repository; 'python -m carillon_samples --models disb' makes what the workloads "
                      "run")
          ->capture_default_str());
  own(command
          .add_option(
              "--device", arguments.device.device,
              "cpu; cuda or cuda:N, an NVIDIA GPU (docs/cuda.md); cuda-emulated: a CUDA device in "
              "this process, whose kernels the host computes; cuda-emulated:TABLE: one that takes the "
              "time that a table of steps says, and computes nothing")
          ->check([](const std::string& device) {
            return device == "cpu" || server::is_cuda(device)
                       ? std::string()
                       : "'" + device + "' is not cpu, cuda, cuda:N, cuda-emulated or cuda-emulated:TABLE";
          })
          ->capture_default_str());
  for (CLI::Option* const each : add_cuda_options(command, arguments.device)) own(each);
  own(command.add_option("--kernel-choices", arguments.device.kernel_choices,
                         "File beside which choices of library calls are kept, of cuda devices"));
  own(command
          .add_option("--warm-up", arguments.warm_up_s,
                      "Seconds of the workload under each scheduler before those that count")
          ->check(CLI::Range(0.0, 3600.0))
          ->capture_default_str());
  own(command
          .add_option("--threads", arguments.device.threads,
                      "Threads that run kernels: the device's units; 0: one a core")
          ->check(CLI::Range(0, 1024))
          ->capture_default_str());
  own(command
          .add_option(
              "--real-time-threads", arguments.device.real_time_threads,
              "Of these, those that run a real-time request; with fewer than --threads best effort goes "
              "on on the other cores meanwhile; 0: all")
          ->check(CLI::Range(0, 1024))
          ->capture_default_str());
  own(command
          .add_option("--best-effort-streams", arguments.device.best_effort_streams,
                      "Best-effort requests that run at a time, each on a core of its own; 0: one a core")
          ->check(CLI::Range(0, 1024))
          ->capture_default_str());
  own(command
          .add_option(
              "--stop-cost", arguments.stop_cost,
              "Share of a run's time that it may cost to divide its kernels into parts, between which it "
              "may be stopped")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str());
  for (auto [name, into, what] :
       {std::tuple{"--page-cache", &arguments.device.page_cache, "weights"},
        std::tuple{"--io-cache", &arguments.device.io_cache, "inputs and outputs"},
        std::tuple{"--workspace", &arguments.device.workspace, "what kernels hand on, of each stream"}})
    own(command.add_option(name, *into,
                           std::string("Memory for ") + what + " (default: what the models need)"));
  own(command.add_flag(
      "--real-time", arguments.device.real_time,
      "Ask for real-time priority and pinned threads (needs CAP_SYS_NICE); refused, it goes on "
      "without"));
}

}  // namespace

void add_disb(CLI::App& program, int& status) {
  auto arguments = std::make_shared<DisbArguments>();
  CLI::App& command = *program.add_subcommand("disb",
                                              "Runs a workload of DISB, real-time and best-effort requests, "
                                              "on this machine's CPU, a GPU or a simulated device");
  command
      .add_option("WORKLOAD", arguments->workload,
                  "A, B, B220, C, D, E or REAL, or a file in DISB's format (scenarios/disb/README.md)")
      ->required();
  CLI::Option& simulate = *command.add_flag(
      "--simulate", arguments->simulate, "In virtual time, on a device of compute units, kernel by kernel");
  command
      .add_option("--scheduler", arguments->schedulers,
                  "Who shares the device out; repeat to compare several, or 'all': " + scheduler_list() +
                      " (default " + research::DisbOptions{}.scheduler + ")")
      ->allow_extra_args(false);  // else it would swallow WORKLOAD
  command.add_option("--kernels", arguments->kernels,
                     "The models' kernels (JSON) instead of those measured on an AMD MI50. Live, only the "
                     "models' latencies are used, for --scale auto");
  command.add_option("--seed", arguments->seed, "Of Poisson arrivals, noise and inputs")
      ->check(check_seed)
      ->capture_default_str();
  command
      .add_option("--duration", arguments->duration_s,
                  "Seconds under each scheduler (default: the workload's in virtual time, else " +
                      std::to_string(static_cast<int>(live_seconds)) + ")")
      ->check(CLI::Range(1e-3, 86400.0));
  command.add_option(
      "--scale", arguments->scale,
      "Rates times this; a trace's times, and the length unless --duration sets it, are stretched to fit. "
      "'auto', for live runs: so that open real-time clients ask for the share of this device that they ask "
      "of the MI50 (default: auto, or 1 with --simulate)");
  add_live_options(command, *arguments, simulate);
  add_simulated_options(command, *arguments, simulate);
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.add_option("--plot", arguments->plot,
                     "Write an SVG: real-time latency and throughput by scheduler, latency CDF");
  command.footer(
      "A client has one request under way; what is due meanwhile waits, and is dropped once the next is "
      "due.\n"
      "Live, the schedulers take turns in one run: reef evicts best-effort runs inside their kernels, wait\n"
      "between two, streams runs all beside each other, sequential one after the other, real-time first, "
      "and\n"
      "rt-only leaves best-effort requests out: what real-time latency is measured against. Ctrl-C ends a "
      "run\n"
      "with the figures so far. A simulated workload, scheduler and seed give the same figures (wall_s "
      "apart).\n"
      "Examples:\n"
      "  PYTHONPATH=python .venv/bin/python -m carillon_samples --out build/samples --models disb\n"
      "  carillon disb A --models build/samples --scheduler all\n"
      "  carillon disb D --scheduler rt-only --scheduler reef --scale 0.1 --duration 60 --json\n"
      "  carillon disb my_workload.json --models ./models --scale 1 --scheduler reef\n"
      "  carillon disb A --device cuda-emulated:profiles/h100_mobilenetv2.json --cuda-number f16\n"
      "  carillon disb REAL --simulate --scheduler all --plot real.svg\n"
      "  carillon disb B220 --simulate --scheduler reef --scheduler rt-only --duration 10 --json");
  command.callback([arguments, &status] {
    status = arguments->simulate ? simulate_disb(*arguments) : run_disb_live(*arguments);
  });
}

}  // namespace carillon::cli
