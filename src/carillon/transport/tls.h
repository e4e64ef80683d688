#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <openssl/types.h>

#include "carillon/base/result.h"
#include "carillon/transport/identity.h"

namespace carillon::transport {

// Files of PEM, as --cluster-cert, --cluster-cert-key and --cluster-ca name them.
struct TlsFiles {
  std::string certificate;  // of this process; behind it those between it and the CA
  std::string key;          // of the first of them, without a passphrase
  std::string ca;           // one or several that sign the members' certificates
};

// Mutual TLS between the members of a cluster: both sides show certificates that the CA signed. Hosts' names
// are not looked at: identities are (identity.h). New connections see files that have changed: gRPC's within
// a second, rows' at once. Connections that stand are not touched. Thread-safe.
class Tls {
 public:
  // Errors (invalid_argument, not_found) name the option, the file and what is wrong: it cannot be read, is
  // no PEM, the key is another certificate's, the certificate has expired, is of another CA, or names no
  // member. `warn` hears that files which have changed cannot be used: connections begin with the earlier
  // ones then.
  static Result<std::shared_ptr<Tls>> open(TlsFiles files, std::function<void(const std::string&)> warn);

  // Of this process, as the files said when they were opened.
  const Identity& identity() const { return identity_; }
  // When the certificate that was opened expires, such as "Nov 29 21:00:00 2026 GMT".
  const std::string& expires() const { return expires_; }

  // For listeners. Whoever has no certificate of the CA gets no connection.
  std::shared_ptr<grpc::ServerCredentials> server() const;
  // For whoever dials: only schedulers of the cluster are believed.
  std::shared_ptr<grpc::ChannelCredentials> channel(const std::string& cluster) const;
  // For rows: asks for the peer's certificate, and has no sessions to resume.
  std::shared_ptr<SSL_CTX> context();

 private:
  struct State;
  static Result<State> read(const TlsFiles& files);
  Tls(TlsFiles files, std::function<void(const std::string&)> warn, State state);

  const TlsFiles files_;
  const std::function<void(const std::string&)> warn_;
  const Identity identity_;
  const std::string expires_;
  std::mutex mutex_;  // of what follows
  std::shared_ptr<SSL_CTX> context_;
  std::string stamp_;  // of the files that were read last
};

// gRPC's words for a call that failed, and what they mean where one side has no TLS, or no certificate that
// the other believes.
std::string explained(const std::string& error);

// Whom the peer's certificate names. None: the connection has no TLS.
Result<std::optional<Identity>> identity_of(const grpc::AuthContext& connection);
Result<Identity> identity_of(const X509& certificate);

}  // namespace carillon::transport
