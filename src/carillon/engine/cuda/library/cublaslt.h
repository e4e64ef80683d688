#pragma once

#include <memory>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/library/cublaslt_api.h"
#include "carillon/engine/cuda/library/way.h"

// Products of matrices by cuBLASLt, with its epilogues: bias, ReLU, GELU by tanh (of GELU by erf it knows
// none). Sums are f32, and where they are split over blocks they are added in f32 in one order, so results
// repeat.
//
// Not thread-safe but for its calls.
namespace carillon::engine::cuda {

// For the device whose context is current here. Errors: unavailable (it does not start, with its words).
Result<std::unique_ptr<Ways>> make_cublaslt(const blas::Api& api);

}  // namespace carillon::engine::cuda
