#pragma once

#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/library/code_cache.h"
#include "carillon/engine/cuda/library/cudnn_api.h"
#include "carillon/engine/cuda/library/way.h"

// Convolutions by cuDNN's graph API: convolution, + residual, + bias, ReLU, in this order, which its compiled
// kernels know as one. What is told as not deterministic, sums in less than f32 or rounds inputs is left out;
// for f32 what uses tensor cores, too, since these round to tf32. Engines that compile at run time are ways
// like others (Way::compiles).
//
// Not thread-safe but for its calls, which take turns.
namespace carillon::engine::cuda {

// For the device whose context is current here. Errors: unavailable (cuDNN does not start, with its words).
// `plans`: where cuDNN's own JSON of plans that were compiled is kept, of this device, driver and cuDNN;
// none: nowhere.
Result<std::unique_ptr<Ways>> make_cudnn(const dnn::Api& api, std::shared_ptr<CodeCache> plans = nullptr);

// For a device that need not be there, by its description: cuDNN's own JSON of its properties. Its calls
// cannot be enqueued. Errors: invalid_argument for what cuDNN does not take as a description.
Result<std::unique_ptr<Ways>> make_described_cudnn(const dnn::Api& api, const std::string& json);

// What cuDNN takes for an H100 (SXM), from the device's published properties.
std::string h100_description();

}  // namespace carillon::engine::cuda
