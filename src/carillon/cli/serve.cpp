#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <expected>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <pthread.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "carillon/base/clock.h"
#include "carillon/base/heap.h"
#include "carillon/base/memory_account.h"
#include "carillon/base/processors.h"
#include "carillon/base/resident_memory.h"
#include "carillon/cli/admission_option.h"
#include "carillon/cli/choice.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/device_options.h"
#include "carillon/cli/door_options.h"
#include "carillon/cli/headings.h"
#include "carillon/cli/headroom.h"
#include "carillon/cli/memory_bound.h"
#include "carillon/cli/otlp_options.h"
#include "carillon/cli/preempt_option.h"
#include "carillon/cli/safety_options.h"
#include "carillon/cli/service_manager.h"
#include "carillon/cli/signals.h"
#include "carillon/cli/train.h"
#include "carillon/controller/controller.h"
#include "carillon/controller/kept_times.h"
#include "carillon/frontend/frontend.h"
#include "carillon/frontend/telemetry/access_log.h"
#include "carillon/frontend/telemetry/span_exporter.h"
#include "carillon/profile/profile.h"
#include "carillon/repository/repository.h"
#include "carillon/schedule/log/recording.h"
#include "carillon/schedule/registry.h"
#include "carillon/server/memory_plan.h"
#include "carillon/server/planned.h"
#include "carillon/server/store.h"
#include "carillon/server/whole.h"

namespace carillon::cli {
namespace {

struct Arguments {
  std::string models;
  std::vector<std::string> model;
  std::vector<repository::ModelFile> files;  // that `model` names
  bool follow_links = false;
  server::ModelControlMode control = server::ModelControlMode::none;
  double poll_s = 15;
  std::vector<std::string> load;
  std::string scheduler = "clockwork";
  std::string record;
  std::string http = "0.0.0.0:8000";
  std::string grpc = "0.0.0.0:8001";
  std::string metrics = "0.0.0.0:8002";
  SafetyArguments safety;
  std::string profile;
  std::string plan;
  int plan_device = 0;
  bool no_standby = false;
  double default_deadline_ms = 0;
  std::optional<double> stop_cost;
  bool plans_at_once = false;
  std::size_t max_open = 1 << 16;
  std::size_t journal = 10'000;
  std::size_t sizes = controller::SizeOptions{}.most;
  std::string sizes_memory;
  std::string memory = "auto";
  double profile_share = schedule::live_environment().profile_share;
  bool length_blind = false;
  int http_threads = 1;
  DoorArguments doors;
  double drain_s = 10;
  bool strict_readiness = true;
  std::string access_log;
  double trace_sample = 0;
  OtlpArguments otlp;
  bool empty_histograms = false;
  std::string log_level = "info";
  std::string preempt;
  std::string admission;
  double hang_after_ms = to_ms(schedule::live_environment().hangs_after);
  server::DevicesArguments devices;
  TrainArguments train;
  server::StoreArguments store;
};

schedule::Environment environment_of(const Arguments& arguments) {
  schedule::Environment environment = schedule::live_environment();
  environment.hangs_after = from_ms(arguments.hang_after_ms);
  environment.profile_share = arguments.profile_share;
  environment.preemption = preemption_of(arguments.preempt, arguments.scheduler);
  environment.admission = admits_on_arrival(arguments.admission, arguments.scheduler);
  // Who comes to an idle device finds it lent.
  if (!arguments.train.socket.empty())
    environment.dispatch = environment.dispatch + from_ms(arguments.train.freeze_ms);
  return environment;
}

// Looks once a second: says that requests are being turned away, where they are, and how many processors and
// how much memory may be used, where that is another number.
class EachSecond {
 public:
  EachSecond(std::shared_ptr<const std::atomic<std::uint64_t>> turned_away,
             std::shared_ptr<UsableProcessors> processors, LimitWatch memory)
      : turned_away_(std::move(turned_away)),
        processors_(std::move(processors)),
        memory_(std::move(memory)),
        thread_([this] { run(); }) {}
  ~EachSecond() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  EachSecond(const EachSecond&) = delete;
  EachSecond& operator=(const EachSecond&) = delete;

 private:
  void run() {
    std::uint64_t told = 0;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, 1s, [this] { return ended_; })) {
      const std::uint64_t now = turned_away_->load();
      if (now > told)
        spdlog::warn(
            "overloaded: {} requests of the last second were turned away, as they come faster than "
            "they can be decided on",
            now - told);
      told = now;
      if (processors_->look()) spdlog::info("processors: {} from now on", to_text(processors_->limits()));
      if (const std::string news = memory_.look(); !news.empty()) spdlog::warn("{}", news);
    }
  }

