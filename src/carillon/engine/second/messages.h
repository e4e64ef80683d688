#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "carillon/engine/second/runtime.h"

// What the server and a process of the second engine (host.h) say to each other over sockets of their own
// machine. Neither side trusts the other with a size or a count: what is read from a message is checked
// against what is left of it.
namespace carillon::engine::second {

// Changes with every form below. The server and the host are of one build, and say so when they meet.
inline constexpr std::uint32_t protocol = 4;
inline constexpr std::size_t longest_message = 16U << 20;
inline constexpr std::size_t longest_text = 4096;                     // of errors and names
inline constexpr std::uint64_t most_memory = std::uint64_t{1} << 40;  // of one run's tensors
// What the host has its socket to the server as.
inline constexpr int control_socket = 3;

// What the server asks over the control socket; the answer has the same kind.
enum class Ask : std::uint32_t {
  hello,         // -> protocol, version
  read,          // nice, file -> error; ports of inputs, ports of outputs
  shapes_at,     // shapes -> error; shapes
  compile,       // nice, options -> error
  make_request,  // number of a compile(); with it a socket for its runs -> error
  renew,         // nice, number of a compile() -> error
};

// A message that is written.
class Writer {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void number(T value) { append(&value, sizeof value); }
  void text(std::string_view text);  // at most longest_text of it
  void shape(const graph::Shape& shape);
  void shapes(std::span<const graph::Shape> shapes);
  void port(const Port& port);
  void options(const Network::Options& options);

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void append(const void* from, std::size_t size);
  std::vector<std::byte> bytes_;
};

// A message that is read. What is not there, or cannot be, reads as nothing, and whole() is false from then.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T number() {
    T value{};
    if (!take(sizeof value)) return value;
    std::memcpy(&value, taken_, sizeof value);
    return value;
  }
  bool flag();
  std::string text();
  graph::Shape shape();
  std::vector<graph::Shape> shapes();
  // How many things follow that take at least `each` bytes.
  std::size_t count(std::size_t each);
  Port port();
  std::vector<Port> ports();
  Network::Options options();

  // Whether all was as it must be so far; at the end, too, with nothing left.
  bool good() const { return good_; }
  bool whole() const { return good_ && left_.empty(); }

 private:
  bool take(std::size_t size);

  std::span<const std::byte> left_;
  const std::byte* taken_ = nullptr;
  bool good_ = true;
};

// How the thread is to run that runs a model of one thread: as the server's that waits for it.
struct Placement {
  std::int32_t policy = 0;
  std::int32_t nice = 0;
  std::uint64_t cores[16] = {};  // a bit each
  friend bool operator==(const Placement&, const Placement&) = default;
};

// A run, sent over its request's socket. Its tensors are in memory that both have: what follows from 0 says
// where (RunPlan). A new memory comes with the message, as a descriptor.
struct RunMessage {
  std::uint64_t number = 0;  // of this request's runs, from 1
  std::uint64_t memory = 0;  // bytes
  std::uint64_t plan = 0;    // bytes of the RunPlan
  Placement placement;
  std::uint32_t placed = 0;  // 1: `placement` is to be heeded
  std::uint32_t padding = 0;
};
struct RunAnswer {
  std::uint64_t number = 0;
  std::uint32_t text = 0;      // bytes of the error that follows; 0: it went well
  std::uint32_t bad_data = 0;  // 1: Ran::bad_data
  std::uint32_t stale = 0;     // 1: Ran::stale
  std::uint32_t unused = 0;
};

// Where the tensors of a run are in its memory.
struct RunPlan {
  struct Tensor {
    graph::Shape shape;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Tensor> inputs, outputs;

  void write(Writer& to) const;
  // False where it is not whole, or a tensor does not lie within `memory` bytes.
  static bool read(Reader& from, std::uint64_t memory, RunPlan& into);
};

enum class Received : std::uint8_t { whole, closed, bad, ended };

// How long receiving waits between two looks at whether to go on.
inline constexpr int look_every_ms = 50;
// Asked at each such look; false ends the waiting (`ended`). None: waits for ever.
using GoOn = std::function<bool()>;

// A message of a stream socket, with a descriptor where that is >= 0. False where the peer is gone, or does
// not read it in the time that the socket has.
bool send_message(int socket, Ask kind, std::span<const std::byte> bytes, int descriptor = -1);
// `descriptor` becomes the one that came with it, or -1; it is the caller's.
Received receive_message(int socket, Ask& kind, std::vector<std::byte>& bytes, int& descriptor,
                         const GoOn& go_on = {});

// The same of a socket that keeps the bounds of messages (SOCK_SEQPACKET). `size` becomes how much came.
bool send_packet(int socket, std::span<const std::byte> bytes, int descriptor = -1);
Received receive_packet(int socket, std::span<std::byte> room, std::size_t& size, int& descriptor,
                        const GoOn& go_on = {});

}  // namespace carillon::engine::second
