#include "carillon/frontend/frontend.h"

#include <thread>
#include <utility>

#include "carillon/frontend/grpc_server.h"
#include "carillon/frontend/http_api.h"
#include "carillon/frontend/http_server.h"
#include "carillon/frontend/metrics.h"

namespace carillon::frontend {
namespace {

class Doors final : public Frontend {
 public:
  explicit Doors(controller::Service& service) : service_(service), api_(service), metrics_api_(service) {}
  ~Doors() override { stop(); }

  Result<> open(const Options& options) {
    const auto http = [&](HttpHandler& handler, const std::string& address, std::string option, int threads,
                          std::unique_ptr<HttpServer>& server) -> Result<> {
      if (address.empty()) return {};
      auto parsed = parse_address(address);
      if (!parsed) return in_context(option, parsed.error());
      auto started = HttpServer::start(handler, {.address = *parsed,
                                                 .option = std::move(option),
                                                 .threads = threads,
                                                 .max_body = options.max_body,
                                                 .idle_timeout = options.idle_timeout,
                                                 .stop_grace = options.stop_grace});
      if (!started) return std::unexpected(std::move(started.error()));
      server = std::move(*started);
      return {};
    };
    // HTTP opens last: launchers wait for its /v2/health/ready and then use the other doors at once.
    if (auto done = http(metrics_api_, options.metrics, "--metrics", 1, metrics_); !done) return done;
    if (!options.grpc.empty()) {
      auto parsed = parse_address(options.grpc);
      if (!parsed) return in_context("--grpc", parsed.error());
      auto started = GrpcServer::start(service_, {.address = *parsed, .stop_grace = options.stop_grace});
      if (!started) return std::unexpected(std::move(started.error()));
      grpc_ = std::move(*started);
    }
    return http(api_, options.http, "--http", options.http_threads, http_);
  }

  Ports ports() const override {
    return {.http = http_ ? http_->port() : std::uint16_t{0},
            .grpc = grpc_ ? grpc_->port() : std::uint16_t{0},
            .metrics = metrics_ ? metrics_->port() : std::uint16_t{0}};
  }

  void stop() override {
    std::thread beside;
    if (grpc_) beside = std::thread([this] { grpc_->stop(); });
    if (http_) http_->stop();
    if (beside.joinable()) beside.join();
    if (metrics_) metrics_->stop();
  }

 private:
  controller::Service& service_;
  HttpApi api_;
  MetricsApi metrics_api_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpServer> metrics_;
};

}  // namespace

Result<std::unique_ptr<Frontend>> Frontend::start(controller::Service& service, const Options& options) {
  auto doors = std::make_unique<Doors>(service);
  if (auto opened = doors->open(options); !opened) return std::unexpected(std::move(opened.error()));
  return doors;
}

}  // namespace carillon::frontend
