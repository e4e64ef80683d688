#pragma once

#include <cstddef>
#include <memory>

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "carillon/base/time.h"
#include "carillon/frontend/guard.h"

namespace carillon::frontend {

// UNAUTHENTICATED, PERMISSION_DENIED or RESOURCE_EXHAUSTED.
grpc::Status denial_status(const Denial& denial);

// Those in the metadata; as long as the call.
Credentials credentials_of(const grpc::CallbackServerContext& context);

// Whose a call is, or what it is refused with.
Guard::Admitted admit_grpc(const Guard& guard, const grpc::CallbackServerContext& context, Need need,
                           TimePoint now);

// The status of `denial`, with the metadata that tells when to come back where that would help.
grpc::Status refuse_call(grpc::CallbackServerContext& context, const Denial& denial);

// That the caller has too many bytes in flight for `size` more, where it was that budget (own_refused()), or
// that there is no room for anybody.
Error no_room_error(const Reservation& room, const Caller* caller, std::size_t size);

}  // namespace carillon::frontend
