#pragma once

#include <string>

#include "carillon/controller/calls/service.h"
#include "carillon/frontend/http/http_handler.h"

namespace carillon::frontend {

// What is kept of requests, over HTTP (docs/explain.md). 404: it is not kept, or not for the caller, who sees
// the requests of models that its key may use and, without the role admin, of its own key.

// GET /v2/carillon/requests/ID?by=&format=, and with `id` empty /v2/carillon/requests?model=&outcome=&limit=.
HttpReply kept_requests_reply(const controller::Service& service, const HttpRequest& request,
                              const std::string& id);
// GET /v2/carillon/trace?seconds=N
HttpReply device_trace_reply(const controller::Service& service, const HttpRequest& request);

}  // namespace carillon::frontend
