#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "carillon/base/result.h"
#include "carillon/frontend/http/http_handler.h"

namespace carillon::frontend {

// The JSON object that a request's body is, of at most 1 MiB; an empty one where there is no body. Error
// (invalid_argument): it is something else; `example` would be right.
Result<nlohmann::json> object_body(const HttpRequest& request, std::string_view example);

}  // namespace carillon::frontend
