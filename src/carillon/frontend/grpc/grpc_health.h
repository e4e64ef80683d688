#pragma once

#include <string_view>

#include "carillon/frontend/grpc/grpc_infer.h"
#include "carillon/frontend/grpc/grpc_raw.h"

namespace carillon::frontend {

// The services whose health may be asked for: the server's, by no name, and the one that infers.
bool has_health(std::string_view service);

// Answers one Watch call of grpc.health.v1.Health: the state of a service now, and again whenever it is
// another, until the client goes or the server ends. A service that is not known is SERVICE_UNKNOWN, for
// good.
RawService::WriteReactor* watch_health(InferDoor& door, grpc::CallbackServerContext& context,
                                       RawMessage& message);

}  // namespace carillon::frontend
