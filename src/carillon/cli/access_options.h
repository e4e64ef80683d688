#pragma once

#include <CLI/App.hpp>

#include "carillon/cli/load/access.h"

namespace carillon::cli {

// Of the commands that ask a server: --ca, --cert, --cert-key and --key.
void add_access_options(CLI::App& command, AccessArguments& arguments);

}  // namespace carillon::cli
