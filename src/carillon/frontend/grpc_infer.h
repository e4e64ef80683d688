#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

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
  std::atomic<std::size_t> open = 0;     // calls, and requests of streams
  std::atomic<std::size_t> streams = 0;  // open ones
  std::atomic<std::size_t> watches = 0;  // of health, which ask for no key
  std::atomic<bool> ending = false;      // what only watches is to end
};

inline constexpr const char* infer_path = "/inference.GRPCInferenceService/ModelInfer";

// Answers one ModelInfer call.
grpc::ServerUnaryReactor* infer(InferDoor& door, grpc::CallbackServerContext* context, RawMessage& message,
                                grpc::ByteBuffer& answer);

grpc::Status status_of(const Error& error);

// The call's own deadline on the service's timeline, TimePoint::max() for none.
TimePoint call_deadline(const controller::Service& service, const grpc::CallbackServerContext& context,
                        TimePoint arrival);

// Has `send` called with `answer`, soon and on another thread: that of the answers, or, where it `waits` for
// a device, one that may, as long as these take any more.
void send_on(InferDoor& door, bool waits, controller::InferAnswer answer,
             std::move_only_function<void(controller::InferAnswer)> send);

// Where there is no memory for a request.
Error no_memory();

}  // namespace carillon::frontend
