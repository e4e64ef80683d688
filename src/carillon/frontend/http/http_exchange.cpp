#include "carillon/frontend/http/http_exchange.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <new>
#include <utility>

#include <boost/beast/core/string.hpp>

#include "carillon/base/clock.h"
#include "carillon/frontend/codec/reading_room.h"
#include "carillon/frontend/telemetry/trace.h"

namespace carillon::frontend {

namespace {

constexpr std::size_t smallest_packed = 1024;  // answers below are not worth packing

// What a connection's own thread does: a millisecond or less. The rest is for the heavy threads.
constexpr std::size_t light_json = std::size_t{1} << 20;
constexpr std::size_t light_answer = std::size_t{64} << 10;  // packed here

// How much of a body of `size` bytes is JSON, as far as its header can be believed.
std::size_t json_size(const HttpRequest& request, std::size_t size) {
  std::size_t n = size;
  if (const auto& text = request.inference_header_length)
    std::from_chars(text->data(), text->data() + text->size(), n);
  return std::min(n, size);
}

// Whether it is an inference by its path: what is refused later for another reason may be taken for one.
bool is_inference(const HttpRequest& request) {
  const std::string_view target = request.target;
  return request.method == "POST" && target.substr(0, target.find('?')).ends_with("/infer");
}

TimePoint steady_now() {
  return SteadyClock().now();
}

std::size_t body_size(const HttpReply& reply) {
  std::size_t size = reply.body.size();
  for (const auto blob : reply.blobs) size += blob.size();
  return size;
}

}  // namespace

HttpExchange::HttpExchange(std::shared_ptr<HttpLoop> loop, std::string_view peer) : loop_(std::move(loop)) {
  const auto& commons = loop_->shared->commons;
  if (!commons.access_log && !commons.spans) return;
  record_ = std::make_unique<AccessRecord>();
  record_->peer = peer;
}

void HttpExchange::count_open(bool open) {
  if (std::exchange(counted_, open) == open) return;
  if (open)
    loop_->shared->open.fetch_add(1);
  else
    loop_->shared->open.fetch_sub(1);
}

void HttpExchange::begin() {
  // Before looking whether the server is draining: a drain waits for what is counted.
  count_open(true);
  head_only_ = false;
  content_encoding_.clear();
  accept_encoding_.clear();
  trace_ = {};
  tracestate_.clear();
  cancelled_ = false;
  if (loop_->shared->commons.access_log) begin_record();
}

void HttpExchange::begin_record() {
  recording_ = true;
  record_->began = steady_now();
  record_->method = std::string_view();
  record_->path = std::string_view();
  record_->key = std::string_view();
  record_->bytes_in = record_->bytes_out = 0;
  record_->inferred = false;
  record_->trace = {};
}

std::optional<HttpReply> HttpExchange::take_header(HttpFields fields) {
  const auto& shared = *loop_->shared;
  head_only_ = fields.method == "HEAD";
  request_.method = head_only_ ? "GET" : fields.method;
  request_.target = fields.target;
  trace_ = join_trace(fields.traceparent, shared.commons.options.trace_share);
  if (trace_.there()) tracestate_ = std::move(fields.tracestate);
  request_.trace = trace_;
  if (!recording_ && shared.commons.exports(trace_)) begin_record();
  if (recording_) {
    record_->method = fields.method;
    record_->path = request_.target;
    record_->trace = trace_;
  }
  if (!fields.repeated.empty())
    return error_reply(
        400, "the request has the header " + std::string(fields.repeated) + " twice; which of them counts?");
  if (shared.commons.draining && request_.method != "GET")
    return error_reply(503, "the server is going away");
  content_encoding_ = fields.content_encoding;
  accept_encoding_ = fields.accept_encoding;
  request_.inference_header_length = fields.inference_header_length;
  request_.accept = fields.accept;
  auto admitted = shared.handler.admit({.method = request_.method,
                                        .target = request_.target,
                                        .credentials = fields.credentials,
                                        .fetch_site = fields.fetch_site});
  if (!admitted) return std::move(admitted.error());
  request_.caller = std::move(*admitted);
  if (recording_ && request_.caller) record_->key = request_.caller->key.name;
  request_.room = Reservation(shared.commons.bodies, request_.caller ? request_.caller->bytes : nullptr);
  return std::nullopt;
}

std::optional<HttpReply> HttpExchange::reserve(std::uint64_t size) {
  const std::size_t most = loop_->shared->options.max_body;
  if (size > most)
    return error_reply(413, "the body has " + std::to_string(size) + " bytes; at most " +
                                std::to_string(most) + " are allowed");
  if (!request_.room.grow(static_cast<std::size_t>(size)))
    return no_room_reply("a body of " + std::to_string(size) + " bytes", static_cast<std::size_t>(size));
  if (admit_json(static_cast<std::size_t>(size))) return std::nullopt;
  request_.room.shrink_to(0);
  return full_reply("there is no room now to read the JSON of a body of " + std::to_string(size) +
                    " bytes: too many are in flight; tensors take less as blobs (binary_data_size)");
}

// Of a body of `size` bytes, for which there is room. False: there is none to read its JSON in.
bool HttpExchange::admit_json(std::size_t size) {
  const std::size_t json = json_size(request_, size);
  const bool packed = !content_encoding_.empty() && !boost::beast::iequals(content_encoding_, "identity");
  if (request_.admitted || packed || json <= light_json || !is_inference(request_)) return true;
  request_.admitted = loop_->shared->commons.parse_room->admit(most_json_cost(json), request_.room.bytes());
  return request_.admitted != nullptr;
}

HttpReply HttpExchange::no_room_reply(const std::string& what, std::size_t bytes) const {
  if (!request_.room.own_refused())
    return full_reply("there is no room now for " + what + ": too many are in flight");
  const Key& key = request_.caller->key;
  const std::string limit =
      "key '" + key.name + "' may have " + std::to_string(key.bytes) + " bytes of bodies in flight";
  if (bytes > key.bytes) return error_reply(413, limit + ", and there is no room in them for " + what);
  return denial_reply({.kind = Denial::Kind::too_many,
                       .message = limit + ", and has too many for " + what,
                       .wait = std::chrono::seconds(1)});
}

void HttpExchange::body_done() {
  if (recording_) record_->bytes_in = request_.body.size();
  if (!content_encoding_.empty() && !boost::beast::iequals(content_encoding_, "identity")) {
    if (boost::beast::iequals(content_encoding_, "gzip") ||
        boost::beast::iequals(content_encoding_, "x-gzip") ||
        boost::beast::iequals(content_encoding_, "deflate"))
      return unpack_body();
    return answer(error_reply(415, "Content-Encoding is '" + content_encoding_.substr(0, 64) +
                                       "'; gzip and deflate are understood"));
  }
  // One whose size was not told has its place now, or is read where it finds room.
  (void)admit_json(request_.body.size());
  if (json_size(request_, request_.body.size()) > light_json) return dispatch_heavy(false);
  dispatch();
}

void HttpExchange::unpack_body() {
  if (request_.body.size() > light_packed) return dispatch_heavy(true);
  const std::size_t most = std::min(light_unpacked, loop_->shared->options.max_body);
  auto unpacked = unpack(request_.body.text(), most, &request_.room);
  if (unpacked) {
    request_.body = std::move(*unpacked);
    request_.room.shrink_to(request_.body.size());
    return dispatch();
  }
  if (unpacked.error().fault == UnpackFault::too_large && most == light_unpacked) return dispatch_heavy(true);
  answer(unpack_reply(unpacked.error()));
}

Deliver HttpExchange::deliver_to(std::uint64_t exchange) {
  return [self = self(), exchange](ReplyMaker make) mutable {
    auto& loop = *self->loop_;
    loop.post([self = std::move(self), exchange, make = std::move(make)]() mutable {
      self->on_reply(exchange, std::move(make));
    });
  };
}

HttpExchange::Outcome HttpExchange::handle(HttpRequest request, Deliver deliver) {
  try {
    return loop_->shared->handler.handle(std::move(request), std::move(deliver));
  } catch (const std::exception& thrown) {
    return thrown_reply(thrown);
  }
}

void HttpExchange::dispatch() {
  stage_ = Stage::open;
  const auto exchange = ++exchange_;
  auto outcome = handle(std::exchange(request_, {}), deliver_to(exchange));
  if (auto* reply = std::get_if<HttpReply>(&outcome)) return answer(std::move(*reply));
  cancel_ = std::move(std::get<Deferred>(outcome).cancel);
  on_waiting();
}

// What takes long, on another thread: other connections of this one go on meanwhile.
void HttpExchange::dispatch_heavy(bool packed) {
  stage_ = Stage::open;
  const auto exchange = ++exchange_;
  const auto abandoned = std::make_shared<std::atomic<bool>>(false);
  WorkPool::Work work = [self = self(), exchange, packed, abandoned, request = std::exchange(request_, {}),
                         since = std::chrono::steady_clock::now()]() mutable {
    const auto& shared = *self->loop_->shared;
    const auto prepare = [&]() -> Outcome {
      if (*abandoned) return error_reply(499, "the client has gone");
      if (packed) {
        auto unpacked = unpack(request.body.text(), shared.options.max_body, &request.room);
        if (!unpacked) return unpack_reply(unpacked.error());
        request.body = std::move(*unpacked);
        request.room.shrink_to(request.body.size());
      }
      request.waited = std::chrono::steady_clock::now() - since;
      return self->handle(std::exchange(request, {}), self->deliver_to(exchange));
    };
    Outcome outcome;
    try {
      outcome = prepare();
    } catch (const std::exception& thrown) {
      outcome = thrown_reply(thrown);
    }
    auto& loop = *self->loop_;
    loop.post([self, exchange, outcome = std::move(outcome)]() mutable {
      self->on_handled(exchange, std::move(outcome));
    });
    loop.shared->heavy.remove();
  };
  loop_->shared->heavy.add();
  if (!loop_->shared->commons.heavy.post(std::move(work))) {
    loop_->shared->heavy.remove();
    return answer(full_reply("too many large bodies wait to be read"));
  }
  cancel_ = [abandoned] { *abandoned = true; };
  on_waiting();
}

void HttpExchange::on_handled(std::uint64_t exchange, Outcome outcome) {
  const bool awaited = exchange == exchange_ && stage_ == Stage::open;
  if (auto* reply = std::get_if<HttpReply>(&outcome)) {
    if (awaited) answer(std::move(*reply));
    return;
  }
  auto& cancel = std::get<Deferred>(outcome).cancel;
  if (awaited && !cancelled_)
    cancel_ = std::move(cancel);
  else if (cancel)
    cancel();  // nothing happens where it was answered already
}

void HttpExchange::on_reply(std::uint64_t exchange, ReplyMaker make) {
  if (exchange != exchange_ || stage_ != Stage::open) return;
  HttpReply reply;
  try {
    reply = make();
  } catch (const std::exception& thrown) {
    reply = thrown_reply(thrown);
  }
  answer(std::move(reply));
}

void HttpExchange::answer(HttpReply reply) {
  ++exchange_;
  stage_ = Stage::none;
  cancel_ = {};
  request_ = {};
  reply_ = std::move(reply);
  take_room();
  std::optional<Coding> coding;
  if (reply_.may_pack && !accept_encoding_.empty()) {
    const std::size_t size = body_size(reply_);
    if (size >= smallest_packed) coding = accepted_coding(accept_encoding_);
    if (coding && size > light_answer) {
      if (pack_elsewhere(*coding)) return;
      coding.reset();
    }
    try {
      if (coding) pack_reply(reply_, *coding);
    } catch (const std::bad_alloc&) {
      coding.reset();
    }
  }
  send(coding);
}

// For the answer, whoever takes it and when; its outputs may have taken some already. One that is larger than
// all that may be in flight goes where nothing else is.
void HttpExchange::take_room() {
  const std::size_t size = body_size(reply_);
  const auto& commons = loop_->shared->commons;
  if (reply_.may_refuse) {
    if (reply_.room.bytes() == 0) reply_.room = Reservation(commons.bodies);
    const std::size_t held = reply_.room.bytes();
    const std::size_t wanted = std::min(size, commons.bodies->largest());
    if (wanted <= held || reply_.room.grow(wanted - held)) return;
  } else {
    reply_.side = SideRoom(loop_->shared->side, side_share());
    if (reply_.side.hold(size)) return;
  }
  auto refused = full_reply("there is no room now for the answer's " + std::to_string(size) +
                            " bytes: too many are in flight");
  refused.facts = std::move(reply_.facts);
  reply_ = std::move(refused);
  take_room();
}

// False: the heavy threads have too much to do, and the reply is as it was.
bool HttpExchange::pack_elsewhere(Coding coding) {
  auto reply = std::make_shared<HttpReply>(std::move(reply_));
  WorkPool::Work work = [self = self(), exchange = exchange_, coding, reply] {
    std::optional<Coding> packed = coding;
    try {
      pack_reply(*reply, coding);
    } catch (const std::bad_alloc&) {
      packed.reset();
    }
    auto& loop = *self->loop_;
    loop.post([self, exchange, packed, reply] {
      if (exchange != self->exchange_ || self->stage_ != Stage::packing) return;
      self->stage_ = Stage::none;
      self->reply_ = std::move(*reply);
      self->send(packed);
    });
    loop.shared->heavy.remove();
  };
  loop_->shared->heavy.add();
  if (!loop_->shared->commons.heavy.post(std::move(work))) {
    loop_->shared->heavy.remove();
    reply_ = std::move(*reply);
    return false;
  }
  stage_ = Stage::packing;
  on_waiting();
  return true;
}

std::size_t HttpExchange::complete_reply() {
  const std::size_t size = body_size(reply_);
  reply_.room.shrink_to(size);  // packed, it is smaller
  reply_.side.shrink_to(size);
  if (trace_.there()) {
    reply_.headers.emplace_back(traceparent_key, traceparent_text(trace_));
    if (!tracestate_.empty()) reply_.headers.emplace_back(tracestate_key, tracestate_);
  }
  if (recording_) record_->bytes_out = head_only_ ? 0 : size;
  return size;
}

void HttpExchange::cancel() {
  cancelled_ = true;
  if (cancel_) std::exchange(cancel_, {})();
}

void HttpExchange::end(int status) {
  count_open(false);
  if (std::exchange(recording_, false)) {
    record_->ended = steady_now();
    record_->status = status;
    record_->outcome = outcome_of_http(status);
    if (reply_.facts) {
      record_->inferred = true;
      record_->facts = *reply_.facts;
      if (reply_.facts->outcome && status < 400) record_->outcome = *reply_.facts->outcome;
    }
    loop_->shared->commons.keep(*record_);
  }
  reply_ = {};
}

void HttpExchange::forget() {
  recording_ = false;
  count_open(false);
}

void HttpExchange::abandon() {
  stage_ = Stage::none;
  ++exchange_;
  request_ = {};
  end(499);
  cancel();
}

}  // namespace carillon::frontend
