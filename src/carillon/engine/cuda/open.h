#pragma once

#include <functional>
#include <memory>
#include <string>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/real.h"
#include "carillon/engine/cuda/plan/cuda_engine.h"

namespace carillon::engine::cuda {

struct OpenOptions {
  std::string driver;     // its library; empty: libcuda.so.1
  int ordinal = 0;        // of the device
  std::string libraries;  // the folder of NVIDIA's libraries; empty: as open_library() looks for them
  // Choices of library calls are kept in the file FILE.cuda-N beside this one, and the code of chains in the
  // folder FILE.cuda-N.code; empty: nowhere.
  std::string choices;
  // What the engine asks in place of NVIDIA's libraries, which it is given; none: those.
  std::function<std::unique_ptr<MathLibrary>(std::unique_ptr<MathLibrary>)> around{};
  // What is used in place of the driver, which it is given; none: that.
  std::function<Driver(const Driver&)> watch{};
  CudaOptions engine;
};

// A GPU, ready to compile for.
struct OpenedDevice {
  std::shared_ptr<const Driver> driver;
  DeviceFacts facts;
  std::unique_ptr<Engine> engine;
  Bytes free{};           // memory that nobody has
  std::string libraries;  // "cuDNN 9.19.0 and cuBLASLt 13.1.0"
  std::string chains;     // who compiles chains, "NVRTC 13.0"; empty: nobody, each of their steps is a kernel
  std::string notice;     // what is wrong with what is kept, why nobody compiles chains or the device is not
                          // divided; empty: nothing
};

// Finds driver, device, our kernels and NVIDIA's libraries, in this order, and fails with what is missing
// first: see open_driver(), find_device() and open_library(); unsupported: the program was built without
// kernels for GPUs. NVRTC may be missing.
Result<OpenedDevice> open_device(const OpenOptions& options);

}  // namespace carillon::engine::cuda
