#pragma once

#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon::frontend {

enum class Endpoint {
  server_metadata,
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
  trace_setting,    // model empty: the server's
  not_implemented,  // part of the protocol, but not served
};

struct Route {
  Endpoint endpoint = Endpoint::server_metadata;
  std::string model;
  std::string version;      // empty: not given
  std::string region = {};  // of shared memory; empty: not given

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

}  // namespace carillon::frontend
