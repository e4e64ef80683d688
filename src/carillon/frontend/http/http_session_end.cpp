// How connections end, and what ends them.

#include <chrono>
#include <string>
#include <utility>

#include <poll.h>

#include "carillon/frontend/http/http_session.h"

namespace carillon::frontend {

namespace asio = boost::asio;

namespace {

constexpr std::size_t linger_most = std::size_t{16} << 20;

}  // namespace

// Closing with bytes unread would reset the connection, and the client might never see the answer: tell it
// that no more comes, and read for a little until it has closed too.
void HttpSession::linger() {
  state_ = State::lingering;
  loop_->move(*this, HttpPlace::strangers);
  set_deadline(std::chrono::seconds(2));
  if (watching_) stream_->cancel();
  lingered_ = 0;
  if (!stream_->is_tls()) return shut_down();
  stream_->async_shutdown([self = shared_from_this()](Error) {
    if (self->state_ != State::closed) self->shut_down();
  });
}

void HttpSession::shut_down() {
  Error ignored;
  (void)stream_->socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  drain();
}

void HttpSession::drain() {
  buffer_.consume(buffer_.size());
  // What comes over TLS needs no deciphering any more.
  stream_->socket().async_read_some(buffer_.prepare(std::size_t{16} << 10),
                                    [self = shared_from_this()](Error error, std::size_t bytes) {
                                      if (self->state_ == State::closed) return;
                                      self->lingered_ += bytes;
                                      if (error || self->lingered_ > linger_most) return self->close();
                                      self->drain();
                                    });
}

// Whether the client has closed its side of the connection, however much of what it sent is not read yet.
bool HttpSession::client_closed() const {
  pollfd connection{.fd = stream_->socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&connection, 1, 0) == 1 && (connection.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void HttpSession::sweep(Time now, bool no_room) {
  if (state_ == State::body && !cut_short_) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - body_began_).count();
    if (no_room && age >= 1 && received_ / static_cast<std::size_t>(age) < slow_body)
      return cut_short(full_reply("the body arrives slowly, and others find no room for theirs"));
    if (now < deadline_) return;
    const auto& options = loop_->shared->options;
    if (received_ - received_at_window_ >= options.body_progress) {
      received_at_window_ = received_;
      set_deadline(options.body_timeout);
      return;
    }
    return cut_short(error_reply(
        408, "the body arrives too slowly: " + std::to_string(received_) + " bytes of it so far"));
  }
  if (state_ == State::open && !watching_ && !gone_ && client_closed()) {
    gone_ = true;
    return cancel();
  }
  if (now < deadline_) return;
  if (state_ == State::header && !cut_short_)
    return cut_short(error_reply(408, "the request's header did not arrive in time"));
  close();
}

void HttpSession::begin_stop() {
  if (state_ == State::handshake || state_ == State::idle || state_ == State::header) close();
}

void HttpSession::refuse_open() {
  if (state_ == State::open) {
    cancel();
    if (state_ != State::open) return;
    reply_and_close(error_reply(503, "the server is going away"));
  } else if (state_ == State::idle || state_ == State::header || state_ == State::body) {
    close();
  }
}

void HttpSession::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  abandon();
  Error ignored;
  (void)stream_->socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  (void)stream_->socket().close(ignored);
  loop_->remove(*this);
}

}  // namespace carillon::frontend
