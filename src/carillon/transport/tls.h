#pragma once

#include <condition_variable>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <openssl/types.h>

#include "carillon/base/descriptor.h"
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
// two seconds, rows' at once. Connections that stand are not touched. Thread-safe. The credentials keep it
// alive.
class Tls : public std::enable_shared_from_this<Tls> {
 public:
  // Errors (invalid_argument, not_found) name the option, the file and what is wrong: it cannot be read, is
  // no PEM, the key is another certificate's, the certificate has expired, is of another CA, or names no
  // member; internal: the system has no files in memory, or no /proc. `warn` hears, once for each fault and
  // on any thread, that files which have changed cannot be used: connections begin with the earlier ones
  // then.
  static Result<std::shared_ptr<Tls>> open(TlsFiles files, std::function<void(const std::string&)> warn);

  // Of this process, as the files said when they were opened.
  const Identity& identity() const { return identity_; }
  // When the certificate that was opened expires, such as "Nov 29 21:00:00 2026 GMT".
  const std::string& expires() const { return expires_; }

  // For listeners. Whoever has no certificate of the CA gets no connection.
  std::shared_ptr<grpc::ServerCredentials> server();
  // For whoever dials: only schedulers of the cluster are believed.
  std::shared_ptr<grpc::ChannelCredentials> channel(const std::string& cluster);
  // For rows: asks for the peer's certificate, and has no sessions to resume.
  std::shared_ptr<SSL_CTX> context();

 private:
  struct State;
  static Result<State> read(const TlsFiles& files);
  // What gRPC watches: files in memory. gRPC ends the process if a file is empty while others write it.
  class Copies {
   public:
    Result<> hold(const State& state);
    std::shared_ptr<grpc::experimental::CertificateProviderInterface> watched() const;

   private:
    Descriptor pair_, ca_;  // their numbers stay
    std::time_t changes_ = 0;
  };
  Tls(TlsFiles files, std::function<void(const std::string&)> warn, State state, Copies copies);
  void look();  // mutex_ is held
  void keep_looking();

  const TlsFiles files_;
  const std::function<void(const std::string&)> warn_;
  const Identity identity_;
  const std::string expires_;
  std::mutex mutex_;  // of what follows
  std::shared_ptr<SSL_CTX> context_;
  std::string stamp_;  // of the files that were read last
  Copies copies_;
  std::string trouble_;  // with those files; empty: they are in use
  std::condition_variable_any wake_;
  std::jthread looks_;  // from the first credentials on: programs block signals before they start threads
};

// gRPC's words for a call that failed, and what they mean where one side has no TLS, or no certificate that
// the other believes. Fit to be shown.
std::string explained(const std::string& error);

// Whom the peer's certificate names. None: the connection has no TLS.
Result<std::optional<Identity>> identity_of(const grpc::AuthContext& connection);
Result<Identity> identity_of(const X509& certificate);

}  // namespace carillon::transport
