#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::testing {

// Every name that make_scheduler knows, with a value where it needs one.
inline std::vector<std::string> every_policy() {
  std::vector<std::string> names = scheduler_names();
  for (std::string& name : names)
    if (name.starts_with("timeout")) name += ":0.3";
  return names;
}

// As the name of a test.
inline std::string test_name(std::string policy) {
  std::ranges::replace_if(
      policy, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return policy;
}

}  // namespace carillon::schedule::testing
