#pragma once

#include <atomic>
#include <cstddef>

#include "carillon/base/result.h"
#include "carillon/controller/service.h"
#include "carillon/frontend/answer_thread.h"
#include "carillon/frontend/commons.h"
#include "carillon/frontend/grpc_raw.h"

namespace carillon::frontend {

// What ModelInfer calls need; all of it outlives them.
struct InferDoor {
  controller::Service& service;
  Commons& commons;
  AnswerThread& answers;
  std::size_t max_body;
  std::atomic<std::size_t> open = 0;  // calls
};

// Answers one ModelInfer call.
grpc::ServerUnaryReactor* infer(InferDoor& door, grpc::CallbackServerContext* context, RawMessage& message,
                                grpc::ByteBuffer& answer);

grpc::Status status_of(const Error& error);

}  // namespace carillon::frontend
