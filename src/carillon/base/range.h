#pragma once

#include <string>

#include "carillon/base/result.h"

namespace carillon {

// An option that must lie in [least, most]; else invalid_argument, with its name, its value and the ends.
template <typename T>
Result<> within(const char* name, T value, T least, T most) {
  if (value >= least && value <= most) return {};
  return invalid(std::string(name) + " is " + std::to_string(value) + ", but should be in " +
                 std::to_string(least) + ".." + std::to_string(most));
}

}  // namespace carillon
