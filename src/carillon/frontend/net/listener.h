#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/frontend/net/address.h"
#include "carillon/frontend/net/descriptor.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

struct ListenerOptions {
  Address address;
  std::string option;  // named in errors about the address
  // A connection whose descriptor is higher is refused: systems give the lowest that is free, so that as many
  // are in use then.
  int highest_descriptor = std::numeric_limits<int>::max();
  Log log;
};

// Accepts TCP connections on a thread of its own. When the process is out of descriptors (the log says so,
// once a minute at most) the connections that it has go on, and new ones are refused rather than left
// waiting: one descriptor is kept for that.
class Listener {
 public:
  // What is done with connections; called on the listener's thread.
  struct Handler {
    std::function<void(Descriptor)> on_connection;  // non-blocking, TCP_NODELAY
    // Tells a client that there is no room for it; the connection is closed afterwards. May be null.
    std::function<void(int)> refuse;
    // Out of descriptors: closes what can be spared, now or soon. May be null.
    std::function<void()> make_room;
  };

  // The port is taken when it returns; connections wait until start(). Errors: the address cannot be bound,
  // and why.
  static Result<std::unique_ptr<Listener>> open(ListenerOptions options);

  virtual ~Listener() = default;  // closes
  virtual std::uint16_t port() const = 0;
  virtual int descriptor() const = 0;
  // Once.
  virtual void start(Handler handler) = 0;
  // Closes the port; nothing is called any more once it returns. May be called twice.
  virtual void close() = 0;
};

}  // namespace carillon::frontend
