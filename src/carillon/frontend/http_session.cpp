#include "carillon/frontend/http_session.h"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "carillon/frontend/compression.h"
#include "carillon/frontend/infer_codec_json.h"
#include "carillon/frontend/status.h"

namespace carillon::frontend {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr std::size_t pipelined_most = std::size_t{64} << 10;  // read ahead while a request is open
constexpr std::size_t smallest_packed = 1024;                  // answers below are not worth packing
constexpr std::size_t linger_most = std::size_t{16} << 20;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

// Libraries and the allocator throw; a connection must not take the server with it.
HttpReply thrown_reply(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr)
    return error_reply(503, "out of memory for this request");
  return error_reply(500, thrown.what());
}

Duration transfer_time(Duration base, std::size_t bytes) {
  return base + std::chrono::seconds(bytes >> 18);
}

}  // namespace

HttpReply error_reply(int status, std::string_view message) {
  return {.status = status, .body = error_json(message)};
}

HttpReply error_reply(const Error& error) {
  return error_reply(http_status(error.code), error.message);
}

HttpSession::HttpSession(asio::ip::tcp::socket socket, std::shared_ptr<HttpLoop> loop)
    : loop_(std::move(loop)), socket_(std::move(socket)) {}

void HttpSession::set_deadline(Duration from_now) {
  deadline_ = std::chrono::steady_clock::now() + from_now;
}

void HttpSession::start() {
  Error ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  read_header();
}

void HttpSession::read_header() {
  if (loop_->stopping && buffer_.size() == 0) return close();
  state_ = buffer_.size() == 0 ? State::idle : State::reading;
  set_deadline(loop_->shared->options.idle_timeout);
  parser_.emplace();
  chunked_.reset();
  parser_->header_limit(static_cast<std::uint32_t>(
      std::min<std::size_t>(loop_->shared->options.max_header, std::numeric_limits<std::uint32_t>::max())));
  // Held against max_body below, with an answer (boost::none would mean a limit of nothing in 1.74).
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](Error error, std::size_t) { self->on_header(error); });
}

void HttpSession::on_header(Error error) {
  if (state_ == State::closed) return;
  state_ = State::reading;
  if (error) {
    version_ = 11;
    if (error == http::error::header_limit)
      return reply_and_close(431, "the request's header has more than " +
                                      std::to_string(loop_->shared->options.max_header) + " bytes");
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return reply_and_close(400, "not an HTTP request: " + error.message());
    return close();
  }
  const auto& header = parser_->get();
  version_ = header.version();
  close_after_ = !parser_->keep_alive() || loop_->stopping;
  request_ = {};
  request_.method = view(header.method_string());
  request_.target = view(header.target());
  content_encoding_ = view(header[http::field::content_encoding]);
  accept_encoding_ = view(header[http::field::accept_encoding]);
  if (const auto it = header.find("Inference-Header-Content-Length"); it != header.end())
    request_.inference_header_length = view(it->value());
  if (parser_->content_length() && *parser_->content_length() > loop_->shared->options.max_body)
    return reply_and_close(413, "the body has " + std::to_string(*parser_->content_length()) +
                                    " bytes; at most " + std::to_string(loop_->shared->options.max_body) +
                                    " are allowed");
  if (beast::iequals(header[http::field::expect], "100-continue")) return send_continue();
  read_body();
}

void HttpSession::send_continue() {
  static constexpr std::string_view text = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(text), [self = shared_from_this()](Error error, std::size_t) {
    if (self->state_ == State::closed) return;
    if (error) return self->close();
    self->read_body();
  });
}

void HttpSession::read_body() {
  if (parser_->chunked()) return read_chunked_body();
  const auto size = static_cast<std::size_t>(parser_->content_length().value_or(0));
  if (size == 0) return on_body();
  read_sized_body(size);
}

// Straight from the socket into the body, but for what came with the header.
void HttpSession::read_sized_body(std::size_t size) {
  try {
    request_.body = PaddedBytes(size);
  } catch (const std::bad_alloc&) {
    return reply_and_close(503, "no memory for a body of " + std::to_string(size) + " bytes");
  }
  const std::size_t had = asio::buffer_copy(asio::buffer(request_.body.data(), size), buffer_.data());
  buffer_.consume(had);
  if (had == size) return on_body();
  set_deadline(transfer_time(loop_->shared->options.body_timeout, size));
  asio::async_read(socket_, asio::buffer(request_.body.data() + had, size - had),
                   [self = shared_from_this()](Error error, std::size_t) {
                     if (self->state_ == State::closed) return;
                     if (error) return self->close();
                     self->on_body();
                   });
}

void HttpSession::read_chunked_body() {
  chunked_.emplace(std::move(*parser_));
  chunked_->body_limit(loop_->shared->options.max_body);
  set_deadline(transfer_time(loop_->shared->options.body_timeout, loop_->shared->options.max_body));
  http::async_read(socket_, buffer_, *chunked_, [self = shared_from_this()](Error error, std::size_t) {
    if (self->state_ == State::closed) return;
    if (error == http::error::body_limit)
      return self->reply_and_close(413, "the body has more than " +
                                            std::to_string(self->loop_->shared->options.max_body) +
                                            " bytes, which is what is allowed");
    if (error && error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::partial_message)
      return self->reply_and_close(400, "the chunked body is damaged: " + error.message());
    if (error) return self->close();
    self->request_.body = PaddedBytes(self->chunked_->get().body());
    self->chunked_.reset();
    self->on_body();
  });
}

