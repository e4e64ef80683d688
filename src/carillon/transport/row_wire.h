#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <openssl/types.h>

#include "carillon/base/result.h"
#include "carillon/transport/identity.h"

namespace carillon::transport::rows {

inline bool would_block(const boost::system::error_code& error) {
  return error == boost::asio::error::would_block || error == boost::asio::error::try_again;
}

// What went wrong with a connection, in words. A certificate that was refused is invalid_argument, all else
// unavailable.
Error error_of(const boost::system::error_code& error);

// A connection of rows whose socket does not block: TCP, or TLS over it. After an error it is only closed.
// One thread may read while another writes.
class Wire {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Then = std::function<void(const boost::system::error_code&)>;
  // Who the peer is, by its certificate.
  using Known = std::function<void(Result<Identity>)>;

  explicit Wire(Socket socket);

  Socket& socket() { return socket_; }
  // Speaks TLS from here on, with a context of Tls::context(). `then` is called, perhaps at once, unless the
  // wire is closed before; until then nothing else uses the wire, and it must not go. Errors: the peer does
  // not speak TLS, or its certificate is not believed. After an error the wire has no TLS, and writes in the
  // clear.
  void greet(std::shared_ptr<SSL_CTX> context, bool accepts, Known then);

  // As the socket's: how many bytes, 0 where there is an error. would_block: wait.
  std::size_t read_some(std::span<const boost::asio::mutable_buffer> into, boost::system::error_code& error);
  // What was not written must come first the next time.
  std::size_t write_some(std::span<const boost::asio::const_buffer> from, boost::system::error_code& error);
  // `then` is called, later, once it is worth to read or write.
  void wait_read(Then then);
  void wait_write(Then then);

  // Tells the peer that nothing more comes. Again: nothing.
  void shutdown();
  void close();

 private:
  using Kept = std::shared_ptr<SSL>;

  void shake(const Kept& connection, Known then);
  boost::system::error_code error_after(int result, Socket::wait_type& wants);

  Socket socket_;
  std::mutex mutex_;     // of all below
  Kept ssl_;             // null: no TLS
  bool drained_ = true;  // TLS has handed out all that has come
  Socket::wait_type reads_after_ = Socket::wait_read, writes_after_ = Socket::wait_write;
  boost::system::error_code broken_;     // found out by a read that had bytes to return
  std::unique_ptr<std::byte[]> record_;  // small buffers that go together
};

}  // namespace carillon::transport::rows
