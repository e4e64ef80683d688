#pragma once

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// Asks a driver what the emulated device has rules for, refusals first of all: memory that is mapped in ways
// that there are not, captures that break, events without a time, divisions of a device. What it answers a
// Recording writes (recorded.h). No answer is wrong here, and whatever was made is given back, so that the
// process can go on; nothing is launched. Errors: the device cannot be used at all.
Result<> ask_rules(const Driver& driver, DeviceNumber device);

}  // namespace carillon::engine::cuda
