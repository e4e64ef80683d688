#pragma once

#include <vector>

#include <CLI/App.hpp>

#include "carillon/server/devices.h"

namespace carillon::cli {

// How models run on CUDA devices, which the others below have, too; gives what it added.
std::vector<CLI::Option*> add_cuda_options(CLI::App& command, server::DeviceArguments& arguments);
// --device, and the memory and threads that it has.
void add_device_options(CLI::App& command, server::DeviceArguments& arguments);
// The same where there may be several, with their outages.
void add_devices_options(CLI::App& command, server::DevicesArguments& arguments);

}  // namespace carillon::cli
