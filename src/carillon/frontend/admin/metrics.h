#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "carillon/controller/calls/service.h"
#include "carillon/frontend/admin/host.h"
#include "carillon/frontend/http/http_handler.h"
#include "carillon/frontend/memory/memory_figures.h"
#include "carillon/frontend/telemetry/span_post.h"
#include "carillon/provision/wanted.h"

namespace carillon::frontend {

struct Commons;

// The statistics in Prometheus' text format. Names that begin with nv_inference_ are those that Triton's
// dashboards read; carillon_ names are ours (README).
//
// `beside`: what others than the service know; what is not known is left out.
struct BesideStatistics {
  std::optional<HostStatistics> host{};
  std::optional<ProcessStatistics> process{};
  std::optional<std::uint64_t> access_lines{}, access_dropped{};
  std::optional<SpanCounts> spans{};
  std::optional<std::uint64_t> span_requests_dropped{};
  std::optional<std::uint64_t> inflight_bytes{}, inflight_limit_bytes{};  // of bodies and answers
  // Histograms and quantiles of models that counted nothing yet, too: some 110 lines a model.
  bool empty_histograms = false;
  std::optional<MemoryFigures> memory{};
};
std::string metrics_text(const controller::ServerStatistics& statistics, const BesideStatistics& beside = {});
// Of what is wanted of groups of devices alone.
std::string wanted_text(const std::vector<provision::WantedFigures>& groups);
// Of spans alone.
std::string spans_text(const SpanCounts& counts, std::uint64_t requests_dropped);

// The answer to a request for anything but the metrics, at a door that has them alone; none: it is for them.
std::optional<HttpReply> refuse_but_metrics(const HttpRequest& request);
HttpReply metrics_reply(std::string text);

// Serves GET /metrics.
class MetricsApi final : public HttpHandler {
 public:
  MetricsApi(const controller::Service& service, const Commons& commons)
      : service_(service), commons_(commons) {}
  std::expected<std::shared_ptr<Caller>, HttpReply> admit(const HttpHead& head) override;
  std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver deliver) override;

 private:
  const controller::Service& service_;
  const Commons& commons_;
  HostWatch host_;
};

}  // namespace carillon::frontend
