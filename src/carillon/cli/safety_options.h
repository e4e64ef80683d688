#pragma once

#include <functional>
#include <string>

#include <CLI/App.hpp>

#include "carillon/base/result.h"
#include "carillon/frontend/frontend.h"

namespace carillon::cli {

// Who may come through the doors of `carillon serve`, as the command line says it.
struct SafetyArguments {
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  std::string keys;
  std::string admin;
  bool require_key = false;
};

// --admin-port, and what says who may do what.
void add_admin_option(CLI::App& command, SafetyArguments& arguments);
void add_safety_options(CLI::App& command, SafetyArguments& arguments);

// Reads certificates and keys, and gives the doors what they need of them; warns (doors.log) of doors that
// are open to the network. Errors: options that do not go together, files that are not right, --require-key.
Result<> secure(const SafetyArguments& arguments, frontend::Options& doors);

// Reads certificates and keys of these doors again, and opens the access log again. Tells `log` what was
// done, and doors.log what was not: that stays as it was.
void reload(const frontend::Options& doors, const std::function<void(const std::string&)>& log);

}  // namespace carillon::cli
