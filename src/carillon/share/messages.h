#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/device/lanes/lanes.h"
#include "carillon/share/protocol.h"

// What the packets of a job say, checked, in the words of the program: bytes in, messages out, and back.
namespace carillon::share {

// No size is larger, so that sums of a broker's clients do not overflow; what is said beyond it counts as this.
inline constexpr Bytes most_bytes{std::uint64_t{1} << 48};
// A century: likewise of times.
inline constexpr Duration most_time = std::chrono::hours(24 * 36525);

// What a job has run so far, by its own account.
struct Counters {
  std::uint64_t iterations = 0;
  Duration busy{0};
  device::JobMemory memory;

  friend bool operator==(const Counters&, const Counters&) = default;
};

struct HelloSaid {
  std::string name;  // printable, without control characters; may be empty
  std::uint32_t pid = 0;
  std::uint32_t threads = 0;
  std::optional<Bytes> persistent, ephemeral;
  std::optional<Duration> remaining;
  double weight = 1;
  bool on_cuda = false;            // its lane may be a CUDA device's memory
  std::optional<Counters> before;  // of a job that attaches again
};

struct StoppedSaid {
  Counters counters;
  std::optional<Duration> remaining;
  std::uint64_t stops = 0;  // this one with those before it; 0: not counted
};

struct AskSaid {
  device::JobMemory memory;
};

struct ByeSaid {};
struct QuerySaid {};

using Said = std::variant<HelloSaid, StoppedSaid, AskSaid, ByeSaid, QuerySaid>;

// Errors: what is wrong with the packet, in words for whoever sent it; `unsupported` where it is of another
// version.
Result<Said> read_packet(std::span<const std::byte> packet);

// What of a text that a job gave can be shown: at most most_name bytes, control characters and what is no
// UTF-8 as '?'.
std::string shown(std::string_view text);

// A packet of one of the protocol's plain structs, with its header.
template <typename Packet>
Packet packet_of(Kind kind) {
  Packet packet{};
  packet.header.kind = kind;
  packet.header.bytes = sizeof(Packet);
  return packet;
}
template <typename Packet>
std::span<const std::byte> bytes_of(const Packet& packet) {
  return std::as_bytes(std::span(&packet, 1));
}

// refused or evicted. `why` is cut where it is too long.
Refused refusal(Kind kind, std::string_view why, const device::JobMemory& fits = {});

}  // namespace carillon::share
