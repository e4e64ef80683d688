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
  std::byte bytes[1024];
  Packet() : bytes{} {}
};

enum class Came : std::uint8_t { packet, nothing, closed, other_version };

// -1, with errno set, where nobody listens at `path`.
int connect_to(const char* path);
// False: the socket is closed.
bool send_packet(int socket, Header& header, Kind kind, std::size_t bytes);
// Waits at most `longest_ms` (-1: for ever). A descriptor that came along is in `fd`, else -1; further ones are
// closed. Packets that are too short for their kind count as `closed`.
Came receive_packet(int socket, Packet& packet, int& fd, int longest_ms);

// Stops or continues all descendants of this process. Returns how many there are.
int signal_descendants(int signal);

}  // namespace carillon::share::client
