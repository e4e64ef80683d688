#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/ssl/verify_context.hpp>

#include "carillon/cli/load/tls_client.h"

namespace carillon::cli {

// A client's connection: TCP, or TLS on it. An AsyncReadStream and AsyncWriteStream. One thread at a time; it
// outlives what it is asked for.
class Wire {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Endpoints = boost::asio::ip::tcp::resolver::results_type;
  using executor_type = Socket::executor_type;
  using Error = boost::system::error_code;

  // `tls`: null for none.
  Wire(const executor_type& executor, std::shared_ptr<const TlsClient> tls)
      : socket_(executor), tls_(std::move(tls)) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // Closes what was open, connects and shakes hands; then calls `done` with what went wrong, empty for
  // nothing.
  template <typename Done>
  void async_open(const Endpoints& endpoints, Done done) {
    stream_.reset();
    socket_ = Socket(socket_.get_executor());
    boost::asio::async_connect(
        socket_, endpoints, [this, done = std::move(done)](const Error& error, const auto&) mutable {
          if (error) return done(error.message());
          Error ignored;  // slower without it, no more
          (void)socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
          if (!tls_) return done(std::string());
          stream_.emplace(socket_, tls_->context());
          tls_->prepare(stream_->native_handle());
          names_.clear();
          stream_->set_verify_callback([this](bool good, boost::asio::ssl::verify_context& context) {
            if (!good) names_ = TlsClient::names_in(context.native_handle());
            return good;
          });
          stream_->async_handshake(boost::asio::ssl::stream_base::client,
                                   [this, done = std::move(done)](const Error& failed) mutable {
                                     done(failed ? why(failed) : std::string());
                                   });
        });
  }
  // For people, of what a read or a write failed with.
  std::string why(const Error& error) {
    return stream_ ? tls_->why(stream_->native_handle(), error, names_) : error.message();
  }
  void close() {
    Error ignored;
    (void)socket_.close(ignored);
  }

  executor_type get_executor() { return socket_.get_executor(); }
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (stream_)
      stream_->async_read_some(buffers, std::forward<Handler>(handler));
    else
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (stream_)
      stream_->async_write_some(buffers, std::forward<Handler>(handler));
    else
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }

 private:
  Socket socket_;
  const std::shared_ptr<const TlsClient> tls_;
  std::optional<boost::asio::ssl::stream<Socket&>> stream_;
  std::string names_;  // of the server's certificate, where it was not believed
};

}  // namespace carillon::cli
