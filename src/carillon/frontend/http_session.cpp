#include "carillon/frontend/http_session.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <sys/socket.h>

#include "carillon/frontend/compression.h"
#include "carillon/frontend/http_framing.h"
#include "carillon/frontend/status.h"
#include "carillon/frontend/trace.h"

namespace carillon::frontend {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr std::size_t pipelined_most = std::size_t{64} << 10;  // read ahead while a request is open
constexpr std::size_t smallest_packed = 1024;                  // answers below are not worth packing
constexpr std::size_t chunk_step = std::size_t{64} << 10;      // what Beast reads at a time, at most
constexpr std::size_t one_record = std::size_t{15} << 10;      // of an answer, beside its header
constexpr std::size_t idle_buffer = std::size_t{8} << 10;      // kept by a connection without a request

// What a connection's own thread does: a millisecond or less. The rest is for the heavy threads.
constexpr std::size_t light_json = std::size_t{1} << 20;
constexpr std::size_t light_answer = std::size_t{64} << 10;  // packed here

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

Duration transfer_time(Duration base, std::size_t bytes) {
  return base + std::chrono::seconds(bytes >> 18);
}

// How much of a body is JSON, as far as its header can be believed.
std::size_t json_size(const HttpRequest& request) {
  std::size_t n = request.body.size();
  if (const auto& text = request.inference_header_length)
    std::from_chars(text->data(), text->data() + text->size(), n);
  return std::min(n, request.body.size());
}

HttpFraming framing_of(const http::fields& fields, unsigned version) {
  HttpFraming framing{.version = version};
  framing.hosts = fields.count(http::field::host);
  const auto [first, last] = fields.equal_range(http::field::transfer_encoding);
  for (auto it = first; it != last; ++it) framing.transfer_encodings.push_back(view(it->value()));
  return framing;
}

Credentials credentials_in(const http::fields& fields) {
  static constexpr const char* api_key = "x-api-key";
  return {.authorization = view(fields[http::field::authorization]),
          .api_key = view(fields[api_key]),
          .ambiguous = fields.count(http::field::authorization) > 1 || fields.count(api_key) > 1};
}

// All members of all fields of that name (section 3.3 of Trace Context); empty where that may not be passed
// on.
std::string tracestate_in(const http::fields& fields) {
  std::string all;
  const auto [first, last] = fields.equal_range(tracestate_key);
  for (auto it = first; it != last && all.size() <= tracestate_most; ++it)
    all += (all.empty() ? "" : ",") + std::string(view(it->value()));
  return is_tracestate(all) ? all : std::string();
}

TimePoint steady_now() {
  return TimePoint{std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
}

}  // namespace

std::shared_ptr<HttpConnection> HttpSession::on(Descriptor connection, std::shared_ptr<HttpLoop> loop) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(connection.number(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return nullptr;
  asio::ip::tcp::socket socket(loop->context);
  Error error;
  (void)socket.assign(address.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(),
                      connection.number(), error);
  if (error) return nullptr;
  (void)connection.release();
  return std::make_shared<HttpSession>(std::move(socket), std::move(loop));
}

HttpSession::HttpSession(asio::ip::tcp::socket socket, std::shared_ptr<HttpLoop> loop)
    : loop_(std::move(loop)),
      stream_(std::move(socket), loop_->shared->options.tls ? loop_->shared->options.tls->state() : nullptr),
      // Beast would let whoever sends endless chunk extensions fill all memory.
      buffer_(std::max(loop_->shared->options.max_header, pipelined_most) + 2 * chunk_step) {
  if (!loop_->shared->commons.access_log) return;
  record_ = std::make_unique<AccessRecord>();
  Error error;
  const auto peer = stream_.socket().remote_endpoint(error);
  if (error) return;
  const std::string address = peer.address().to_string();
  record_->peer =
      (peer.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(peer.port());
}

void HttpSession::set_deadline(Duration from_now) {
  deadline_ = std::chrono::steady_clock::now() + from_now;
}

void HttpSession::count_open(bool open) {
  if (std::exchange(counted_, open) == open) return;
  if (open)
    loop_->shared->open.fetch_add(1);
  else
    loop_->shared->open.fetch_sub(1);
}

// A request has begun, of which nothing is known yet.
void HttpSession::begin_record() {
  trace_ = {};
  tracestate_.clear();
  if (!record_) return;
  recording_ = true;
  record_->began = steady_now();
  record_->method = std::string_view();
  record_->path = std::string_view();
  record_->key = std::string_view();
  record_->bytes_in = record_->bytes_out = 0;
  record_->inferred = false;
  record_->trace = {};
}

void HttpSession::join_trace_of(const http::fields& header) {
  const bool one = header.count(traceparent_key) == 1;
  trace_ = join_trace(one ? view(header[traceparent_key]) : std::string_view(),
                      loop_->shared->commons.options.trace_share);
  if (one && trace_.there()) tracestate_ = tracestate_in(header);
  request_.trace = trace_;
  if (!record_) return;
  record_->method = head_only_ ? "HEAD" : request_.method;
  record_->path = request_.target;
  record_->trace = trace_;
}

// Its answer was sent, or its client has gone (499).
void HttpSession::end_record(int status) {
  if (!std::exchange(recording_, false)) return;
  record_->ended = steady_now();
  record_->status = status;
  record_->outcome = outcome_of_http(status);
  if (reply_.facts) {
    record_->inferred = true;
    record_->facts = *reply_.facts;
    if (reply_.facts->outcome && status < 400) record_->outcome = *reply_.facts->outcome;
  }
  loop_->shared->commons.access_log->add(*record_);
}

void HttpSession::start() {
  if (stream_.is_tls()) return shake_hands();
  next_request();
}

void HttpSession::shake_hands() {
  state_ = State::handshake;
  set_deadline(loop_->shared->options.header_timeout);
  stream_.async_handshake([self = shared_from_this()](Error error) {
    if (self->state_ == State::closed) return;
    if (was_plain_http(error)) return self->refuse_plain();
    if (error) return self->close();
    self->next_request();
  });
}

// In the client's own words, as it could not read others.
void HttpSession::refuse_plain() {
  const HttpReply reply = error_reply(400, "this port speaks TLS: use https://");
  head_ = reply_head(reply, reply.body.size(), version_, std::nullopt, true) + reply.body;
  state_ = State::lingering;
  set_deadline(std::chrono::seconds(2));
  lingered_ = 0;
  asio::async_write(stream_.socket(), asio::buffer(head_),
                    [self = shared_from_this()](Error error, std::size_t) {
                      if (self->state_ == State::closed) return;
                      if (error) return self->close();
                      self->shut_down();
                    });
}

void HttpSession::next_request() {
  if (buffer_.size() > 0) return read_header();
  if (loop_->stopping) return close();
  state_ = State::idle;
  loop_->move(*this, answered_ ? HttpPlace::idle : HttpPlace::strangers);
  if (buffer_.capacity() > idle_buffer) buffer_.shrink_to_fit();
  set_deadline(loop_->shared->options.idle_timeout);
  watch();
}

void HttpSession::read_header() {
  state_ = State::header;
  set_deadline(loop_->shared->options.header_timeout);
  parser_.emplace();
  chunked_.reset();
  parser_->header_limit(static_cast<std::uint32_t>(
      std::min<std::size_t>(loop_->shared->options.max_header, std::numeric_limits<std::uint32_t>::max())));
  // Held against max_body below, with an answer (boost::none would mean a limit of nothing in 1.74).
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](Error error, std::size_t) { self->on_header(error); });
}

void HttpSession::on_header(Error error) {
  if (state_ == State::closed) return;
  loop_->move(*this, HttpPlace::busy);
  // Before looking whether the server is draining: a drain waits for what is counted.
  count_open(true);
  begin_record();
  head_only_ = false;
  version_ = 11;
  request_ = {};
  content_encoding_.clear();
  accept_encoding_.clear();
  if (cut_short_) return reply_and_close(*std::exchange(cut_short_, {}));
  if (error) {
    if (error == http::error::header_limit)
      return reply_and_close(error_reply(431, "the request's header has more than " +
                                                  std::to_string(loop_->shared->options.max_header) +
                                                  " bytes"));
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return reply_and_close(error_reply(400, "not an HTTP request: " + error.message()));
    recording_ = false;  // there was none
    return close();
  }
  const auto& header = parser_->get();
  version_ = header.version();
  const auto& shared = *loop_->shared;
  close_after_ = !parser_->keep_alive() || loop_->stopping || shared.commons.draining;
  head_only_ = header.method() == http::verb::head;
  if (const auto wrong = check_framing(framing_of(header, version_)))
    return reply_and_close(error_reply(wrong->status, wrong->message));
  request_.method = head_only_ ? "GET" : view(header.method_string());
  request_.target = view(header.target());
  join_trace_of(header);
  if (shared.commons.draining && request_.method != "GET")
    return reply_and_close(error_reply(503, "the server is going away"));
  content_encoding_ = view(header[http::field::content_encoding]);
  accept_encoding_ = view(header[http::field::accept_encoding]);
  if (const auto it = header.find("Inference-Header-Content-Length"); it != header.end())
    request_.inference_header_length = view(it->value());
  if (const auto it = header.find(http::field::accept); it != header.end())
    request_.accept = view(it->value());
  const bool no_body = !parser_->chunked() && parser_->content_length().value_or(0) == 0;
  auto admitted = shared.handler.admit({.method = request_.method,
                                        .target = request_.target,
                                        .credentials = credentials_in(header),
                                        .fetch_site = view(header["Sec-Fetch-Site"])});
  if (!admitted) {
    if (!no_body) return reply_and_close(std::move(admitted.error()));
    ++exchange_;
    return write(std::move(admitted.error()));
  }
  request_.caller = std::move(*admitted);
  if (record_ && request_.caller) record_->key = request_.caller->key.name;
  request_.room = Reservation(shared.commons.bodies, request_.caller ? request_.caller->bytes : nullptr);
  if (const auto length = parser_->content_length()) {
    if (*length > shared.options.max_body)
      return reply_and_close(error_reply(413, "the body has " + std::to_string(*length) + " bytes; at most " +
                                                  std::to_string(shared.options.max_body) + " are allowed"));
    // Before any of it is read.
    if (!request_.room.grow(static_cast<std::size_t>(*length)))
      return reply_and_close(no_room_reply("a body of " + std::to_string(*length) + " bytes",
                                           static_cast<std::size_t>(*length)));
  }
  if (beast::iequals(header[http::field::expect], "100-continue")) return send_continue();
  read_body();
}

// Of `what`, with which this request's body has `bytes` bytes.
HttpReply HttpSession::no_room_reply(const std::string& what, std::size_t bytes) const {
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

void HttpSession::send_continue() {
  static constexpr std::string_view text = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(text), [self = shared_from_this()](Error error, std::size_t) {
    if (self->state_ == State::closed) return;
    if (self->cut_short_) return self->reply_and_close(*std::exchange(self->cut_short_, {}));
    if (error) return self->close();
    self->read_body();
  });
}

void HttpSession::begin_progress() {
  state_ = State::body;
  loop_->move(*this, HttpPlace::reading);
  received_at_window_ = received_;
  body_began_ = std::chrono::steady_clock::now();
  set_deadline(loop_->shared->options.body_timeout);
}

void HttpSession::read_body() {
  received_ = 0;
  if (parser_->chunked()) {
    chunked_.emplace(std::move(*parser_));
    chunked_->body_limit(loop_->shared->options.max_body);
    begin_progress();
    return read_chunked_body();
  }
  const auto size = static_cast<std::size_t>(parser_->content_length().value_or(0));
  if (size == 0) return on_body();
  try {
    request_.body = PaddedBytes(size);
  } catch (const std::bad_alloc&) {
    return reply_and_close(full_reply("no memory for a body of " + std::to_string(size) + " bytes"));
  }
  received_ = asio::buffer_copy(asio::buffer(request_.body.data(), size), buffer_.data());
  buffer_.consume(received_);
  if (received_ == size) return on_body();
  begin_progress();
  read_sized_body();
}

// Straight from the socket into the body.
void HttpSession::read_sized_body() {
  stream_.async_read_some(asio::buffer(request_.body.data() + received_, request_.body.size() - received_),
                          [self = shared_from_this()](Error error, std::size_t bytes) {
                            if (self->state_ == State::closed) return;
                            if (self->cut_short_)
                              return self->reply_and_close(*std::exchange(self->cut_short_, {}));
                            if (error) return self->close();
                            self->received_ += bytes;
                            if (self->received_ < self->request_.body.size()) return self->read_sized_body();
                            self->on_body();
                          });
}

// Step by step, since nobody knows how long it will be.
void HttpSession::read_chunked_body() {
  const std::size_t held = request_.room.bytes();
  if (held < received_ + chunk_step && !request_.room.grow(received_ + chunk_step - held))
    return reply_and_close(no_room_reply("more than " + std::to_string(received_) + " bytes of this body",
                                         received_ + chunk_step));
  http::async_read_some(stream_, buffer_, *chunked_,
                        [self = shared_from_this()](Error error, std::size_t) { self->on_chunk(error); });
}

void HttpSession::on_chunk(Error error) {
  if (state_ == State::closed) return;
  if (cut_short_) return reply_and_close(*std::exchange(cut_short_, {}));
  if (error == http::error::body_limit)
    return reply_and_close(error_reply(413, "the body has more than " +
                                                std::to_string(loop_->shared->options.max_body) +
                                                " bytes, which is what is allowed"));
  if (error && error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::partial_message)
    return reply_and_close(error_reply(400, "the chunked body is damaged: " + error.message()));
  if (error) return close();
  received_ = chunked_->get().body().size();
  if (!chunked_->is_done()) return read_chunked_body();
  request_.body = std::move(chunked_->get().body());
  request_.room.shrink_to(request_.body.size());
  chunked_.reset();
  on_body();
}

void HttpSession::on_body() {
  loop_->move(*this, HttpPlace::busy);
  if (record_) record_->bytes_in = request_.body.size();
  if (!content_encoding_.empty() && !beast::iequals(content_encoding_, "identity")) {
    if (beast::iequals(content_encoding_, "gzip") || beast::iequals(content_encoding_, "x-gzip") ||
        beast::iequals(content_encoding_, "deflate"))
      return unpack_body();
    ++exchange_;
    return write(error_reply(415, "Content-Encoding is '" + content_encoding_.substr(0, 64) +
                                      "'; gzip and deflate are understood"));
  }
  if (json_size(request_) > light_json) return dispatch_heavy(false);
  dispatch();
}

void HttpSession::unpack_body() {
  if (request_.body.size() > light_packed) return dispatch_heavy(true);
  const std::size_t most = std::min(light_unpacked, loop_->shared->options.max_body);
  auto unpacked = unpack(request_.body.text(), most, &request_.room);
  if (unpacked) {
    request_.body = std::move(*unpacked);
    request_.room.shrink_to(request_.body.size());
    return dispatch();
  }
  if (unpacked.error().fault == UnpackFault::too_large && most == light_unpacked) return dispatch_heavy(true);
  ++exchange_;
  write(unpack_reply(unpacked.error()));
}

Deliver HttpSession::deliver_to(std::uint64_t exchange) {
  return [self = shared_from_this(), exchange](ReplyMaker make) mutable {
    auto& loop = *self->loop_;
    loop.post([self = std::move(self), exchange, make = std::move(make)]() mutable {
      self->on_reply(exchange, std::move(make));
    });
  };
}

HttpSession::Outcome HttpSession::handle(HttpRequest request, Deliver deliver) {
  try {
    return loop_->shared->handler.handle(std::move(request), std::move(deliver));
  } catch (const std::exception& thrown) {
    return thrown_reply(thrown);
  }
}

void HttpSession::dispatch() {
  state_ = State::open;
  deadline_ = Time::max();  // the service answers each request once, however long it takes
  const auto exchange = ++exchange_;
  auto outcome = handle(std::exchange(request_, {}), deliver_to(exchange));
  if (auto* reply = std::get_if<HttpReply>(&outcome)) return write(std::move(*reply));
  cancel_ = std::move(std::get<Deferred>(outcome).cancel);
  watch();
}

// What takes long, on another thread: other connections of this one go on meanwhile.
void HttpSession::dispatch_heavy(bool packed) {
  state_ = State::open;
  deadline_ = Time::max();
  const auto exchange = ++exchange_;
  const auto abandoned = std::make_shared<std::atomic<bool>>(false);
  WorkPool::Work work = [self = shared_from_this(), exchange, packed, abandoned,
                         request = std::exchange(request_, {}),
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
    return write(full_reply("too many large bodies wait to be read"));
  }
  cancel_ = [abandoned] { *abandoned = true; };
  watch();
}

void HttpSession::on_handled(std::uint64_t exchange, Outcome outcome) {
  const bool awaited = exchange == exchange_ && state_ == State::open;
  if (auto* reply = std::get_if<HttpReply>(&outcome)) {
    if (awaited) write(std::move(*reply));
    return;
  }
  auto& cancel = std::get<Deferred>(outcome).cancel;
  if (awaited && !gone_)
    cancel_ = std::move(cancel);
  else if (cancel)
    cancel();  // nothing happens where it was answered already
}

void HttpSession::watch() {
  if (watching_ || gone_ || buffer_.size() >= pipelined_most) return;
  watching_ = true;
  stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](Error error, std::size_t bytes) {
    self->on_watched(error, bytes);
  });
}

