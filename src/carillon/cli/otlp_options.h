#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cli/load/access.h"
#include "carillon/cli/load/address.h"
#include "carillon/frontend/telemetry/span_exporter.h"

namespace carillon::cli {

// Where a server, or a process of a cluster, sends spans, as the command line says it.
struct OtlpArguments {
  std::string url;  // empty: nowhere
  std::vector<std::string> headers;
  std::string ca;  // file of PEM; empty: the CAs of the system
};

void add_otlp_options(CLI::App& command, OtlpArguments& arguments);

using Environment = std::function<const char*(const char* name)>;

// The same, read: with what OpenTelemetry's environment variables say (docs/operations.md).
struct OtlpTarget {
  Address address;
  std::string path;  // with what follows it
  Access access;
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<std::pair<std::string, std::string>> resource;

  std::string url() const;
};

// None where the arguments name none. Errors (invalid_argument) name the option or the variable, and show no
// header's value: an address without http:// or https://, a port that is none, something that is no header.
Result<std::optional<OtlpTarget>> read_otlp(const OtlpArguments& arguments, const Environment& environment);

// Posts to that collector.
frontend::SpanPost post_to(OtlpTarget target);

// The seconds of a Retry-After (RFC 9110, 10.2.3); none for what is not a number: collectors send those.
std::optional<Duration> retry_after_of(const std::string& value);

}  // namespace carillon::cli
