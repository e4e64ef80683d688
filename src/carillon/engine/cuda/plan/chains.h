#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/engine/cuda/kernels/chain.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/plan/builder.h"

namespace carillon::engine::cuda {

// Elementwise steps that become one kernel, in the place of the last of them.
struct ChainOf {
  std::vector<std::size_t> steps;  // ascending; two at least
  std::string name;                // as of Step
  kernels::ChainLaunch launch;     // without addresses
  std::vector<Lying> operands;     // by the launch's number
  std::shared_ptr<const ChainKernel> kernel;
};

// The chains among a recipe's steps. `elements`: what is elementwise of them; `users`: by buffer, the steps
// that read or write it, each as often as it does; `is_edge`: the buffers that hold the recipe's outputs.
//
// A value is inside a chain where all that use it are: it is never stored then. One that others use too ends
// its chain, since storing it besides saves a read alone, and keeps what is stored alive longer. All steps of
// a chain go through their elements in one order, so that who reads a value in another order, or repeats
// its elements, is of another chain: it would compute them again.
//
// Chains are as long as kernels/chain.h allows; a step that is one too many begins the next. As a chain's
// steps all run at the place of its last, nothing between them can depend on what is inside; what they read
// lives until then, by the same plan of memory as all else, and so is not written over within a segment.
std::vector<ChainOf> find_chains(std::span<const std::optional<ElementStep>> elements,
                                 std::span<const std::vector<std::size_t>> users,
                                 const std::vector<bool>& is_edge);

}  // namespace carillon::engine::cuda
