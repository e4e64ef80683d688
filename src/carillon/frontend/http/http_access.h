#pragma once

#include <expected>
#include <memory>

#include "carillon/base/time.h"
#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/http/http_handler.h"
#include "carillon/frontend/http/http_routes.h"

namespace carillon::frontend {

// What a request to this endpoint is, as far as it matters for who may make it.
Need need_of(Endpoint endpoint);

// Whose a request of the protocol is, or the answer that refuses it.
std::expected<std::shared_ptr<Caller>, HttpReply> admit_http(const Guard& guard, const HttpHead& head,
                                                             TimePoint now, bool at_admin_door);

}  // namespace carillon::frontend
