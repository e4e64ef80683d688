#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/protocols.h"

namespace carillon::transport {

class Tls;

// The worker's end of the data plane (rows.h): pulls rows from frontends and pushes their outputs. Each
// frontend has one connection, opened by connect() or when it is first needed and, once broken, when it is
// next needed. Tries that fail are followed by a pause, in which all requests to that frontend fail at once.
// Thread-safe.
class RowClient {
 public:
  struct Options {
    std::string cluster;                                  // its name
    Duration connect_within = std::chrono::seconds{1};    // requests that wait for longer fail
    Duration first_pause = std::chrono::milliseconds{5};  // doubled by each try that fails
    Duration longest_pause = std::chrono::seconds{1};
    std::shared_ptr<Tls> tls = {};  // null: none. Else only frontends of the cluster are believed
  };
  static std::unique_ptr<RowClient> make(Options options);
  // Not from a handler. Handlers that are still due hear `cancelled` before it returns. They must ask for
  // nothing more then.
  virtual ~RowClient() = default;

  // Where a row's inputs go, once its length and each input's bytes are known. Called as handlers are, once
  // at most. The spans must be as long as `bytes` says, else the pull fails. An error is the
  // pull's.
  using Room = std::function<Result<std::vector<std::span<std::byte>>>(std::int64_t length,
                                                                       std::span<const std::uint64_t> bytes)>;
  // Of a caller that knows the sizes.
  static Room room_of(std::vector<std::span<std::byte>> inputs);

  struct Pull {
    std::string address;  // HOST:PORT of the frontend
    std::uint64_t key = 0;
    TimePoint urgency;  // the earliest first, of those of this client at that frontend
    Room room;
  };
  // Called exactly once, by the client's thread or within a flush(), by one thread at a time. After it
  // nothing is written. `not_found`: the row is closed.
  using Pulled = std::move_only_function<void(Result<std::int64_t> length)>;

  struct Push {
    std::string address;
    std::uint64_t key = 0;
    std::uint64_t epoch = 0;
    std::string report;                               // 4096 bytes at most
    std::vector<std::span<const std::byte>> outputs;  // read until the handler was called; 1024 at most
  };
  // Likewise. False: nobody wants the outputs any more, as the row is closed or has outputs.
  using Pushed = std::move_only_function<void(Result<bool> taken)>;

  // Opens a connection ahead of what will be asked for, so that the first to ask need not wait for it. As the
  // two below: it does not block, and happens at flush().
  virtual void connect(const std::string& address,
                       std::uint32_t protocol = cluster::own_protocols.oldest) = 0;
  // Neither blocks, and nothing happens before flush(). Both return a ticket for cancel(). Handlers may call
  // all four.
  virtual std::uint64_t pull(Pull pull, Pulled pulled) = 0;
  virtual std::uint64_t push(Push push, Pushed pushed) = 0;
  // The handler soon hears `cancelled`, if it has not been called. A push may have been taken all the same.
  virtual void cancel(std::uint64_t ticket) = 0;
  // Begins what was asked for. The calling thread does it, unless another one is at it.
  virtual void flush() = 0;
};

}  // namespace carillon::transport
