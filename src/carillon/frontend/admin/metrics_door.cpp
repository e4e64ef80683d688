#include "carillon/frontend/admin/metrics_door.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "carillon/frontend/admin/metrics.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/http/http_server.h"
#include "carillon/frontend/net/address.h"
#include "carillon/frontend/net/descriptor.h"

namespace carillon::frontend {
namespace {

// Requests have no bodies, and answers are some lines.
constexpr std::size_t most_of_door = std::size_t{16} << 20, longest_body = std::size_t{64} << 10;
constexpr std::size_t most_connections_of_door = 256;

// A quarter of the descriptors at most: the process has other peers.
std::size_t connections_of_door() {
  return std::min(most_connections_of_door, static_cast<std::size_t>(raise_descriptor_limit()) / 4);
}

class PlainMetrics final : public HttpHandler {
 public:
  explicit PlainMetrics(std::function<std::string()> text) : text_(std::move(text)) {}
  std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver) override {
    if (auto refused = refuse_but_metrics(request)) return *std::move(refused);
    return metrics_reply(text_());
  }

 private:
  const std::function<std::string()> text_;
};

class LiveDoor final : public MetricsDoor {
 public:
  LiveDoor(std::function<std::string()> text, Log log)
      : handler_(std::move(text)),
        commons_({.inflight = most_of_door,
                  .max_body = longest_body,
                  .heavy_threads = 1,
                  .heavy_queue = 4,
                  .regions = 1,
                  .log = std::move(log)}) {}
  ~LiveDoor() override {
    if (server_) server_->stop();
  }

  Result<> listen(const std::string& text) {
    auto address = parse_address(text);
    if (!address) return in_context("--metrics", address.error());
    auto started = HttpServer::start(handler_, {.address = *address,
                                                .option = "--metrics",
                                                .max_body = longest_body,
                                                .max_connections = connections_of_door(),
                                                .max_unread = most_of_door / 4,
                                                .stop_grace = Duration{0},
                                                .watches = true,
                                                .commons = &commons_});
    if (!started) return std::unexpected(std::move(started.error()));
    server_ = std::move(*started);
    return {};
  }

  std::uint16_t port() const override { return server_->port(); }

 private:
  PlainMetrics handler_;
  Commons commons_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

Result<std::unique_ptr<MetricsDoor>> MetricsDoor::open(const std::string& address,
                                                       std::function<std::string()> text, Log log) {
  auto door = std::make_unique<LiveDoor>(std::move(text), std::move(log));
  if (auto listening = door->listen(address); !listening)
    return std::unexpected(std::move(listening.error()));
  return door;
}

}  // namespace carillon::frontend
