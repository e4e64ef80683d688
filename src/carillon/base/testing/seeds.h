#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

namespace carillon::testing {

struct Seeds {
  std::uint64_t first = 0, last = 0;
};

// What the environment's `variable` says, as FIRST..LAST; `usual` where it says nothing.
inline Seeds seeds_from(const char* variable, Seeds usual) {
  const char* const set = std::getenv(variable);
  if (set == nullptr) return usual;
  const std::string text(set);
  const std::size_t dots = text.find("..");
  EXPECT_NE(dots, std::string::npos) << variable << " is FIRST..LAST";
  if (dots == std::string::npos) return usual;
  std::from_chars(text.data(), text.data() + dots, usual.first);
  std::from_chars(text.data() + dots + 2, text.data() + text.size(), usual.last);
  return usual;
}

}  // namespace carillon::testing
