#include "carillon/frontend/grpc_access.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace carillon::frontend {

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
  if (denial.kind == Denial::Kind::too_many) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(denial.wait).count();
    context.AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(std::max<std::int64_t>(1, ms)));
  }
  return denial_status(denial);
}

Error no_room_error(const Reservation& room, const Caller* caller, std::size_t size) {
  if (room.own_refused() && caller != nullptr)
    return {ErrorCode::resource_exhausted,
            "key '" + caller->key.name + "' may have " + std::to_string(caller->key.bytes) +
                " bytes in flight, and has no room for a message of " + std::to_string(size) + " bytes"};
  return {ErrorCode::resource_exhausted,
          "there is no room now for a message of " + std::to_string(size) + " bytes: too many are in flight"};
}

}  // namespace carillon::frontend
