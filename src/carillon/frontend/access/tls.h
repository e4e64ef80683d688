#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <boost/asio/ssl/context.hpp>

#include "carillon/base/result.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

// Files in PEM, as the command line names them.
struct TlsFiles {
  std::string certificate;  // the server's, and behind it those between it and its CA
  std::string key;          // of the first of them, without a passphrase
  std::string client_ca;    // empty: clients need no certificate
};

// One state of the files. Never changes.
struct TlsState {
  std::uint64_t generation = 0;  // another for every state
  std::string certificate;
  std::string key;
  std::string client_ca;
  // TLS 1.2 or 1.3, ciphers with forward secrecy alone, no renegotiation, no compression; of the protocols
  // that the client offers chooses h2, else http/1.1.
  std::shared_ptr<boost::asio::ssl::context> context;
};

// The certificates of all doors, which may be read anew while they are open: connections keep the state that
// they began with. Safe from any thread.
class Tls {
 public:
  // Errors name the option (--tls-cert, ...), the file and what is wrong with it: it cannot be read, is not
  // PEM, or the key is another certificate's. What only looks wrong (a certificate that has expired, a key
  // that everybody may read) is told to `log`.
  static Result<std::shared_ptr<Tls>> open(TlsFiles files, Log log);

  // Reads the files again. Errors as open()'s: everything stays as it was.
  Result<> reload();

  std::shared_ptr<const TlsState> state() const;
  // Whether clients must have a certificate of the client CA.
  bool asks_clients() const { return !files_.client_ca.empty(); }

 private:
  Tls(TlsFiles files, Log log) : files_(std::move(files)), log_(std::move(log)) {}

  const TlsFiles files_;
  const Log log_;
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsState> state_;
};

}  // namespace carillon::frontend
