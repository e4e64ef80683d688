#pragma once

#include <CLI/App.hpp>

#include "carillon/server/devices.h"

namespace carillon::cli {

// --device, and the memory and threads that it has.
void add_device_options(CLI::App& command, server::DeviceArguments& arguments);
// The same where there may be several, with their outages.
void add_devices_options(CLI::App& command, server::DevicesArguments& arguments);

}  // namespace carillon::cli
