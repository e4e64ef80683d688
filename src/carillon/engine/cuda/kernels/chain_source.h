#pragma once

#include <span>
#include <string>
#include <string_view>

#include "carillon/engine/cuda/kernels/chain.h"

namespace carillon::engine::cuda::kernels {

// The source of a chain's kernel, in CUDA C++ 20: the same text for the same chain, whatever the sizes of its
// tensors. A device's compiler makes of it a kernel `symbol` of ChainParams, the host's a function of a
// pointer to them.
//
// Requires a chain that launch() takes.
std::string chain_source(const Chain& chain, std::string_view symbol = chain_symbol);

// What a source includes, by the names by which it does: headers of this folder as they were when the program
// was built, which are thus the same as its other kernels are made of.
struct SourceHeader {
  std::string_view name, text;
};
std::span<const SourceHeader> chain_headers();
// What these include of the standard library, as far as they use it: for compilers that have none (NVRTC).
std::span<const SourceHeader> standard_headers();

}  // namespace carillon::engine::cuda::kernels