  std::shared_ptr<const std::atomic<std::uint64_t>> turned_away_;
  std::shared_ptr<UsableProcessors> processors_;
  LimitWatch memory_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

// By the machine's processors, as libraries start their threads. What they take beside the caches, measured
// on two cores with room to spare: threads with 8 MiB of stack each, gRPC, oneDNN. Where they do not get it
// they end the process, so it is looked for before.
std::uint64_t cores() {
  return std::max(1U, std::thread::hardware_concurrency());
}
Bytes beside_caches() {
  return mib(368) + mib(16) * cores();
}
Bytes of_frontends() {
  return mib(224) + mib(16) * cores();
}
int threads_of_frontends(const Arguments& arguments) {
  return 21 + 2 * static_cast<int>(cores()) + arguments.http_threads;
}

int complain(int status, const Error& error) {
  fmt::print(stderr, "carillon serve: {}\n", error.message);
  return status;
}

// Clients see, and set, the level of the one log as Triton's settings.
frontend::LogControl log_control() {
  return {.levels =
              [] {
                const auto level = spdlog::get_level();
                return frontend::LogLevels{.error = level <= spdlog::level::err,
                                           .warning = level <= spdlog::level::warn,
                                           .info = level <= spdlog::level::info,
                                           .verbose = level == spdlog::level::trace   ? 2U
                                                      : level == spdlog::level::debug ? 1U
                                                                                      : 0U};
              },
          .set =
              [](const frontend::LogLevels& levels) {
                spdlog::set_level(levels.verbose > 1   ? spdlog::level::trace
                                  : levels.verbose > 0 ? spdlog::level::debug
                                  : levels.info        ? spdlog::level::info
                                  : levels.warning     ? spdlog::level::warn
                                  : levels.error       ? spdlog::level::err
                                                       : spdlog::level::off);
              }};
}

// What people who look at the server are told of its command line: nothing of files.
frontend::ServerFacts facts_of(const Arguments& arguments) {
  static const std::map<server::ModelControlMode, std::string> modes{
      {server::ModelControlMode::none, "none"},
      {server::ModelControlMode::poll, "poll"},
      {server::ModelControlMode::explicit_orders, "explicit"}};
  std::vector<std::pair<std::string, std::string>> options{
      {"--default-deadline",
       arguments.default_deadline_ms > 0 ? fmt::format("{:g} ms", arguments.default_deadline_ms) : "none"},
      {"--max-open", fmt::format("{} rows", arguments.max_open)},
      {"--http-threads", std::to_string(arguments.http_threads)},
      {"--drain-time", fmt::format("{:g} s", arguments.drain_s)},
      {"--hang-after", fmt::format("{:g} ms", arguments.hang_after_ms)},
      {"--strict-readiness", arguments.strict_readiness ? "true" : "false"}};
  const server::DeviceArguments& device = arguments.devices.each;
  for (const auto& [name, value] :
       {std::pair("--page-cache", &device.page_cache), std::pair("--io-cache", &device.io_cache),
        std::pair("--workspace", &device.workspace)})
    if (!value->empty()) options.emplace_back(name, *value);
  return {.policy = arguments.scheduler,
          .model_control = modes.at(arguments.control),
          .options = std::move(options)};
}

// Bound, parts, and the account of the part that is the models'.
struct Memory {
  MemoryBound bound;
  server::MemoryPlan plan;
  std::shared_ptr<MemoryAccount> account;
  // By device, how large the pages of its page cache are; 0: they are no memory of this host.
  std::vector<Bytes> host_pages;
};

// `weights_stay`: those of a CPU's models, as there is no store. Errors with the status that they end with.
std::expected<Memory, std::pair<int, Error>> plan_memory_of(const Arguments& arguments, bool weights_stay) {
  const auto usage = [](Error error) { return std::unexpected(std::pair(exit_usage, std::move(error))); };
  auto bound = memory_bound(arguments.memory);
  if (!bound)
    return std::unexpected(std::pair(arguments.memory == "auto" ? exit_failure : exit_usage, bound.error()));
  const auto sizes = server::given_sizes(arguments.devices.each);
  if (!sizes) return usage(sizes.error());
  const auto doors = given_door_sizes(arguments.doors);
  if (!doors) return usage(doors.error());
  server::MemoryWanted wanted{.bound = bound->bytes,
                              .named = bound->named,
                              .cores = static_cast<unsigned>(cores()),
                              .devices = {},
                              .page_cache = sizes->page_cache,
                              .io_cache = sizes->io_cache,
                              .workspace = sizes->workspace,
                              .inflight = doors->inflight,
                              .body = doors->body};
  if (!arguments.sizes_memory.empty()) {
    const auto read = parse_bytes(arguments.sizes_memory);
    if (!read) return usage(in_context("--sizes-memory", read.error()).error());
    wanted.sizes = *read;
  }
  Memory out{.bound = *std::move(bound), .plan = {}, .account = {}, .host_pages = {}};
  // The workloads of a plan have caches of their own, out of what models have.
  if (arguments.plan.empty()) {
    const auto devices = server::list_devices(arguments.devices);
    if (!devices) return usage(devices.error());
    for (const server::DeviceArguments& device : *devices) {
      const auto share = server::host_share(device);
      if (!share) return usage(share.error());
      wanted.devices.push_back(*share);
      out.host_pages.push_back(share->caches > 0 ? page_size : Bytes{});
    }
    if (const auto entries = repository::read_repository(
            arguments.models, {.follow_links = arguments.follow_links, .files = arguments.files});
        entries) {
      const KnownModels known = known_models(
          *entries, {.stay = weights_stay,
                     .later = !arguments.plans_at_once && arguments.profile.empty() && !arguments.stop_cost &&
                              arguments.devices.each.choose_kernels == 0 && devices->size() == 1 &&
                              devices->front().device == "cpu"});
      wanted.largest_weights = known.largest_weights;
      wanted.known_models = known.memory;
      wanted.known_measured = known.measured;
      // Scripts that train here have a part of it, and other models may come.
      if (arguments.control == server::ModelControlMode::none && arguments.train.socket.empty())
        wanted.all_weights = known.all_weights;
    }
  }
  auto plan = server::plan_memory(wanted);
  if (!plan) return usage(plan.error());
  out.plan = *std::move(plan);
  out.account = make_account(out.bound, wanted, out.plan);
  spdlog::info("memory: at most {} ({}): {}", to_text(out.bound.bytes), out.bound.from, out.plan.text());
  if (out.bound.given && out.bound.limit > Bytes{} && out.bound.limit < out.bound.bytes)
    spdlog::warn("{} is more than the {} that there are", out.bound.named, to_text(out.bound.limit));
  return out;
}

// The devices are made, and say how large their pages are.
void heed_pages(const server::DeviceGroup& group, Memory& memory) {
  for (std::size_t i = 0; i < std::min(memory.host_pages.size(), group.devices.size()); ++i)
    if (memory.host_pages[i] > Bytes{}) memory.host_pages[i] = group.devices[i].worker.page;
}

// Of the parts now, for metrics.
frontend::LookAtMemory look_at(const Memory& memory) {
  return [bound = memory.bound.bytes, plan = memory.plan, account = memory.account,
          host_pages = memory.host_pages](const controller::ServerStatistics& statistics) {
    Bytes pages;
    for (std::size_t i = 0; i < std::min(host_pages.size(), statistics.devices.size()); ++i)
      pages = pages + host_pages[i] * (statistics.devices[i].pages_total - statistics.devices[i].pages_free);
    const MemoryAccount::Counts counts = account->counts();
    return frontend::MemoryFigures{.limit = bound,
                                   .resident = resident_of_tree(::getpid()),
                                   .parts = {{"libraries", plan.libraries},
                                             {"weights", pages + counts.taken.weights},
                                             {"tensors", plan.io_caches},
                                             {"workspace", plan.workspaces},
                                             {"plans", counts.taken.plans},
                                             {"sizes", Bytes{statistics.sizes_bytes}},
                                             {"processes", counts.taken.processes},
                                             {"loading", counts.loading}}};
  };
}

// How the doors are to be, as far as the command line says.
Result<frontend::Options> doors_of(const Arguments& arguments) {
  frontend::Options doors;
  doors.http = arguments.http;
  doors.grpc = arguments.grpc;
  doors.metrics = arguments.metrics;
  doors.http_threads = arguments.http_threads;
  doors.keepalive = arguments.doors.keepalive;
  doors.strict_readiness = arguments.strict_readiness;
  doors.stop_grace = from_ms(arguments.drain_s * 1000);
  doors.log = [](const std::string& text) { spdlog::warn("{}", text); };
  doors.log_control = log_control();
  doors.trace_share = arguments.trace_sample;
  doors.empty_histograms = arguments.empty_histograms;
  if (!arguments.access_log.empty()) {
    auto opened = frontend::AccessLog::open({.file = arguments.access_log, .log = doors.log});
    if (!opened) return in_context("--access-log", opened.error());
    doors.access_log = std::move(*opened);
  }
  doors.facts = facts_of(arguments);
  if (auto safe = secure(arguments.safety, doors); !safe) return std::unexpected(safe.error());
  return doors;
}

using Doors = std::unique_ptr<frontend::Frontend>;

Result<Doors> open_doors(controller::Service& service, const Arguments& arguments, frontend::Options doors,
                         const Memory& memory) {
  doors.max_body = memory.plan.body.count;
  doors.inflight = memory.plan.inflight.count;
  doors.grpc_buffers = memory.plan.grpc;
  doors.memory = look_at(memory);
  doors.facts.options.emplace_back("--memory", to_text(memory.bound.bytes));
  doors.facts.options.emplace_back("--body-limit", to_text(memory.plan.body));
  doors.facts.options.emplace_back("--inflight-limit", to_text(memory.plan.inflight));
  if (auto room = enough_addresses(of_frontends(), "serving HTTP and gRPC"); !room)
    return std::unexpected(room.error());
  if (auto room = enough_threads(threads_of_frontends(arguments), "serving HTTP and gRPC"); !room)
    return std::unexpected(room.error());
  return frontend::Frontend::start(service, doors);
}

std::string ports_text(const frontend::Frontend& frontend) {
  const frontend::Ports ports = frontend.ports();
  return fmt::format("HTTP port {}, gRPC port {}, metrics port {} (0: off){}", ports.http, ports.grpc,
                     ports.metrics,
                     ports.admin != 0 ? fmt::format(", admin port {} (its page: /)", ports.admin) : "");
}

// Whoever started this program, and wants to know how it is.
struct Supervised {
  std::unique_ptr<ServiceManager> manager;
  std::optional<Duration> watchdog;

