#pragma once

#include <memory>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/kernels/chain.h"

namespace carillon::engine::cuda {

class CodeCache;
class Nvrtc;

// A kernel that computes one chain, on the device that it was made for. Its module, and a hold on the
// device's context, go with the last that needs it.
struct ChainKernel {
  std::shared_ptr<const void> module;
  Function function = nullptr;
};

// Who makes kernels of chains. Made and asked with a context current, from one thread at a time.
class ChainLibrary {
 public:
  virtual ~ChainLibrary() = default;
  // The same for the same chain, whatever came before. Errors: unavailable, the device is lost; else there is
  // no kernel of it, and its steps have to be kernels of their own.
  virtual Result<std::shared_ptr<const ChainKernel>> kernel(const kernels::Chain& chain) = 0;
};

// Of an emulated device that knows our kernels: the host's interpreter for all.
Result<std::unique_ptr<ChainLibrary>> make_interpreted_chains(std::shared_ptr<const Driver> driver,
                                                              DeviceNumber device);

// By NVRTC, each source once: what `kept` has that the driver loads, else compiled and kept. A small chain is
// made at once: where NVRTC cannot be used, the error says why.
Result<std::unique_ptr<ChainLibrary>> make_compiled_chains(std::shared_ptr<const Driver> driver,
                                                           DeviceNumber device,
                                                           std::shared_ptr<const Nvrtc> compiler,
                                                           std::shared_ptr<CodeCache> kept);

}  // namespace carillon::engine::cuda
