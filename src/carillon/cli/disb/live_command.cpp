#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/base/clock.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/disb/arguments.h"
#include "carillon/cli/disb/live.h"
#include "carillon/device/class_streams.h"
#include "carillon/server/cuda_device.h"
#include "carillon/worker/placement.h"

namespace carillon::cli {
namespace {

using workload::DisbClient;
using workload::DisbWorkload;

volatile std::sig_atomic_t live_interrupted = 0;

// A second Ctrl-C ends the program at once.
void on_live_interrupt(int signal) {
  live_interrupted = 1;
  std::signal(signal, SIG_DFL);
}

// A line that a terminal overwrites, and a log gets seldom.
class LiveProgress {
 public:
  void say(const std::string& what) {
    fmt::print(stderr, "{}{:<70}{}", terminal_ ? "\r" : "", what, terminal_ ? "\r" : "\n");
    std::fflush(stderr);
    said_ = std::chrono::steady_clock::now();
  }
  void say_seldom(const std::string& what) {
    const auto pause = terminal_ ? std::chrono::milliseconds{500} : std::chrono::milliseconds{5000};
    if (std::chrono::steady_clock::now() - said_ >= pause) say(what);
  }
  void clear() {
    if (terminal_) fmt::print(stderr, "\r{:<70}\r", "");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::chrono::steady_clock::time_point said_;
};

struct LivePolicy {
  device::Yielding yielding;
  bool idle = true;         // best-effort threads have the lowest priority
  bool best_effort = true;  // there is best-effort work
};

LivePolicy policy_of(const std::string& scheduler) {
  using device::Yielding;
  if (scheduler == "wait") return {.yielding = Yielding::boundaries};
  if (scheduler == "streams") return {.yielding = Yielding::none, .idle = false};
  if (scheduler == "sequential") return {.yielding = Yielding::turns};
  // rt-only has nobody who would have to make way.
  return {.yielding = Yielding::inside, .best_effort = scheduler == "reef"};
}

// Which of the repository's models a client runs: that of the name that the workload has for it, or the name
// of a sample ("vgg19" for "vgg19-imagenet"), as the table of kernels knows them.
Result<std::string> model_for(const DisbClient& client, const profile::KernelTable& table,
                              const std::string& directory) {
  const auto there = [&](const std::string& name) {
    std::error_code unknown;
    return name.find('/') == std::string::npos &&
           std::filesystem::is_directory(std::filesystem::path(directory) / name, unknown);
  };
  if (there(client.model)) return client.model;
  const profile::ModelKernels* known = table.find(client.model);
  if (known != nullptr && there(known->names.front())) return known->names.front();
  std::error_code unknown;
  if (!std::filesystem::is_directory(directory, unknown))
    return fail(ErrorCode::not_found,
                "--models: there is no folder '" + directory +
                    "'; what the workloads run is made by: PYTHONPATH=python .venv/bin/python -m "
                    "carillon_samples --out " +
                    directory + " --models disb");
  const std::string name = known != nullptr ? known->names.front() : client.model;
  return fail(
      ErrorCode::not_found,
      "client '" + client.name + "' runs '" + client.model + "': there is no model '" + name + "' in " +
          directory +
          (known != nullptr ? "; it is made by: PYTHONPATH=python .venv/bin/python -m carillon_samples "
                              "--out " +
                                  directory + " --models " + name
                            : ""));
}

// The models that a workload runs, each once, and who runs which.
struct Cast {
  std::vector<std::string> names;
  std::vector<std::size_t> model_of;  // of each client
};

Result<Cast> cast_of(const DisbWorkload& workload, const profile::KernelTable& table,
                     const std::string& directory) {
  Cast cast;
  for (const DisbClient& client : workload.clients) {
    auto name = model_for(client, table, directory);
    if (!name) return std::unexpected(name.error());
    const auto found = std::ranges::find(cast.names, *name);
    cast.model_of.push_back(static_cast<std::size_t>(found - cast.names.begin()));
    if (found == cast.names.end()) cast.names.push_back(std::move(*name));
  }
  return cast;
}

// Requests a second of a client that does not wait for answers; 0 of one that does.
double open_rate(const DisbClient& client, Duration length) {
  if (client.arrivals == DisbClient::Arrivals::closed_loop) return 0;
  if (client.arrivals == DisbClient::Arrivals::trace)
    return static_cast<double>(client.trace.size()) / to_seconds(length);
  return client.rate;
}

// What share of a device open real-time clients ask for, where a run of client i's model takes latency(i).
template <typename Latency>
double share_asked(const DisbWorkload& workload, Latency&& latency) {
  double share = 0;
  for (std::size_t i = 0; i < workload.clients.size(); ++i)
    if (workload.clients[i].cls == Class::real_time)
      share += open_rate(workload.clients[i], workload.length) * to_seconds(latency(i));
  return share;
}

// The factor of the rates that gives real-time clients the share of this device that they ask of the table's.
Result<double> auto_scale(const DisbWorkload& workload, const profile::KernelTable& table,
                          double share_here) {
  if (share_here <= 0) return 1.0;  // all are in closed loops
  for (const DisbClient& client : workload.clients)
    if (client.cls == Class::real_time && open_rate(client, workload.length) > 0 &&
        table.find(client.model) == nullptr)
      return invalid("--scale auto: the kernel table of " + table.device + " does not have '" + client.model +
                     "', which client '" + client.name + "' runs; say --scale X");
  const double wanted =
      share_asked(workload, [&](std::size_t i) { return table.find(workload.clients[i].model)->latency; });
  const double scale = wanted / share_here;
  if (!(scale >= 1e-3 && scale <= 1e3))
    return invalid(
        fmt::format("--scale auto: rates would have to be taken {:g} times; say --scale X", scale));
  return scale;
}

// A live run of one workload under several schedulers.
class LiveCommand {
 public:
  explicit LiveCommand(const DisbArguments& arguments) : arguments_(arguments) {}

