#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace carillon::schedule::testing {

// As the name of a test.
inline std::string test_name(std::string policy) {
  std::ranges::replace_if(
      policy, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return policy;
}

}  // namespace carillon::schedule::testing
