#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/codec/infer_request.h"
#include "carillon/graph/tensor.h"
#include "carillon/repository/config.h"

namespace carillon::frontend {

// Triton's classification extension: instead of an output's values its K largest, as text, largest first:
// "value:index", or "value:index:label" where the config names a file of labels. Values that are no number
// come last; of equal ones the first.

// What the parameter `classification` of an output asks for: 0: nothing; else how many classes. Error:
// `given` is negative.
Result<std::int64_t> classes_asked_for(std::string_view output, std::int64_t given);

// The extents of the answer for `choice`: of what batches [rows, K], else [K]; K at most a row's elements.
graph::Shape class_shape(const repository::ModelConfig& config, const OutputChoice& choice,
                         const controller::InferCall& call);

// Puts texts in the place of the values of all outputs that are asked for so: elements of BYTES, each a
// length of four bytes (little-endian) and so much text. Requires outputs that passed check_outputs(), none
// of them BYTES; once.
void classify_outputs(const repository::ModelConfig& config, const InferRequest& request,
                      controller::InferCall& call);

// Error (invalid_argument): classes are asked for of an output that is no numbers.
Result<> check_classes(const repository::ModelConfig& config, const OutputChoice& choice);

}  // namespace carillon::frontend
