#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/clock/peer_clock.h"
#include "carillon/cluster/election/messages.h"
#include "carillon/cluster/protocols.h"

namespace carillon::transport {

inline constexpr std::size_t longest_datagram = 256;  // bytes: far below what any network splits

// What hosts send each other by UDP every few milliseconds: that they are alive, what the election has to
// say, and four times of which the receiver makes a sample of the two clocks.
struct Datagram {
  std::string from;  // the host's id, cluster::is_name()
  std::uint64_t incarnation = 0;
  std::optional<cluster::election::Message> message = std::nullopt;
  TimePoint sent;  // by the sender's clock
  // The last datagram that the sender has had of the receiver.
  struct Echo {
    TimePoint sent;      // by the receiver's clock
    TimePoint received;  // by the sender's
    friend bool operator==(const Echo&, const Echo&) = default;
  };
  std::optional<Echo> echo = std::nullopt;
  std::uint32_t protocol = cluster::own_protocols.oldest;  // in which it is written, 255 at most
  friend bool operator==(const Datagram&, const Datagram&) = default;
};

// The sample that a datagram makes which is heard at `heard`. None without an echo.
std::optional<cluster::PeerClock::Sample> sample_of(const Datagram& datagram, TimePoint heard);

// Has taken in a key, which costs more than a datagram.
class MacKey;

// Of a cluster's key: 16 hexadecimal digits that say whether two keys are the same, and not what they are.
std::string fingerprint_of(std::string_view cluster, std::string_view key);

// Writes and reads the datagrams of one cluster. Each carries HMAC-SHA256, cut to 16 bytes, by the cluster's
// key, over the cluster's name and the process that it is for. So whoever lacks the key can neither make one,
// nor change one, nor send one on to another host or to a later process. One that comes again to the same
// process is old: its election message has a number that was passed, and its sample only bounds the clocks'
// difference less tightly. Safe from any thread.
class DatagramCodec {
 public:
  // Requires a name of the cluster (cluster::is_name()). `key`: any bytes. `other_key`: what it signs is
  // read, too, while a cluster changes its key. `speaks`: the versions that are read.
  DatagramCodec(std::string cluster, const std::string& key,
                const std::optional<std::string>& other_key = std::nullopt,
                const cluster::Protocols& speaks = cluster::own_protocols);
  ~DatagramCodec();
  DatagramCodec(const DatagramCodec&) = delete;
  DatagramCodec& operator=(const DatagramCodec&) = delete;

  // A process of a host.
  struct Process {
    std::string_view id;
    std::uint64_t incarnation = 0;
  };
  std::string encode(const Datagram& datagram, const Process& to) const;
  // As the process `self`. Errors (invalid_argument): too short or long, of another protocol, for another
  // process or cluster, with another key, or with a field that is wrong.
  Result<Datagram> decode(std::string_view bytes, const Process& self) const;

 private:
  using Mac = std::array<unsigned char, 16>;
  Mac mac_of(MacKey& key, std::string_view bytes, const Process& to) const;

  const std::string cluster_;
  const cluster::Protocols speaks_;
  mutable std::mutex mutex_;  // of both
  const std::unique_ptr<MacKey> key_, other_key_;
};

}  // namespace carillon::transport
