#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/base/trace_context.h"
#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/telemetry/access_log.h"

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

// RESOURCE_EXHAUSTED: there is no room now. The metadata tells when to come back: once a call, as its last
// word.
grpc::Status refuse_full(grpc::CallbackServerContext& context, const std::string& message);

// The status of `error`, as refuse_full() where it is for want of room.
grpc::Status refuse_call(grpc::CallbackServerContext& context, const Error& error);

// The status of `error`, without metadata.
grpc::Status status_of(const Error& error);

// That the caller has too many bytes in flight for `size` more, where it was that budget (own_refused()), or
// that there is no room for anybody.
Error no_room_error(const Reservation& room, const Caller* caller, std::size_t size);

// The trace that a call is in, or begins here; its client is told of our span in the initial metadata. Once a
// call, before it is finished.
TraceContext join_trace(grpc::CallbackServerContext& context, double share);

// A record of a call that begins now; null where nobody wants one.
std::unique_ptr<AccessRecord> begin_record(const Commons& commons, const grpc::CallbackServerContext& context,
                                           std::string_view path, std::size_t bytes_in,
                                           const TraceContext& trace);
// It has ended like this.
void close_record(AccessRecord& record, int code, std::size_t bytes_out);
// Likewise; and `record` (may be null) goes to whoever wants it.
void end_record(const Commons& commons, std::unique_ptr<AccessRecord> record, int code,
                std::size_t bytes_out);

}  // namespace carillon::frontend
