#pragma once

#include <cstddef>
#include <cstdint>

#include "carillon/share/protocol.h"

// The job's end of the broker's socket. Allocates nothing.
namespace carillon::share::client {

union Packet {
  Header header;
  Welcome welcome;
  Refused refused;
  LaneIs lane;
  Ending ending;
  DeviceIs device;
  Pieces pieces;
  std::byte bytes[1024];
  Packet() : bytes{} {}
};

enum class Came : std::uint8_t { packet, nothing, closed, other_version };

// -1, with errno set, where nobody listens at `path`.
int connect_to(const char* path);
// False: the socket is closed.
bool send_packet(int socket, Header& header, Kind kind, std::size_t bytes);

// Descriptors that came along with a packet. Whoever takes them over leaves none.
struct Descriptors {
  int number[most_pieces];
  std::uint32_t count = 0;

  int take_one();  // the first; -1: there was none
  void close_all();
};

// Waits at most `longest_ms` (-1: for ever). Packets that are too short for their kind count as `closed`, as do
// pieces with other than as many descriptors as they say.
Came receive_packet(int socket, Packet& packet, Descriptors& descriptors, int longest_ms);

// Stops or continues all descendants of this process. Returns how many there are.
int signal_descendants(int signal);

}  // namespace carillon::share::client
