#include "carillon/frontend/http/http_session.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <sys/socket.h>

#include "carillon/frontend/http/http2_session.h"
#include "carillon/frontend/http/http_framing.h"
#include "carillon/frontend/telemetry/trace.h"

namespace carillon::frontend {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr std::size_t pipelined_most = std::size_t{64} << 10;  // read ahead while a request is open
constexpr std::size_t chunk_step = std::size_t{64} << 10;      // what Beast reads at a time, at most
constexpr std::size_t one_record = std::size_t{15} << 10;      // of an answer, beside its header
constexpr std::size_t idle_buffer = free_header;               // kept by a connection without a request
constexpr std::size_t header_step = std::size_t{4} << 10;      // read at a time
constexpr std::size_t cost_of_field = 96;  // of memory, as Beast keeps it, beside its bytes
// Some clients send an empty line behind a body; more than a few are no accident.
constexpr int empty_lines_most = 4;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
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

std::string_view repeated_in(const http::fields& fields) {
  for (const std::string_view name : fields_once)
    if (fields.count({name.data(), name.size()}) > 1) return name;
  return {};
}

HttpFields fields_of(const http::request_header<>& header) {
  const bool traced = header.count(traceparent_key) == 1;
  HttpFields fields{.method = view(header.method_string()),
                    .target = origin_form(view(header.target())),
                    .content_encoding = view(header[http::field::content_encoding]),
                    .accept_encoding = view(header[http::field::accept_encoding]),
                    .accept = view(header[http::field::accept]),
                    .fetch_site = view(header["Sec-Fetch-Site"]),
                    .repeated = repeated_in(header),
                    .credentials = credentials_in(header),
                    .traceparent = traced ? view(header[traceparent_key]) : std::string_view(),
                    .tracestate = traced ? tracestate_in(header) : std::string()};
  if (const auto it = header.find("Inference-Header-Content-Length"); it != header.end())
    fields.inference_header_length = view(it->value());
  return fields;
}

std::string http_peer(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const auto peer = socket.remote_endpoint(error);
  if (error) return {};
  const std::string address = peer.address().to_string();
  return (peer.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(peer.port());
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
  const auto& commons = loop->shared->commons;
  std::string peer = commons.access_log || commons.spans ? http_peer(socket) : std::string();
  return std::make_shared<HttpSession>(std::move(socket), std::move(loop), std::move(peer));
}

HttpSession::HttpSession(asio::ip::tcp::socket socket, std::shared_ptr<HttpLoop> loop, std::string peer)
    : HttpExchange(std::move(loop), peer),
      stream_(std::make_unique<HttpStream>(
          std::move(socket), loop_->shared->options.tls ? loop_->shared->options.tls->state() : nullptr)),
      peer_(std::move(peer)),
      // Beast would let whoever sends endless chunk extensions fill all memory.
      buffer_(std::max(loop_->shared->options.max_header, pipelined_most) + 2 * chunk_step) {}

void HttpSession::set_deadline(Duration from_now) {
  deadline_ = std::chrono::steady_clock::now() + from_now;
}

void HttpSession::start() {
  if (stream_->is_tls()) return shake_hands();
  next_request();
}

void HttpSession::shake_hands() {
  state_ = State::handshake;
  set_deadline(loop_->shared->options.header_timeout);
  stream_->async_handshake([self = shared_from_this()](Error error) {
    if (self->state_ == State::closed) return;
    if (was_plain_http(error)) return self->refuse_plain();
    if (error) return self->close();
    if (self->stream_->chose_http2()) return self->become_http2();
    self->next_request();
  });
}

// What was read already goes with the connection.
void HttpSession::become_http2() {
  const auto bytes = buffer_.cdata();
  auto next = std::make_shared<Http2Session>(
      loop_, peer_, std::string_view(static_cast<const char*>(bytes.data()), bytes.size()),
      std::move(stream_));
  state_ = State::closed;
  const auto kept = shared_from_this();
  loop_->replace(*this, std::move(next));
}

// In the client's own words, as it could not read others.
void HttpSession::refuse_plain() {
  const HttpReply reply = error_reply(400, "this port speaks TLS: use https://");
  head_ = reply_head(reply, reply.body.size(), version_, std::nullopt, true) + reply.body;
  state_ = State::lingering;
  set_deadline(std::chrono::seconds(2));
  lingered_ = 0;
  asio::async_write(stream_->socket(), asio::buffer(head_),
                    [self = shared_from_this()](Error error, std::size_t) {
                      if (self->state_ == State::closed) return;
                      if (error) return self->close();
                      self->shut_down();
                    });
}

void HttpSession::next_request() {
  skip_empty_lines();
  if (buffer_.size() > 0) return begin_request();
  if (loop_->stopping) return close();
  state_ = State::idle;
  loop_->move(*this, answered_ ? HttpPlace::idle : HttpPlace::strangers);
  if (buffer_.capacity() > idle_buffer) buffer_.shrink_to_fit();
  set_deadline(loop_->shared->options.idle_timeout);
  watch();
}

// A connection's first bytes say which version it speaks. Over TLS that was said before.
void HttpSession::begin_request() {
  if (!answered_ && !stream_->is_tls() && buffer_.size() > 0) {
    const auto bytes = buffer_.cdata();
    switch (http2_opening({static_cast<const char*>(bytes.data()), bytes.size()})) {
      case Http2Opening::whole:
        return become_http2();
      case Http2Opening::part:
        return await_opening();
      case Http2Opening::none:
        break;
    }
  }
  read_header();
}

void HttpSession::await_opening() {
  if (std::exchange(state_, State::header) != State::header)
    set_deadline(loop_->shared->options.header_timeout);
  stream_->async_read_some(buffer_.prepare(4096),
                           [self = shared_from_this()](Error error, std::size_t bytes) {
                             if (self->state_ == State::closed) return;
                             self->buffer_.commit(bytes);
                             if (error || self->cut_short_) return self->on_header(error);
                             self->begin_request();
                           });
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
  parse_header();
}

// Before a request's first line they mean nothing (RFC 9112, section 2.2).
void HttpSession::skip_empty_lines() {
  while (empty_lines_ < empty_lines_most) {
    const auto bytes = buffer_.cdata();
    const std::string_view text(static_cast<const char*>(bytes.data()), bytes.size());
    if (!text.starts_with("\r\n") && !text.starts_with('\n')) return;
    buffer_.consume(text.front() == '\n' ? 1 : 2);
    ++empty_lines_;
  }
}

// Parses as much of the header as is there. The header stays in the buffer until it is whole. A header that
// is no longer small counts, in the buffer and once it is parsed.
void HttpSession::parse_header() {
  skip_empty_lines();
  const auto there = buffer_.cdata();
  const bool any = there.size() > 1 || (there.size() == 1 && *static_cast<const char*>(there.data()) != '\r');
  if (any) {
    Error error;
    header_size_ = parser_->put(there, error);
    buffer_.consume(header_size_);
    if (error == http::error::need_more) error = {};
    if (error || parser_->is_header_done()) return on_header(error);
  }
  if (buffer_.size() > free_header && !hold_header(buffer_.capacity())) {
    loop_->move(*this, HttpPlace::busy);
    begin();
    return reply_and_close(full_reply("there is no room now for a header of more than " +
                                      std::to_string(buffer_.size()) + " bytes: too many are being read"));
  }
  stream_->async_read_some(buffer_.prepare(header_step),
                           [self = shared_from_this()](Error error, std::size_t bytes) {
                             if (self->state_ == State::closed) return;
                             self->buffer_.commit(bytes);
                             if (error || self->cut_short_) return self->on_header(error);
                             self->parse_header();
                           });
}

bool HttpSession::hold_header(std::size_t bytes) {
  if (header_room_.bytes() == 0) header_room_ = SideRoom(loop_->shared->side);
  return bytes <= free_header || header_room_.hold(bytes);
}

// What counts of a header that is not small is with the request by now: the rest would be kept until its
// answer is sent, however long its body takes.
void HttpSession::let_header_go() {
  if (header_size_ <= free_header && header_room_.bytes() == 0) return;
  parser_->get().clear();
  parser_->get().target("");
  buffer_.shrink_to_fit();
  header_room_.shrink_to(kept_of_header() > free_header ? kept_of_header() : 0);
}

void HttpSession::on_header(Error error) {
  if (state_ == State::closed) return;
  loop_->move(*this, HttpPlace::busy);
  begin();
  version_ = 11;
  if (cut_short_) return reply_and_close(*std::exchange(cut_short_, {}));
  if (error) {
    if (error == http::error::header_limit)
      return reply_and_close(error_reply(431, "the request's header has more than " +
                                                  std::to_string(loop_->shared->options.max_header) +
                                                  " bytes"));
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return reply_and_close(error_reply(400, "not an HTTP request: " + error.message()));
    forget();  // there was none
    return close();
  }
  const auto& header = parser_->get();
  version_ = header.version();
  const auto fields = static_cast<std::size_t>(std::distance(header.begin(), header.end()));
  if (const std::size_t cost = header_size_ + fields * cost_of_field; !hold_header(cost)) {
    parser_->get().clear();
    return reply_and_close(full_reply("there is no room now for a header of " + std::to_string(cost) +
                                      " bytes, " + std::to_string(cost_of_field) +
                                      " for each field included: too many are being read"));
  }
  const auto& shared = *loop_->shared;
  close_after_ = !parser_->keep_alive() || loop_->stopping || shared.commons.draining;
  head_only_ = header.method() == http::verb::head;
  if (const auto wrong = check_framing(framing_of(header, version_)))
    return reply_and_close(error_reply(wrong->status, wrong->message));
  const bool waits = beast::iequals(header[http::field::expect], "100-continue");
  auto refused = take_header(fields_of(header));
  let_header_go();
  if (refused) {
    const bool no_body = !parser_->chunked() && parser_->content_length().value_or(0) == 0;
    close_after_ |= !no_body;
    return answer(std::move(*refused));
  }
  // Before any of it is read.
  if (const auto length = parser_->content_length())
    if (auto full = reserve(*length)) return reply_and_close(std::move(*full));
  if (waits) return send_continue();
  read_body();
}

void HttpSession::send_continue() {
  static constexpr std::string_view text = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(*stream_, asio::buffer(text), [self = shared_from_this()](Error error, std::size_t) {
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
  stream_->async_read_some(asio::buffer(request_.body.data() + received_, request_.body.size() - received_),
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
  http::async_read_some(*stream_, buffer_, *chunked_,
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
  body_done();
}

void HttpSession::on_waiting() {
  state_ = State::open;
  deadline_ = Time::max();  // the service answers each request once, however long it takes
  watch();
}

void HttpSession::watch() {
  if (watching_ || gone_ || buffer_.size() >= pipelined_most) return;
  watching_ = true;
  stream_->async_read_some(
      buffer_.prepare(4096),
      [self = shared_from_this()](Error error, std::size_t bytes) { self->on_watched(error, bytes); });
}

void HttpSession::on_watched(Error error, std::size_t bytes) {
  watching_ = false;
  if (state_ == State::closed) return;
  buffer_.commit(bytes);
  // Cancelled by on_written(), to read what is here already.
  if (error && error != asio::error::operation_aborted) gone_ = true;
  if (state_ == State::open) {
    if (gone_)
      cancel();
    else
      watch();
  } else if (state_ == State::idle) {
    if (gone_)
      close();
    else
      next_request();
  }
}

void HttpSession::reply_and_close(HttpReply reply) {
  close_after_ = true;
  answer(std::move(reply));
}

// Ends the read under way, whose handler then sends `reply`.
void HttpSession::cut_short(HttpReply reply) {
  cut_short_ = std::move(reply);
  set_deadline(std::chrono::seconds(2));
  stream_->cancel();
}

// `packed`: how the reply's body is packed already.
void HttpSession::send(std::optional<Coding> packed) {
  state_ = State::writing;
  // First of all: where there is no memory for what follows, the sweep closes the connection.
  set_deadline(loop_->shared->options.body_timeout);
  close_after_ |= loop_->stopping || loop_->shared->commons.draining;
  const std::size_t size = complete_reply();
  head_ = reply_head(reply_, size, version_, packed, close_after_);
  set_deadline(transfer_time(loop_->shared->options.body_timeout, size));
  const auto done = [self = shared_from_this()](Error error, std::size_t) { self->on_written(error); };
  // Each piece is a record of its own over TLS: small ones go together.
  const bool together = stream_->is_tls() && !head_only_ && reply_.blobs.empty() && size <= one_record;
  if (together) head_ += reply_.body;
  if (head_only_ || together) {
    asio::async_write(*stream_, asio::buffer(head_), done);
  } else if (reply_.blobs.empty()) {
    asio::async_write(
        *stream_, std::array<asio::const_buffer, 2>{asio::buffer(head_), asio::buffer(reply_.body)}, done);
  } else {
    std::vector<asio::const_buffer> pieces{asio::buffer(head_), asio::buffer(std::as_const(reply_.body))};
    for (const auto blob : reply_.blobs) pieces.emplace_back(blob.data(), blob.size());
    asio::async_write(*stream_, pieces, done);
  }
}

void HttpSession::on_written(Error error) {
  if (state_ == State::closed) return;
  end(error ? 499 : reply_.status);
  header_room_.shrink_to(0);
  empty_lines_ = 0;
  answered_ = true;
  if (error || gone_) return close();
  if (close_after_ || (loop_->stopping && buffer_.size() == 0)) return linger();
  if (!watching_) return next_request();
  // The posted read waits for the next request, unless that is here already.
  state_ = State::idle;
  loop_->move(*this, HttpPlace::idle);
  if (buffer_.size() > 0) stream_->cancel();
  set_deadline(loop_->shared->options.idle_timeout);
}

}  // namespace carillon::frontend
