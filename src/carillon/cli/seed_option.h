#pragma once

#include <charconv>
#include <cstdint>
#include <string>

namespace carillon::cli {

// A check for CLI::Option: a seed is a whole number below 2^64. Without it larger ones and negative ones
// would come around to others.
inline std::string check_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc{} && end == text.data() + text.size()) return "";
  return "a seed is a whole number of 0 to 18446744073709551615, not '" + text + "'";
}

}  // namespace carillon::cli
