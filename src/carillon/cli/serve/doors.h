#pragma once

#include <memory>
#include <optional>
#include <string>

#include "carillon/base/result.h"
#include "carillon/cli/serve/arguments.h"
#include "carillon/cli/serve/memory.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/controller/calls/service.h"
#include "carillon/explain/row_spans.h"
#include "carillon/frontend/frontend.h"
#include "carillon/frontend/telemetry/span_exporter.h"
#include "carillon/roles/follower.h"

namespace carillon::cli::serving {

// How the doors are to be, as far as the command line says.
Result<frontend::Options> doors_of(const Arguments& arguments);

// The collector of --otlp; none: spans go nowhere.
Result<std::optional<OtlpTarget>> otlp_target(const Arguments& arguments);

// Null where spans go nowhere. `member`: who this process is in its cluster; null: it serves by itself.
std::shared_ptr<frontend::SpanExporter> export_spans(const std::optional<OtlpTarget>& target,
                                                     const roles::MemberArguments* member,
                                                     std::shared_ptr<const controller::Journal> journal);

// Where a member's spans of rows go. Empty where there is no exporter.
explain::RowSpansSink rows_to(const std::shared_ptr<frontend::SpanExporter>& exporter);

Result<std::unique_ptr<frontend::Frontend>> open_doors(controller::Service& service,
                                                       const Arguments& arguments, frontend::Options doors,
                                                       const Memory& memory);

std::string ports_text(const frontend::Frontend& frontend);

}  // namespace carillon::cli::serving
