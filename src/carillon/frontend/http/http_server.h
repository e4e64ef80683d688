#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/http/http_handler.h"
#include "carillon/frontend/http/http_options.h"

namespace carillon::frontend {

// HTTP over TCP, 1.1 (keep-alive, and pipelining: answers in the order of the requests) and 2 (by prior
// knowledge, or by ALPN over TLS), gzip and deflate both ways, limits on everything that a client can make
// large or slow. A client that closes its connection, or resets its stream, while its request is open has
// gone: the request is cancelled.
//
// Each thread owns its connections; a connection's state is touched by its thread alone. Bodies that take
// long to unpack, pack or parse are the heavy threads' of the commons; where they have too much to do
// already, requests are refused and answers sent unpacked.
class HttpServer {
 public:
  // Listens when it returns. Errors: the address cannot be bound, and why. `handler` outlives the server.
  static Result<std::unique_ptr<HttpServer>> start(HttpHandler& handler, HttpOptions options);

  virtual ~HttpServer() = default;  // stops
  virtual std::uint16_t port() const = 0;
  // While the commons are draining, requests other than GET and HEAD are refused with 503 as they arrive, and
  // connections close after their answer. Waits until no request is open that came before, at most so long.
  virtual void wait_drained(Duration longest) const = 0;
  // Sets the commons draining and waits for the grace; then closes the port, cancels what is still open and
  // answers it 503. Returns when every thread has ended. May be called twice.
  virtual void stop() = 0;
  // Connections open now.
  virtual std::size_t connections() const = 0;
};

}  // namespace carillon::frontend
