#pragma once

#include <cstdint>
#include <string>

#include "carillon/base/result.h"

namespace carillon::cli {

enum class Protocol : std::uint8_t { http, grpc };

struct Address {
  Protocol protocol = Protocol::http;
  bool tls = false;
  std::string host;
  std::string port;

  // As a header names it: "[::1]:8000".
  std::string authority() const;
};

// "http://127.0.0.1:8000", "grpc://127.0.0.1:8001", "127.0.0.1:8000" (HTTP), "http://[::1]:8000"; https and
// grpcs over TLS.
Result<Address> parse_address(const std::string& url);

}  // namespace carillon::cli
