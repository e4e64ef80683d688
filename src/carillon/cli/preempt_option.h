#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "carillon/base/result.h"
#include "carillon/schedule/environment.h"
#include "carillon/schedule/registry.h"

namespace carillon::cli {

// --preempt: what may end what runs on a device, to go on later. Where nobody says (empty), each scheduler
// does what it can.
inline void add_preempt_option(CLI::App& command, std::string& preempt) {
  CLI::Option* option =
      command
          .add_option(
              "--preempt", preempt,
              "deadline: a request that would be late behind a longer run goes first where that makes "
              "nothing late, and the run resumes (under carillon, clockwork and edf); none: what runs ends "
              "first")
          ->check(CLI::IsMember({std::string(schedule::name_of(schedule::Preemption::none)),
                                 std::string(schedule::name_of(schedule::Preemption::deadline))}));
  if (preempt.empty())
    option->default_str("deadline under carillon, clockwork and edf");
  else
    option->capture_default_str();
}

// Whether that scheduler can do what was asked for.
inline Result<> check_preempt(const std::string& preempt, const std::string& scheduler) {
  if (preempt != schedule::name_of(schedule::Preemption::deadline) || schedule::takes_preemption(scheduler))
    return {};
  return invalid("--preempt " + preempt + ": the scheduler '" + scheduler +
                 "' does not preempt so; carillon, clockwork and edf do");
}

inline schedule::Preemption preemption_of(const std::string& preempt, const std::string& scheduler) {
  const bool asked = preempt.empty() || preempt == schedule::name_of(schedule::Preemption::deadline);
  return asked && schedule::takes_preemption(scheduler) ? schedule::Preemption::deadline
                                                        : schedule::Preemption::none;
}

}  // namespace carillon::cli
