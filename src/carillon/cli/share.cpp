#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <pthread.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "carillon/base/clock.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/service_manager.h"
#include "carillon/cli/signals.h"
#include "carillon/engine/cuda/driver/real.h"
#include "carillon/engine/host/memory.h"
#include "carillon/frontend/http/http_server.h"
#include "carillon/share/broker.h"
#include "carillon/share/cuda/lanes.h"

namespace carillon::cli {
namespace {

struct ShareArguments {
  std::string device = "cpu";
  std::string memory;
  std::string policy = "fair";
  std::string socket;
  std::string metrics;
  std::string json_log;
  std::string assumed_persistent, assumed_ephemeral;
  double poll_us = to_us(share::BrokerOptions{}.polls);
  double quantum_ms = to_ms(device::JobOptions{}.quantum);
  double hang_after_s = to_seconds(device::JobOptions{}.hang_after);
  bool evict_hanging = false;
  bool any_user = false;
  bool release = false;
  std::size_t most_clients = share::BrokerOptions{}.most_clients;
};

std::string time_of_day() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", std::string_view(text, length), ms % 1000);
}

// A line for each note: for people on standard error, as JSON where that is wanted.
class NoteLog {
 public:
  static Result<NoteLog> open(const std::string& json) {
    NoteLog log;
    if (json.empty()) return log;
    if (json == "-") {
      log.json_ = stdout;
      return log;
    }
    log.file_.reset(std::fopen(json.c_str(), "ae"));
    log.json_ = log.file_.get();
    if (log.json_ == nullptr)
      return invalid("--json-log " + json + " cannot be opened: " + std::strerror(errno));
    return log;
  }
  void write(const share::Note& note) {
    if (note.level == share::Note::Level::warning)
      spdlog::warn("{}", note.text);
    else
      spdlog::info("{}", note.text);
    if (json_ == nullptr) return;
    const nlohmann::ordered_json line{
        {"time", time_of_day()}, {"event", note.event},  {"job", note.job.value}, {"name", note.name},
        {"pid", note.peer.pid},  {"uid", note.peer.uid}, {"text", note.text}};
    fmt::print(json_, "{}\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    std::fflush(json_);
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::FILE* json_ = nullptr;
};

// GET /metrics, and nothing else.
class ShareMetrics final : public frontend::HttpHandler {
 public:
  explicit ShareMetrics(share::Broker& broker) : broker_(broker) {}
  std::variant<frontend::HttpReply, frontend::Deferred> handle(frontend::HttpRequest request,
                                                               frontend::Deliver) override {
    if (request.method != "GET" || request.target != "/metrics")
      return frontend::error_reply(404, "there is GET /metrics here, and nothing else");
    const auto overview = broker_.overview(1s);
    if (!overview) return frontend::error_reply(503, "the broker does not answer");
    frontend::HttpReply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = share::metrics_text(*overview);
    reply.may_pack = true;
    return reply;
  }

 private:
  share::Broker& broker_;
};

int complain_of_share(int status, const Error& error) {
  fmt::print(stderr, "carillon share: {}\n", error.message);
  return status;
}

Result<share::BrokerOptions> broker_options(const ShareArguments& arguments) {
  const auto cuda = engine::cuda::device_in(arguments.device);
  if (!cuda && arguments.device != "cpu")
    return invalid("--device is '" + arguments.device + "', but should be cpu, cuda or cuda:N");
  share::BrokerOptions options;
  if (cuda) {
    auto lanes = share::cuda::open_lanes(*cuda);
    if (!lanes) return in_context("--device " + arguments.device, lanes.error());
    options.lanes = std::move(*lanes);
  }
  const auto memory = parse_bytes(arguments.memory);
  if (!memory) return in_context("--memory", memory.error());
  if (memory->count == 0) return invalid("--memory is 0: jobs need some, such as 4GiB");
  options.jobs.capacity = *memory;
  for (const auto& [name, text, to] :
       {std::tuple("--assumed-persistent", &arguments.assumed_persistent, &options.jobs.assumed.persistent),
        std::tuple("--assumed-ephemeral", &arguments.assumed_ephemeral, &options.jobs.assumed.ephemeral)}) {
    if (text->empty()) continue;
    const auto size = parse_bytes(*text);
    if (!size) return in_context(name, size.error());
    *to = *size;
  }
  options.socket = arguments.socket;
  options.policy = arguments.policy;
  options.jobs.quantum = from_ms(arguments.quantum_ms);
  options.jobs.hang_after =
      arguments.hang_after_s > 0 ? from_seconds(arguments.hang_after_s) : Duration::max();
  options.jobs.evict_hanging = arguments.evict_hanging;
  options.polls = from_ms(arguments.poll_us / 1000);
  options.any_user = arguments.any_user;
  options.release_at_end = arguments.release;
  options.most_clients = arguments.most_clients;
  return options;
}

int run_share(const ShareArguments& arguments) {
  auto options = broker_options(arguments);
  if (!options) return complain_of_share(exit_usage, options.error());
  std::optional<frontend::Address> metrics_address;
  if (!arguments.metrics.empty()) {
    auto address = frontend::parse_address(arguments.metrics);
    if (!address) return complain_of_share(exit_usage, in_context("--metrics", address.error()).error());
    metrics_address = *address;
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("share"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  auto log = NoteLog::open(arguments.json_log);
  if (!log) return complain_of_share(exit_usage, log.error());
  options->log = [&](const share::Note& note) { log->write(note); };

  const auto supervision = supervision_in([](const char* name) { return std::getenv(name); }, getpid());
  if (!supervision) return complain_of_share(exit_failure, supervision.error());
  auto manager = ServiceManager::open(supervision->socket);
  if (!manager) return complain_of_share(exit_failure, manager.error());

  const SignalWait signals([](const std::string& text) { spdlog::info("{}", text); });
  const SteadyClock clock;
  const auto there = engine::available_memory();
  if (there && options->lanes == nullptr && options->jobs.capacity > *there)
    spdlog::warn("--memory is {}, but the machine has {} left", to_text(options->jobs.capacity),
                 to_text(*there));
  auto broker = share::Broker::start(*options, clock);
  if (!broker)
    return complain_of_share(broker.error().code == ErrorCode::resource_exhausted ? exit_failure : exit_usage,
                             broker.error());
  ShareMetrics metrics(**broker);
  std::unique_ptr<frontend::HttpServer> server;
  if (metrics_address) {
    frontend::HttpOptions http;
    http.address = *metrics_address;
    http.option = "--metrics";
    auto started = frontend::HttpServer::start(metrics, http);
    if (!started) return complain_of_share(exit_failure, started.error());
    server = std::move(*started);
  }
  const std::string ready =
      fmt::format("jobs share {} of {} by {} at {}; at most {} clients{}", to_text(options->jobs.capacity),
                  arguments.device, arguments.policy, arguments.socket, (*broker)->most_clients(),
                  server ? fmt::format("; metrics port {}", server->port()) : std::string());
  signals.hold();
  spdlog::info("ready: {}; Ctrl-C stops", ready);
  (*manager)->ready("ready: " + ready);
  std::thread loop([&] {
    pthread_setname_np(pthread_self(), "carillon-broker");
    (*broker)->run();
  });
  signals.wait();
  const std::string_view jobs = arguments.release ? "jobs go on alone" : "jobs wait for another broker";
  spdlog::info("stopping: {}", jobs);
  (*manager)->stopping("stopping", 10s);
  if (server) server->stop();
  (*broker)->stop();
  loop.join();
  spdlog::info("stopped");
  return exit_success;
}

}  // namespace

void add_share(CLI::App& program, int& status) {
  const auto arguments = std::make_shared<ShareArguments>();
  arguments->socket = share::default_socket([](const char* name) { return std::getenv(name); }, geteuid());
  CLI::App& command = *program.add_subcommand(
      "share", "Runs the broker of training jobs that share a device: 'carillon run' starts such jobs");
  std::string policies;
  for (const std::string_view name : device::job_policy_names())
    policies += (policies.empty() ? "" : ", ") + std::string(name);
  command
      .add_option(
          "--device", arguments->device,
          "Whose memory lanes are: cpu, cuda or cuda:N (not tried on a GPU yet: docs/sharing-scripts.md)")
      ->capture_default_str();
  command
      .add_option(
          "--memory", arguments->memory,
          "What jobs may take in all, such as 16GiB: what stays of each, and one iteration's of each lane")
      ->required();
  command.add_option("--policy", arguments->policy, "Who runs: " + policies)->capture_default_str();
  command
      .add_option("--socket", arguments->socket,
                  "Where jobs find the broker (default: CARILLON_SOCKET, else in the user's runtime folder)")
      ->capture_default_str();
  command
      .add_option(
          "--quantum", arguments->quantum_ms,
          "fair, pack: milliseconds by which a lane's jobs may drift apart; shorter is fairer, longer costs "
          "fewer hand-overs")
      ->check(CLI::Range(1.0, 3'600'000.0))
      ->capture_default_str();
  command
      .add_option("--assumed-persistent", arguments->assumed_persistent,
                  "Memory that a job that does not know is taken to keep, until it has run")
      ->default_str("64MiB");
  command
      .add_option("--assumed-ephemeral", arguments->assumed_ephemeral,
                  "And what an iteration of it is taken to need")
      ->default_str("256MiB");
  command
      .add_option("--hang-after", arguments->hang_after_s,
                  "Seconds without an iteration's end after which a job hangs; at least 20 times its longest "
                  "iteration; 0: never")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  command.add_flag("--evict-hanging", arguments->evict_hanging, "End jobs that hang; else they are frozen");
  command
      .add_option("--poll", arguments->poll_us,
                  "Microseconds for which the broker, and whoever is to follow, stay awake before and after "
                  "the time at "
                  "which a job that is to make way should come to its boundary: hand-overs are quicker, for "
                  "a little of "
                  "a processor. At most a hundredth of the quantum counts; 0: they sleep")
      ->check(CLI::Range(0.0, 10'000.0))
      ->capture_default_str();
  command.add_option("--most-clients", arguments->most_clients, "Connections at a time")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  command.add_flag("--any-user", arguments->any_user,
                   "Take jobs of all users, who can then read each other's working memory; needs root");
  command.add_flag(
      "--release", arguments->release,
      "When the broker ends its jobs go on alone, all at once; else they wait for another broker");
  command.add_option("--metrics", arguments->metrics,
                     "HOST:PORT of Prometheus metrics; without it there are none");
  command.add_option(
      "--json-log", arguments->json_log,
      "Write a line of JSON for each job that comes, is refused, is evicted or ends to this file "
      "('-': standard output)");
  command.footer(
      "Examples:\n"
      "  carillon share --memory 16GiB\n"
      "  carillon share --memory 16GiB --policy srtf --metrics 127.0.0.1:8003\n"
      "  carillon run train.py        # in another terminal, several times\n"
      "  carillon jobs --watch");
  command.callback([arguments, &status] { status = run_share(*arguments); });
}

}  // namespace carillon::cli
