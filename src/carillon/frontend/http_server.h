#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/frontend/address.h"
#include "carillon/frontend/commons.h"
#include "carillon/frontend/http_reply.h"
#include "carillon/frontend/padded_bytes.h"

namespace carillon::frontend {

struct HttpRequest {
  std::string method;  // "GET", also for HEAD: the answer's body is left out behind the handler
  std::string target;  // as sent: "/v2/models/a%20b?x=1"
  std::optional<std::string> inference_header_length;
  PaddedBytes body;  // unpacked
  // The body's share of what may be in flight; to be kept as long as what was made of the body.
  Reservation room;
  Duration waited{0};  // since it was here as a whole
};

// Makes a reply on the connection's thread, so that whoever delivers it need not.
using ReplyMaker = std::move_only_function<HttpReply()>;

// Brings the reply that was not there when handle() returned. Any thread, at most once, also after the server
// has stopped (then nothing happens). Never blocks for long.
using Deliver = std::move_only_function<void(ReplyMaker)>;

// The reply comes later. `cancel` is called, at most once and on the connection's thread, when the client
// goes first; the reply may still be delivered then.
struct Deferred {
  std::move_only_function<void()> cancel;
};

// What a server does with requests. Called from several threads at once: the server's, and for large bodies
// the commons' heavy ones.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver deliver) = 0;
};

struct HttpOptions {
  Address address;
  std::string option = "--http";                       // named in errors about the address
  int threads = 1;                                     // at least 1
  std::size_t max_body = std::size_t{256} << 20;       // bytes, packed or not
  std::size_t max_header = std::size_t{64} << 10;      // bytes
  std::size_t max_connections = 10000;                 // for more to come, those without a request are closed
  Duration idle_timeout = std::chrono::seconds(75);    // of connections without a request
  Duration header_timeout = std::chrono::seconds(15);  // from a header's first byte to its last
  // In every such time so much of a body must arrive, or all that is left of it.
  Duration body_timeout = std::chrono::seconds(15);
  std::size_t body_progress = std::size_t{1} << 20;  // bytes
  Duration stop_grace = std::chrono::seconds(10);    // open requests have so long after stop()
  Commons* commons = nullptr;                        // outlive the server; null: its own
};

// HTTP/1.1 over TCP: keep-alive, pipelining (answers in the order of the requests), gzip and deflate both
// ways, limits on everything that a client can make large or slow. A client that closes its connection while
// its request is open has gone: the request is cancelled.
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
