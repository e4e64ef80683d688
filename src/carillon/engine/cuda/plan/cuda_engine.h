#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/library.h"
#include "carillon/engine/cuda/plan/step_times.h"
#include "carillon/engine/cuda/stream/splits.h"
#include "carillon/engine/engine.h"
#include "carillon/engine/kernel_choices.h"

namespace carillon::engine::cuda {

// How attention is computed where one kernel of ours can: by calls and kernels of its nodes, by that one, or
// by the faster of both on the device.
enum class AttentionWay : std::uint8_t { faster, calls, kernel };
// What was measured of one attention, by its key (shape, layout, number, version of the kernel).
struct AttentionTimes {
  std::string node, key;
  Duration calls{0}, kernel{0};
};

struct CudaOptions {
  // What f32 values are stored as between inputs and outputs, and how products are rounded.
  Number number = Number::f32;
  // Kernels and calls in a segment, at most: a plan's runs end between segments only. 0: one segment.
  int longest_segment = 0;
  // How long a run that is to be stopped soon (CompileOptions::stop_cost) may go on once it is told to end,
  // unless one kernel alone takes longer: so much of it is with the device. Best effort
  // loses a fifth to two fifths of its speed with the 25 us that REEF's resets take, and less with 50:
  // docs/cuda.md has what was measured.
  Duration bound = std::chrono::microseconds{50};
  // A plan with a longer kernel is none that can be stopped soon: the model is served at smaller batch sizes,
  // or refused. A tenth of what a real-time run of a millisecond takes.
  Duration longest_kernel = std::chrono::microseconds{100};
  // Kernels of ours look at a flag before each tile, and end where the run is told to. That costs
  // best effort more of its speed than real-time runs gain (docs/cuda.md).
  bool flag = false;
  // A run that compiling measures has ended by then, or the model is refused and the device keeps what the
  // run has (unavailable, with the kernel's name). 0: as long as it takes.
  Duration longest_wait = std::chrono::seconds{10};
  // The device is divided (Splits), so that real-time runs leave room for others. Where it cannot be,
  // `notice` says why.
  bool splits = true;
  std::shared_ptr<std::string> notice{};
  // What runs has this part of the device alone, and what compiling measures is measured there, but for
  // library calls' ways.
  Share share{};
  AttentionWay attention = AttentionWay::faster;
  // An attention's queries, keys and values are one product where they can be (joined_products.h).
  bool join_products = true;
  // Where the faster way is kept, by key; none: in the engine alone.
  std::shared_ptr<KernelChoices> choices{};
  std::function<void(const AttentionTimes&)> told{};  // of each measurement
  // What each step is to take, on an emulated device that computes nothing; none on others.
  std::shared_ptr<const StepTimes> times{};
};

// The engine of one device. A model's plans are lists of segments, each a CUDA graph that is captured when
// weights and workspace have their addresses (once, and again where these change), so that a run launches one
// graph a segment, allocates nothing and looks for nothing. What a plan takes and gives has a place in the
// workspace, so graphs are never patched: inputs and outputs are copied there and back within the device.
//
// With CompileOptions::stop_cost the kernels of each plan are measured on the device, which takes memory for
// weights and workspace meanwhile, and fall into segments of half of `bound`, so that one is there when
// another ends; where there is no memory for that, each is a segment. Batch sizes with a kernel above
// `longest_kernel` are left out of the model, and where all are, it is refused (`unsupported`, which names
// the kernel).
//
// With CompileOptions::room_cost each plan is measured in parts of the device, likewise; where there is no
// memory for that, it uses all of it.
//
// Its streams (Engine::make_stream) are those of Streams, its teams Lanes.
//
// With AttentionWay::faster each attention that one kernel could compute, and of which no choice is kept, is
// measured both ways when its model is compiled, as segments of the plan that it is in; without memory for
// that it is its nodes' calls.
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
