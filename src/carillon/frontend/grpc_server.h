#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/service.h"
#include "carillon/frontend/address.h"

namespace carillon::frontend {

struct GrpcOptions {
  Address address;
  std::string option = "--grpc";                   // named in errors about the address
  Duration stop_grace = std::chrono::seconds(10);  // open calls have so long after stop()
};

// KServe v2 over gRPC with Triton's extensions, and the health service. Messages may have up to 2 GiB; gzip
// and deflate are understood. The call's deadline is the request's where it names none; a call that its
// client cancels, or whose client goes, is cancelled. Methods that are not served answer UNIMPLEMENTED.
class GrpcServer {
 public:
  // Listens when it returns. Errors: the address cannot be bound, and why. `service` outlives the server.
  static Result<std::unique_ptr<GrpcServer>> start(controller::Service& service, GrpcOptions options);

  virtual ~GrpcServer() = default;  // stops
  virtual std::uint16_t port() const = 0;
  // Accepts no more calls; open ones finish within the grace or are cancelled. May be called twice.
  virtual void stop() = 0;
};

}  // namespace carillon::frontend