  // Tells of `service`, which outlives what is returned; null where nobody asks.
  std::unique_ptr<Watchdog> watch(controller::Service& service) const {
    if (!watchdog) return nullptr;
    return std::make_unique<Watchdog>(*manager, *watchdog,
                                      [&](Duration longest) { return service.responds(longest); });
  }
};

Result<Supervised> find_supervisor() {
  const auto supervision = supervision_in([](const char* name) { return std::getenv(name); }, getpid());
  if (!supervision) return std::unexpected(supervision.error());
  auto manager = ServiceManager::open(supervision->socket);
  if (!manager) return std::unexpected(manager.error());
  return Supervised{.manager = std::move(*manager), .watchdog = supervision->watchdog};
}

// How long the end waits for what is just being compiled.
constexpr auto patience_of_loading = std::chrono::milliseconds(2000);

// What the end may take beside open requests: devices that finish what they run, threads.
constexpr auto of_the_end = std::chrono::seconds(30);

void tell_ready(const frontend::Frontend& frontend, const Arguments& arguments, ServiceManager& manager,
                const std::string& what) {
  spdlog::info("ready: {}; scheduler {}; {}; Ctrl-C stops", what, arguments.scheduler, ports_text(frontend));
  manager.ready("ready: " + what);
}

// How long the end waits for the collector to take the last spans.
constexpr auto flush_of_spans = std::chrono::seconds(2);

// Null where spans go nowhere.
std::shared_ptr<frontend::SpanExporter> export_spans(const std::optional<OtlpTarget>& target,
                                                     const controller::Options& options,
                                                     const frontend::Options& doors) {
  if (!target) return nullptr;
  spdlog::info("spans: of requests in sampled traces, to {}", target->url());
  return std::make_shared<frontend::SpanExporter>(
      frontend::SpanExporterOptions{.post = post_to(*target),
                                    .journal = options.core.journal,
                                    .resource = target->resource,
                                    .version = CARILLON_VERSION,
                                    .log = doors.log});
}

// Waits until it is told to stop, and closes the doors.
void serve(frontend::Frontend& frontend, const Arguments& arguments, const SignalWait& signals,
           const controller::Options& options, ServiceManager& manager, const Memory& memory,
           frontend::SpanExporter* spans, const std::function<void()>& before_stopping = {}) {
  {
    const EachSecond looks(options.turned_away, arguments.devices.each.processors,
                           LimitWatch(memory.bound, memory.account));
    signals.wait();
  }
  const std::string stopping =
      fmt::format("stopping: open requests have {:g} s, new ones are refused", arguments.drain_s);
  spdlog::info("{}", stopping);
  manager.stopping(stopping, from_ms(arguments.drain_s * 1000) + of_the_end);
  if (before_stopping) before_stopping();
  frontend.stop();
  if (spans != nullptr) spans->stop(flush_of_spans);
}

// Brings the models to a server that serves already, on a thread of its own.
class Loading {
 public:
  // `done` hears on that thread what became of it. What it uses, and `whole`, outlive this.
  Loading(server::WholeServer& whole, std::function<void(Result<>)> done)
      : whole_(whole), thread_([this, over = over_, done = std::move(done)] {
          pthread_setname_np(pthread_self(), "carillon-first");
          done(whole_.load());
          over->set_value();
        }) {}
  ~Loading() {
    whole_.end_load();
    if (thread_.joinable()) thread_.join();
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  // Whether it has ended, waiting for so long at most. What it is just compiling cannot be stopped. Where it
  // goes on the process is to end at once: what it uses must not go before.
  bool end(std::chrono::milliseconds patience) {
    whole_.end_load();
    if (was_over_.wait_for(patience) == std::future_status::ready) return true;
    thread_.detach();
    return false;
  }

 private:
  server::WholeServer& whole_;
  std::shared_ptr<std::promise<void>> over_ = std::make_shared<std::promise<void>>();
  std::future<void> was_over_{over_->get_future()};
  std::thread thread_;
};

// The file of --record, until the server serves: a start that fails leaves none behind.
class BegunRecord {
 public:
  explicit BegunRecord(std::string file) : file_(std::move(file)) {}
  ~BegunRecord() {
    std::error_code ignored;
    if (!file_.empty()) std::filesystem::remove(file_, ignored);
  }
  BegunRecord(const BegunRecord&) = delete;
  BegunRecord& operator=(const BegunRecord&) = delete;
  void keep() { file_.clear(); }

