#pragma once

#include <memory>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/library.h"
#include "carillon/engine/engine.h"

namespace carillon::engine::cuda {

struct CudaOptions {
  // What f32 values are stored as between inputs and outputs, and how products are rounded.
  Number number = Number::f32;
  // Kernels and calls in a segment, at most: a plan's runs end between segments only. 0: one segment.
  int longest_segment = 0;
  // How long a segment of a plan that is to be stopped soon (CompileOptions::stop_cost) may take, unless it
  // is one kernel alone. A segment costs a launch of a graph, some microseconds: 25 us is what REEF's resets
  // take, too.
  Duration bound = std::chrono::microseconds{25};
};

// The engine of one device. A model's plans are lists of segments, each a CUDA graph that is captured when
// weights and workspace have their addresses (once, and again where these change), so that a run launches one
// graph a segment, allocates nothing and looks for nothing. What a plan takes and gives has a place in the
// workspace, so graphs are never patched: inputs and outputs are copied there and back within the device.
//
// With CompileOptions::stop_cost the kernels of each plan are measured on the device, which takes memory for
// weights and workspace meanwhile, and fall into segments of `bound`; where there is no memory for that, each
// is a segment.
//
// A model's weights are kept in pinned memory of the host, so that a LOAD is one copy at the bus's rate.
//
// compile() fails with `unsupported`, naming node, operator and types, where no kernel covers a node; open
// models, branches that data decide and sizes that data decide are not covered at all. Precision::bf16 and
// f16 of CompileOptions stands above `number`.
//
// `image`: the kernels, as cuModuleLoadData takes them; `library` and `chains`: made for the same device;
// without `chains` each elementwise step is a kernel. Errors: unavailable, where the device is lost or the
// image is not for it.
Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Driver> driver, DeviceNumber device,
                                                 const void* image, std::unique_ptr<MathLibrary> library,
                                                 const CudaOptions& options,
                                                 std::unique_ptr<ChainLibrary> chains = nullptr);

}  // namespace carillon::engine::cuda
