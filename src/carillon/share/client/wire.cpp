#include "carillon/share/client/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

namespace carillon::share::client {
namespace {

std::size_t least_bytes(Kind kind) {
  switch (kind) {
    case Kind::welcome: return sizeof(Welcome);
    case Kind::refused:
    case Kind::evicted: return sizeof(Refused);
    case Kind::lane: return sizeof(LaneIs);
    case Kind::ending: return sizeof(Ending);
    case Kind::device: return sizeof(DeviceIs);
    case Kind::pieces: return sizeof(Pieces);
    case Kind::hello:
    case Kind::stopped:
    case Kind::ask:
    case Kind::bye:
    case Kind::query:
    case Kind::listing: return sizeof(Header);
  }
  return sizeof(Header);
}

// Appends the children of `pid`, of all its threads.
void children_of(int pid, int* pids, int& count, int most) {
  char path[96];
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(8) char entries[4096];
  for (;;) {
    const long got = syscall(SYS_getdents64, folder, entries, sizeof entries);
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      struct Entry {
        std::uint64_t inode;
        std::int64_t offset;
        unsigned short bytes;
        unsigned char type;
        char name[1];
      };
      const auto* entry = reinterpret_cast<const Entry*>(entries + at);
      const char* name = entries + at + offsetof(Entry, name);
      at += entry->bytes;
      if (name[0] < '0' || name[0] > '9') continue;
      snprintf(path, sizeof path, "%.20s/children", name);
      const int file = openat(folder, path, O_RDONLY | O_CLOEXEC);
      if (file < 0) continue;
      char text[4096];
      int number = 0;
      ssize_t n = 0;
      while ((n = read(file, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; ++i) {
          if (text[i] >= '0' && text[i] <= '9') {
            number = number * 10 + (text[i] - '0');
          } else if (number) {
            if (count < most) pids[count++] = number;
            number = 0;
          }
        }
      close(file);
    }
  }
  close(folder);
}

}  // namespace

int connect_to(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  strcpy(address.sun_path, path);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
  }
  return fd;
}

bool send_packet(int socket, Header& header, Kind kind, std::size_t bytes) {
  header.kind = kind;
  header.bytes = static_cast<std::uint32_t>(bytes);
  ssize_t sent = 0;
  do sent = send(socket, &header, bytes, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

int Descriptors::take_one() {
  const int first = count > 0 ? number[0] : -1;
  for (std::uint32_t i = 1; i < count; ++i) close(number[i]);
  count = 0;
  return first;
}

void Descriptors::close_all() {
  for (std::uint32_t i = 0; i < count; ++i) close(number[i]);
  count = 0;
}

Came receive_packet(int socket, Packet& packet, Descriptors& descriptors, int longest_ms) {
  descriptors.count = 0;
  pollfd look{socket, POLLIN, 0};
  int ready = 0;
  do ready = poll(&look, 1, longest_ms);
  while (ready < 0 && errno == EINTR && longest_ms != 0);
  if (ready <= 0) return Came::nothing;
  iovec part{packet.bytes, sizeof packet};
  alignas(cmsghdr) char control[CMSG_SPACE(most_pieces * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  for (cmsghdr* c = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr; c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t many = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < many; ++i) {
      int number = -1;
      memcpy(&number, CMSG_DATA(c) + i * sizeof(int), sizeof number);
      if (descriptors.count < most_pieces)
        descriptors.number[descriptors.count++] = number;
      else
        close(number);
    }
  }
  if (got < static_cast<ssize_t>(sizeof(Header)) || packet.header.magic != protocol_magic) return Came::closed;
  if (packet.header.version != protocol_version) return Came::other_version;
  if (static_cast<std::size_t>(got) < least_bytes(packet.header.kind)) return Came::closed;
  if (packet.header.kind == Kind::pieces && packet.pieces.count != descriptors.count) return Came::closed;
  return Came::packet;
}

int signal_descendants(int signal) {
  constexpr int most = 2048;
  static int pids[most];  // only the thread that trains comes here
  int count = 0;
  children_of(getpid(), pids, count, most);
  for (int i = 0; i < count; ++i) {
    kill(pids[i], signal);
    children_of(pids[i], pids, count, most);
  }
  return count;
}

}  // namespace carillon::share::client
