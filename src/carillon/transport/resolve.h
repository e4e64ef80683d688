#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/basic_resolver.hpp>
#include <fmt/format.h>

#include "carillon/base/result.h"

namespace carillon::transport {

struct HostPort {
  std::string host, port;
};
// Of HOST:PORT, where an IPv6 host may stand in brackets. Without a colon the port is empty.
inline HostPort split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::move(host), colon == address.npos ? "" : address.substr(colon + 1)};
}

// The first endpoint of HOST:PORT. May wait for a name server. `Protocol`: asio's tcp or udp.
template <typename Protocol>
Result<typename Protocol::endpoint> resolve(const std::string& address) {
  const auto [host, port] = split(address);
  boost::asio::io_context context;
  boost::system::error_code error;
  const auto found = typename Protocol::resolver(context).resolve(host, port, error);
  if (error || found.empty()) return invalid(fmt::format("{}: {}", address, error.message()));
  return found.begin()->endpoint();
}

}  // namespace carillon::transport
