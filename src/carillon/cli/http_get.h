#pragma once

#include <string>

#include "carillon/base/result.h"

namespace carillon::cli {

// The body that GET `url` gives, with the path /metrics where it names none. Blocks for at most 10 s. Errors
// (invalid_argument, unavailable): no HTTP address, nobody there, another status than 200, more than 64 MiB.
Result<std::string> http_get(const std::string& url);

}  // namespace carillon::cli
