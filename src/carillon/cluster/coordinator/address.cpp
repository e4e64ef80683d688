#include "carillon/cluster/coordinator/address.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>

#include "carillon/cluster/coordinator/lease.h"

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

namespace {

// What follows kubernetes://.
Result<CoordinatorAddress> parse_kubernetes(std::string_view text, std::string_view whole) {
  const auto wrong = [&](std::string_view why) {
    return invalid("cluster " + shown(whole) + " " + std::string(why) +
                   "; it must be kubernetes://NAMESPACE/NAME, where names are " +
                   std::string(kubernetes::dns_name_rule) +
                   ", perhaps with ?server=https://HOST:PORT&token=FILE&ca=FILE after it");
  };
  CoordinatorAddress address;
  KubernetesAddress& made = address.kubernetes.emplace();
  const auto question = text.find('?');
  const std::string_view names = text.substr(0, question);
  const auto slash = names.find('/');
  if (slash == std::string_view::npos) return wrong("has no name of the cluster after the namespace");
  made.name_space = names.substr(0, slash);
  address.name = names.substr(slash + 1);
  if (!kubernetes::is_dns_name(made.name_space, false))
    return wrong("has the namespace " + shown(made.name_space));
  if (!kubernetes::is_dns_name(address.name, false)) return wrong("has the name " + shown(address.name));
  std::string_view rest = question == std::string_view::npos ? "" : text.substr(question + 1);
  std::set<std::string_view> seen;
  while (question != std::string_view::npos) {
    const auto end = rest.find('&');
    const std::string_view option = rest.substr(0, end);
    const auto equals = option.find('=');
    const std::string_view key = option.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : option.substr(equals + 1);
    if (value.empty() || !seen.insert(key).second)
      return wrong("has the option " + shown(option) + " without a value, or twice");
    if (key == "server") {
      made.tls = value.starts_with("https://");
      if (!made.tls && !value.starts_with("http://"))
        return wrong("has a server that begins with neither http:// nor https://");
      made.server = value.substr(value.find("//") + 2);
      if (const auto checked = check_endpoint(made.server); !checked)
        return in_context("cluster " + shown(whole), checked.error());
    } else if (key == "token") {
      made.token = value;
    } else if (key == "ca") {
      made.ca = value;
    } else {
      return wrong("has the option " + shown(key) + ", which is none");
    }
    if (end == std::string_view::npos) break;
    rest = rest.substr(end + 1);
  }
  if (!made.tls && !made.ca.empty()) return wrong("has a CA, which is of no use with http://");
  return address;
}

}  // namespace

Result<CoordinatorAddress> parse_coordinator_address(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return invalid("cluster " + shown(text) + " " + std::string(why) +
                   "; it must be etcd://HOST:PORT,HOST:PORT/NAME, etcds:// with TLS, "
                   "kubernetes://NAMESPACE/NAME, or static:FILE");
  };
  CoordinatorAddress address;
  if (text.contains('\0')) return wrong("has a zero byte");
  if (text.starts_with("static:")) {
    address.file = text.substr(7);
    if (address.file.empty()) return wrong("names no file");
    return address;
  }
  if (constexpr std::string_view kind = "kubernetes://"; text.starts_with(kind))
    return parse_kubernetes(text.substr(kind.size()), text);
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