 private:
  std::string file_;
};

// The CPU's number among the devices, where it is one.
std::optional<DeviceId> cpu_of(const Arguments& arguments) {
  const auto listed = server::list_devices(arguments.devices);
  if (!listed) return std::nullopt;
  const auto cpu = std::ranges::find(*listed, "cpu", &server::DeviceArguments::device);
  if (cpu == listed->end()) return std::nullopt;
  return DeviceId{static_cast<DeviceId::rep>(cpu - listed->begin())};
}

// Null where nobody trains here. What scripts have is taken out of the page cache of the CPU, `lent`.
Result<std::unique_ptr<Training>> start_training(const TrainArguments& arguments,
                                                 std::optional<DeviceId> lent, server::DeviceGroup& group,
                                                 const Clock& clock) {
  if (arguments.socket.empty()) return nullptr;
  Bytes& page_cache = group.devices[lent->index()].worker.page_cache;
  const auto memory = Training::memory_of(arguments, page_cache, page_size);
  if (!memory) return std::unexpected(memory.error());
  page_cache = Bytes{(page_cache.count - memory->count) / page_size.count * page_size.count};
  auto training = Training::start(arguments, *memory, clock);
  if (training)
    spdlog::info(
        "training: scripts share {} at {}, by {}, while no request wants the CPU; {} are left for weights",
        to_text(*memory), arguments.socket, arguments.policy, to_text(page_cache));
  return training;
}

int run_planned(const Arguments& arguments, const controller::Options& options,
                const frontend::Options& doors, const SignalWait& signals, const Supervised& supervised,
                const Memory& memory, const Clock& clock) {
  if (!arguments.record.empty() || !arguments.profile.empty())
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan goes with neither --record nor --profile: each workload has a scheduler "
                     "of its own, and is measured at its share"});
  if (!arguments.train.socket.empty())
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan does not go with --train: the plan's shares of the device are all taken"});
  const server::DeviceArguments& wanted = arguments.devices.each;
  if (arguments.stop_cost || wanted.best_effort_streams > 0 || wanted.real_time_threads > 0)
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan goes with none of --stop-cost, --best-effort-streams and --real-time-threads: a "
                     "workload's requests run one after the other, in its share, whatever their class"});
  const auto devices = server::list_devices(arguments.devices);
  if (!devices) return complain(exit_usage, devices.error());
  if (devices->size() != 1 || !arguments.devices.faults.empty())
    return complain(exit_usage,
                    {ErrorCode::invalid_argument,
                     "--plan serves one device of the plan: give it one --device, cpu or cuda, and no "
                     "--emulated-faults"});
  server::PlannedOptions planned{
      .models = arguments.models,
      .reading = {.follow_links = arguments.follow_links},
      .plan = arguments.plan,
      .number = arguments.plan_device > 0 ? std::optional(arguments.plan_device) : std::nullopt,
      .standbys = !arguments.no_standby,
      .scheduler = arguments.scheduler,
      .environment = environment_of(arguments),
      .controller = options,
      .device = devices->front(),
      .memory = memory.account,
      .tell = [manager = supervised.manager.get()](const std::string& text) {
        spdlog::info("{}", text);
        manager->progress(text);
      }};
  auto server = server::PlannedServer::start(planned, clock);
  if (!server) return complain(exit_failure, server.error());
  const auto watched = supervised.watch((*server)->service());
  {
    signals.hold();  // the ports say at once that it is ready
    auto frontend = open_doors((*server)->service(), arguments, doors, memory);
    if (!frontend) return complain(exit_failure, frontend.error());
    tell_ready(**frontend, arguments, *supervised.manager,
               fmt::format("{} workloads of the plan", (*server)->workloads()));
    serve(**frontend, arguments, signals, options, *supervised.manager, memory, doors.spans.get());
  }
  (*server)->stop();
  spdlog::info("stopped");
  return exit_success;
}

