#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cli/load/access.h"
#include "carillon/cli/load/address.h"

namespace carillon::cli {

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

// GET `target` of the server at `address`, whatever its status. Blocks for at most 10 s. Errors
// (unavailable): nobody there, a server that is not believed or refuses the connection, an answer of more
// than 64 MiB.
Result<HttpAnswer> http_fetch(const Address& address, const Access& access, const std::string& target);

// What a POST sends.
struct HttpPost {
  std::string target;
  std::vector<std::pair<std::string, std::string>> headers;  // besides those of HTTP itself
  std::string body;
};
struct PostReply {
  unsigned status = 0;
  std::string retry_after;  // the header's value; empty: none
  std::string body;         // at most 64 KiB; of one that is longer, or breaks off, nothing
};
// Over a connection of its own. Blocks for at most `patience`, and not for long after `given_up`, which is
// asked often, says true; but for as long as the system looks for the host's name. Errors (unavailable) as
// above.
Result<PostReply> http_post(const Address& address, const Access& access, const HttpPost& post,
                            std::chrono::nanoseconds patience, const std::function<bool()>& given_up);

// "HTTP 404: ..." with what the server says, and what helps where it refused a key.
std::string status_text(const HttpAnswer& answer, const Access& access);

// The body that GET `url` gives, with the path /metrics where it names none. Errors as above; also
// (invalid_argument) no HTTP address, and read_access()'s; (unavailable) another status than 200.
Result<std::string> http_get(const std::string& url, const AccessArguments& arguments = {});

// Of a server that speaks first, as those of HTTP/2 do: the error says why there is no connection to it.
Result<> try_connection(const Address& address, const Access& access);

}  // namespace carillon::cli
