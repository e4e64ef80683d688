#pragma once

#include <optional>
#include <string>

#include <CLI/App.hpp>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/frontend/grpc/grpc_keepalive.h"

namespace carillon::cli {

// What clients of `carillon serve` may take, as the command line says it.
struct DoorArguments {
  std::string body_limit;      // empty: it follows from the memory that there is
  std::string inflight_limit;  // likewise
  frontend::GrpcKeepalive keepalive;
};

void add_door_options(CLI::App& command, DoorArguments& arguments);

// What the arguments name of them; server/memory_plan.h has the rest. Errors name the option.
struct GivenDoorSizes {
  std::optional<Bytes> body, inflight;
};
Result<GivenDoorSizes> given_door_sizes(const DoorArguments& arguments);

}  // namespace carillon::cli
