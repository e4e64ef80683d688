#pragma once

#include <string_view>

#include "carillon/base/result.h"

namespace carillon::frontend {

// Status of an HTTP answer, and its reason phrase.
int http_status(ErrorCode code);
std::string_view reason_phrase(int status);

// Value of the gRPC status code (grpc::StatusCode). A missed deadline is never UNAVAILABLE: clients retry
// that.
int grpc_status(ErrorCode code);

}  // namespace carillon::frontend