void HttpSession::on_body() {
  if (!content_encoding_.empty() && !beast::iequals(content_encoding_, "identity")) {
    if (!beast::iequals(content_encoding_, "gzip") && !beast::iequals(content_encoding_, "x-gzip") &&
        !beast::iequals(content_encoding_, "deflate")) {
      ++exchange_;
      return write(error_reply(415, "Content-Encoding is '" + content_encoding_.substr(0, 64) +
                                        "'; gzip and deflate are understood"));
    }
    auto unpacked = unpack(request_.body.text(), loop_->shared->options.max_body);
    if (!unpacked) {
      ++exchange_;
      return write(error_reply(unpacked.error()));
    }
    request_.body = std::move(*unpacked);
  }
  dispatch();
}

void HttpSession::dispatch() {
  state_ = State::open;
  deadline_ = Time::max();  // the service answers each request once, however long it takes
  const auto exchange = ++exchange_;
  Deliver deliver = [self = shared_from_this(), exchange](ReplyMaker make) mutable {
    auto& loop = *self->loop_;
    loop.post([self = std::move(self), exchange, make = std::move(make)]() mutable {
      self->on_reply(exchange, std::move(make));
    });
  };
  std::variant<HttpReply, Deferred> outcome;
  try {
    outcome = loop_->shared->handler.handle(std::exchange(request_, {}), std::move(deliver));
  } catch (const std::exception& thrown) {
    outcome = thrown_reply(thrown);
  }
  if (auto* reply = std::get_if<HttpReply>(&outcome)) return write(std::move(*reply));
  cancel_ = std::move(std::get<Deferred>(outcome).cancel);
  watch();
}

void HttpSession::watch() {
  if (watching_ || gone_ || buffer_.size() >= pipelined_most) return;
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](Error error, std::size_t bytes) {
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
      read_header();
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

void HttpSession::reply_and_close(int status, std::string_view message) {
  close_after_ = true;
  accept_encoding_.clear();
  ++exchange_;
  write(error_reply(status, message));
}

void HttpSession::write(HttpReply reply) {
  state_ = State::writing;
  set_deadline(loop_->shared->options.body_timeout);
  cancel_ = {};
  reply_ = std::move(reply);
  close_after_ |= loop_->stopping;

  std::size_t size = reply_.body.size();
  for (const auto blob : reply_.blobs) size += blob.size();
  std::optional<Coding> coding;
  if (size >= smallest_packed && !accept_encoding_.empty()) coding = accepted_coding(accept_encoding_);
  if (coding) {
    std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(reply_.body))};
    pieces.insert(pieces.end(), reply_.blobs.begin(), reply_.blobs.end());
    reply_.body = pack(*coding, pieces);
    reply_.blobs.clear();
    size = reply_.body.size();
  }

  head_ = version_ == 10 ? "HTTP/1.0 " : "HTTP/1.1 ";
  head_ += std::to_string(reply_.status);
  head_ += ' ';
  head_ += reason_phrase(reply_.status);
  head_ +=
      "\r\nContent-Type: " + reply_.content_type + "\r\nContent-Length: " + std::to_string(size) + "\r\n";
  for (const auto& [name, value] : reply_.headers) head_ += name + ": " + value + "\r\n";
  if (coding)
    head_ += *coding == Coding::gzip ? "Content-Encoding: gzip\r\n" : "Content-Encoding: deflate\r\n";
  if (close_after_)
    head_ += "Connection: close\r\n";
  else if (version_ == 10)
    head_ += "Connection: keep-alive\r\n";
  head_ += "\r\n";

  set_deadline(transfer_time(loop_->shared->options.body_timeout, size));
  const auto done = [self = shared_from_this()](Error error, std::size_t) { self->on_written(error); };
  if (reply_.blobs.empty()) {
    asio::async_write(
        socket_, std::array<asio::const_buffer, 2>{asio::buffer(head_), asio::buffer(reply_.body)}, done);
  } else {
    std::vector<asio::const_buffer> pieces{asio::buffer(head_), asio::buffer(std::as_const(reply_.body))};
    for (const auto blob : reply_.blobs) pieces.emplace_back(blob.data(), blob.size());
    asio::async_write(socket_, pieces, done);
  }
}

void HttpSession::on_written(Error error) {
  if (state_ == State::closed) return;
  reply_ = {};
  if (error || gone_) return close();
  if (close_after_ || (loop_->stopping && buffer_.size() == 0)) return linger();
  if (!watching_) return read_header();
  // The posted read waits for the next request, unless that is here already.
  state_ = State::idle;
  if (buffer_.size() > 0) socket_.cancel(error);
  set_deadline(loop_->shared->options.idle_timeout);
}

// Closing with bytes unread would reset the connection, and the client might never see the answer: tell it
// that no more comes, and read for a little until it has closed too.
void HttpSession::linger() {
  state_ = State::lingering;
  set_deadline(std::chrono::seconds(2));
  Error ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  if (watching_) socket_.cancel(ignored);
  lingered_ = 0;
  drain();
}

void HttpSession::drain() {
  buffer_.consume(buffer_.size());
  socket_.async_read_some(buffer_.prepare(std::size_t{16} << 10),
                          [self = shared_from_this()](Error error, std::size_t bytes) {
                            if (self->state_ == State::closed) return;
                            self->lingered_ += bytes;
                            if (error || self->lingered_ > linger_most) return self->close();
                            self->drain();
                          });
}

void HttpSession::begin_stop() {
  if (state_ == State::idle && buffer_.size() == 0) close();
}

void HttpSession::refuse_open() {
  if (state_ == State::open) {
    if (cancel_) std::exchange(cancel_, {})();
    if (state_ != State::open) return;
    ++exchange_;
    close_after_ = true;
    write(error_reply(503, "the server is going away"));
  } else if (state_ == State::idle || state_ == State::reading) {
    close();
  }
}

void HttpSession::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  if (cancel_) std::exchange(cancel_, {})();
  Error ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  loop_->remove(this);
}

}  // namespace carillon::frontend
