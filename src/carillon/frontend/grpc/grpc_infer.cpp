#include "carillon/frontend/grpc/grpc_infer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "grpc_service.pb.h"
#include <grpc/support/time.h>

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/infer_codec_grpc.h"
#include "carillon/frontend/codec/parameters.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/grpc/grpc_access.h"
#include "carillon/frontend/http/compression.h"
#include "carillon/frontend/memory/answer_room.h"

namespace carillon::frontend {
namespace {

// One ModelInfer call. It deletes itself when gRPC is done with it, which may be while submit() is still
// returning: what the two share lives in Open.
class InferReactor final : public grpc::ServerUnaryReactor {
 public:
  struct Open {
    static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
    std::atomic<std::uint64_t> ticket = none;
    std::atomic<bool> cancelled = false;
  };

  InferReactor(InferDoor& door, grpc::CallbackServerContext& context, RawMessage& message,
               grpc::ByteBuffer& answer)
      : door_(door),
        counted_(door),
        context_(context),
        answer_(answer),
        arrival_(door.service.now()),
        connection_(door.shares.of(context.peer())) {
    // Before looking whether the server is draining: a drain waits for what is counted.
    door_.open.fetch_add(1);
    trace_ = join_trace(context_, door_.commons.options.trace_share);
    record_ = begin_record(door_.commons, context_, infer_path, message.bytes.Length(), trace_);
    begin(message);
  }
  ~InferReactor() override { door_.open.fetch_sub(1); }

  void OnCancel() override {
    open_->cancelled = true;
    if (const std::uint64_t ticket = open_->ticket; ticket != Open::none) door_.service.cancel(ticket);
  }
  void OnDone() override {
    const bool gone = open_->cancelled && code_ == grpc::StatusCode::OK;
    end_record(door_.commons, std::move(record_), gone ? grpc::StatusCode::CANCELLED : code_, answer_size_);
    delete this;
  }

 private:
  // As the last that is done here: the call may have ended when it returns.
  void Finish(const grpc::Status& status) {
    code_ = status.error_code();
    request_ = {};  // whose answer is there uses no region any more
    room_.shrink_to(0);
    if (answer_room_) answer_room_->settle(answer_size_);
    counted_.begin_taking(context_, answer_size_);
    ServerUnaryReactor::Finish(status);
  }

  // After Finish(), or where another thread goes on with the call, it may have ended.
  void begin(RawMessage& message) {
    if (!counted_.fits()) return Finish(too_many_calls(door_, context_));
    if (door_.commons.draining) return Finish({grpc::StatusCode::UNAVAILABLE, "the server is going away"});
    const std::size_t size = message.bytes.Length() + metadata_cost(context_);
    auto caller = admit_grpc(*door_.commons.guard, context_, Need::infer, arrival_);
    if (!caller) return Finish(refuse_call(context_, caller.error()));
    caller_ = std::move(*caller);
    if (record_ && caller_) record_->key = caller_->key.name;
    room_ = Reservation(door_.commons.bodies, caller_ ? caller_->bytes : nullptr, connection_.share());
    if (!room_.grow(size)) {
      const Error error = no_room_error(room_, caller_.get(), size);
      // Coming back is in vain where it could never fit.
      if (room_.own_refused() && size > caller_->key.bytes) return Finish(status_of(error));
      return refuse_full(error.message);
    }
    if (!message.packed) return read(message, door_.max_body);
    if (message.bytes.Length() > light_packed) return read_elsewhere(message);
    read(message, std::min(light_unpacked, door_.max_body));
  }

  void read_elsewhere(RawMessage& message) {
    WorkPool::Work work = [this, &message] {
      if (open_->cancelled) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
      read(message, door_.max_body);
    };
    if (!door_.commons.heavy.post(std::move(work))) refuse_full("too many large messages wait to be read");
  }

  void refuse_full(const std::string& message) { Finish(frontend::refuse_full(context_, message)); }

