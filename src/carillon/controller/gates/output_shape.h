#pragma once

#include <cstddef>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"

namespace carillon::controller {

// The shape of an output of `call` as it is known before the model has run: extents that data decide are
// bounded (graph/bounded.h).
graph::Shape promised_shape(const repository::ModelConfig& config, std::size_t index, const InferCall& call);
// As it is once the call was answered. Error (internal): what lies there does not keep the bounds.
Result<graph::Shape> found_shape(const repository::ModelConfig& config, std::size_t index,
                                 const InferCall& call);

}  // namespace carillon::controller
