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
#include "carillon/frontend/padded_bytes.h"

namespace carillon::frontend {

struct HttpRequest {
  std::string method;  // "GET"
  std::string target;  // as sent: "/v2/models/a%20b?x=1"
  std::optional<std::string> inference_header_length;
  PaddedBytes body;  // unpacked
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::vector<std::span<const std::byte>> blobs;  // sent behind the body, not copied
  std::shared_ptr<void> keeps;                    // what the blobs point into
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

// What a server does with requests. Called from the server's threads, from several at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver deliver) = 0;
};

// {"error":"..."} with the status of `error`.
HttpReply error_reply(const Error& error);
HttpReply error_reply(int status, std::string_view message);

struct HttpOptions {
  Address address;
  std::string option = "--http";                     // named in errors about the address
  int threads = 1;                                   // at least 1
  std::size_t max_body = std::size_t{256} << 20;     // bytes, packed or not
  std::size_t max_header = std::size_t{64} << 10;    // bytes
  std::size_t max_connections = 10000;               // more are closed at once
  Duration idle_timeout = std::chrono::seconds(75);  // a whole header must arrive within it
  Duration body_timeout = std::chrono::seconds(30);  // and a second for every 256 KiB
  Duration stop_grace = std::chrono::seconds(10);    // open requests have so long after stop()
};

// HTTP/1.1 over TCP: keep-alive, pipelining (answers in the order of the requests), gzip and deflate both
// ways, limits on everything that a client can make large or slow. A client that closes its connection while
// its request is open has gone: the request is cancelled.
//
// Each thread owns its connections; a connection's state is touched by its thread alone.
class HttpServer {
 public:
  // Listens when it returns. Errors: the address cannot be bound, and why. `handler` outlives the server.
  static Result<std::unique_ptr<HttpServer>> start(HttpHandler& handler, HttpOptions options);

  virtual ~HttpServer() = default;  // stops
  virtual std::uint16_t port() const = 0;
  // Accepts no more, closes idle connections, lets open requests finish within the grace, then cancels them
  // and answers 503. Returns when every thread has ended. May be called twice.
  virtual void stop() = 0;
  // Connections open now.
  virtual std::size_t connections() const = 0;
};

}  // namespace carillon::frontend
