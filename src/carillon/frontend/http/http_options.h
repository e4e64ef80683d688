#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "carillon/base/time.h"
#include "carillon/frontend/net/address.h"

namespace carillon::frontend {

struct Commons;
class Tls;

// Of an HttpServer.
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
  // Of a connection of HTTP/2: requests open at a time; requests that ended without a whole answer, beyond as
  // many as were answered; frames between two answers that ask for nothing (pings, settings, empty data,
  // unknown ones, window updates beyond what was sent); and bytes of answers that wait for the client to take
  // them, beyond which no further request begins.
  std::size_t max_streams = 128;
  std::size_t max_resets = 1000;
  std::size_t max_idle_frames = 10000;
  std::size_t max_unread = std::size_t{256} << 20;
  Duration stop_grace = std::chrono::seconds(10);  // open requests have so long after stop()
  // Its port is to watch the server by, or to administer it: what others do not take of the answers of other
  // ports leaves room for its own.
  bool watches = false;
  std::shared_ptr<Tls> tls;    // null: none
  Commons* commons = nullptr;  // outlive the server; null: its own
};

}  // namespace carillon::frontend
