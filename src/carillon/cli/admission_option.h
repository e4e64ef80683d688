#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "carillon/base/result.h"
#include "carillon/schedule/registry.h"

namespace carillon::cli {

// --admission: who refuses a request that others leave no time for. Empty means on arrival, under the
// policies that schedule::takes_admission() names.
inline void add_admission_option(CLI::App& command, std::string& admission) {
  CLI::Option* option =
      command
          .add_option(
              "--admission", admission,
              "arrival: a request is refused as it comes, where those that wait leave it no time (under "
              "carillon, clockwork and symphony); policy: it waits, and the policy refuses it later")
          ->check(CLI::IsMember({"arrival", "policy"}));
  if (admission.empty())
    option->default_str("arrival under carillon, clockwork and symphony");
  else
    option->capture_default_str();
}

// Whether that scheduler can do what was asked for.
inline Result<> check_admission(const std::string& admission, const std::string& scheduler) {
  if (admission != "arrival" || schedule::takes_admission(scheduler)) return {};
  return invalid("--admission arrival: the scheduler '" + scheduler +
                 "' decides by itself; carillon, clockwork and symphony take it");
}

inline bool admits_on_arrival(const std::string& admission, const std::string& scheduler) {
  return admission != "policy" && schedule::takes_admission(scheduler);
}

}  // namespace carillon::cli
