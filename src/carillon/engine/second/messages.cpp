#include "carillon/engine/second/messages.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace carillon::engine::second {
namespace {

constexpr std::size_t most_dimensions = 64;

struct Header {
  std::uint32_t kind = 0;
  std::uint32_t size = 0;
};

// Room for the one descriptor that a message may bring.
union Ancillary {
  cmsghdr aligned;
  std::array<char, CMSG_SPACE(sizeof(int))> room;
};

ssize_t send_some(int socket, std::span<const std::byte> bytes, int descriptor) {
  // sendmsg() takes no const, and writes nothing.
  auto* const from = const_cast<std::byte*>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  iovec part{from, bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Ancillary ancillary{};
  if (descriptor >= 0) {
    message.msg_control = &ancillary;
    message.msg_controllen = sizeof ancillary;
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0 || errno != EINTR) return sent;
  }
}

bool send_all(int socket, std::span<const std::byte> bytes, int descriptor) {
  while (!bytes.empty()) {
    const ssize_t sent = send_some(socket, bytes, descriptor);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
    descriptor = -1;
  }
  return true;
}

// Waits until there is something to read, or nothing will be.
Received wait_for(int socket, const GoOn& go_on) {
  pollfd waits{.fd = socket, .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready = ::poll(&waits, 1, go_on ? look_every_ms : -1);
    if (ready > 0) return Received::whole;
    if (ready < 0 && errno != EINTR) return Received::bad;
    if (go_on && !go_on()) return Received::ended;
  }
}

// One read; `descriptor` is replaced where one came, by the last of several.
ssize_t receive_some(int socket, std::span<std::byte> room, int& descriptor, bool& truncated) {
  iovec part{room.data(), room.size()};
  Ancillary ancillary{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &ancillary;
  message.msg_controllen = sizeof ancillary;
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    // The room is that of two, as it is filled up to whole words: each that came is ours to close.
    const std::size_t many = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < many; ++i) {
      int one = -1;
      std::memcpy(&one, CMSG_DATA(head) + i * sizeof one, sizeof one);
      if (descriptor >= 0) ::close(descriptor);
      descriptor = one;
    }
  }
  return got;
}

Received receive_all(int socket, std::span<std::byte> into, int& descriptor, const GoOn& go_on) {
  auto looked = std::chrono::steady_clock::now();
  while (!into.empty()) {
    // What comes a few bytes at a time never lets wait_for() look.
    if (const auto now = std::chrono::steady_clock::now();
        go_on && now - looked >= std::chrono::milliseconds{look_every_ms}) {
      if (!go_on()) return Received::ended;
      looked = now;
    }
    if (const Received waited = wait_for(socket, go_on); waited != Received::whole) return waited;
    bool truncated = false;
    const ssize_t got = receive_some(socket, into, descriptor, truncated);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (got <= 0) return Received::closed;
    if (truncated) return Received::bad;
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return Received::whole;
}

}  // namespace

void Writer::append(const void* from, std::size_t size) {
  const auto* const bytes = static_cast<const std::byte*>(from);
  bytes_.insert(bytes_.end(), bytes, bytes + size);
}

void Writer::text(std::string_view text) {
  text = text.substr(0, longest_text);
  number(static_cast<std::uint32_t>(text.size()));
  append(text.data(), text.size());
}

void Writer::shape(const graph::Shape& shape) {
  number(static_cast<std::uint32_t>(shape.size()));
  for (const std::int64_t extent : shape) number(extent);
}

void Writer::shapes(std::span<const graph::Shape> shapes) {
  number(static_cast<std::uint32_t>(shapes.size()));
  for (const graph::Shape& each : shapes) shape(each);
}

void Writer::port(const Port& port) {
  text(port.name);
  number(std::uint8_t{port.known});
  number(static_cast<std::uint8_t>(port.type));
  number(std::uint8_t{port.ranked});
  shape(port.shape);
}

void Writer::options(const Network::Options& options) {
  shapes(options.inputs);
  number(std::int32_t{options.threads});
  number(std::uint8_t{options.bf16});
  number(options.most_bytes);
}

bool Reader::take(std::size_t size) {
  good_ = good_ && size <= left_.size();
  if (!good_) return false;
  taken_ = left_.data();
  left_ = left_.subspan(size);
  return true;
}

bool Reader::flag() {
  const auto value = number<std::uint8_t>();
  good_ = good_ && value <= 1;
  return value == 1;
}

std::string Reader::text() {
  const auto size = number<std::uint32_t>();
  if (size > longest_text) good_ = false;
  if (!take(size)) return {};
  std::string out(size, '\0');
  if (size > 0) std::memcpy(out.data(), taken_, size);
  return out;
}