  Result<std::vector<research::DisbReport>> run(const std::vector<std::string>& schedulers) {
    if (auto ready = prepare(); !ready) return std::unexpected(ready.error());
    std::vector<research::DisbReport> reports;
    for (const std::string& scheduler : schedulers) {
      auto report = run_under(scheduler);
      if (!report) return in_context(scheduler, report.error());
      if (*report) reports.push_back(std::move(**report));
      if (live_interrupted != 0) break;
    }
    progress_.clear();
    return reports;
  }

 private:
  Result<> prepare() {
    auto workload = read_workload(arguments_);
    if (!workload) return std::unexpected(workload.error());
    workload_ = std::move(*workload);
    auto scale = scale_of(arguments_);
    if (!scale) return std::unexpected(scale.error());
    wanted_scale_ = *scale;
    auto table = read_kernels(arguments_);
    if (!table) return std::unexpected(table.error());
    table_ = std::move(*table);
    server::DeviceArguments described = arguments_.device;
    described.classes = true;
    auto device = server::make_device(described, clock_);
    if (!device) return std::unexpected(device.error());
    device_ = std::move(*device);
    auto cast = cast_of(workload_, table_, arguments_.models);
    if (!cast) return std::unexpected(cast.error());
    cast_ = std::move(*cast);
    auto models = compile_local_models(arguments_.models, cast_.names, *device_.engine, stop_costs(),
                                       [this](const std::string& name) {
                                         progress_.say("compiling " + name);
                                         return live_interrupted == 0;
                                       });
    if (!models) return std::unexpected(models.error());
    models_ = std::move(*models);
    return {};
  }

  // Of each model. On a GPU it costs a launch a segment to be stopped soon: models that only real-time
  // clients ask for are not.
  std::vector<std::optional<double>> stop_costs() const {
    std::vector<std::optional<double>> costs(cast_.names.size(), arguments_.stop_cost);
    if (!server::is_cuda(arguments_.device.device)) return costs;
    std::ranges::fill(costs, std::nullopt);
    for (std::size_t i = 0; i < workload_.clients.size(); ++i)
      if (workload_.clients[i].cls == Class::best_effort) costs[cast_.model_of[i]] = arguments_.stop_cost;
    return costs;
  }

  worker::Options options_for(const LivePolicy& policy) const {
    worker::Options options = device_.worker;
    const worker::Options given = options;
    size_memory(options, models_, workload_.clients.size());
    if (!arguments_.device.page_cache.empty()) options.page_cache = given.page_cache;
    if (!arguments_.device.io_cache.empty()) options.io_cache = given.io_cache;
    if (!arguments_.device.workspace.empty()) options.workspace = given.workspace;
    options.queue = std::max<std::size_t>(64, 2 * workload_.clients.size());
    options.max_models = models_.size();
    options.classes->yielding = policy.yielding;
    options.best_effort_idle = policy.idle;
    return options;
  }

  LiveDevice widths(const LivePolicy& policy) const {
    const device::ClassStreams& classes = *device_.worker.classes;
    const bool turns = policy.yielding == device::Yielding::turns;
    const bool some = classes.real_time_units > 0 && !turns;
    return {.units = classes.units,
            .real_time_width = some ? classes.real_time_units : classes.units,
            .best_effort_width = turns ? classes.units : 1};
  }

