#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/protocols.h"

// The frontend's end of the data plane: workers pull the inputs of rows from here and push outputs back. The
// worker's end is row_client.h.
namespace carillon::transport {
namespace rows {
class Serving;
}
class Tls;

// The memory of a row, until RowStore::close().
struct RowTensors {
  std::vector<std::span<const std::byte>> inputs;
  std::vector<std::span<std::byte>> outputs;
  std::int64_t length = 0;
  // By output: the bytes of one that nobody wants, whose span is empty. They are taken, and dropped. May be
  // shorter than `outputs`.
  std::vector<std::size_t> unwanted = {};

  std::size_t output_bytes(std::size_t i) const {
    return outputs[i].empty() && i < unwanted.size() ? unwanted[i] : outputs[i].size();
  }
};

// Rows that may be pulled, each by a key that nobody can guess. Thread-safe.
class RowStore {
 public:
  RowStore();
  ~RowStore();

  // The key is never 0. At most 1024 inputs and as many outputs.
  std::uint64_t open(RequestId row, RowTensors tensors);
  // Once it returns, no byte of the tensors is read or written any more. It waits while a chunk of the inputs
  // is copied, or the outputs of a push, and never for a peer. Closing a key again does nothing.
  void close(std::uint64_t key);

 private:
  friend class rows::Serving;
  struct Row;
  std::shared_ptr<Row> find(std::uint64_t key);
  std::uint64_t draw();

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Row>> rows_;  // with mutex_
  std::vector<std::uint64_t> drawn_;                              // likewise
};

struct RowLimits {
  std::size_t connections = 1024;
  std::size_t waiting = 4096;  // requests of a connection. A peer that asks for more is disconnected
  // Of pushes that have not come whole. Small ones need no memory. A push beyond either is refused, unless
  // the connection has no other under way, its row has none beyond them, and those beyond them have no more
  // than `beyond_bytes` together. A single one may have more, so that a row of any size can be pushed. Once
  // its row is closed, a push has its memory until more of it comes, or for `push_pause`.
  std::uint64_t push_bytes = 64UL << 20;       // of a connection
  std::uint64_t all_push_bytes = 256UL << 20;  // of all
  std::uint64_t beyond_bytes = 1UL << 30;      // of all that are beyond either
  // A connection with such pushes on which nothing of them comes for so long, twice at most, is ended: a
  // worker that hangs, or is cut off, would hold the memory of others.
  Duration push_pause = std::chrono::seconds{3};
  // A push beyond the bounds of which nothing has come for so long makes way for another of its row.
  Duration push_stalls = std::chrono::milliseconds{100};
  Duration greeting = std::chrono::seconds{3};  // how long a peer may take to say who it is, or to hang up
};

class RowServer {
 public:
  struct Options {
    std::string cluster;  // its name; peers of another are refused
    RowLimits limits{};
    cluster::Protocols speaks = cluster::own_protocols;
    std::shared_ptr<Tls> tls =
        {};  // null: none, and all in the clear. Else only workers of the cluster are served
  };
  // The outputs of `row` are written. From the server's thread, before the worker is told. The row may have
  // been closed since. It must not wait, and may use the store.
  using OnOutputs = std::function<void(RequestId row, std::uint64_t epoch, std::string report)>;

  // `address`: HOST:PORT; port 0 is any. Errors name it. `store` must outlive the server.
  static Result<std::unique_ptr<RowServer>> open(const std::string& address, Options options, RowStore& store,
                                                 OnOutputs on_outputs);
  // Ends all connections. Afterwards the store's rows are not used and nobody is called.
  virtual ~RowServer() = default;
  virtual int port() const = 0;
  // Pushes of outputs for rows that had outputs of another run already. Only the last rows are remembered,
  // some ten thousand. Any thread.
  virtual std::uint64_t doubled() const = 0;
};

}  // namespace carillon::transport
