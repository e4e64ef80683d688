#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "carillon/frontend/access/tls.h"

namespace carillon::frontend {

// What a connection is read from and written to: its socket, or TLS on it. An AsyncReadStream and
// AsyncWriteStream, of which one read and one write may be under way at a time. On its loop's thread.
//
// A read that is cancelled (by cancel()) has taken nothing, over TLS either: the next one goes on from there.
class HttpStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using executor_type = Socket::executor_type;

  // `tls`: null for none.
  HttpStream(Socket socket, std::shared_ptr<const TlsState> tls)
      : socket_(std::move(socket)), state_(std::move(tls)) {
    if (state_) tls_.emplace(socket_, *state_->context);
  }
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  bool is_tls() const { return tls_.has_value(); }
  Socket& socket() { return socket_; }
  executor_type get_executor() { return socket_.get_executor(); }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_)
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    else
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }

  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_)
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    else
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }

  // Of TLS alone. async_shutdown() tells the client that no more comes, and waits until it has said so too.
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  // Whether that ended with HTTP/2 agreed upon.
  bool chose_http2() {
    if (!tls_) return false;
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(tls_->native_handle(), &name, &size);
    return std::string_view(reinterpret_cast<const char*>(name), size) == "h2";
  }
  template <typename Handler>
  void async_shutdown(Handler&& handler) {
    tls_->async_shutdown(std::forward<Handler>(handler));
  }

  void cancel() {
    boost::system::error_code ignored;
    (void)socket_.cancel(ignored);
  }

 private:
  Socket socket_;
  const std::shared_ptr<const TlsState> state_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

// Whether a handshake failed since the client speaks plain HTTP.
inline bool was_plain_http(const boost::system::error_code& error) {
  return error.category() == boost::asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace carillon::frontend
