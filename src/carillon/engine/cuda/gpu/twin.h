#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "carillon/engine/cuda/library/library.h"

// A device's plan beside the same plan on the emulated device: the same steps at the same places, whose
// library calls are plain loops there.
namespace carillon::engine::cuda::gpu {

// What an engine asked its library for.
struct AskedCalls {
  std::map<std::string, std::shared_ptr<const Call>> calls;  // by identity of the spec
  std::map<std::string, bool> fuses;
  std::map<std::string, std::int32_t> channels;
};

// A library that asks `library`, and writes each question and its answer into `asked`. `asked` outlives it.
std::unique_ptr<MathLibrary> recording(std::unique_ptr<MathLibrary> library, AskedCalls& asked);
// Computes by `plain` the calls that are among `asked`, under their names and with workspaces of their sizes;
// fuses what those were fused to. Errors: unsupported, of what is not among them.
std::unique_ptr<MathLibrary> twin_of(const AskedCalls& asked, std::unique_ptr<MathLibrary> plain);

}  // namespace carillon::engine::cuda::gpu