void HttpSession::on_watched(Error error, std::size_t bytes) {
  watching_ = false;
  if (state_ == State::closed) return;
  buffer_.commit(bytes);
  // Cancelled by on_written(), to read what is here already.
  if (error && error != asio::error::operation_aborted) gone_ = true;
  if (state_ == State::open) {
    if (gone_) {
      if (cancel_) std::exchange(cancel_, {})();
    } else {
      watch();
    }
  } else if (state_ == State::idle) {
    if (gone_)
      close();
    else
      next_request();
  }
}

void HttpSession::on_reply(std::uint64_t exchange, ReplyMaker make) {
  if (exchange != exchange_ || state_ != State::open) return;
  HttpReply reply;
  try {
    reply = make();
  } catch (const std::exception& thrown) {
    reply = thrown_reply(thrown);
  }
  write(std::move(reply));
}

void HttpSession::reply_and_close(HttpReply reply) {
  close_after_ = true;
  ++exchange_;
  request_ = {};
  write(std::move(reply));
}

// Ends the read under way, whose handler then sends `reply`.
void HttpSession::cut_short(HttpReply reply) {
  cut_short_ = std::move(reply);
  set_deadline(std::chrono::seconds(2));
  stream_.cancel();
}

void HttpSession::write(HttpReply reply) {
  cancel_ = {};
  reply_ = std::move(reply);
  std::optional<Coding> coding;
  if (reply_.may_pack && !accept_encoding_.empty()) {
    std::size_t size = reply_.body.size();
    for (const auto blob : reply_.blobs) size += blob.size();
    if (size >= smallest_packed) coding = accepted_coding(accept_encoding_);
    if (coding && size > light_answer) {
      if (pack_elsewhere(*coding)) return;
      coding.reset();
    }
    if (coding) pack_reply(reply_, *coding);
  }
  send(coding);
}

