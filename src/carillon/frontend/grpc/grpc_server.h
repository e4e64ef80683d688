#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/grpc/grpc_keepalive.h"
#include "carillon/frontend/net/address.h"

namespace carillon::frontend {

class Tls;

struct GrpcOptions {
  Address address;
  std::string option = "--grpc";                    // named in errors about the address
  std::size_t max_body = std::size_t{256} << 20;    // bytes of a message, packed or not; 2 GiB at most count
  Duration idle_timeout = std::chrono::minutes(5);  // of connections without a call
  Duration stop_grace = std::chrono::seconds(10);   // open calls have so long after stop()
  int highest_descriptor = std::numeric_limits<int>::max();  // see ListenerOptions
  std::shared_ptr<Tls> tls;                                  // null: none
  GrpcKeepalive keepalive;
  Bytes buffers{};                   // see Options of frontend.h
  int most_of_connection = 1024;     // calls and streams of a connection at a time; more wait at the client
  std::size_t most_calls = 1 << 16;  // calls with one answer at a time, until clients have it
  Duration take_timeout = std::chrono::seconds(15);  // for an answer to be taken: transfer_time() from it
  Commons* commons = nullptr;                        // outlive the server; null: its own
};

// KServe v2 over gRPC with Triton's extensions, and the health service; gzip and deflate are understood. The
// call's deadline is the request's where it names no nearer one; a call that its client cancels, or whose
// client goes, is cancelled. Methods that are not served answer UNIMPLEMENTED. A call may have 64 KiB of
// metadata.
//
// Answers count against the commons' bytes in flight until their clients have them, and a call whose client
// takes too long over that is ended with ABORTED.
//
// Messages count against the commons' bytes in flight once they are here as a whole; while they arrive they
// fill gRPC's own buffers, which have a quota of half as much again. Where that is full gRPC ends idle
// connections first, and then calls with RESOURCE_EXHAUSTED.
class GrpcServer {
 public:
  // Listens when it returns. Errors: the address cannot be bound, and why. `service` outlives the server.
  static Result<std::unique_ptr<GrpcServer>> start(controller::Service& service, GrpcOptions options);

  virtual ~GrpcServer() = default;  // stops
  virtual std::uint16_t port() const = 0;
  // While the commons are draining, ModelInfer calls that come are refused with UNAVAILABLE. Waits until none
  // is open that came before, at most so long.
  virtual void wait_drained(Duration longest) const = 0;
  // Sets the commons draining and waits for the grace; then closes the port and cancels what is still open.
  // May be called twice.
  virtual void stop() = 0;
};

}  // namespace carillon::frontend
