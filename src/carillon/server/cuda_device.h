#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/engine/device_memory.h"
#include "carillon/engine/cuda/stream/splits.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/imported_memory.h"

namespace carillon::engine::cuda {
class Nvml;  // cuda/driver/nvml.h
}

namespace carillon::server {

// A CUDA device that this program can serve from.
struct CudaDevice {
  std::shared_ptr<engine::Engine> engine;
  std::string description;
  std::string notice;  // what whoever runs it should know; empty: nothing
  // What the GPU is known by to NVIDIA's management library, and that; nothing for others than GPUs, or where
  // there is none.
  std::string uuid;
  std::shared_ptr<const engine::cuda::Nvml> nvml;
  std::optional<Bytes> free;  // memory of the device that nobody has; nothing where it is the host's
  // Of so many pages and such blocks; may outlive the rest.
  std::function<Result<std::unique_ptr<engine::DeviceMemory>>(std::uint64_t pages, Bytes io, Bytes workspace)>
      make_memory;
  int ordinal = 0;                                   // CUDA's number of it
  std::shared_ptr<engine::MemoryImporter> importer;  // of what clients lend there; may outlive the rest
};

// Whether `device` is "cuda", "cuda:N" or "cuda-emulated".
bool is_cuda(const std::string& device);

struct CudaArguments {
  std::string device;
  std::string
      libraries;  // the folder of NVIDIA's libraries; empty: as engine::cuda::open_library looks for them
  std::string number = "f32";  // f32, tf32, f16, bf16: engine::cuda::Number
  std::string choices;         // the file beside which this device's choices of kernels are kept; empty: none
  engine::cuda::Share share{};  // of the device
  std::string driver;          // the driver's library in the place of libcuda.so.1; empty: that
};

// Errors name the option and what is missing: a driver, a device, a library, or a build with kernels for it.
// There is one emulated device a process: a second, while the first lives, is refused.
//
// Sets CUDA_DEVICE_MAX_CONNECTIONS before the driver starts, where nobody has: 32 queues keep the streams
// apart.
Result<CudaDevice> make_cuda_device(const CudaArguments& arguments);

}  // namespace carillon::server
