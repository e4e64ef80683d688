#include "carillon/frontend/grpc/grpc_access.h"

#include <string>
#include <string_view>
#include <utility>

#include "carillon/base/clock.h"
#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/status.h"
#include "carillon/frontend/telemetry/trace.h"
#include "carillon/graph/text.h"

namespace carillon::frontend {
namespace {

TimePoint now_of_log() {
  return SteadyClock().now();
}

std::string_view view_of(const grpc::string_ref& text) {
  return {text.data(), text.size()};
}

// gRPC's "ipv4:127.0.0.1:4711" as "127.0.0.1:4711", and "ipv6:%5B::1%5D:4711" as "[::1]:4711".
std::string peer_of(const grpc::CallbackServerContext& context) {
  std::string peer = context.peer();
  if (peer.starts_with("ipv4:") || peer.starts_with("ipv6:")) peer.erase(0, 5);
  for (const auto& [escaped, meant] : {std::pair("%5B", "["), std::pair("%5D", "]")})
    if (const auto at = peer.find(escaped); at != std::string::npos) peer.replace(at, 3, meant);
  return peer;
}

}  // namespace

grpc::Status denial_status(const Denial& denial) {
  switch (denial.kind) {
    case Denial::Kind::unknown:
      return {grpc::StatusCode::UNAUTHENTICATED, denial.message};
    case Denial::Kind::forbidden:
      return {grpc::StatusCode::PERMISSION_DENIED, denial.message};
    case Denial::Kind::too_many:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, denial.message};
  }
  return {grpc::StatusCode::PERMISSION_DENIED, denial.message};
}

Credentials credentials_of(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto value = [&](const char* name) -> std::string_view {
    const auto it = metadata.find(name);
    return it == metadata.end() ? std::string_view() : std::string_view(it->second.data(), it->second.size());
  };
  return {.authorization = value("authorization"),
          .api_key = value("x-api-key"),
          .ambiguous = metadata.count("authorization") > 1 || metadata.count("x-api-key") > 1};
}

Guard::Admitted admit_grpc(const Guard& guard, const grpc::CallbackServerContext& context, Need need,
                           TimePoint now) {
  if (guard.idle() || need == Need::nothing) return nullptr;
  return guard.admit(credentials_of(context), need, {}, now, false);
}

grpc::Status refuse_call(grpc::CallbackServerContext& context, const Denial& denial) {
  if (denial.kind == Denial::Kind::too_many)
    context.AddTrailingMetadata(retry_metadata, std::to_string(retry_ms(denial.wait)));
  return denial_status(denial);
}

grpc::Status refuse_full(grpc::CallbackServerContext& context, const std::string& message) {
  context.AddTrailingMetadata(retry_metadata, std::to_string(retry_ms(controller::retry_when_full)));
  return status_of({ErrorCode::resource_exhausted, message});
}

grpc::Status refuse_call(grpc::CallbackServerContext& context, const Error& error) {
  return error.code == ErrorCode::resource_exhausted ? refuse_full(context, error.message) : status_of(error);
}

grpc::Status status_of(const Error& error) {
  // gRPC carries the text in a header, which servers and proxies bound.
  constexpr std::size_t longest = 4096;
  return {static_cast<grpc::StatusCode>(grpc_status(error.code)), graph::printable(error.message, longest)};
}

Error no_room_error(const Reservation& room, const Caller* caller, std::size_t size) {
  if (room.own_refused() && caller != nullptr)
    return {ErrorCode::resource_exhausted,
            "key '" + caller->key.name + "' may have " + std::to_string(caller->key.bytes) +
                " bytes in flight, and has no room for a message of " + std::to_string(size) + " bytes"};
  if (room.share_refused())
    return {ErrorCode::resource_exhausted,
            "the connection's requests and answers have too many bytes in flight for a message of " +
                std::to_string(size) + " bytes"};
  return {ErrorCode::resource_exhausted,
          "there is no room now for a message of " + std::to_string(size) + " bytes: too many are in flight"};
}

TraceContext join_trace(grpc::CallbackServerContext& context, double share) {
  const auto& metadata = context.client_metadata();
  const bool one = metadata.count(traceparent_key) == 1;
  const TraceContext trace =
      join_trace(one ? view_of(metadata.find(traceparent_key)->second) : std::string_view(), share);
  if (!trace.there()) return trace;
  context.AddInitialMetadata(traceparent_key, traceparent_text(trace));
  if (!one) return trace;
  std::string state;
  const auto [first, last] = metadata.equal_range(tracestate_key);
  for (auto it = first; it != last && state.size() <= tracestate_most; ++it)
    state += (state.empty() ? "" : ",") + std::string(view_of(it->second));
  if (is_tracestate(state)) context.AddInitialMetadata(tracestate_key, state);
  return trace;
}

std::unique_ptr<AccessRecord> begin_record(const Commons& commons, const grpc::CallbackServerContext& context,
                                           std::string_view path, std::size_t bytes_in,
                                           const TraceContext& trace) {
  if (!commons.records(trace)) return nullptr;
  auto record = std::make_unique<AccessRecord>();
  record->protocol = AccessRecord::Protocol::grpc;
  record->peer = peer_of(context);
  record->path = path;
  record->bytes_in = bytes_in;
  record->began = now_of_log();
  record->trace = trace;
  return record;
}

void close_record(AccessRecord& record, int code, std::size_t bytes_out) {
  record.ended = now_of_log();
  record.status = code;
  record.bytes_out = bytes_out;
  record.outcome = outcome_of_grpc(code);
  if (record.inferred && code == 0) record.outcome = record.facts.outcome.value_or(record.outcome);
}

void end_record(const Commons& commons, std::unique_ptr<AccessRecord> record, int code,
                std::size_t bytes_out) {
  if (!record) return;
  close_record(*record, code, bytes_out);
  commons.keep(*record);
}

}  // namespace carillon::frontend
