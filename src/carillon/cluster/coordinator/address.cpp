#include "carillon/cluster/coordinator/address.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace carillon::cluster {
namespace {

std::string shown(std::string_view text) {
  return "'" + std::string(text.substr(0, 256)) + "'";
}

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, is_host_character);
}

Result<> check_endpoint(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return invalid(shown(text) + " " + std::string(why) +
                   "; it must be HOST:PORT, such as 10.0.0.1:2379 or [::1]:2379");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || text.ends_with(']')) return wrong("has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc{} || end != port.data() + port.size() || number == 0)
    return wrong("has a port that is not a number from 1 to 65535");
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return wrong("has an unclosed bracket");
    host = host.substr(1, host.size() - 2);
    if (!std::ranges::all_of(host, [](char c) { return is_host_character(c) || c == ':' || c == '%'; }))
      return wrong("has characters that no IPv6 address has");
  } else if (host.contains(':')) {
    return wrong("has more than one colon; an IPv6 host goes into brackets");
  } else if (!std::ranges::all_of(host, is_host_character)) {
    return wrong("has characters that no host has");
  }
  if (host.empty()) return wrong("has no host");
  if (host.size() > 253) return wrong("has a host of more than 253 characters");
  return {};
}

Result<CoordinatorAddress> parse_coordinator_address(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return invalid("cluster " + shown(text) + " " + std::string(why) +
                   "; it must be etcd://HOST:PORT,HOST:PORT/NAME, etcds:// with TLS, or static:FILE");
  };
  CoordinatorAddress address;
  if (text.contains('\0')) return wrong("has a zero byte");
  if (text.starts_with("static:")) {
    address.file = text.substr(7);
    if (address.file.empty()) return wrong("names no file");
    return address;
  }
  address.tls = text.starts_with("etcds://");
  if (!address.tls && !text.starts_with("etcd://")) return wrong("begins with no kind that is known");
  std::string_view rest = text.substr(text.find("//") + 2);
  const auto slash = rest.find('/');
  if (slash == std::string_view::npos || slash + 1 == rest.size())
    return wrong("has no name of the cluster after the endpoints");
  address.name = rest.substr(slash + 1);
  if (!is_name(address.name))
    return wrong("has the name " + shown(address.name) + ", but a name has " + std::string(name_rule));
  rest = rest.substr(0, slash);
  if (rest.empty()) return wrong("has no endpoint of etcd");
  while (true) {
    const auto comma = rest.find(',');
    const std::string_view endpoint = rest.substr(0, comma);
    if (endpoint.empty()) return wrong("has an empty endpoint in its list");
    if (const auto checked = check_endpoint(endpoint); !checked)
      return in_context("cluster " + shown(text), checked.error());
    if (std::ranges::find(address.endpoints, endpoint) != address.endpoints.end())
      return wrong("has the endpoint " + shown(endpoint) + " twice");
    if (address.endpoints.size() == most_endpoints)
      return wrong("has more than " + std::to_string(most_endpoints) + " endpoints");
    address.endpoints.emplace_back(endpoint);
    if (comma == std::string_view::npos) return address;
    rest = rest.substr(comma + 1);
  }
}

std::string words_of_connection(std::string_view text) {
  constexpr std::string_view before = "last error: UNKNOWN: ", shut = "tcp handshaker shutdown";
  if (const std::size_t found = text.find(before); found != std::string_view::npos)
    text.remove_prefix(found + before.size());
  std::string out(text);
  if (const std::size_t found = out.find(shut); found != std::string::npos)
    out.replace(found, shut.size(), "Failed to connect: nobody listens there, or the host does not answer");
  return out;
}

}  // namespace carillon::cluster
