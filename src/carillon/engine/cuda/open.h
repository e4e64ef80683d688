#pragma once

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
  std::string
      choices;  // choices of library calls are kept in the file FILE.cuda-N beside this one; empty: nowhere
  bool gate = false;  // segments that are to be stopped soon have gates (CudaOptions::gate)
  CudaOptions engine;
};

// A GPU, ready to compile for.
struct OpenedDevice {
  std::shared_ptr<const Driver> driver;
  DeviceFacts facts;
  std::unique_ptr<Engine> engine;
  Bytes free{};           // memory that nobody has
  std::string libraries;  // "cuDNN 9.19.0 and cuBLASLt 13.1.0"
  std::string notice;     // what is wrong with the file of choices; empty: nothing
};

// Finds driver, device, our kernels and NVIDIA's libraries, in this order, and fails with what is missing
// first: see open_driver(), find_device() and open_library(); unsupported: the program was built without
// kernels for GPUs.
Result<OpenedDevice> open_device(const OpenOptions& options);

}  // namespace carillon::engine::cuda