int run(Arguments& arguments) {
  for (const std::string& text : arguments.model) {
    auto file = repository::model_file(text);
    if (!file) return complain(exit_usage, in_context("--model " + text, file.error()).error());
    arguments.files.push_back(std::move(*file));
  }
  if (!arguments.files.empty())
    if (auto distinct = repository::read_repository({}, {.files = arguments.files}); !distinct)
      return complain(exit_usage, in_context("--model", distinct.error()).error());
  if (arguments.files.empty())
    if (auto there = repository::check_repository(arguments.models); !there)
      return complain(exit_usage, in_context("--models", there.error()).error());
  // Progress and logs go to standard error: standard output stays free for what is asked for.
  spdlog::set_default_logger(spdlog::stderr_color_mt("carillon"));
  spdlog::set_pattern("%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(spdlog::level::from_str(arguments.log_level));

  arguments.devices.each.hangs_after = from_ms(arguments.hang_after_ms);
  arguments.devices.each.warn = [](const std::string& text) { spdlog::warn("{}", text); };
  arguments.devices.each.processors = std::make_shared<UsableProcessors>();
  spdlog::info("processors: {}{}", to_text(arguments.devices.each.processors->limits()),
               arguments.devices.each.threads > 0
                   ? fmt::format("; --threads {} stays as it is", arguments.devices.each.threads)
                   : "");

  spare_addresses();
  if (auto room = enough_addresses(beside_caches(), "the server, without its caches,"); !room)
    return complain(exit_failure, room.error());
  if (auto room = enough_threads(threads_of_frontends(arguments) + usable_processors(), "the server"); !room)
    return complain(exit_failure, room.error());
  std::signal(SIGPIPE, SIG_IGN);
  const auto supervised = find_supervisor();
  if (!supervised) return complain(exit_failure, supervised.error());
  SignalWait signals([](const std::string& text) { spdlog::info("{}", text); });
  static const SteadyClock clock;  // outlives the threads of a device that hangs to the end
  auto scheduler = schedule::make_scheduler(arguments.scheduler, environment_of(arguments));
  if (!scheduler) return complain(exit_usage, scheduler.error());
  if (auto preempts = check_preempt(arguments.preempt, arguments.scheduler); !preempts)
    return complain(exit_usage, preempts.error());
  if (auto admits = check_admission(arguments.admission, arguments.scheduler); !admits)
    return complain(exit_usage, admits.error());
  auto doors = doors_of(arguments);
  if (!doors) return complain(exit_usage, doors.error());
  const auto spans_go_to = read_otlp(arguments.otlp, [](const char* name) { return std::getenv(name); });
  if (!spans_go_to) return complain(exit_usage, spans_go_to.error());
  ServiceManager& manager = *supervised->manager;
  signals.on_hangup([doors = *doors, &manager] {
    manager.reload(clock.now(),
                   [&] { reload(doors, [](const std::string& text) { spdlog::info("{}", text); }); });
  });
  if (const auto free = frontend::check_addresses(*doors); !free) return complain(exit_failure, free.error());
  std::optional<profile::DeviceProfile> profile;
  if (!arguments.profile.empty()) {
    auto read = profile::read_profile(arguments.profile);
    if (!read) return complain(exit_failure, in_context("--profile", read.error()).error());
    profile = std::move(*read);
  }

  controller::Options options;
  options.turned_away = std::make_shared<std::atomic<std::uint64_t>>(0);
  options.core.max_open = arguments.max_open;
  // Twice for each look of a watchdog, which has eight until a device hangs.
  options.core.slow_after = std::clamp<Duration>(from_ms(arguments.hang_after_ms) / 16, 5ms, 100ms);
  options.core.journal = controller::make_journal(arguments.journal, clock);
  options.sizes.most = arguments.sizes;
  const auto lent = cpu_of(arguments);
  if (lent) {
    auto store = server::open_store(arguments.store, arguments.devices.each.warn);
    if (!store) return complain(exit_usage, store.error());
    if (*store)
      spdlog::info("store: {}, at most {}", (*store)->directory().string(), to_text((*store)->limit()));
    arguments.devices.each.weights = std::move(*store);
  }
  std::shared_ptr<const controller::KeptTimes> kept;
  // What is measured while a model is compiled decides how its kernels are made: another start may measure
  // otherwise.
  if (const auto& store = arguments.devices.each.weights;
      store != nullptr && arguments.devices.each.choose_kernels == 0 && !arguments.stop_cost)
    if (auto machine = server::machine_text())
      kept = std::make_shared<const controller::KeptTimes>(store, *std::move(machine));
  auto memory = plan_memory_of(arguments, lent && arguments.devices.each.weights == nullptr);
  if (!memory) return complain(memory.error().first, memory.error().second);
  if (arguments.plan.empty()) arguments.devices.each.memory = memory->plan;
  arguments.devices.each.process_memory = memory->plan.models;
  options.sizes.memory = memory->plan.sizes;
  options.core.by_length = !arguments.length_blind;
  options.core.timeline = 8192;  // a megabyte: some seconds of a busy server
  options.core.on_device = [](const controller::DeviceNews& news) {
    if (news.alive)
      spdlog::warn("device {} is back, with empty memory", news.device.value);
    else
      spdlog::warn("device {} is taken out: {}", news.device.value, news.why);
  };
  if (arguments.default_deadline_ms > 0)
    options.core.default_deadline = from_ms(arguments.default_deadline_ms);
  doors->spans = export_spans(*spans_go_to, options, *doors);
  if (!arguments.plan.empty())
    return run_planned(arguments, options, *doors, signals, *supervised, *memory, clock);
  if (!arguments.train.socket.empty() && !lent)
    return complain(exit_usage,
                    {ErrorCode::invalid_argument, "--train lends the CPU, but there is no --device cpu"});
  auto group = server::make_devices(arguments.devices, clock);
  if (!group) return complain(exit_usage, group.error());
  heed_pages(*group, *memory);
  auto training =
      start_training(arguments.train, lent, *group, clock);  // outlives the controller, which tells it
  if (!training) return complain(exit_usage, training.error());
  if (*training) {
    options.core.on_leisure = [to = training->get(), lent = *lent](DeviceId device,
                                                                   std::optional<TimePoint> free_until) {
      if (device == lent) to->leisure(free_until);
    };
    doors->more_metrics = [to = training->get()] { return to->metrics(); };
  }
  std::vector<std::pair<std::string, std::shared_ptr<const engine::cuda::Nvml>>> gpus;
  for (const server::Device& device : group->devices)
    if (device.nvml) gpus.emplace_back(device.gpu_uuid, device.nvml);
  for (const server::Device& device : group->devices)
    if (device.importer) doors->importers.emplace(device.ordinal, device.importer);
  if (!gpus.empty())
    doors->more_metrics = [before = doors->more_metrics, gpus] {
      return (before ? before() : std::string()) + server::gpu_metrics(gpus);
    };
  Bytes caches;  // of addresses
  for (const server::Device& device : group->devices) {
    const worker::Options& worker = device.worker;
    caches = caches + worker.page_cache + worker.io_cache +
             worker.workspace * (worker.classes ? std::uint64_t{worker.classes->count()} : 1U);
  }
  if (auto room = enough_addresses(beside_caches() + caches, "the server with its caches"); !room)
    return complain(exit_failure, room.error());
  if (!arguments.record.empty()) {
    scheduler = schedule::log::RecordingScheduler::open(arguments.record, std::move(*scheduler),
                                                        arguments.scheduler, environment_of(arguments));
    if (!scheduler) return complain(exit_failure, in_context("--record", scheduler.error()).error());
  }
  BegunRecord begun(arguments.record);  // before what writes it: it ends after that
  auto whole = std::make_unique<server::WholeServer>(
      server::WholeOptions{.models = arguments.models,
                           .reading = {.follow_links = arguments.follow_links, .files = arguments.files},
                           .control = arguments.control,
                           .poll = from_ms(arguments.poll_s * 1000),
                           .load = arguments.load,
                           .controller = options,
                           .profile = profile ? &*profile : nullptr,
                           .kept = std::move(kept),
                           .stop_cost = arguments.stop_cost,
                           .memory = memory->account,
                           .plans_at_once = arguments.plans_at_once,
                           .tell =
                               [&manager](const std::string& text) {
                                 spdlog::info("{}", text);
                                 manager.progress(text);
                               },
                           .tell_step =
                               [&manager](const std::string& text) {
                                 spdlog::debug("{}", text);
                                 manager.progress(text);
                               },
                           .warn = [](const std::string& text) { spdlog::warn("{}", text); },
                           .before_serving = [&signals] { signals.hold(); }},
      std::move(*scheduler), *group, clock);
  auto watched = supervised->watch(whole->service());
  Result<> loaded;
  {
    // Before the models are loaded: whoever asks is told that the server lives, and is not ready.
    auto frontend = open_doors(whole->service(), arguments, *doors, *memory);
    if (!frontend) return complain(exit_failure, frontend.error());
    spdlog::info("listening: {}; each model is served as soon as it is loaded", ports_text(**frontend));
    manager.listening("loading models");
    if (auto started = whole->start(); !started) {
      (*frontend)->stop();
      return complain(exit_failure, started.error());
    }
    Loading loading(*whole, [&](Result<> result) {
      loaded = std::move(result);
      if (!loaded) return signals.end();
      const std::size_t devices = group->devices.size();
      server::start_faults(*group, clock.now());
      if (whole->models() == 0 && arguments.control == server::ModelControlMode::none)
        spdlog::warn("there are no models in {}: a model is a folder there, such as {}", arguments.models,
                     (std::filesystem::path(arguments.models) / "NAME" / "1" / "model.onnx").string());
      tell_ready(**frontend, arguments, manager,
                 fmt::format("{} of {} models on {} device{}", whole->ready(), whole->models(), devices,
                             devices == 1 ? "" : "s"));
    });
    // Orders that wait for the models would keep the ports open.
    serve(**frontend, arguments, signals, options, manager, *memory, doors->spans.get(),
          [&] { whole->end_load(); });
    if (!loading.end(patience_of_loading)) {
      if (!arguments.record.empty())
        spdlog::warn("--record: the log is cut off, as a model was being compiled");
      spdlog::info("stopped, while a model was compiled");
      spdlog::shutdown();
      std::fflush(nullptr);
      _exit(exit_success);
    }
  }
  stop_trimming_heap();  // models go one by one
  const std::vector<DeviceId> left = whole->stop();
  for (const DeviceId device : left)
    spdlog::warn("device {} does not come back from what it runs: it is left behind", device.value);
  if (!loaded && loaded.error().code != ErrorCode::cancelled) return complain(exit_failure, loaded.error());
  begun.keep();
  spdlog::info("stopped");
  if (left.empty()) return exit_success;
  // Their threads are in the middle of something, whose ground an ordinary end would take from under them.
  watched.reset();
  whole.reset();  // it may have a log to end
  spdlog::shutdown();
  std::fflush(nullptr);
  _exit(exit_success);
}

}  // namespace

