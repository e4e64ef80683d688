#pragma once

#include <functional>
#include <memory>
#include <string>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/engine/device_memory.h"
#include "carillon/engine/engine.h"

namespace carillon::server {

// A CUDA device that this program can serve from.
struct CudaDevice {
  std::shared_ptr<engine::Engine> engine;
  std::string description;
  // Of so many pages and such blocks; may outlive the rest.
  std::function<Result<std::unique_ptr<engine::DeviceMemory>>(std::uint64_t pages, Bytes io, Bytes workspace)>
      make_memory;
};

// Whether `device` is "cuda", "cuda:N" or "cuda-emulated".
bool is_cuda(const std::string& device);

// Errors name the option and what is missing: a driver, a device, a library, or a build with kernels for it.
// There is one emulated device a process: a second, while the first lives, is refused.
Result<CudaDevice> make_cuda_device(const std::string& device);

}  // namespace carillon::server
