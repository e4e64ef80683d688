#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/grpc/answer_thread.h"
#include "carillon/frontend/grpc/answer_times.h"
#include "carillon/frontend/grpc/grpc_raw.h"

namespace carillon::frontend {

// What ModelInfer calls need; all of it outlives them.
struct InferDoor {
  controller::Service& service;
  Commons& commons;
  AnswerThread& answers;
  AnswerTimes& times;
  std::size_t max_body;
  std::size_t most_calls;                // of one answer, all methods
  std::size_t most_unread;               // bytes of a stream's answers; see grpc_stream.h
  ConnectionShares shares;               // of the bytes in flight
  ConnectionShares side_shares;          // of what is no inference
  std::atomic<std::size_t> calls = 0;    // of one answer: until their clients have it
  std::atomic<std::size_t> open = 0;     // calls, and requests of streams
  std::atomic<std::size_t> streams = 0;  // open ones
  std::atomic<std::size_t> watches = 0;  // of health, which ask for no key
  std::atomic<bool> ending = false;      // what only watches is to end
};

inline constexpr const char* infer_path = "/inference.GRPCInferenceService/ModelInfer";

// A call with one answer, while it lives: counted, and ended where its client does not take the answer.
class CountedCall {
 public:
  explicit CountedCall(InferDoor& door) : door_(door), fits_(door.calls.fetch_add(1) < door.most_calls) {}
  ~CountedCall() { door_.calls.fetch_sub(1); }
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;

  // False: as many are open as may be, and this one is to be refused with too_many_calls().
  bool fits() const { return fits_; }
  // Its client is to take `bytes` now: before Finish().
  void begin_taking(grpc::CallbackServerContext& context, std::size_t bytes) {
    taking_ = door_.times.begin(context.c_call(), bytes);
  }

 private:
  InferDoor& door_;
  const bool fits_;
  AnswerTimes::Ticket taking_;
};
grpc::Status too_many_calls(const InferDoor& door, grpc::CallbackServerContext& context);

// Answers one ModelInfer call.
grpc::ServerUnaryReactor* infer(InferDoor& door, grpc::CallbackServerContext* context, RawMessage& message,
                                grpc::ByteBuffer& answer);

// The call's own deadline on the service's timeline, TimePoint::max() for none.
TimePoint call_deadline(const controller::Service& service, const grpc::CallbackServerContext& context,
                        TimePoint arrival);

// Has `send` called with `answer`, soon and on another thread: that of the answers, or, where it `waits` for
// a device, one that may, as long as these take any more.
void send_on(InferDoor& door, bool waits, controller::InferAnswer answer,
             std::move_only_function<void(controller::InferAnswer)> send);

// What the call's metadata take of memory as long as it is open: their bytes, and something for each field.
std::size_t metadata_cost(const grpc::CallbackServerContext& context);

// Where there is no memory for a request.
Error no_memory();

}  // namespace carillon::frontend
