#pragma once

#include <string>

#include "grpc_service.grpc.pb.h"
#include <grpcpp/grpcpp.h>

// For tests: calls over gRPC, and requests of the model "pair" (fake_service.h).
namespace carillon::frontend {

// Both inputs' tensors are in the request.
inline inference::ModelInferRequest pair_request() {
  inference::ModelInferRequest request;
  request.set_model_name("pair");
  request.set_id("g1");
  auto& x = *request.add_inputs();
  x.set_name("x");
  x.set_datatype("FP32");
  x.add_shape(1);
  x.add_shape(3);
  request.add_raw_input_contents(std::string(12, '\0'));
  auto& n = *request.add_inputs();
  n.set_name("n");
  n.set_datatype("INT32");
  n.add_shape(1);
  n.add_shape(2);
  request.add_raw_input_contents(std::string(8, '\0'));
  return request;
}

template <typename Request, typename Response>
using StubMethod = ::grpc::Status (inference::GRPCInferenceService::Stub::*)(::grpc::ClientContext*,
                                                                             const Request&, Response*);
template <typename Request, typename Response>
::grpc::Status call_stub(inference::GRPCInferenceService::Stub& stub, StubMethod<Request, Response> method,
                         const Request& request, Response& response) {
  ::grpc::ClientContext context;
  return (stub.*method)(&context, request, &response);
}

}  // namespace carillon::frontend
