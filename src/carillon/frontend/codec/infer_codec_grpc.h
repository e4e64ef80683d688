#pragma once

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/codec/infer_request.h"

namespace inference {
class ModelInferRequest;
class ModelInferResponse;
}  // namespace inference

namespace carillon::frontend {

// Reads a ModelInfer request: tensors either all in raw_input_contents (one entry an input, in the inputs'
// order, but for those in shared memory) or all in typed contents; a mixture is refused. FP16 and BF16 are
// raw only. Nothing of `message` is referred to afterwards. `transport_deadline` is the call's own,
// TimePoint::max() for none; the nearer of it and the parameter `timeout` counts. Errors as
// parse_infer_json's. Safe from any thread.
Result<InferRequest> parse_infer_grpc(const controller::ModelView& model,
                                      const inference::ModelInferRequest& message, TimePoint arrival,
                                      TimePoint transport_deadline, const Surroundings& around = {});

// The deadline that the request and its call name, read without its model: TimePoint::max() for none.
// Nothing: its `timeout` is none.
std::optional<TimePoint> deadline_in_grpc(const inference::ModelInferRequest& message, TimePoint arrival,
                                          TimePoint transport_deadline);

// Fills `response`; the data goes into raw_output_contents, one entry an output (an empty one where it is in
// shared memory). Requires outputs that passed check_outputs() and finish_outputs(). Error
// (invalid_argument): they are more than a message can hold (2 GiB, protobuf's limit); `response` is as it
// was.
Result<> write_infer_grpc(const controller::ModelView& model, const InferRequest& request,
                          const controller::InferCall& call, inference::ModelInferResponse& response);

}  // namespace carillon::frontend