  void read(RawMessage& raw, std::size_t limit) {
    try {
      Reservation reading;
      inference::ModelInferRequest message;
      if (const auto done = read_message(raw, limit, &room_, message, &reading); !done.ok()) {
        if (done.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return Finish(done);
        return raw.packed && limit < door_.max_body ? read_elsewhere(raw) : refuse_full(done.error_message());
      }
      if (const auto wrong = Guard::check_model(caller_.get(), message.model_name()))
        return Finish(refuse_call(context_, *wrong));
      if (!take(message, reading, true)) return;
    } catch (const std::bad_alloc&) {
      return refuse_full(no_memory().message);
    }
    infer();
  }

  // The request of a message. False: it was answered, or another thread goes on with the call.
  bool take(inference::ModelInferRequest& message, Reservation& reading, bool may_wait) {
    auto view = ready_model(door_.service, message.model_name(), message.model_version());
    if (view) return parse(*std::move(view), message);
    if (!may_wait || !await_model(message, reading)) Finish(status_of(view.error()));
    return false;
  }

  // False: its model is none that will be loaded soon. Else another thread goes on with the call, and both
  // are gone.
  bool await_model(inference::ModelInferRequest& message, Reservation& reading) {
    ModelWaits& waits = door_.commons.waits;
    auto until = waits.would(door_.service, message.model_name(), message.model_version(), arrival_);
    if (!until) return false;
    const auto told = deadline_in_grpc(message, arrival_, call_deadline(door_.service, context_, arrival_));
    if (!told) return false;
    if (*told != TimePoint::max()) until = *told;
    ModelWaits::Request request{.model = message.model_name(),
                                .version = message.model_version(),
                                .until = *until,
                                .gone = {open_, &open_->cancelled},
                                .go_on = {}};
    request.go_on = [this, message = std::move(message), reading = std::move(reading)]() mutable {
      if (open_->cancelled) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
      try {
        if (!take(message, reading, false)) return;
      } catch (const std::bad_alloc&) {
        return refuse_full(no_memory().message);
      }
      reading = {};
      infer();
    };
    waits.wait(door_.service, std::move(request));
    return true;
  }

  // False: it was answered.
  bool parse(std::shared_ptr<const controller::ModelView> view, const inference::ModelInferRequest& message) {
    const auto finish = [this](const grpc::Status& status) {
      Finish(status);
      return false;
    };
    if (auto once = answers_once(*view, "ModelInfer RPC"); !once) return finish(status_of(once.error()));
    auto request =
        parse_infer_grpc(*view, message, arrival_, call_deadline(door_.service, context_, arrival_),
                         {.regions = &door_.commons.regions, .key = key_of(caller_.get()), .room = &room_});
    if (!request) return finish(refuse_call(context_, request.error()));
    request_ = std::move(*request);
    view_ = std::move(view);
    return true;
  }

  void infer() {
    if (!request_.fetches.empty()) return fetch();
    submit();
  }

  // Inputs that lie on a device, on a thread that may wait for it.
  void fetch() {
    WorkPool::Work work = [this] {
      if (open_->cancelled) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
      try {
        if (const auto fetched = fetch_inputs(view_->config, request_); !fetched)
          return Finish(refuse_call(context_, fetched.error()));
      } catch (const std::bad_alloc&) {
        return refuse_full(no_memory().message);
      }
      submit();
    };
    if (!door_.commons.copies->post(std::move(work))) refuse_full(too_many_copies().message);
  }

  void submit() {
    const auto open = open_;
    auto& service = door_.service;
    for (const std::string& name : request_.unheeded) door_.commons.unheeded.tell(name);
    if (caller_) request_.call->key = caller_->key.name;
    request_.call->trace = trace_;
    answer_room_ = room_for_answer(door_.commons.bodies, *request_.call, connection_.share());
    if (record_) {
      record_->inferred = true;
      record_->facts = facts_of(*view_, request_.id, arrival_, request_.call->deadline);
    }
    const auto ticket = service.submit(std::move(request_.call), [this](controller::InferAnswer answer) {
      send_on(door_, shares_on_device(request_), std::move(answer),
              [this](controller::InferAnswer given) { send(std::move(given)); });
    });
    // The call may have ended: only what is shared is touched from here on.
    open->ticket = ticket;
    if (open->cancelled) service.cancel(ticket);
  }

  void send(controller::InferAnswer answer) {
    if (answer.number != 0) context_.AddTrailingMetadata(number_key, std::to_string(answer.number));
    if (record_) add_answer(record_->facts, answer);
    if (!answer.call) answer_room_.reset();  // it goes with the outputs, which a worker still has
    if (const auto checked = check_answer(*view_, answer); !checked) {
      if (answer.would_take)
        context_.AddTrailingMetadata(would_take_key, std::to_string(whole_us(*answer.would_take)));
      if (answer.retry_after)
        context_.AddTrailingMetadata(retry_metadata, std::to_string(retry_ms(*answer.retry_after)));
      return Finish(status_of(checked.error()));
    }
    try {
      // Texts and classes may take more than the tensors did.
      if (const auto finished = finish_outputs(view_->config, request_, *answer.call); !finished)
        return Finish(refuse_call(context_, finished.error()));
      if (const auto found = answer_room_->hold(size_of_answer(*answer.call)); !found)
        return refuse_full(found.error().message);
      inference::ModelInferResponse response;
      if (const auto written = write_infer_grpc(*view_, request_, *answer.call, response); !written)
        return Finish(refuse_call(context_, written.error()));
      answer.call.reset();
      write_message(response, answer_);
      answer_size_ = answer_.Length();
    } catch (const std::bad_alloc&) {
      return refuse_full(no_memory().message);
    }
    Finish(grpc::Status::OK);
  }

  InferDoor& door_;
  CountedCall counted_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& answer_;
  const TimePoint arrival_;
  const CallOfConnection connection_;
  const std::shared_ptr<Open> open_ = std::make_shared<Open>();
  std::shared_ptr<const Caller> caller_;
  Reservation room_;                         // of the message and what was made of it
  std::shared_ptr<AnswerRoom> answer_room_;  // null until the service has the request
  std::shared_ptr<const controller::ModelView> view_;
  InferRequest request_;
  TraceContext trace_;
  std::unique_ptr<AccessRecord> record_;  // null: nobody wants one
  int code_ = grpc::StatusCode::OK;
  std::size_t answer_size_ = 0;
};

}  // namespace

// One that is farther away than any may be is brought near, as clients set such deadlines for calls of all
// kinds. gRPC's own time has room for more than the system clock's.
TimePoint call_deadline(const controller::Service& service, const grpc::CallbackServerContext& context,
                        TimePoint arrival) {
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_REALTIME);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_REALTIME)) == 0) return TimePoint::max();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_REALTIME));
  // In whole seconds first: more of them than there are nanoseconds in a Duration may be left.
  constexpr std::int64_t most = std::chrono::duration_cast<std::chrono::seconds>(longest_timeout).count();
  if (left.tv_sec >= most) return saturating_add(arrival, longest_timeout);
  if (left.tv_sec < -most) return saturating_add(service.now(), -longest_timeout);
  return saturating_add(service.now(),
                        std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec));
}

