#pragma once

#include <memory>
#include <string>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/verify_context.hpp>

#include "carillon/base/socket_stream.h"
#include "carillon/cli/load/tls_client.h"

namespace carillon::cli {

// A client's connection, which may be opened again and again.
class Wire : public SocketStream {
 public:
  using Endpoints = boost::asio::ip::tcp::resolver::results_type;
  using Error = boost::system::error_code;

  // `tls`: null for none.
  Wire(const executor_type& executor, std::shared_ptr<const TlsClient> tls)
      : SocketStream(executor), client_(std::move(tls)) {}

  // Closes what was open, connects and shakes hands; then calls `done` with what went wrong, empty for
  // nothing.
  template <typename Done>
  void async_open(const Endpoints& endpoints, Done done) {
    reset();
    boost::asio::async_connect(
        socket(), endpoints, [this, done = std::move(done)](const Error& error, const auto&) mutable {
          if (error) return done(error.message());
          Error ignored;  // slower without it, no more
          (void)socket().set_option(boost::asio::ip::tcp::no_delay(true), ignored);
          if (!client_) return done(std::string());
          TlsStream& stream = begin_tls(client_->context());
          client_->prepare(stream.native_handle());
          names_.clear();
          stream.set_verify_callback([this](bool good, boost::asio::ssl::verify_context& context) {
            if (!good) names_ = TlsClient::names_in(context.native_handle());
            return good;
          });
          stream.async_handshake(boost::asio::ssl::stream_base::client,
                                 [this, done = std::move(done)](const Error& failed) mutable {
                                   done(failed ? why(failed) : std::string());
                                 });
        });
  }
  // For people, of what a read or a write failed with.
  std::string why(const Error& error) {
    return tls() != nullptr ? client_->why(tls()->native_handle(), error, names_) : error.message();
  }
  void close() {
    Error ignored;
    (void)socket().close(ignored);
  }

 private:
  const std::shared_ptr<const TlsClient> client_;
  std::string names_;  // of the server's certificate, where it was not believed
};

}  // namespace carillon::cli
