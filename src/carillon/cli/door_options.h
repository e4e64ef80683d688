#pragma once

#include <string>

#include <CLI/App.hpp>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/frontend/grpc_keepalive.h"

namespace carillon::cli {

// What clients of `carillon serve` may take, as the command line says it.
struct DoorArguments {
  std::string body_limit;      // empty: it follows from the memory that there is
  std::string inflight_limit;  // likewise
  frontend::GrpcKeepalive keepalive;
};

void add_door_options(CLI::App& command, DoorArguments& arguments);

// How much of memory requests and answers may take.
struct DoorLimits {
  Bytes body;      // of one request, at most `inflight`
  Bytes inflight;  // of all together
};
inline constexpr DoorLimits largest_door_limits{.body = mib(256), .inflight = gib(1)};
inline constexpr Bytes least_inflight = mib(16);

// The limits that the arguments name, and those that follow from `left`, the memory that is left beside
// caches and libraries. Without a word --inflight-limit is half of it, at most 1 GiB and at least 16 MiB:
// gRPC reads into buffers of its own, which may have half as much again, and the last quarter is for models,
// logs and what the allocator cannot use. --body-limit is 256 MiB, or half of --inflight-limit where that is
// less. Errors name the option: not a size, or a body that could never be read.
Result<DoorLimits> door_limits(const DoorArguments& arguments, Bytes left);

}  // namespace carillon::cli
