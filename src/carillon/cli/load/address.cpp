#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "carillon/base/random.h"
#include "carillon/cli/load/client.h"

namespace carillon::cli {

Result<Address> parse_address(const std::string& url) {
  const auto wrong = [&](const char* what) {
    return invalid("'" + url + "': " + what + "; write http://127.0.0.1:8000 or grpc://127.0.0.1:8001");
  };
  Address address;
  std::string rest = url;
  if (const auto scheme = url.find("://"); scheme != std::string::npos) {
    const std::string name = url.substr(0, scheme);
    if (name == "grpc")
      address.protocol = Protocol::grpc;
    else if (name != "http")
      return wrong("the scheme is neither http nor grpc");
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

Result<std::vector<std::byte>> make_data(const std::string& datatype, std::int64_t elements,
                                         std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> data;
  const auto fill = [&]<typename T>(auto draw, T) {
    data.resize(static_cast<std::size_t>(elements) * sizeof(T));
    for (std::int64_t i = 0; i < elements; ++i) {
      const T value = draw();
      std::memcpy(data.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  };
  // Ones for integers: a valid token, a mask that hides nothing, an index into anything but the empty.
  const auto one = [] { return 1; };
  if (datatype == "FP32")
    fill([&] { return static_cast<float>(random.uniform()); }, float{});
  else if (datatype == "FP64")
    fill([&] { return random.uniform(); }, double{});
  else if (datatype == "FP16" || datatype == "BF16")
    fill([] { return std::uint16_t{0}; }, std::uint16_t{});
  else if (datatype == "INT64" || datatype == "UINT64")
    fill(one, std::int64_t{});
  else if (datatype == "INT32" || datatype == "UINT32")
    fill(one, std::int32_t{});
  else if (datatype == "INT16" || datatype == "UINT16")
    fill([] { return std::int16_t{1}; }, std::int16_t{});
  else if (datatype == "INT8" || datatype == "UINT8" || datatype == "BOOL")
    fill([] { return std::int8_t{1}; }, std::int8_t{});
  else
    return fail(ErrorCode::unsupported, "no data can be made for an input of type " + datatype);
  return data;
}

}  // namespace carillon::cli
