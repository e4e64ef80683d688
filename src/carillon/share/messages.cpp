#include "carillon/share/messages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "carillon/device/lanes/job_sharing.h"

namespace carillon::share {
namespace {

template <typename Packet>
Result<Packet> as(std::span<const std::byte> packet, const char* name) {
  static_assert(std::is_trivially_copyable_v<Packet>);
  if (packet.size() != sizeof(Packet))
    return invalid(std::string(name) + " has " + std::to_string(packet.size()) + " bytes, but should have " +
                   std::to_string(sizeof(Packet)));
  Packet out;
  std::memcpy(&out, packet.data(), sizeof(Packet));
  return out;
}

Bytes size_of(std::uint64_t said) {
  return std::min(Bytes{said}, most_bytes);
}

Duration time_of(std::uint64_t said) {
  return Duration{static_cast<std::int64_t>(
      std::min(said, static_cast<std::uint64_t>(most_time.count())))};
}

// 0: not known.
std::optional<Bytes> known_size(std::uint64_t said) {
  return said == 0 ? std::nullopt : std::optional(size_of(said));
}
std::optional<Duration> known_time(std::uint64_t said) {
  return said == 0 ? std::nullopt : std::optional(time_of(said));
}

Result<Said> read_hello(std::span<const std::byte> packet) {
  const auto hello = as<Hello>(packet, "hello");
  if (!hello) return std::unexpected(hello.error());
  const void* const end = std::memchr(hello->name, 0, sizeof hello->name);
  if (end == nullptr) return invalid("hello: the name does not end within its " + std::to_string(most_name) + " bytes");
  if (!(hello->weight >= device::least_job_weight && hello->weight <= device::most_job_weight))
    return invalid("hello: the weight is " + std::to_string(hello->weight) + ", but should be in 0.000001..1000");
  if (hello->again > 1) return invalid("hello: 'again' is " + std::to_string(hello->again) + ", but should be 0 or 1");
  if (hello->memories > memory_of_cuda)
    return invalid("hello: 'memories' is " + std::to_string(hello->memories) + ", but should be 0 or 1");
  HelloSaid said{.name = shown(hello->name),
                 .pid = hello->pid,
                 .threads = hello->threads,
                 .persistent = known_size(hello->persistent),
                 .ephemeral = known_size(hello->ephemeral),
                 .remaining = known_time(hello->remaining_ns),
                 .weight = hello->weight,
                 .on_cuda = hello->memories == memory_of_cuda,
                 .before = std::nullopt};
  if (hello->again == 1)
    said.before = Counters{.iterations = hello->iterations,
                           .busy = time_of(hello->busy_ns),
                           .memory = {size_of(hello->persistent), size_of(hello->ephemeral)}};
  return said;
}

Result<Said> read_stopped(std::span<const std::byte> packet) {
  const auto stopped = as<Stopped>(packet, "stopped");
  if (!stopped) return std::unexpected(stopped.error());
  return StoppedSaid{.counters = {.iterations = stopped->iterations,
                                  .busy = time_of(stopped->busy_ns),
                                  .memory = {size_of(stopped->persistent), size_of(stopped->ephemeral)}},
                     .remaining = known_time(stopped->remaining_ns),
                     .stops = stopped->stops};
}

Result<Said> read_ask(std::span<const std::byte> packet) {
  const auto ask = as<Ask>(packet, "ask");
  if (!ask) return std::unexpected(ask.error());
  return AskSaid{{size_of(ask->persistent), size_of(ask->ephemeral)}};
}

// The length of the UTF-8 sequence that `text` begins with; 0: it begins with none.
std::size_t sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80 ? 1 : byte(0) < 0xc2 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if (length < 3) return length;
  const bool overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool beyond = (byte(0) == 0xed && byte(1) >= 0xa0) || (byte(0) == 0xf4 && byte(1) >= 0x90);
  return overlong || beyond ? 0 : length;
}

}  // namespace

Result<Said> read_packet(std::span<const std::byte> packet) {
  Header header;
  if (packet.size() < sizeof header)
    return invalid("a packet has " + std::to_string(packet.size()) + " bytes, less than its header's " +
                   std::to_string(sizeof header));
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.magic != protocol_magic) return invalid("a packet does not begin as this protocol's do");
  if (header.version != protocol_version)
    return fail(ErrorCode::unsupported, "a packet is of version " + std::to_string(header.version) +
                                            " of the protocol, but this broker speaks version " +
                                            std::to_string(protocol_version) +
                                            ": job and broker should be of one release");
  if (header.bytes != packet.size())
    return invalid("a packet says that it has " + std::to_string(header.bytes) + " bytes, but has " +
                   std::to_string(packet.size()));
  switch (header.kind) {
    case Kind::hello: return read_hello(packet);
    case Kind::stopped: return read_stopped(packet);
    case Kind::ask: return read_ask(packet);
    case Kind::bye:
      if (packet.size() != sizeof(Header)) return invalid("bye is a header alone");
      return ByeSaid{};
    case Kind::query:
      if (packet.size() != sizeof(Header)) return invalid("query is a header alone");
      return QuerySaid{};
    case Kind::welcome:
    case Kind::refused:
    case Kind::lane:
    case Kind::evicted:
    case Kind::listing:
    case Kind::ending:
    case Kind::device:
    case Kind::pieces: return invalid("a job sent a packet that only a broker sends");
  }
  return invalid("a packet is of kind " + std::to_string(static_cast<std::uint32_t>(header.kind)) +
                 ", which there is not");
}

std::string shown(std::string_view text) {
  text = text.substr(0, most_name);
  std::string out;
  while (!text.empty()) {
    const std::size_t length = sequence(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control = length == 1 && (first < 0x20 || first == 0x7f);
    const bool c1 = length == 2 && first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (length == 0 || control || c1)
      out += '?';
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

Refused refusal(Kind kind, std::string_view why, const device::JobMemory& fits) {
  auto packet = packet_of<Refused>(kind);
  packet.fits_persistent = fits.persistent.count;
  packet.fits_ephemeral = fits.ephemeral.count;
  std::memcpy(packet.why, why.data(), std::min(why.size(), sizeof packet.why - 1));
  return packet;
}

}  // namespace carillon::share
