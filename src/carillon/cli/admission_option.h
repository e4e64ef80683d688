#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "carillon/schedule/environment.h"

namespace carillon::cli {

// --admission: whether requests are refused on their arrival for what waits before them.
inline void add_admission_option(CLI::App& command, std::string& admission) {
  command
      .add_option(
          "--admission", admission,
          "arrival: where all that wait could not be on time with a request, it is refused as it comes "
          "(under clockwork and symphony); policy: it waits, and the policy finds later whom it refuses")
      ->check(CLI::IsMember({"arrival", "policy"}))
      ->capture_default_str();
}

inline bool admits_on_arrival(const std::string& admission) {
  return admission == "arrival";
}

}  // namespace carillon::cli
