#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "carillon/base/socket_stream.h"
#include "carillon/frontend/access/tls.h"

namespace carillon::frontend {

// A client's connection. On its loop's thread.
//
// A read that is cancelled (by cancel()) has taken nothing, over TLS either: the next one goes on from there.
class HttpStream : public SocketStream {
 public:
  // `tls`: null for none.
  HttpStream(Socket socket, std::shared_ptr<const TlsState> tls)
      : SocketStream(std::move(socket)), state_(std::move(tls)) {
    if (state_) begin_tls(*state_->context);
  }

  bool is_tls() const { return state_ != nullptr; }

  // Of TLS alone. async_shutdown() tells the client that no more comes, and waits until it has said so too.
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls()->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  // Whether that ended with HTTP/2 agreed upon.
  bool chose_http2() {
    if (tls() == nullptr) return false;
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(tls()->native_handle(), &name, &size);
    return std::string_view(reinterpret_cast<const char*>(name), size) == "h2";
  }
  template <typename Handler>
  void async_shutdown(Handler&& handler) {
    tls()->async_shutdown(std::forward<Handler>(handler));
  }

  void cancel() {
    boost::system::error_code ignored;
    (void)socket().cancel(ignored);
  }

 private:
  const std::shared_ptr<const TlsState> state_;
};

// Whether a handshake failed since the client speaks plain HTTP.
inline bool was_plain_http(const boost::system::error_code& error) {
  return error.category() == boost::asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace carillon::frontend
