#include "carillon/transport/identity.h"

#include <algorithm>

#include <fmt/format.h>

#include "carillon/cluster/coordinator/address.h"

namespace carillon::transport {
namespace {

constexpr std::string_view scheme = "carillon://", admin = "admin", any_id = "*";

std::string_view name_of_role(const Identity& identity) {
  return identity.role ? cluster::name_of(*identity.role) : admin;
}

// Text from outside, as errors show it.
std::string shown_uri(std::string_view uri) {
  std::string out(uri.substr(0, 256));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  return out;
}

Result<Identity> identity_in(std::string_view uri) {
  const auto wrong = [&](std::string_view why) {
    return invalid(fmt::format("the certificate's URI '{}' {}; it must be carillon://CLUSTER/ROLE/ID",
                               shown_uri(uri), why));
  };
  const std::string_view rest = uri.substr(scheme.size());
  const auto first = rest.find('/');
  const auto second = first == rest.npos ? first : rest.find('/', first + 1);
  if (second == rest.npos) return wrong("has too few parts");
  const std::string_view name = rest.substr(0, first), role = rest.substr(first + 1, second - first - 1),
                         id = rest.substr(second + 1);
  if (!cluster::is_name(name)) return wrong("has no name of a cluster");
  if (id != any_id && !cluster::is_name(id))
    return wrong(fmt::format("has an id that is neither '*' nor {}", cluster::name_rule));
  const auto member = cluster::role_of(role);
  if (!member && role != admin) return wrong("has a role other than frontend, scheduler, worker and admin");
  return Identity{.cluster = std::string(name), .role = member, .id = std::string(id)};
}

}  // namespace

std::string to_text(const Identity& identity) {
  return fmt::format("{}{}/{}/{}", scheme, identity.cluster, name_of_role(identity), identity.id);
}

Result<Identity> identity_among(std::span<const std::string> uris) {
  const auto ours = [](std::string_view uri) { return uri.starts_with(scheme); };
  const auto count = std::ranges::count_if(uris, ours);
  if (count == 0)
    return invalid("the certificate has no URI carillon://CLUSTER/ROLE/ID as subject alternative name");
  if (count > 1) return invalid(fmt::format("the certificate has {} URIs carillon://, not one", count));
  return identity_in(*std::ranges::find_if(uris, ours));
}

Result<> check_member(const Identity& certified, std::string_view cluster, cluster::Role role,
                      std::string_view id) {
  if (certified.cluster == cluster && certified.role == role &&
      (certified.id == any_id || certified.id == id))
    return {};
  return invalid(fmt::format("the certificate is that of {}, and not of carillon://{}/{}/{}",
                             to_text(certified), cluster, cluster::name_of(role), id));
}

Result<> check_role(const Identity& certified, std::string_view cluster, cluster::Role role) {
  if (certified.cluster == cluster && certified.role == role) return {};
  return invalid(fmt::format("the certificate is that of {}, and not of a {} of cluster {}",
                             to_text(certified), cluster::name_of(role), cluster));
}

}  // namespace carillon::transport
