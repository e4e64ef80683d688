#pragma once

#include <memory>

#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/imported_memory.h"

namespace carillon::engine::cuda {

// Opens memory of other processes in the device's primary context, which it holds. Copies go by way of pinned
// memory, in pieces of 1 MiB, each way by a stream of its own; both are taken when the first memory is
// opened, and a copy waits for the one before it in its direction.
std::shared_ptr<MemoryImporter> make_importer(std::shared_ptr<const Driver> driver, DeviceNumber device);

}  // namespace carillon::engine::cuda