void add_serve(CLI::App& program, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *program.add_subcommand(
      "serve", "Serves a model repository: frontends, controller and worker in one process");
  command.get_help_ptr()->group(heading::help);

  heading::begin(command, heading::models);
  command.add_option("--models", arguments->models, "Repository: DIR/<model>/<version>/model.onnx");
  command
      .add_option("--model", arguments->model,
                  "In place of --models: [NAME=]FILE, a model that is one ONNX file, or OpenVINO's, without "
                  "a repository or a config; may be given several times. Without NAME it is called as the "
                  "file is. One that cannot be served ends the server")
      ->excludes("--models");
  command.add_flag(
      "--follow-links", arguments->follow_links,
      "Follow symbolic links that lead out of the repository; without it models that have such are "
      "not ready");
  static const std::map<std::string, server::ModelControlMode> modes{
      {"none", server::ModelControlMode::none},
      {"poll", server::ModelControlMode::poll},
      {"explicit", server::ModelControlMode::explicit_orders}};
  command
      .add_option(
          "--model-control-mode", arguments->control,
          "none: all models are loaded at the start, and stay; poll: the server follows the repository "
          "as it changes; explicit: clients load and unload models, with those of --load-model there "
          "from the start")
      ->transform(one_of(modes))
      ->default_str("none");
  command
      .add_option("--repository-poll-secs", arguments->poll_s,
                  "By --model-control-mode poll: seconds between two looks at the repository")
      ->check(CLI::Range(0.05, 86'400.0))
      ->capture_default_str();
  command.add_option(
      "--load-model", arguments->load,
      "By --model-control-mode explicit: a model to load at the start; '*': all of them. May be "
      "given several times");
  command.add_flag(
      "--plans-at-once", arguments->plans_at_once,
      "Make plans for all batch sizes of a model before it is ready. Without it a model on one CPU "
      "is ready with the plan of its smallest batch; those of larger batches are made beside "
      "serving, as far as there is memory");

  heading::begin(command, heading::addresses);
  command.add_option("--http", arguments->http, "HOST:PORT of KServe v2 over HTTP; empty: off")
      ->capture_default_str();
  command.add_option("--grpc", arguments->grpc, "HOST:PORT of KServe v2 over gRPC; empty: off")
      ->capture_default_str();
  command.add_option("--metrics", arguments->metrics, "HOST:PORT of Prometheus metrics; empty: off")
      ->capture_default_str();
  add_admin_option(command, arguments->safety);

  heading::begin(command, heading::memory);
  command
      .add_option(
          "--memory", arguments->memory,
          "The most that the server and its processes may have of memory, such as 1GiB: code, weights, "
          "tensors, workspaces, plans, other engines' processes and requests together. --page-cache, "
          "--io-cache, --workspace, --sizes-memory and --inflight-limit are parts of it; those that "
          "are not given follow from it. A model that does not fit is refused. auto: what the control "
          "group or the machine leaves")
      ->capture_default_str();
  auto* const store = command.add_option(
      "--store", arguments->store.directory,
      "Folder, for its owner alone, of packed weights: a CPU's memory then holds only those that are loaded. "
      "May be deleted at any time and shared by servers (default: carillon in $XDG_CACHE_HOME or ~/.cache)");
  auto* const limit = command.add_option("--store-limit", arguments->store.limit,
                                         "What it may take of the disk, such as 20GiB (default: half of what "
                                         "is free)");
  command.add_flag("--no-store", arguments->store.none, "Packed weights stay in memory")
      ->excludes(store)
      ->excludes(limit);
  command
      .add_option(
          "--sizes", arguments->sizes,
          "Of a model whose inputs' sizes neither its file nor its config fixes: for how many of them "
          "plans are kept; one that is not there is made when a request comes with it")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  command.add_option("--sizes-memory", arguments->sizes_memory,
                     "What these plans may take of memory, of all models together, such as 512MiB "
                     "(default: up to a sixteenth of --memory less libraries)");

  heading::begin(command, heading::deadlines);
  command
      .add_option("--default-deadline", arguments->default_deadline_ms,
                  "Milliseconds for requests that name no deadline, of models without slo_ms; 0: none")
      ->check(CLI::Range(0.0, 86'400'000.0))
      ->capture_default_str();
  command.add_option("--scheduler", arguments->scheduler, "Policy: " + schedule::scheduler_list())
      ->capture_default_str();
  add_preempt_option(command, arguments->preempt);
  add_admission_option(command, arguments->admission);
  command.add_option("--profile", arguments->profile,
                     "Profile file to start from; models that it lacks are measured at the start");
  command
      .add_option(
          "--profile-share", arguments->profile_share,
          "The share of finished requests, of models whose time depends on the input, that are run again "
          "alone in idle time, so that schedulers that plan by distributions learn from them; 0: none")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_flag(
      "--length-blind", arguments->length_blind,
      "Tell requests apart by their applications alone, as if nobody knew their lengths before they ran "
      "(matters to schedulers that plan by distributions)");

  heading::begin(command, heading::devices);
  add_devices_options(command, arguments->devices);
  command
      .add_option("--hang-after", arguments->hang_after_ms,
                  "Milliseconds without a report after which a device counts as hung and is taken out until "
                  "it answers again; at least 20 times what it should take; 0: never")
      ->check(CLI::Range(0.0, 86'400'000.0))
      ->capture_default_str();

  heading::begin(command, heading::classes);
  command
      .add_option("--best-effort-streams", arguments->devices.each.best_effort_streams,
                  "Runs of class best_effort at a time on cpu, each on a core of its own; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option(
          "--real-time-threads", arguments->devices.each.real_time_threads,
          "Threads that run a real-time request on cpu; with fewer than --threads best effort goes on "
          "on the other cores meanwhile; 0: all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option(
          "--stop-cost", arguments->stop_cost,
          "Divide the kernels of all models on cpu into parts, which may cost a run this share of its time "
          "(such as 0.02), so that real-time requests need not wait for a kernel's end; models take "
          "longer to load. Without it: of models of class best_effort only, at 0.02")
      ->check(CLI::Range(0.0, 1.0));

  heading::begin(command, heading::security);
  add_safety_options(command, arguments->safety);

  heading::begin(command, heading::limits);
  command
      .add_option("--max-open", arguments->max_open,
                  "The most rows that may be open; beyond it requests are refused")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--http-threads", arguments->http_threads, "Threads of the HTTP frontend")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_door_options(command, arguments->doors);

  heading::begin(command, heading::readiness);
  command
      .add_option("--strict-readiness", arguments->strict_readiness,
                  "true: the server is ready only where every model of the repository is, and there is one; "
                  "false: once all models were tried")
      ->capture_default_str();
  command
      .add_option("--drain-time", arguments->drain_s,
                  "Seconds that open requests have after SIGTERM or Ctrl-C; meanwhile the ports stay open, "
                  "new requests are refused and the server is not ready")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();

  heading::begin(command, heading::logs);
  command.add_option("--log-level", arguments->log_level, "trace, debug, info, warn, err or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "err", "off"}))
      ->capture_default_str();
  command.add_option("--access-log", arguments->access_log,
                     "Write a line of JSON for each request over HTTP and gRPC to this file ('-': standard "
                     "output). SIGHUP opens it again, for logrotate");
  command.add_option("--record", arguments->record,
                     "Log every event and action of the scheduler to this file, for 'carillon replay'");
  command
      .add_option("--journal", arguments->journal,
                  "Requests of which is kept what became of them and why, for 'carillon explain' and "
                  "/v2/carillon/requests, at about 900 bytes each; 0: none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--trace-sample", arguments->trace_sample,
                  "The share of requests without a good 'traceparent' (W3C Trace Context) that begin a trace "
                  "of their own, 0 to 1; those with one go on with theirs")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add_otlp_options(command, arguments->otlp);
  command.add_flag("--empty-histograms", arguments->empty_histograms,
                   "Metrics have histograms and quantiles also of models without a request so far");

  heading::begin(command, heading::training);
  add_train_options(command, arguments->train);

  heading::begin(command, heading::plans);
  command.add_option(
      "--plan", arguments->plan,
      "Serve one device of this plan ('carillon plan --json'): each of its workloads with its share of "
      "the threads and its batch size, and a standby that takes over when its P99 breaks its SLO");
  command
      .add_option("--plan-device", arguments->plan_device, "Which device of the plan, where it has several")
      ->check(CLI::Range(1, 1'000'000));
  command.add_flag("--no-standby", arguments->no_standby, "With --plan: no standbys");

  command.footer(
      "Examples:\n"
      "  carillon serve --model resnet50.onnx\n"
      "  carillon serve --models ./models\n"
      "  carillon serve --models ./models --memory 1GiB\n"
      "  carillon serve --models ./models --http 127.0.0.1:9000 --grpc '' --metrics 127.0.0.1:9002\n"
      "  carillon serve --models ./models --tls-cert server.pem --tls-key server.key --keys keys.toml\n"
      "  carillon serve --models ./models --device emulated:profile.json --scheduler fcfs\n"
      "  carillon serve --models ./models --device cpu --device 'emulated:profile.json*4'\n"
      "  carillon serve --models ./models --device cuda:0,1,3 --cuda-number f16\n"
      "  carillon serve --models ./models --device 'cuda-emulated:profiles/h100_mobilenetv2.json*8'\n"
      "  carillon serve --models ./models --train /run/carillon/train.sock --train-memory 1GiB\n"
      "  carillon serve --models ./models --plan plan.json --plan-device 2\n"
      "  carillon serve --models ./models --model-control-mode poll --repository-poll-secs 5\n"
      "  carillon serve --models ./models --model-control-mode explicit --load-model resnet50");
  command.callback([arguments, &status] {
    if (arguments->models.empty() && arguments->model.empty())
      throw CLI::RequiredError("--models, or --model,");
    if (!arguments->model.empty() &&
        (arguments->control != server::ModelControlMode::none || !arguments->plan.empty()))
      throw CLI::ValidationError(
          "--model", "it goes neither with --model-control-mode nor with --plan: these want a repository");
    if (!arguments->load.empty() && arguments->control != server::ModelControlMode::explicit_orders)
      throw CLI::ValidationError("--load-model", "it goes with --model-control-mode explicit alone");
    if (!arguments->plan.empty() && arguments->control != server::ModelControlMode::none)
      throw CLI::ValidationError("--model-control-mode", "with --plan models are as the plan has them: none");
    // Classes share a device, and a plan's share is one workload's.
    arguments->devices.each.classes = arguments->plan.empty();
    status = run(*arguments);
  });
}

}  // namespace carillon::cli