// False: the heavy threads have too much to do, and the reply is as it was.
bool HttpSession::pack_elsewhere(Coding coding) {
  auto reply = std::make_shared<HttpReply>(std::move(reply_));
  WorkPool::Work work = [self = shared_from_this(), exchange = exchange_, coding, reply] {
    std::optional<Coding> packed = coding;
    try {
      pack_reply(*reply, coding);
    } catch (const std::bad_alloc&) {
      packed.reset();
    }
    auto& loop = *self->loop_;
    loop.post([self, exchange, packed, reply] {
      if (exchange != self->exchange_ || self->state_ != State::packing) return;
      self->reply_ = std::move(*reply);
      self->send(packed);
    });
    loop.shared->heavy.remove();
  };
  state_ = State::packing;
  deadline_ = Time::max();
  loop_->shared->heavy.add();
  if (loop_->shared->commons.heavy.post(std::move(work))) return true;
  loop_->shared->heavy.remove();
  reply_ = std::move(*reply);
  return false;
}

// `packed`: how the reply's body is packed already.
void HttpSession::send(std::optional<Coding> packed) {
  state_ = State::writing;
  close_after_ |= loop_->stopping || loop_->shared->commons.draining;
  std::size_t size = reply_.body.size();
  for (const auto blob : reply_.blobs) size += blob.size();

  if (trace_.there()) {
    reply_.headers.emplace_back(traceparent_key, traceparent_text(trace_));
    if (!tracestate_.empty()) reply_.headers.emplace_back(tracestate_key, tracestate_);
  }
  head_ = reply_head(reply_, size, version_, packed, close_after_);
  if (record_) record_->bytes_out = head_only_ ? 0 : size;
  set_deadline(transfer_time(loop_->shared->options.body_timeout, size));
  const auto done = [self = shared_from_this()](Error error, std::size_t) { self->on_written(error); };
  // Each piece is a record of its own over TLS: small ones go together.
  const bool together = stream_.is_tls() && !head_only_ && reply_.blobs.empty() && size <= one_record;
  if (together) head_ += reply_.body;
  if (head_only_ || together) {
    asio::async_write(stream_, asio::buffer(head_), done);
  } else if (reply_.blobs.empty()) {
    asio::async_write(
        stream_, std::array<asio::const_buffer, 2>{asio::buffer(head_), asio::buffer(reply_.body)}, done);
  } else {
    std::vector<asio::const_buffer> pieces{asio::buffer(head_), asio::buffer(std::as_const(reply_.body))};
    for (const auto blob : reply_.blobs) pieces.emplace_back(blob.data(), blob.size());
    asio::async_write(stream_, pieces, done);
  }
}

void HttpSession::on_written(Error error) {
  if (state_ == State::closed) return;
  end_record(error ? 499 : reply_.status);
  reply_ = {};
  answered_ = true;
  count_open(false);
  if (error || gone_) return close();
  if (close_after_ || (loop_->stopping && buffer_.size() == 0)) return linger();
  if (!watching_) return next_request();
  // The posted read waits for the next request, unless that is here already.
  state_ = State::idle;
  loop_->move(*this, HttpPlace::idle);
  if (buffer_.size() > 0) stream_.cancel();
  set_deadline(loop_->shared->options.idle_timeout);
}

}  // namespace carillon::frontend