  // What runs take alone, on as many cores as real-time ones have, once; and with that the rates.
  Result<> measure(worker::Options options) {
    if (!alone_.empty()) return {};
    if (options.classes->real_time_units > 0) options.exec_threads = options.classes->real_time_units;
    options.classes.reset();
    const auto worker = LocalWorker::make(options, models_, clock_);
    if (!worker) return std::unexpected(worker.error());
    LocalWorker& local = **worker;
    for (std::size_t i = 0; i < models_.size(); ++i) {
      progress_.say("measuring " + models_[i].name + " alone");
      auto takes = local.alone(i, std::chrono::seconds{1});
      if (!takes) return std::unexpected(takes.error());
      alone_.push_back(*takes);
      if (live_interrupted != 0) return {};
    }
    const auto alone = [this](std::size_t client) { return alone_[cast_.model_of[client]]; };
    const double share = share_asked(workload_, alone);
    if (wanted_scale_) {
      scale_ = *wanted_scale_;
    } else {
      const auto scale = auto_scale(workload_, table_, share);
      if (!scale) return std::unexpected(scale.error());
      scale_ = *scale;
    }
    share_ = share * scale_;
    workload::scale_rates(workload_, scale_);
    workload::set_length(workload_,
                         from_seconds(arguments_.duration_s > 0 ? arguments_.duration_s : live_seconds));
    std::map<std::string, Duration, std::less<>> by_name;
    for (std::size_t i = 0; i < workload_.clients.size(); ++i) by_name[workload_.clients[i].model] = alone(i);
    workload::stagger(workload_, [&](std::string_view model) { return by_name.find(model)->second; });
    return {};
  }

  // Nothing where it was interrupted before anything was measured.
  Result<std::optional<research::DisbReport>> run_under(const std::string& scheduler) {
    const LivePolicy policy = policy_of(scheduler);
    if (auto done = measure(options_for(policy)); !done) return std::unexpected(done.error());
    if (live_interrupted != 0) return std::nullopt;
    auto local = LocalWorker::make(options_for(policy), models_, clock_);
    if (!local) return std::unexpected(local.error());
    say_notes((*local)->worker().notes());
    if (auto done = (*local)->load(); !done) return std::unexpected(done.error());
    if (arguments_.warm_up_s > 0) {
      DisbWorkload warm_up = workload_;
      workload::set_length(warm_up, std::max<Duration>(1ms, from_seconds(arguments_.warm_up_s)));
      auto warmed = run_once(warm_up, **local, policy, scheduler + ", warming up");
      if (!warmed) return std::unexpected(warmed.error());
      if (live_interrupted != 0) return std::nullopt;
    }
    const TimePoint started = clock_.now();
    auto run = run_once(workload_, **local, policy, scheduler);
    if (!run) return std::unexpected(run.error());
    auto [figures, live] =
        figures_of(workload_, cast_.names, cast_.model_of, widths(policy), std::move(*run));
    live.device = device_.description;
    live.threads = device_.worker.exec_threads;
    live.scale = scale_;
    live.real_time_share = share_;
    for (std::size_t i = 0; i < models_.size(); ++i)
      live.alone_ms.emplace_back(models_[i].name, to_ms(alone_[i]));
    // Of its utilization, as it uses cores for more than kernels.
    const int cores = static_cast<int>(worker::usable_cores().size());
    auto report =
        research::make_disb_report(workload_.name, scheduler, arguments_.seed, cores, std::move(figures));
    report.live = std::move(live);
    report.wall_s = to_seconds(clock_.now() - started);
    return report;
  }

  Result<LiveRun> run_once(const DisbWorkload& workload, LocalWorker& local, const LivePolicy& policy,
                           const std::string& what) {
    LiveOptions options;
    options.seed = arguments_.seed;
    options.best_effort = policy.best_effort;
    options.progress = [&](double done) {
      progress_.say_seldom(
          fmt::format("{}: {:.0f}% of {:g} s", what, 100 * done, to_seconds(workload.length)));
      return live_interrupted == 0;
    };
    return run_live(workload, cast_.model_of, local, clock_, options);
  }

  // Each once, though every scheduler's worker has them.
  void say_notes(const std::vector<std::string>& notes) {
    for (const std::string& note : notes)
      if (std::ranges::find(noted_, note) == noted_.end()) {
        noted_.push_back(note);
        progress_.clear();
        fmt::print(stderr, "note: {}\n", note);
      }
  }

  const DisbArguments& arguments_;
  const SteadyClock clock_;
  LiveProgress progress_;
  DisbWorkload workload_;
  std::optional<double> wanted_scale_;
  profile::KernelTable table_;
  server::Device device_;
  Cast cast_;
  std::vector<LocalModel> models_;
  std::vector<Duration> alone_;  // of each model
  double scale_ = 1, share_ = 0;
  std::vector<std::string> noted_;
};

}  // namespace

int run_disb_live(const DisbArguments& arguments) {
  const auto schedulers = schedulers_of(arguments);
  if (!schedulers) return fail_disb(schedulers.error());
  if (auto checked = check_plot(arguments); !checked) return fail_disb(checked.error());
  std::signal(SIGINT, on_live_interrupt);
  auto reports = LiveCommand(arguments).run(*schedulers);
  if (!reports) return fail_disb(reports.error());
  if (reports->empty()) {
    fmt::print(stderr, "carillon disb: interrupted before anything was measured\n");
    return exit_failure;
  }
  return show_runs(arguments, *reports);
}

}  // namespace carillon::cli
