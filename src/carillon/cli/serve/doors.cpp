#include "carillon/cli/serve/doors.h"

#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "carillon/cli/headroom.h"
#include "carillon/frontend/telemetry/access_log.h"

namespace carillon::cli::serving {
namespace {

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

}  // namespace

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

Result<std::optional<OtlpTarget>> otlp_target(const Arguments& arguments) {
  return read_otlp(arguments.otlp, [](const char* name) { return std::getenv(name); });
}

std::shared_ptr<frontend::SpanExporter> export_spans(const std::optional<OtlpTarget>& target,
                                                     const roles::MemberArguments* member,
                                                     std::shared_ptr<const controller::Journal> journal) {
  if (!target) return nullptr;
  spdlog::info("spans: of requests in sampled traces, to {}", target->url());
  auto resource = target->resource;
  if (member != nullptr) {
    resource.emplace_back("carillon.cluster", member->coordinator.name);
    resource.emplace_back("carillon.role", cluster::name_of(member->role));
    resource.emplace_back("carillon.member", member->id);
  }
  return std::make_shared<frontend::SpanExporter>(
      frontend::SpanExporterOptions{.post = post_to(*target),
                                    .journal = std::move(journal),
                                    .resource = std::move(resource),
                                    .version = CARILLON_VERSION,
                                    .log = [](const std::string& text) { spdlog::warn("{}", text); }});
}

explain::RowSpansSink rows_to(const std::shared_ptr<frontend::SpanExporter>& exporter) {
  if (exporter == nullptr) return {};
  return [exporter](std::shared_ptr<const explain::RowSpans> spans) { exporter->add(std::move(spans)); };
}

Result<std::unique_ptr<frontend::Frontend>> open_doors(controller::Service& service,
                                                       const Arguments& arguments, frontend::Options doors,
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

}  // namespace carillon::cli::serving
