#pragma once

#include <memory>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cli/serve/arguments.h"
#include "carillon/cli/serve/memory.h"
#include "carillon/controller/controller.h"
#include "carillon/frontend/frontend.h"
#include "carillon/frontend/telemetry/span_exporter.h"

namespace carillon::cli::serving {

// How the doors are to be, as far as the command line says.
Result<frontend::Options> doors_of(const Arguments& arguments);

// Null where spans go nowhere.
std::shared_ptr<frontend::SpanExporter> export_spans(const std::optional<OtlpTarget>& target,
                                                     const controller::Options& options,
                                                     const frontend::Options& doors);

Result<std::unique_ptr<frontend::Frontend>> open_doors(controller::Service& service,
                                                       const Arguments& arguments, frontend::Options doors,
                                                       const Memory& memory);

std::string ports_text(const frontend::Frontend& frontend);

}  // namespace carillon::cli::serving
