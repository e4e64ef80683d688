#pragma once

#include <optional>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace carillon {

// A connection that is read from and written to: a TCP socket, or TLS on it. An AsyncReadStream and
// AsyncWriteStream of Asio. At most one read and one write may be under way. One thread at a time. The caller
// keeps the stream until its operations are over.
//
// This header has no library: a target that includes it links Boost and OpenSSL.
class SocketStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using TlsStream = boost::asio::ssl::stream<Socket&>;
  using executor_type = Socket::executor_type;

  explicit SocketStream(Socket socket) : socket_(std::move(socket)) {}
  // Of a socket that is not open yet.
  explicit SocketStream(const executor_type& executor) : socket_(executor) {}
  SocketStream(const SocketStream&) = delete;
  SocketStream& operator=(const SocketStream&) = delete;

  Socket& socket() { return socket_; }
  // Null: there is no TLS.
  TlsStream* tls() { return tls_ ? &*tls_ : nullptr; }
  // From now on reads and writes go through TLS; the caller shakes hands first. `context` has to last until
  // the last use of this stream, but not until its destructor.
  TlsStream& begin_tls(boost::asio::ssl::context& context) { return tls_.emplace(socket_, context); }
  // Closes the socket. The next one is not open yet, and speaks no TLS.
  void reset() {
    tls_.reset();
    socket_ = Socket(socket_.get_executor());
  }

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

 private:
  Socket socket_;
  std::optional<TlsStream> tls_;
};

}  // namespace carillon
