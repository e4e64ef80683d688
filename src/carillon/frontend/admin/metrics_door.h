#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

// The metrics of a process that has no Service, such as a scheduler of a cluster: GET /metrics over HTTP.
class MetricsDoor {
 public:
  // `address` is HOST:PORT. `text` gives the metrics in Prometheus' format, on the door's thread, and
  // outlives the door. Listens when it returns. Errors name the address and --metrics.
  static Result<std::unique_ptr<MetricsDoor>> open(const std::string& address,
                                                   std::function<std::string()> text, Log log);
  virtual ~MetricsDoor() = default;
  virtual std::uint16_t port() const = 0;
};

}  // namespace carillon::frontend