void send_on(InferDoor& door, bool waits, controller::InferAnswer answer,
             std::move_only_function<void(controller::InferAnswer)> send) {
  std::move_only_function<void()> work = [send = std::move(send), answer = std::move(answer)]() mutable {
    send(std::move(answer));
  };
  if (!waits) return door.answers.post(std::move(work));
  if (door.commons.copies->post(std::move(work))) return;
  door.answers.post(std::move(work));
}

grpc::Status too_many_calls(const InferDoor& door, grpc::CallbackServerContext& context) {
  return refuse_full(context,
                     "there are " + std::to_string(door.most_calls) + " calls, as many as there may be");
}

std::size_t metadata_cost(const grpc::CallbackServerContext& context) {
  // gRPC keeps each field in two lists of its own, and grpc++ as a node of a map besides.
  constexpr std::size_t of_a_field = 256;
  std::size_t cost = 0;
  for (const auto& [key, value] : context.client_metadata()) cost += key.size() + value.size() + of_a_field;
  return cost;
}

Error no_memory() {
  return {ErrorCode::resource_exhausted, "out of memory for this request"};
}

grpc::ServerUnaryReactor* infer(InferDoor& door, grpc::CallbackServerContext* context, RawMessage& message,
                                grpc::ByteBuffer& answer) {
  return new InferReactor(door, *context, message, answer);
}

}  // namespace carillon::frontend
