#pragma once

#include <string>
#include <variant>

#include "carillon/controller/service.h"
#include "carillon/frontend/http_handler.h"

namespace carillon::frontend {

// The statistics in Prometheus' text format. Names that begin with nv_inference_ are those that Triton's
// dashboards read; carillon_ names are ours (README).
std::string metrics_text(const controller::ServerStatistics& statistics);

// Serves GET /metrics.
class MetricsApi final : public HttpHandler {
 public:
  explicit MetricsApi(const controller::Service& service) : service_(service) {}
  std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver deliver) override;

 private:
  const controller::Service& service_;
};

}  // namespace carillon::frontend
