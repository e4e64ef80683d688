#include "carillon/frontend/net/address.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace carillon::frontend {

std::string Address::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Address> parse_address(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return invalid("address '" + std::string(text.substr(0, 256)) + "' " + std::string(why) +
                   "; it must be host:port, such as 127.0.0.1:8000, [::]:8000 or :8000");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("has no port");
  auto host = text.substr(0, colon);
  const auto port = text.substr(colon + 1);
  Address address;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc{} || end != port.data() + port.size())
    return wrong("has a port that is not a number from 0 to 65535");
  if (!host.empty() && host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return wrong("has an unclosed bracket");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("has more than one colon; an IPv6 host goes into brackets");
  }
  if (host.find('\0') != std::string_view::npos) return wrong("has a zero byte");
  address.host = host.empty() || host == "*" ? "0.0.0.0" : std::string(host);
  return address;
}

bool is_loopback(const Address& address) {
  boost::system::error_code error;
  const auto ip = boost::asio::ip::make_address(address.host, error);
  if (!error) return ip.is_loopback();
  boost::asio::io_context context;
  boost::asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(address.host, std::to_string(address.port), error);
  return !error && !found.empty() &&
         std::ranges::all_of(found, [](const auto& each) { return each.endpoint().address().is_loopback(); });
}

std::string bind_failure(const Address& address, std::string_view option, int system_error) {
  const std::string at = "cannot listen on " + address.text() + ": ";
  const std::string other = "choose another with " + std::string(option);
  if (system_error == EADDRINUSE) return at + "port in use; " + other;
  if (system_error == EACCES) return at + "ports below 1024 need privileges; " + other;
  if (system_error == EADDRNOTAVAIL) return at + "the address is not one of this machine's; " + other;
  return at + std::strerror(system_error) + "; " + other;
}

}  // namespace carillon::frontend
