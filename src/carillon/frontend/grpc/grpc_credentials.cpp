#include "carillon/frontend/grpc/grpc_credentials.h"

#include <cstdint>
#include <string>
#include <utility>

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include "carillon/base/assert.h"

namespace carillon::frontend {
namespace {

// gRPC's C++ has no credentials whose certificates change without files of its own to watch; its C interface
// asks for them at each handshake.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsCredentials(std::shared_ptr<Tls> tls)
      : tls_(std::move(tls)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                tls_->asks_clients() ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                     : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                fetch, this))) {
    CARILLON_ASSERT(credentials_ != nullptr);
  }
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    CARILLON_ASSERT(false);  // nobody here has one
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC calls it for one connection at a time.
  static grpc_ssl_certificate_config_reload_status fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config) {
    auto& credentials = *static_cast<TlsCredentials*>(self);
    const auto state = credentials.tls_->state();
    if (state->generation == credentials.given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{state->key.c_str(), state->certificate.c_str()};
    // It wants some CA even where it asks clients for no certificate, and then has no use for it.
    *config = grpc_ssl_server_certificate_config_create(
        (state->client_ca.empty() ? state->certificate : state->client_ca).c_str(), &pair, 1);
    if (*config == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    credentials.given_ = state->generation;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<Tls> tls_;
  std::uint64_t given_ = 0;  // the generation that gRPC has
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> tls_credentials(std::shared_ptr<Tls> tls) {
  return std::make_shared<TlsCredentials>(std::move(tls));
}

}  // namespace carillon::frontend
