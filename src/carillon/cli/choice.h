#pragma once

#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace carillon::cli {

// The value of a choice by its name, for an option whose type is not text. Errors list the names. `choices`
// outlives the option.
template <typename T>
CLI::Validator one_of(const std::map<std::string, T>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) names += (names.empty() ? "{" : ",") + name;
  names += "}";
  return CLI::Validator(
      [&choices, names](std::string& given) {
        const auto found = choices.find(given);
        if (found == choices.end()) return given + " not in " + names;
        given = std::to_string(static_cast<int>(found->second));
        return std::string();
      },
      names);
}

}  // namespace carillon::cli
