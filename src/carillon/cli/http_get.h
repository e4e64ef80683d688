#pragma once

#include <string>
#include <utility>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::cli {

// The body that GET `url` gives, with the path /metrics where it names none, with these headers. Blocks for
// at most 10 s. Errors (invalid_argument, unavailable): no HTTP address, nobody there, another status than
// 200 (with what the server says), more than 64 MiB.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;
Result<std::string> http_get(const std::string& url, const HttpHeaders& headers = {});

}  // namespace carillon::cli
