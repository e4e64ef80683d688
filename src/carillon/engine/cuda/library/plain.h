#pragma once

#include <memory>

#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/library/library.h"

namespace carillon::engine::cuda {

// Makes `device` know the library's calls, and our own kernels (kernels/), as kernels of the host. Before any
// module is loaded.
void know_kernels(Emulated& device);

// An emulated device that knows them, and its driver, which was started.
struct EmulatedHost {
  explicit EmulatedHost(EmulatedOptions options = {});
  Emulated device;
  Driver driver;
};

// The library of an emulated device that knows them: loops in an order of their own, so that results are near
// any other library's and not the same. `driver` is the table that has that device; the module stays loaded
// as long as any of the calls lives. Used with the device's context current.
Result<std::unique_ptr<MathLibrary>> make_plain_library(std::shared_ptr<const Driver> driver,
                                                        DeviceNumber device = 0);

}  // namespace carillon::engine::cuda
