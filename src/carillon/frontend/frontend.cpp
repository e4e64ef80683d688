#include "carillon/frontend/frontend.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "carillon/frontend/admin/metrics.h"
#include "carillon/frontend/api/http_api.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/grpc/grpc_server.h"
#include "carillon/frontend/http/http_server.h"
#include "carillon/frontend/net/descriptor.h"
#include "carillon/frontend/net/listener.h"
#include "carillon/frontend/telemetry/watch.h"

namespace carillon::frontend {
namespace {

// What the others look at, and what the doors themselves hold.
LookAtMemory with_bodies(const LookAtMemory& look, const std::shared_ptr<ByteBudget>& bodies) {
  if (!look) return {};
  return [look, bodies](const controller::ServerStatistics& statistics) {
    MemoryFigures figures = look(statistics);
    figures.parts.emplace_back("bodies", Bytes{bodies->used()});
    return figures;
  };
}

class Doors final : public Frontend {
 public:
  Doors(controller::Service& service, const Options& options)
      : service_(service),
        commons_({.inflight = options.inflight,
                  .max_body = options.max_body,
                  .strict_readiness = options.strict_readiness,
                  .regions = std::min<std::size_t>(CommonsOptions{}.regions,
                                                   static_cast<std::size_t>(raise_descriptor_limit() / 8)),
                  .importers = options.importers,
                  .guard = options.guard,
                  .access_log = options.access_log,
                  .spans = options.spans,
                  .trace_share = options.trace_share,
                  .facts = options.facts,
                  .log = options.log,
                  .log_control = options.log_control,
                  .more_metrics = options.more_metrics,
                  .empty_histograms = options.empty_histograms,
                  .memory = options.memory}),
        watch_(service, with_bodies(options.memory, commons_.bodies)),
        api_(service, commons_, &watch_),
        admin_api_(service, commons_, &watch_, true),
        metrics_api_(service, commons_),
        stop_grace_(options.stop_grace) {}
  ~Doors() override { stop(); }

  Result<> open(const Options& options) {
    // HTTP gets half of the descriptors and gRPC the lower half, so that neither locks the other out.
    const int descriptors = raise_descriptor_limit();
    const HttpOptions defaults;
    const std::size_t connections =
        std::min<std::size_t>(defaults.max_connections, static_cast<std::size_t>(descriptors / 2));
    const auto http = [&](HttpHandler& handler, const std::string& address, std::string option, int threads,
                          std::unique_ptr<HttpServer>& server) -> Result<> {
      if (address.empty()) return {};
      auto parsed = parse_address(address);
      if (!parsed) return in_context(option, parsed.error());
      const bool watches = option != "--http";
      auto started =
          HttpServer::start(handler, {.address = *parsed,
                                      .option = std::move(option),
                                      .threads = threads,
                                      .max_body = options.max_body,
                                      .max_connections = connections,
                                      .idle_timeout = options.idle_timeout,
                                      .max_unread = std::min(defaults.max_unread, options.inflight / 4),
                                      .stop_grace = Duration{0},  // stop() has waited
                                      .watches = watches,
                                      .tls = options.tls,
                                      .commons = &commons_});
      if (!started) return std::unexpected(std::move(started.error()));
      server = std::move(*started);
      return {};
    };
    // HTTP opens last: launchers wait for its /v2/health/ready and then use the other doors at once.
    if (auto done = http(metrics_api_, options.metrics, "--metrics", 1, metrics_); !done) return done;
    if (auto done = http(admin_api_, options.admin, "--admin-port", 1, admin_); !done) return done;
    if (!options.grpc.empty()) {
      auto parsed = parse_address(options.grpc);
      if (!parsed) return in_context("--grpc", parsed.error());
      auto started = GrpcServer::start(service_, {.address = *parsed,
                                                  .max_body = options.max_body,
                                                  .stop_grace = Duration{0},
                                                  .highest_descriptor = std::min(descriptors / 2, 20'000),
                                                  .tls = options.tls,
                                                  .keepalive = options.keepalive,
                                                  .buffers = options.grpc_buffers,
                                                  .commons = &commons_});
      if (!started) return std::unexpected(std::move(started.error()));
      grpc_ = std::move(*started);
    }
    if (auto done = http(api_, options.http, "--http", options.http_threads, http_); !done) return done;
    watch_.start();
    return {};
  }

  Ports ports() const override {
    return {.http = http_ ? http_->port() : std::uint16_t{0},
            .grpc = grpc_ ? grpc_->port() : std::uint16_t{0},
            .metrics = metrics_ ? metrics_->port() : std::uint16_t{0},
            .admin = admin_ ? admin_->port() : std::uint16_t{0}};
  }

  void stop() override {
    commons_.draining = true;
    commons_.waits.settle();
    const auto until = std::chrono::steady_clock::now() + stop_grace_;
    if (http_) http_->wait_drained(until - std::chrono::steady_clock::now());
    if (grpc_) grpc_->wait_drained(until - std::chrono::steady_clock::now());
    // What is still open has had its time.
    std::thread beside;
    if (grpc_) beside = std::thread([this] { grpc_->stop(); });
    if (http_) http_->stop();
    if (beside.joinable()) beside.join();
    if (admin_) admin_->stop();
    if (metrics_) metrics_->stop();
    watch_.stop();
  }

 private:
  controller::Service& service_;
  Commons commons_;
  Watch watch_;
  HttpApi api_;
  HttpApi admin_api_;
  MetricsApi metrics_api_;
  const Duration stop_grace_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpServer> metrics_;
  std::unique_ptr<HttpServer> admin_;
};

}  // namespace

Result<> check_addresses(const Options& options) {
  for (const auto& [text, option] :
       {std::pair(&options.http, "--http"), std::pair(&options.grpc, "--grpc"),
        std::pair(&options.metrics, "--metrics"), std::pair(&options.admin, "--admin-port")}) {
    if (text->empty()) continue;
    const auto address = parse_address(*text);
    if (!address) return in_context(option, address.error());
    if (auto opened = Listener::open({.address = *address, .option = option, .log = {}}); !opened)
      return std::unexpected(opened.error());
  }
  return {};
}

Result<std::unique_ptr<Frontend>> Frontend::start(controller::Service& service, const Options& options) {
  auto doors = std::make_unique<Doors>(service, options);
  if (auto opened = doors->open(options); !opened) return std::unexpected(std::move(opened.error()));
  return doors;
}

}  // namespace carillon::frontend
