#pragma once

#include <memory>
#include <string>

#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <openssl/ssl.h>

#include "carillon/base/result.h"

namespace carillon::cli {

// TLS as a client of one server: whom it believes, and what it shows. Safe from any thread once it is made.
class TlsClient {
 public:
  // PEM each; `ca` empty: the CAs of the system; `certificate` empty: none. `http2`: that is what will be
  // spoken. Errors name the option that such text is from.
  static Result<std::shared_ptr<const TlsClient>> make(std::string host, bool http2, const std::string& ca,
                                                       const std::string& certificate,
                                                       const std::string& private_key);

  boost::asio::ssl::context& context() const { return context_; }
  // Before its handshake: whom the connection has to lead to.
  void prepare(SSL* connection) const;
  // The names and addresses that the certificate under verification is for, as text.
  static std::string names_in(X509_STORE_CTX* verification);
  // Why a handshake, or what came after it, failed, and what would help. `names`: those of the server's
  // certificate, where it was not believed.
  std::string why(SSL* connection, const boost::system::error_code& error, const std::string& names) const;
  // The same of a server that closed the connection after the handshake, without a word.
  std::string why_closed() const;

 private:
  explicit TlsClient(std::string host) : host_(std::move(host)) {}

  const std::string host_;
  mutable boost::asio::ssl::context context_{boost::asio::ssl::context::tls_client};
  bool shows_certificate_ = false;
  bool believes_system_ = false;
};

}  // namespace carillon::cli
