#include "carillon/frontend/grpc/grpc_stream.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grpc_service.pb.h"

#include "carillon/base/assert.h"
#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/infer_codec_grpc.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/grpc/grpc_access.h"
#include "carillon/frontend/http/compression.h"
#include "carillon/frontend/memory/answer_room.h"
#include "carillon/frontend/telemetry/trace.h"

namespace carillon::frontend {
namespace {

// A sequence may have all requests of a stream, or some in its middle would find no place.
static_assert(stream_requests_most <= controller::sequence_waiting_most);

// One request of a stream.
struct Exchange {
  explicit Exchange(std::shared_ptr<ConnectionShare> share) : connection(std::move(share)) {}

  const CallOfConnection connection;
  TimePoint arrival;
  RawMessage message;
  std::shared_ptr<const Caller> caller;
  Reservation room;                         // of the message and what was made of it
  std::shared_ptr<AnswerRoom> answer_room;  // null until there is an answer, or the service has the request
  std::string id;
  std::shared_ptr<const controller::ModelView> view;
  InferRequest request;
  bool empty_final = false;  // the answer is followed by an empty one, which says that it was the last
  std::string model;         // as its request names it; empty: that is not known
  bool in_line = true;       // its answer waits for those before it in the stream's line
  bool answered = false;     // `answer` is there
  grpc::ByteBuffer answer;
  std::optional<grpc::ByteBuffer> then;  // that one
  std::size_t unread = 0;                // bytes of its outputs, then of both, until they are written
  std::unique_ptr<AccessRecord> record;  // null: there is no access log
  int code = grpc::StatusCode::OK;       // that it would have in a call of its own
};

// A refusal that names no request, since there is none yet.
class RefusedStream final : public RawService::StreamReactor {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// One ModelStreamInfer call. It is finished, and with that may end, only when nothing is read and no request
// is open: until then everyone who works for it may use it. Messages are read one after the other; answers
// come on the answers' thread.
class InferStream final : public RawService::StreamReactor {
 public:
  InferStream(InferDoor& door, grpc::CallbackServerContext& context, Reservation room)
      : door_(door),
        context_(context),
        share_(door.shares.of(context.peer())),
        room_(std::move(room)),
        trace_(join_trace(context, door.commons.options.trace_share)) {
    // The access log has its messages alone; among spans it is their parent.
    if (door.commons.exports(trace_)) record_ = begin_record(door.commons, context, stream_path, 0, trace_);
    StartRead(&message_);
  }
  ~InferStream() override { door_.streams.fetch_sub(1); }

  void OnReadDone(bool ok) override {
    if (ok) return take();
    std::unique_lock lock(mutex_);
    asked_all_ = true;
    reading_ = false;
    finish_if_done(lock);
  }

  void OnWriteDone(bool ok) override {
    taking_ = {};
    std::shared_ptr<Exchange> written;
    std::deque<std::shared_ptr<Exchange>> dropped;
    std::unique_lock lock(mutex_);
    if (Exchange& front = *outbox_.front(); ok && !gone_ && front.then) {
      front.answer = *std::exchange(front.then, std::nullopt);
      lock.unlock();
      return write(front);
    }
    written = std::move(outbox_.front());
    outbox_.pop_front();
    if (!ok) gone_ = true;
    if (gone_) dropped.swap(outbox_);
    close(*written, ok);
    for (const Held& exchange : dropped) close(*exchange, false);
    writing_ = !outbox_.empty();
    Exchange* const next = writing_ ? outbox_.front().get() : nullptr;
    const bool read_on = may_read();
    if (read_on) reading_ = true;
    const auto tickets = ok ? std::vector<std::uint64_t>() : tickets_of_all();
    if (next == nullptr && !read_on && tickets.empty()) return finish_if_done(lock);
    lock.unlock();
    // While one of these is under way the stream does not end.
    for (const auto ticket : tickets) door_.service.cancel(ticket);
    if (next != nullptr) write(*next);
    if (read_on) StartRead(&message_);
  }

  void OnCancel() override {
    std::unique_lock lock(mutex_);
    gone_ = true;
    // The stream may end as soon as nobody holds it: the door outlives it.
    auto& service = door_.service;
    const auto tickets = tickets_of_all();
    finish_if_done(lock);
    if (lock.owns_lock()) lock.unlock();
    for (const auto ticket : tickets) service.cancel(ticket);
  }

