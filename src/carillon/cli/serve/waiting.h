#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cli/serve/arguments.h"
#include "carillon/cli/serve/memory.h"
#include "carillon/cli/service_manager.h"
#include "carillon/cli/signals.h"
#include "carillon/controller/controller.h"
#include "carillon/frontend/frontend.h"
#include "carillon/frontend/telemetry/span_exporter.h"

namespace carillon::cli::serving {

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

Result<Supervised> find_supervisor();

// How long the end waits for the collector to take the last spans.
inline constexpr Duration flush_of_spans = std::chrono::seconds(2);

void tell_ready(const frontend::Frontend& frontend, const Arguments& arguments, ServiceManager& manager,
                const std::string& what);

// Waits until it is told to stop, and closes the doors.
void serve(frontend::Frontend& frontend, const Arguments& arguments, const SignalWait& signals,
           const controller::Options& options, ServiceManager& manager, const Memory& memory,
           frontend::SpanExporter* spans, const std::function<void()>& before_stopping = {});

}  // namespace carillon::cli::serving
