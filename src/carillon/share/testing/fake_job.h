#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "carillon/base/descriptor.h"
#include "carillon/share/listener.h"
#include "carillon/share/messages.h"
#include "carillon/share/protocol.h"

// A job that speaks the protocol and computes nothing: what a test, or a benchmark, makes it do.
namespace carillon::share::testing {

struct Packet {
  std::vector<std::byte> bytes;  // empty: the broker hung up
  Descriptor descriptor;

  Header header() const {
    Header header{};
    if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
    return header;
  }
  Kind kind() const { return header().kind; }
  template <typename T>
  T as() const {
    T out{};
    std::memcpy(&out, bytes.data(), std::min(bytes.size(), sizeof out));
    return out;
  }
};

class FakeJob {
 public:
  FakeJob() = default;
  explicit FakeJob(const std::string& path) { connect(path); }
  ~FakeJob() {
    if (page_ != nullptr) munmap(page_, 4096);
    if (memory_ != nullptr) munmap(memory_, mapped_);
  }
  FakeJob(FakeJob&& other) noexcept
      : iterations(other.iterations), busy_ns(other.busy_ns), persistent(other.persistent), ephemeral(other.ephemeral),
        lane(other.lane), socket_(std::move(other.socket_)), page_(std::exchange(other.page_, nullptr)),
        memory_(std::exchange(other.memory_, nullptr)), mapped_(other.mapped_) {}
  FakeJob& operator=(FakeJob&&) = delete;

  bool connect(const std::string& path) {
    const auto address = address_of(path);
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    return address && ::connect(socket_.number(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0;
  }
  Hello greeting(const std::string& name) const {
    auto hello = packet_of<Hello>(Kind::hello);
    hello.pid = static_cast<std::uint32_t>(getpid());
    hello.persistent = persistent;
    hello.ephemeral = ephemeral;
    hello.iterations = iterations;
    hello.busy_ns = busy_ns;
    std::memcpy(hello.name, name.data(), std::min(name.size(), most_name - 1));
    return hello;
  }
  template <typename T>
  bool send(const T& packet) {
    return send_bytes(bytes_of(packet));
  }
  bool send_bytes(std::span<const std::byte> packet) {
    return ::send(socket_.number(), packet.data(), packet.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
  }
  // Waits for a packet, ten seconds at most. A lane's memory is mapped, and a page.
  Packet receive(int milliseconds = 10'000) {
    pollfd ready{socket_.number(), POLLIN, 0};
    Packet out;
    if (poll(&ready, 1, milliseconds) <= 0) return out;
    out.bytes.resize(most_packet);
    iovec part{out.bytes.data(), out.bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket_.number(), &message, MSG_CMSG_CLOEXEC);
    out.bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&message); header != nullptr && got > 0) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
      out.descriptor = Descriptor(descriptor);
    }
    if (out.bytes.empty()) return out;
    if (out.kind() == Kind::welcome) map_page(out.descriptor);
    if (out.kind() == Kind::lane) map_lane(out);
    return out;
  }
  // Whether there is something to read.
  bool has_packet() const {
    pollfd ready{socket_.number(), POLLIN, 0};
    return poll(&ready, 1, 0) > 0;
  }

  // hello, and what comes back.
  Packet greet(const std::string& name) {
    send(greeting(name));
    return receive();
  }
  bool ready() { return stop(); }
  // Out of its lane.
  bool stop() {
    auto packet = packet_of<Stopped>(Kind::stopped);
    packet.iterations = iterations;
    packet.busy_ns = busy_ns;
    packet.persistent = persistent;
    packet.ephemeral = ephemeral;
    if (page_ != nullptr) {
      page_->inside = 0;
      packet.stops = ++page_->stops;
      if (page_->listens != 0) return true;
    }
    return send(packet);
  }
  // One has ended, by the page.
  void count(std::uint64_t ns) {
    busy_ns += ns;
    ++iterations;
    page_->last_ns = ns;
    page_->boundary_ns = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    page_->busy_ns = busy_ns;
    page_->persistent = persistent;
    page_->ephemeral = ephemeral;
    page_->iterations = iterations;
  }
  Lease lease() const { return static_cast<Lease>(page_->lease.load(std::memory_order_acquire)); }
  // Waits until the lease is another one; ten seconds at most. What it is then.
  Lease wait_while(Lease is) const {
    timespec longest{10, 0};
    while (lease() == is)
      if (syscall(SYS_futex, &page_->lease, FUTEX_WAIT, is, &longest, nullptr, 0) != 0 && errno == ETIMEDOUT) break;
    return lease();
  }
  // Waits for a grant, and reads what came before it.
  bool enter() {
    const auto now = [] {
      return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    };
    const timespec longest{10, 0};
    while (lease() == Lease::hold) {
      while (lease() == Lease::hold && now() < page_->soon_ns.load(std::memory_order_acquire)) sched_yield();
      if (syscall(SYS_futex, &page_->lease, FUTEX_WAIT, Lease::hold, &longest, nullptr, 0) != 0 && errno == ETIMEDOUT)
        break;
    }
    if (wait_while(Lease::hold) != Lease::run) return false;
    while (has_packet())
      if (receive().bytes.empty()) return false;
    page_->inside = 1;
    return true;
  }
  ControlPage* page() { return page_; }
  char* memory() { return static_cast<char*>(memory_); }
  int socket() const { return socket_.number(); }
  void hang_up() { socket_.close(); }

  std::uint64_t iterations = 0, busy_ns = 0;
  std::uint64_t persistent = 1 << 20, ephemeral = 1 << 20;
  LaneIs lane;  // the last that was told

 private:
  void map_page(const Descriptor& file) {
    void* const at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (at != MAP_FAILED) page_ = static_cast<ControlPage*>(at);
  }
  void map_lane(const Packet& packet) {
    lane = packet.as<LaneIs>();
    if (!packet.descriptor.open() || lane.size == 0) return;
    if (memory_ != nullptr) munmap(memory_, mapped_);
    void* const at = mmap(nullptr, lane.size, PROT_READ | PROT_WRITE, MAP_SHARED, packet.descriptor.number(), 0);
    memory_ = at == MAP_FAILED ? nullptr : at;
    mapped_ = lane.size;
  }

  Descriptor socket_;
  ControlPage* page_ = nullptr;
  void* memory_ = nullptr;
  std::size_t mapped_ = 0;
};

}  // namespace carillon::share::testing
