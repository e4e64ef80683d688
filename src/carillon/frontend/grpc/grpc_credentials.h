#pragma once

#include <memory>

#include <grpcpp/security/server_credentials.h>

#include "carillon/frontend/access/tls.h"

namespace carillon::frontend {

// gRPC over TLS with what `tls` has when a connection begins, so that certificates which are read anew are
// those of the next connection. Whether clients need a certificate is settled here once. To be kept as long
// as the server that is built with it.
std::shared_ptr<grpc::ServerCredentials> tls_credentials(std::shared_ptr<Tls> tls);

}  // namespace carillon::frontend
