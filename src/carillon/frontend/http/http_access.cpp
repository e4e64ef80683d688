#include "carillon/frontend/http/http_access.h"

#include <string>

namespace carillon::frontend {

Need need_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::server_live:
    case Endpoint::server_ready:
    case Endpoint::admin_page:  // it holds nothing of the server
      return Need::nothing;
    case Endpoint::server_metadata:
    case Endpoint::openapi:
    case Endpoint::model_metadata:
    case Endpoint::model_ready:
    case Endpoint::model_config:
    case Endpoint::model_statistics:
    case Endpoint::repository_index:
    case Endpoint::not_implemented:
      return Need::reading;
    case Endpoint::infer:
      return Need::infer;
    case Endpoint::kept_requests:
      return Need::requests;
    case Endpoint::repository_load:
    case Endpoint::repository_unload:
    case Endpoint::system_memory_status:
    case Endpoint::system_memory_register:
    case Endpoint::system_memory_unregister:
    case Endpoint::cuda_memory_status:
    case Endpoint::cuda_memory_register:
    case Endpoint::cuda_memory_unregister:
    case Endpoint::logging:
    case Endpoint::trace_setting:
    case Endpoint::device_trace:
    case Endpoint::carillon_status:
    case Endpoint::carillon_timeline:
    case Endpoint::carillon_trend:
      return Need::admin;
  }
  return Need::admin;
}

std::expected<std::shared_ptr<Caller>, HttpReply> admit_http(const Guard& guard, const HttpHead& head,
                                                             TimePoint now, bool at_admin_door) {
  // A page of another site must give no orders in the name of who looks at it, who may be on this machine.
  const bool other_site = head.fetch_site == "cross-site" || head.fetch_site == "same-site";
  if (guard.idle() && !other_site) return nullptr;
  const auto route = find_route(head.method, head.target);
  if (other_site && route && need_of(route->endpoint) == Need::admin)
    return std::unexpected(error_reply(
        403, "administrative requests of browsers are taken from the page at the admin port alone"));
  if (guard.idle()) return nullptr;
  // A path that nobody knows is told so to those alone who have a key.
  const Need need = route ? need_of(route->endpoint) : Need::reading;
  auto admitted =
      guard.admit(head.credentials, need, route ? route->model : std::string(), now, at_admin_door);
  if (!admitted) return std::unexpected(denial_reply(admitted.error()));
  return std::move(*admitted);
}

}  // namespace carillon::frontend
