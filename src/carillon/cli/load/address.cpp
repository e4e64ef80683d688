#include "carillon/cli/load/address.h"

#include <charconv>

namespace carillon::cli {

std::string Address::authority() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

Result<Address> parse_address(const std::string& url) {
  const auto wrong = [&](const char* what) {
    return invalid("'" + url + "': " + what + "; write http://127.0.0.1:8000 or grpc://127.0.0.1:8001");
  };
  Address address;
  std::string rest = url;
  if (const auto scheme = url.find("://"); scheme != std::string::npos) {
    const std::string name = url.substr(0, scheme);
    if (name == "grpc" || name == "grpcs")
      address.protocol = Protocol::grpc;
    else if (name != "http" && name != "https")
      return wrong("the scheme is none of http, https, grpc and grpcs");
    address.tls = name.ends_with('s');
    rest = url.substr(scheme + 3);
  }
  while (!rest.empty() && rest.back() == '/') rest.pop_back();
  const auto colon = rest.rfind(':');
  if (colon == std::string::npos || rest.find(']', colon) != std::string::npos) {
    address.host = rest;
    address.port = address.protocol == Protocol::http ? "8000" : "8001";
  } else {
    address.host = rest.substr(0, colon);
    address.port = rest.substr(colon + 1);
  }
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']')
    address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty() || address.host.find('/') != std::string::npos) return wrong("it names no host");
  unsigned port = 0;
  const auto [end, error] =
      std::from_chars(address.port.data(), address.port.data() + address.port.size(), port);
  if (error != std::errc{} || end != address.port.data() + address.port.size() || port == 0 || port > 65535)
    return wrong("the port is not a number from 1 to 65535");
  return address;
}

}  // namespace carillon::cli
