#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "carillon/base/result.h"

namespace carillon::frontend {

// Where a server listens: "127.0.0.1:8000", "[::]:8000", "localhost:0"; ":8000" is every address. Port 0: the
// system chooses one.
struct Address {
  std::string host;  // without brackets
  std::uint16_t port = 0;

  std::string text() const;  // as it was given, with brackets around an IPv6 host
};

// Error (invalid_argument): what is wrong with `text`, and an example of what is right.
Result<Address> parse_address(std::string_view text);

// Whether only this machine can reach it. A host name that is not known counts as if others could.
bool is_loopback(const Address& address);

// Tells a port that is taken, a host that is not this machine's and a port that needs privileges apart.
// `option` is the command-line option that would choose another ("--http").
std::string bind_failure(const Address& address, std::string_view option, int system_error);

}  // namespace carillon::frontend
