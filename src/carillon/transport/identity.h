#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/cluster/coordinator/member.h"

namespace carillon::transport {

// Whom a certificate names: the URI carillon://CLUSTER/ROLE/ID among its subject alternative names.
struct Identity {
  std::string cluster;                // cluster::is_name(), as the id
  std::optional<cluster::Role> role;  // none: an admin, who is no member and has no streams
  std::string id;                     // "*": any member of that role

  friend bool operator==(const Identity&, const Identity&) = default;
};

std::string to_text(const Identity& identity);
// Of all URIs of a certificate, one of which must begin with carillon:// and be well-formed. They come from
// outside. Error (invalid_argument): what is wrong with them.
Result<Identity> identity_among(std::span<const std::string> uris);

// Whether a certificate of `certified` may be shown by that member. Error (invalid_argument): names both.
Result<> check_member(const Identity& certified, std::string_view cluster, cluster::Role role,
                      std::string_view id);
// Likewise for any member of the role.
Result<> check_role(const Identity& certified, std::string_view cluster, cluster::Role role);

}  // namespace carillon::transport
