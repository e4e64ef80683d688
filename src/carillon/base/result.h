#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace carillon {

// What kind of failure an Error is; the frontends map it to HTTP and gRPC status codes.
enum class ErrorCode {
  invalid_argument,    // the caller's input is wrong (HTTP 400)
  not_found,           // no such model, version, file (HTTP 404)
  unsupported,         // understood, but not something we do (HTTP 501)
  resource_exhausted,  // does not fit: memory, queue, cache (HTTP 503)
  unavailable,         // not ready, or going away (HTTP 503)
  deadline_exceeded,   // cannot be, or was not, on time (HTTP 504)
  cancelled,           // the client has gone (HTTP 499)
  internal,            // ours (HTTP 500)
};

// Stable lower-case name, such as "invalid_argument".
std::string_view name_of(ErrorCode code);

// A failure that travels. `message` says what was wrong, where, and what would be right; it is shown to
// users.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;

  friend bool operator==(const Error&, const Error&) = default;
};

// The one way in which a failure crosses a boundary. Exceptions stop at the edge of the library that throws.
template <typename T = void>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(ErrorCode code, std::string message) {
  return std::unexpected<Error>(Error{code, std::move(message)});
}

inline std::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::invalid_argument, std::move(message));
}

// The same failure seen from further out: "<context>: <message>".
inline std::unexpected<Error> in_context(std::string_view context, Error error) {
  error.message.insert(0, std::string(context) + ": ");
  return std::unexpected<Error>(std::move(error));
}

}  // namespace carillon
