#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/engine/cuda/stream/splits.h"
#include "carillon/engine/device_memory.h"
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
  bool computes = true;       // else its outputs are zeros, and its weights are never read
  std::shared_ptr<const Clock>
      clock;  // of one whose time is virtual: what work takes passes there; else null
  // Of emulated ones: it is lost from then on, for good.
  std::function<void(TimePoint)> lose_at;
  // Of so many pages and such blocks; may outlive the rest.
  std::function<Result<std::unique_ptr<engine::DeviceMemory>>(std::uint64_t pages, Bytes io, Bytes workspace)>
      make_memory;
  int ordinal = 0;                                   // CUDA's number of it
  std::shared_ptr<engine::MemoryImporter> importer;  // of what clients lend there; may outlive the rest
};

// Whether `device` is "cuda", "cuda:N", "cuda-emulated" or "cuda-emulated:TABLE".
bool is_cuda(const std::string& device);
// Those that "cuda:0,1,3" names, as "cuda:0" and so on; "cuda" is "cuda:0". Errors say what of it names no
// device.
Result<std::vector<std::string>> cuda_devices_of(const std::string& device);

struct CudaArguments {
  std::string device;
  std::string
      libraries;  // the folder of NVIDIA's libraries; empty: as engine::cuda::open_library looks for them
  std::string number = "f32";  // f32, tf32, f16, bf16: engine::cuda::Number
  std::string choices;         // the file beside which this device's choices of kernels are kept; empty: none
  Duration longest_kernel = std::chrono::microseconds{100};  // as of engine::cuda::CudaOptions
  bool parts = true;  // real-time runs may have a part of the device (engine::cuda::CudaOptions::splits)
  engine::cuda::Share share{};  // of the device
  std::string driver;           // the driver's library in the place of libcuda.so.1; empty: that
  // Of cuda-emulated:TABLE: whoever waits for its work waits by `clock`, which outlives all that is made;
  // none: time is virtual.
  const Clock* clock = nullptr;
};

// Errors name the option and what is missing: a driver, a device, a library, or a build with kernels for it;
// of cuda-emulated:TABLE what is wrong with the table.
// Emulated devices are devices of one driver, which lives as long as any of them: 0, 1, in the order in which
// they are made.
//
// Sets CUDA_DEVICE_MAX_CONNECTIONS before the driver starts, where nobody has: 32 queues keep the streams
// apart.
Result<CudaDevice> make_cuda_device(const CudaArguments& arguments);

}  // namespace carillon::server
