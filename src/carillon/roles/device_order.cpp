#include "carillon/roles/device_order.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace carillon::roles {

std::optional<std::uint32_t> worker_order(std::string_view id) {
  constexpr std::size_t most_digits = 9;
  const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
  const auto digits = std::find_if_not(id.rbegin(), id.rend(), is_digit) - id.rbegin();
  const std::string_view number = id.substr(id.size() - static_cast<std::size_t>(digits));
  if (number.empty() || number.size() > most_digits) return std::nullopt;
  std::uint32_t order = 0;
  std::from_chars(number.data(), number.data() + number.size(), order);
  return order;
}

std::optional<std::uint32_t> device_order(std::uint32_t worker, std::size_t devices, DeviceId device) {
  const std::uint64_t order = std::uint64_t{worker} * devices + device.value;
  if (order > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(order);
}

}  // namespace carillon::roles
