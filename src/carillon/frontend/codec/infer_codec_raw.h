#pragma once

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/codec/infer_request.h"
#include "carillon/frontend/codec/padded_bytes.h"

namespace carillon::frontend {

// Reads a body without JSON, as Triton has it for `Inference-Header-Content-Length: 0`: all of it is the data
// of the model's one input, of one row where the model batches. One extent may be open, and follows from the
// body's size; a BYTES input takes the body as its one element, without a length before it. All outputs go
// out as blobs. There are no parameters: such a request has no deadline of its own.
//
// Errors (invalid_argument) say which of this the model or the body does not keep; resource_exhausted: there
// is no room for the tensor beside the body.
Result<InferRequest> parse_infer_raw(const controller::ModelView& model, const PaddedBytes& body,
                                     TimePoint arrival, const Surroundings& around = {});

}  // namespace carillon::frontend