  void OnDone() override {
    if (record_) {
      close_record(*record_, gone_ ? grpc::StatusCode::CANCELLED : grpc::StatusCode::OK, 0);
      door_.commons.spans->add(*record_);
    }
    delete this;
  }

 private:
  using Held = std::shared_ptr<Exchange>;

  // -- called with the lock

  bool may_read() const {
    return !reading_ && !asked_all_ && !gone_ && open_ < stream_requests_most && unread_ <= door_.most_unread;
  }

  void set_unread(Exchange& exchange, std::size_t bytes) {
    unread_ = unread_ - exchange.unread + bytes;
    exchange.unread = bytes;
  }

  // An exchange whose answer was written, or never will be.
  void close(Exchange& exchange, bool written) {
    --open_;
    door_.open.fetch_sub(1);
    set_unread(exchange, 0);
    exchange.answer_room.reset();
    end_record(door_.commons, std::move(exchange.record),
               written ? exchange.code : grpc::StatusCode::CANCELLED, written ? exchange.answer.Length() : 0);
  }

  std::vector<std::uint64_t> tickets_of_all() const {
    std::vector<std::uint64_t> tickets;
    tickets.reserve(tickets_.size());
    for (const auto& [exchange, ticket] : tickets_) tickets.push_back(ticket);
    return tickets;
  }