std::size_t Reader::count(std::size_t each) {
  const auto value = number<std::uint32_t>();
  good_ = good_ && value <= left_.size() / each;
  return good_ ? value : 0;
}

graph::Shape Reader::shape() {
  const std::size_t rank = count(sizeof(std::int64_t));
  if (rank > most_dimensions) good_ = false;
  graph::Shape out;
  for (std::size_t d = 0; good_ && d < rank; ++d) out.push_back(number<std::int64_t>());
  return out;
}

std::vector<graph::Shape> Reader::shapes() {
  const std::size_t many = count(sizeof(std::uint32_t));
  std::vector<graph::Shape> out;
  for (std::size_t i = 0; good_ && i < many; ++i) out.push_back(shape());
  return out;
}

Port Reader::port() {
  Port out;
  out.name = text();
  out.known = flag();
  const auto type = number<std::uint8_t>();
  if (type > static_cast<std::uint8_t>(graph::DataType::string)) good_ = false;
  if (good_) out.type = static_cast<graph::DataType>(type);
  // No tensor of theirs is text, whose elements have no size.
  if (out.known && out.type == graph::DataType::string) good_ = false;
  out.ranked = flag();
  out.shape = shape();
  // As in the file: an extent, or open.
  if (std::ranges::any_of(out.shape, [](std::int64_t extent) { return extent < -1; })) good_ = false;
  return out;
}

std::vector<Port> Reader::ports() {
  const std::size_t many = count(sizeof(std::uint32_t));
  std::vector<Port> out;
  for (std::size_t i = 0; good_ && i < many; ++i) out.push_back(port());
  return out;
}

Network::Options Reader::options() {
  Network::Options out;
  out.inputs = shapes();
  out.threads = number<std::int32_t>();
  out.bf16 = flag();
  out.most_bytes = number<std::uint64_t>();
  if (out.threads < 1) good_ = false;
  return out;
}

void RunPlan::write(Writer& to) const {
  for (const auto* tensors : {&inputs, &outputs}) {
    to.number(static_cast<std::uint32_t>(tensors->size()));
    for (const Tensor& each : *tensors) {
      to.shape(each.shape);
      to.number(each.offset);
      to.number(each.bytes);
    }
  }
}

bool RunPlan::read(Reader& from, std::uint64_t memory, RunPlan& into) {
  for (auto* tensors : {&into.inputs, &into.outputs}) {
    const std::size_t many = from.count(sizeof(std::uint32_t) + 2 * sizeof(std::uint64_t));
    for (std::size_t i = 0; from.good() && i < many; ++i) {
      Tensor& each = tensors->emplace_back();
      each.shape = from.shape();
      each.offset = from.number<std::uint64_t>();
      each.bytes = from.number<std::uint64_t>();
      if (each.offset > memory || each.bytes > memory - each.offset) return false;
    }
  }
  return from.whole();
}

bool send_message(int socket, Ask kind, std::span<const std::byte> bytes, int descriptor) {
  if (bytes.size() > longest_message) return false;
  const Header header{static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(bytes.size())};
  return send_all(socket, std::as_bytes(std::span(&header, 1)), descriptor) && send_all(socket, bytes, -1);
}

Received receive_message(int socket, Ask& kind, std::vector<std::byte>& bytes, int& descriptor,
                         const GoOn& go_on) {
  descriptor = -1;
  Header header;
  Received got = receive_all(socket, std::as_writable_bytes(std::span(&header, 1)), descriptor, go_on);
  if (got == Received::whole) {
    if (header.size > longest_message || header.kind > static_cast<std::uint32_t>(Ask::renew))
      got = Received::bad;
  }
  if (got == Received::whole) {
    kind = static_cast<Ask>(header.kind);
    bytes.resize(header.size);
    got = receive_all(socket, bytes, descriptor, go_on);
  }
  if (got != Received::whole && descriptor >= 0) {
    ::close(descriptor);
    descriptor = -1;
  }
  return got;
}

bool send_packet(int socket, std::span<const std::byte> bytes, int descriptor) {
  return send_some(socket, bytes, descriptor) == static_cast<ssize_t>(bytes.size());
}

Received receive_packet(int socket, std::span<std::byte> room, std::size_t& size, int& descriptor,
                        const GoOn& go_on) {
  descriptor = -1;
  for (;;) {
    if (const Received waited = wait_for(socket, go_on); waited != Received::whole) return waited;
    bool truncated = false;
    const ssize_t got = receive_some(socket, room, descriptor, truncated);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (got > 0 && !truncated) {
      size = static_cast<std::size_t>(got);
      return Received::whole;
    }
    if (descriptor >= 0) ::close(descriptor);
    descriptor = -1;
    return got > 0 ? Received::bad : Received::closed;
  }
}

}  // namespace carillon::engine::second
