#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon::frontend {

enum class Endpoint {
  server_metadata,
  openapi,
  server_live,
  server_ready,
  model_metadata,
  model_ready,
  model_config,
  model_statistics,  // model empty: all models
  infer,
  repository_index,
  repository_load,           // of one model
  repository_unload,         // likewise
  system_memory_status,      // region empty: all
  system_memory_register,    // of one region
  system_memory_unregister,  // region empty: all
  cuda_memory_status,        // and so on
  cuda_memory_register,
  cuda_memory_unregister,
  logging,
  trace_setting,  // model empty: the server's
  kept_requests,  // id empty: a list of them
  device_trace,
  admin_page,       // for people; at the admin port
  carillon_status,  // what the page shows
  carillon_timeline,
  carillon_trend,
  not_implemented,  // part of the protocol, but not served
};

struct Route {
  Endpoint endpoint = Endpoint::server_metadata;
  std::string model;
  std::string version;      // empty: not given
  std::string region = {};  // of shared memory; empty: not given
  std::string id = {};      // of a request; empty: not given

  friend bool operator==(const Route&, const Route&) = default;
};

// An HTTP failure with a status that no ErrorCode has.
struct RouteError {
  int status = 404;
  std::string message;
  std::string allow;  // for 405: the methods that would do
};

// Which endpoint a request is for. Percent-escapes in model names and versions are undone; a query is
// ignored. Errors: 404 unknown path, 405 wrong method, 400 a bad escape.
std::expected<Route, RouteError> find_route(std::string_view method, std::string_view target);

// The value that the target's query has for `name`, as it was sent; empty: none.
std::string_view query_value(std::string_view target, std::string_view name);
// With percent-escapes undone; none where one is broken.
std::optional<std::string> unescape(std::string_view text);

}  // namespace carillon::frontend