  // Behind it the stream may have ended; the lock is given up before it does.
  void finish_if_done(std::unique_lock<std::mutex>& lock) {
    if (finished_ || reading_ || writing_ || open_ > 0 || !(asked_all_ || gone_)) return;
    finished_ = true;
    const bool gone = gone_;
    lock.unlock();
    taking_ = door_.times.begin(context_.c_call(), 0);
    Finish(gone ? grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone") : grpc::Status::OK);
  }

  // The exchanges whose answers can be written now that this one's is there. Each waits for those before it
  // of its model. Where a request's model is unknown, its answer waits for all before it, and all behind wait
  // for that answer.
  std::vector<Held> in_turn(const Held& exchange) {
    if (!exchange->in_line) return {exchange};
    std::vector<Held> ready;
    std::set<std::string_view> waited_for;
    std::size_t left = 0;
    for (Held& each : line_) {
      const bool waits = each->model.empty() ? !waited_for.empty()
                                             : waited_for.contains(each->model) || waited_for.contains("");
      if (each->answered && !waits) {
        ready.push_back(std::move(each));
      } else {
        waited_for.insert(each->model);
        std::swap(line_[left++], each);
      }
    }
    line_.resize(left);
    return ready;
  }

  // -- while nothing else is being written; without the lock

  void write(Exchange& exchange) {
    taking_ = door_.times.begin(context_.c_call(), exchange.answer.Length());
    StartWrite(&exchange.answer);
  }

  // -- on the thread that reads; reading_ is true

  void take() {
    const auto exchange = std::make_shared<Exchange>(share_);
    exchange->arrival = door_.service.now();
    exchange->message = std::exchange(message_, {});
    exchange->record =
        begin_record(door_.commons, context_, stream_path, exchange->message.bytes.Length(), below(trace_));
    if (exchange->record) exchange->record->of_stream = true;
    {
      // In line before anything can refuse it: an error keeps the order, too.
      const std::lock_guard lock(mutex_);
      ++open_;
      line_.push_back(exchange);
    }
    // Before looking whether the server is draining: a drain waits for what is counted.
    door_.open.fetch_add(1);
    if (door_.commons.draining)
      refuse(exchange, {ErrorCode::unavailable, "the server is going away"});
    else if (begin(exchange))
      return;  // read elsewhere
    read_on();
  }

  // True: the message is read on another thread, which goes on with the stream.
  bool begin(const Held& exchange) {
    RawMessage& message = exchange->message;
    const std::size_t size = message.bytes.Length();
    auto caller = admit_grpc(*door_.commons.guard, context_, Need::infer, exchange->arrival);
    if (!caller) {
      refuse(exchange, {ErrorCode::invalid_argument, caller.error().message});
      return false;
    }
    exchange->caller = std::move(*caller);
    if (exchange->record && exchange->caller) exchange->record->key = exchange->caller->key.name;
    exchange->room = Reservation(door_.commons.bodies, exchange->caller ? exchange->caller->bytes : nullptr,
                                 exchange->connection.share());
    if (!exchange->room.grow(size)) {
      const bool never = exchange->room.own_refused() && size > exchange->caller->key.bytes;
      refuse(exchange, no_room_error(exchange->room, exchange->caller.get(), size), !never);
      return false;
    }
    if (message.packed && size > light_packed) return read_elsewhere(exchange);
    return read(exchange, message.packed ? std::min(light_unpacked, door_.max_body) : door_.max_body);
  }

  bool read_elsewhere(const Held& exchange) {
    WorkPool::Work work = [this, exchange] {
      if (!read(exchange, door_.max_body)) read_on();
    };
    if (door_.commons.heavy.post(std::move(work))) return true;
    refuse(exchange, {ErrorCode::resource_exhausted, "too many large messages wait to be read"});
    return false;
  }

  // True: as begin().
  bool read(const Held& exchange, std::size_t limit) {
    try {
      Reservation reading;
      inference::ModelInferRequest message;
      if (const auto done = read_message(exchange->message, limit, &exchange->room, message, &reading);
          !done.ok()) {
        const bool exhausted = done.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
        if (exhausted && exchange->message.packed && limit < door_.max_body) return read_elsewhere(exchange);
        refuse(exchange, {exhausted ? ErrorCode::resource_exhausted : ErrorCode::invalid_argument,
                          done.error_message()});
        return false;
      }
      if (auto good = prepare(*exchange, message); !good) {
        refuse(exchange, good.error());
        return false;
      }
    } catch (const std::bad_alloc&) {
      refuse(exchange, no_memory());
      return false;
    }
    if (!exchange->request.fetches.empty()) return fetch(exchange);
    submit(exchange);
    return false;
  }

  // Inputs that lie on a device, on a thread that may wait for it. True: as begin().
  bool fetch(const Held& exchange) {
    WorkPool::Work work = [this, exchange] {
      Result<> fetched;
      try {
        fetched = fetch_inputs(exchange->view->config, exchange->request);
      } catch (const std::bad_alloc&) {
        fetched = std::unexpected(no_memory());
      }
      if (fetched)
        submit(exchange);
      else
        refuse(exchange, fetched.error());
      read_on();
    };
    if (door_.commons.copies->post(std::move(work))) return true;
    refuse(exchange, too_many_copies());
    return false;
  }

  // Of the request that is read, which is the last in line.
  void name_model(Exchange& exchange, const std::string& model) {
    const std::lock_guard lock(mutex_);
    exchange.model = model;
  }
  void leave_line(Exchange& exchange) {
    const std::lock_guard lock(mutex_);
    CARILLON_ASSERT(line_.back().get() == &exchange);
    exchange.in_line = false;
    line_.pop_back();
  }

  Result<> prepare(Exchange& exchange, const inference::ModelInferRequest& message) {
    exchange.id = message.id();
    name_model(exchange, message.model_name());
    // Of models that are not decoupled the one answer is the final one: there is nothing to do.
    const char* const name = "triton_enable_empty_final_response";
    bool wants_empty = false;
    if (const auto it = message.parameters().find(name); it != message.parameters().end()) {
      if (it->second.parameter_choice_case() != inference::InferParameter::kBoolParam)
        return invalid("parameter '" + std::string(name) + "' must be true or false");
      wants_empty = it->second.bool_param();
    }
    if (const auto wrong = Guard::check_model(exchange.caller.get(), message.model_name()))
      return invalid(wrong->message);
    auto view = ready_model(door_.service, message.model_name(), message.model_version());
    if (!view) return std::unexpected(std::move(view.error()));
    if (!(*view)->config.preserve_ordering) leave_line(exchange);
    auto request = parse_infer_grpc(
        **view, message, exchange.arrival, call_deadline(door_.service, context_, exchange.arrival),
        {.regions = &door_.commons.regions, .key = key_of(exchange.caller.get()), .room = &exchange.room});
    if (!request) return std::unexpected(std::move(request.error()));
    exchange.request = std::move(*request);
    exchange.view = std::move(*view);
    exchange.empty_final = wants_empty && exchange.view->config.decoupled;
    return {};
  }

  void submit(const Held& exchange) {
    for (const std::string& name : exchange->request.unheeded) door_.commons.unheeded.tell(name);
    if (exchange->caller) exchange->request.call->key = exchange->caller->key.name;
    controller::InferCall& call = *exchange->request.call;
    call.trace = trace_;
    exchange->answer_room = room_for_answer(door_.commons.bodies, call, exchange->connection.share());
    // Called while the exchange is open.
    call.room_for_outputs = [this, held = exchange.get(), room = exchange->answer_room](std::size_t bytes) {
      auto found = room->hold(bytes);
      if (found) {
        const std::lock_guard lock(mutex_);
        set_unread(*held, bytes);
      }
      return found;
    };
    if (exchange->record) {
      exchange->record->inferred = true;
      exchange->record->facts = facts_of(*exchange->view, exchange->id, exchange->arrival, call.deadline);
    }
    const auto ticket = door_.service.submit(
        std::move(exchange->request.call), [this, exchange](controller::InferAnswer answer) mutable {
          send_on(door_, shares_on_device(exchange->request), std::move(answer),
                  [this, exchange](controller::InferAnswer given) { send(exchange, std::move(given)); });
        });
    // It may be answered by now, but the stream stays: it is being read.
    std::unique_lock lock(mutex_);
    if (const auto answered = answered_early_.find(exchange.get()); answered != answered_early_.end()) {
      answered_early_.erase(answered);
      return;
    }
    tickets_.emplace(exchange.get(), ticket);
    const bool cancel = gone_;
    lock.unlock();
    if (cancel) door_.service.cancel(ticket);
  }

  void read_on() {
    std::unique_lock lock(mutex_);
    reading_ = false;
    if (!may_read()) return finish_if_done(lock);
    reading_ = true;
    lock.unlock();
    StartRead(&message_);
  }

  // -- on any thread, while the exchange is open

  // `again`: what there is no room for now may find some later.
  void refuse(const Held& exchange, const Error& error, bool again = true) {
    inference::ModelStreamInferResponse response;
    write_error(*exchange, error, response);
    if (again && error.code == ErrorCode::resource_exhausted)
      say(response, retry_key, retry_ms(controller::retry_when_full));
    post(exchange, response);
  }

  static void say(inference::ModelStreamInferResponse& response, const char* name, std::int64_t value) {
    (*response.mutable_infer_response()->mutable_parameters())[name].set_int64_param(value);
  }

  static void write_error(Exchange& exchange, const Error& error,
                          inference::ModelStreamInferResponse& response) {
    const grpc::Status status = status_of(error);
    exchange.code = status.error_code();
    response.Clear();
    response.set_error_message(status.error_message());
    auto& answer = *response.mutable_infer_response();
    answer.set_id(exchange.id);
    if (exchange.view) {
      answer.set_model_name(exchange.view->name);
      answer.set_model_version(std::to_string(exchange.view->version));
    }
  }

  void send(const Held& exchange, controller::InferAnswer answer) {
    {
      const std::lock_guard lock(mutex_);
      if (tickets_.erase(exchange.get()) == 0) answered_early_.insert(exchange.get());
    }
    if (exchange->record) add_answer(exchange->record->facts, answer);
    if (!answer.call) exchange->answer_room.reset();  // it goes with the outputs, which a worker still has
    const auto& view = *exchange->view;
    inference::ModelStreamInferResponse response;
    try {
      auto good = check_answer(view, answer);
      if (good) good = finish_outputs(view.config, exchange->request, *answer.call);
      if (good) good = exchange->answer_room->hold(size_of_answer(*answer.call));
      if (good)
        good = write_infer_grpc(view, exchange->request, *answer.call, *response.mutable_infer_response());
      if (good) {
        if (exchange->empty_final) write_final(*exchange);
      } else {
        write_error(*exchange, good.error(), response);
        if (answer.status && good.error().code == ErrorCode::resource_exhausted)
          answer.retry_after = controller::retry_when_full;
        if (answer.would_take) say(response, would_take_key, whole_us(*answer.would_take));
        if (answer.retry_after) say(response, retry_key, retry_ms(*answer.retry_after));
      }
      if (answer.number != 0) say(response, number_key, static_cast<std::int64_t>(answer.number));
      answer.call.reset();
      post(exchange, response);
    } catch (const std::bad_alloc&) {
      refuse(exchange, no_memory());
    }
  }

  static void mark_final(inference::ModelStreamInferResponse& response, bool final) {
    (*response.mutable_infer_response()->mutable_parameters())["triton_final_response"].set_bool_param(final);
  }

  // What follows the answer of a decoupled model, for clients that want it.
  static void write_final(Exchange& exchange) {
    inference::ModelStreamInferResponse response;
    auto& answer = *response.mutable_infer_response();
    answer.set_id(exchange.id);
    answer.set_model_name(exchange.view->name);
    answer.set_model_version(std::to_string(exchange.view->version));
    mark_final(response, true);
    write_message(response, exchange.then.emplace());
  }

  void post(const Held& exchange, inference::ModelStreamInferResponse& response) {
    exchange->request = {};  // whose answer is there uses no region any more
    exchange->room.shrink_to(0);
    mark_final(response, !exchange->then);
    write_message(response, exchange->answer);
    const std::size_t size = exchange->answer.Length() + (exchange->then ? exchange->then->Length() : 0);
    if (!exchange->answer_room)
      exchange->answer_room =
          std::make_shared<AnswerRoom>(door_.commons.bodies, exchange->connection.share());
    exchange->answer_room->settle(size);
    std::unique_lock lock(mutex_);
    exchange->answered = true;
    set_unread(*exchange, size);
    const std::vector<Held> ready = in_turn(exchange);
    if (gone_) {
      for (const Held& each : ready) close(*each, false);
      return finish_if_done(lock);
    }
    outbox_.insert(outbox_.end(), ready.begin(), ready.end());
    if (writing_ || outbox_.empty()) return;
    writing_ = true;
    Exchange& first = *outbox_.front();
    lock.unlock();
    write(first);
  }

  InferDoor& door_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<ConnectionShare> share_;  // which its requests have a part in
  const Reservation room_;                        // for the call's metadata
  const TraceContext trace_;
  std::unique_ptr<AccessRecord> record_;  // of the stream itself; null: nobody wants one
  RawMessage message_;                    // the one that is read

  std::mutex mutex_;
  std::size_t open_ = 0;
  std::map<const Exchange*, std::uint64_t> tickets_;  // of what the service has
  // Answered before submit() told their ticket.
  std::set<const Exchange*> answered_early_;
  std::deque<Held> outbox_;  // the first is being written
  // Requests whose answers keep order and are not in the outbox yet, the first first. By models' names, as
  // what a name stands for may change: a model that is loaded anew has another id. Behind them is the request
  // that is being read.
  std::vector<Held> line_;
  std::size_t unread_ = 0;      // bytes of outputs and answers that are not written
  AnswerTimes::Ticket taking_;  // of the answer that is being written
  bool writing_ = false;
  bool reading_ = true;     // a message is awaited, or read into a request
  bool asked_all_ = false;  // the client sends no more
  bool gone_ = false;       // the client takes no more
  bool finished_ = false;
};

}  // namespace

RawService::StreamReactor* infer_stream(InferDoor& door, grpc::CallbackServerContext& context) {
  const auto refuse = [&](const grpc::Status& status) {
    auto record = begin_record(door.commons, context, stream_path, 0, {});
    end_record(door.commons, std::move(record), status.error_code(), 0);
    return new RefusedStream(status);
  };
  if (door.commons.draining) return refuse({grpc::StatusCode::UNAVAILABLE, "the server is going away"});
  // Its messages are asked about one by one, as keys change while streams are open.
  if (const auto known = door.commons.guard->known(credentials_of(context)); !known)
    return refuse(refuse_call(context, known.error()));
  if (door.streams.fetch_add(1) >= streams_most) {
    door.streams.fetch_sub(1);
    return refuse(refuse_full(
        context, "there are " + std::to_string(streams_most) + " streams, as many as there may be"));
  }
  const std::size_t size = metadata_cost(context);
  Reservation room(door.commons.bodies);
  if (!room.grow(size)) {
    door.streams.fetch_sub(1);
    return refuse(
        refuse_full(context, "there is no room now for metadata of " + std::to_string(size) + " bytes"));
  }
  return new InferStream(door, context, std::move(room));
}

}  // namespace carillon::frontend
