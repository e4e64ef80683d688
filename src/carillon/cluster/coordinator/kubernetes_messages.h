#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "carillon/base/time.h"

// What the client of a Kubernetes API server asks and is told, as plain structs.
namespace carillon::cluster::kubernetes {

// One answer, or one failure, follows.
struct Call {
  std::string method;  // of HTTP
  std::string target;  // path and query
  std::string body;    // JSON; empty: none
};
// First an answer: status 200 and no body if the watch has begun. Then any number of lines, and a failure at
// the end.
struct Watch {
  std::string target;
};
struct Cancel {};  // of the watch with this id; has no answer

struct Request {
  std::uint64_t id = 0;
  Duration timeout{0};  // of a call, after which it fails
  std::variant<Call, Watch, Cancel> body;
};

struct Answer {
  int status = 0;  // of HTTP
  std::string body;
  std::optional<Duration> retry_after = std::nullopt;
};

// No answer, or the end of a watch. A call may have been carried out, or may be yet.
struct Failure {
  std::string text;  // empty: the server ended the watch in good order
};

}  // namespace carillon::cluster::kubernetes
