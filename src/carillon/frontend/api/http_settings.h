#pragma once

#include <string_view>

#include "carillon/frontend/doors/settings.h"
#include "carillon/frontend/http/http_handler.h"

namespace carillon::frontend {

// Answer requests to /v2/logging and /v2/trace/setting (POST changes settings, GET has no body) with all
// settings as JSON. trace_level is an array of texts, all other trace settings are texts; null takes one
// back.
HttpReply log_settings_reply(LogSettings& settings, const HttpRequest& request);
// Requires a model that is there, or an empty name.
HttpReply trace_settings_reply(TraceSettings& settings, std::string_view model, const HttpRequest& request);

}  // namespace carillon::frontend
