#include "carillon/frontend/http_access.h"

#include <string>

namespace carillon::frontend {

Need need_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::server_live:
    case Endpoint::server_ready:
      return Need::nothing;
    case Endpoint::server_metadata:
    case Endpoint::model_metadata:
    case Endpoint::model_ready:
    case Endpoint::model_config:
    case Endpoint::model_statistics:
    case Endpoint::repository_index:
    // There is nothing of CUDA's to protect, and clients ask before they choose another kind.
    case Endpoint::cuda_memory_status:
    case Endpoint::cuda_memory_register:
    case Endpoint::cuda_memory_unregister:
    case Endpoint::not_implemented:
      return Need::reading;
    case Endpoint::infer:
      return Need::infer;
    case Endpoint::repository_load:
    case Endpoint::repository_unload:
    case Endpoint::system_memory_status:
    case Endpoint::system_memory_register:
    case Endpoint::system_memory_unregister:
    case Endpoint::logging:
    case Endpoint::trace_setting:
      return Need::admin;
  }
  return Need::admin;
}

std::expected<std::shared_ptr<Caller>, HttpReply> admit_http(const Guard& guard, const HttpHead& head,
                                                             TimePoint now, bool at_admin_door) {
  if (guard.idle()) return nullptr;
  const auto route = find_route(head.method, head.target);
  // A path that nobody knows is told so to those alone who have a key.
  const Need need = route ? need_of(route->endpoint) : Need::reading;
  auto admitted =
      guard.admit(head.credentials, need, route ? route->model : std::string(), now, at_admin_door);
  if (!admitted) return std::unexpected(denial_reply(admitted.error()));
  return std::move(*admitted);
}

}  // namespace carillon::frontend
