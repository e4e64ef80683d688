#include "carillon/share/client/attach.h"

#include <algorithm>

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "carillon/share/client/client.h"
#include "carillon/share/client/lane.h"
#include "carillon/share/client/wire.h"

namespace carillon::share::client {
namespace {

constexpr std::size_t ask_step = 2 * 1024 * 1024;

// Of the time that the job said it would take.
std::uint64_t remaining_now() {
  if (me.hello.remaining_ns == 0) return 0;  // not known
  const std::uint64_t since = me.counts.busy_ns - std::min(me.counts.busy_ns, me.busy_when_told);
  return std::max<std::uint64_t>(1, me.hello.remaining_ns - std::min(me.hello.remaining_ns, since));
}

void end_by(const Packet& packet, const char* what) {
  const Refused& r = packet.refused;
  char text[sizeof r.why + 1] = {};
  memcpy(text, r.why, sizeof r.why);
  if (r.fits_persistent || r.fits_ephemeral)
    because(
        "this job was %s by the broker at %s: %s (what fits: %.1f MiB that stay and %.1f MiB of an "
        "iteration)",
        what, me.path, text, static_cast<double>(r.fits_persistent) / 1048576,
        static_cast<double>(r.fits_ephemeral) / 1048576);
  else
    because("this job was %s by the broker at %s: %s", what, me.path, text);
  me.is_ended = true;
  me.in_lane = false;
  hang_up();
}

After take_packet(Came came, const Packet& packet, Descriptors& fds) {
  if (came == Came::packet && packet.header.kind == Kind::pieces && me.on_device)
    me.keeper->pieces(&packet.pieces, fds.number);
  if (packet.header.kind == Kind::pieces) fds.close_all();
  const int fd = fds.take_one();
  if (came == Came::other_version) {
    because("the broker at %s speaks version %u, this client version %u: run both from one release", me.path,
            packet.header.version, protocol_version);
    me.is_ended = true;
    hang_up();
    return After::ended;
  }
  if (came == Came::closed) {
    hang_up();
    return After::lost;
  }
  switch (packet.header.kind) {
    case Kind::lane:
      set_lane(packet.lane.lane, fd, packet.lane.size);
      return me.is_ended ? After::ended : After::same;
    case Kind::device: {
      const char* const not_so = me.keeper ? me.keeper->device(&packet.device) : nullptr;
      me.on_device = me.keeper && !not_so;
      if (!not_so) break;
      because("the broker at %s: %s", me.path, not_so);
      me.is_ended = true;
      break;
    }
    case Kind::refused:
      end_by(packet, "refused");
      return After::ended;
    case Kind::evicted:
      end_by(packet, "evicted");
      return After::ended;
    case Kind::ending:
      hang_up();
      return packet.ending.alone ? After::alone : After::lost;
    case Kind::hello:
    case Kind::welcome:
    case Kind::stopped:
    case Kind::ask:
    case Kind::bye:
    case Kind::query:
    case Kind::pieces:
    case Kind::listing:
      break;
  }
  if (fd >= 0) close(fd);
  return me.is_ended ? After::ended : After::same;  // not for us now; a later broker may know more
}

// Sees to it that a job which nobody recalls any more learns that its broker is gone: without it the lease
// would say `run` for ever. Ends with its broker.
struct Watch {
  int socket;
  std::uint64_t is;
  ControlPage* page;
};
void* watch(void* argument) {
  Watch w{};
  memcpy(&w, argument, sizeof w);
  munmap(argument, page_bytes);
  pollfd look{w.socket, 0, 0};
  while (poll(&look, 1, -1) < 0 && errno == EINTR) {
  }
  close(w.socket);
  me.lost = true;
  w.page->lease = static_cast<std::uint32_t>(Lease::look);
  futex(&w.page->lease, FUTEX_WAKE, 1 << 20, nullptr);
  return nullptr;
}

void start_watch(ControlPage* page) {
  void* argument = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (argument == MAP_FAILED) return;
  const Watch w{dup(me.socket), me.socket_is, page};
  fcntl(w.socket, F_SETFD, FD_CLOEXEC);
  memcpy(argument, &w, sizeof w);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 * 1024);
  pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  if (pthread_create(&thread, &small, watch, argument) != 0) {
    close(w.socket);
    munmap(argument, page_bytes);
  }
  pthread_attr_destroy(&small);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void hang_up() {
  close_own(me.socket, me.socket_is);
  me.attached = false;
}

void go_alone(const char* reason) {
  hang_up();
  drop_lane();
  me.in_lane = false;
  me.is_alone = true;
  me.page = &me.nobody;
  me.nobody.lease = static_cast<std::uint32_t>(Lease::run);
  because("%s; this job goes on without sharing the device", reason);
}

bool lost_descriptors() {
  return (me.socket >= 0 && identity(me.socket) != me.socket_is) ||
         (me.lane_fd >= 0 && identity(me.lane_fd) != me.lane_is);
}

After read_all() {
  Packet packet;
  Descriptors fds;
  while (me.socket >= 0) {
    const Came came = receive_packet(me.socket, packet, fds, 0);
    if (came == Came::nothing) return After::same;
    if (const After after = take_packet(came, packet, fds); after != After::same) return after;
  }
  return After::lost;
}

bool say_stopped() {
  Stopped stopped;
  stopped.iterations = me.counts.iterations;
  stopped.busy_ns = me.counts.busy_ns;
  stopped.persistent = me.floor;
  stopped.ephemeral = me.ephemeral;
  stopped.remaining_ns = remaining_now();
  auto* const page = static_cast<ControlPage*>(me.page);
  page->remaining_ns.store(stopped.remaining_ns, std::memory_order_relaxed);
  stopped.stops = page->stops.fetch_add(1) + 1;
  if (page->listens.load() != 0) return true;
  return send_packet(me.socket, stopped.header, Kind::stopped, sizeof stopped);
}

int say_hello(bool again) {
  me.socket = connect_to(me.path);
  if (me.socket < 0) {
    because(
        "no broker at %s (%s): start one with `carillon share`, name its socket with --socket, or run "
        "without "
        "one by --alone",
        me.path, strerror(errno));
    return nobody;
  }
  me.socket_is = identity(me.socket);
  me.on_device = false;  // until it says so
  me.hello.again = again ? 1 : 0;
  me.hello.memories = me.keeper ? memory_of_cuda : 0;
  me.hello.iterations = me.counts.iterations;
  me.hello.busy_ns = me.counts.busy_ns;
  if (again) {
    me.hello.remaining_ns = remaining_now();
    me.busy_when_told = me.counts.busy_ns;
    me.hello.persistent = me.floor;
    me.hello.ephemeral = me.ephemeral;
  }
  Packet packet;
  Descriptors fds;
  Came came = Came::closed;
  if (send_packet(me.socket, me.hello.header, Kind::hello, sizeof me.hello))
    came = receive_packet(me.socket, packet, fds, 10'000);
  const int fd = fds.take_one();
  if (came == Came::packet && packet.header.kind == Kind::welcome && fd >= 0) {
    void* page = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) {
      // The page of a broker that is gone stays mapped: its watch may still write there.
      me.page = static_cast<ControlPage*>(page);
      me.lost = false;
      me.attached = true;
      start_watch(me.page);
      if (packet.welcome.memory == 0) return go_on;
      came = receive_packet(me.socket, packet, fds, 10'000);
      if (came != Came::nothing && take_packet(came, packet, fds) == After::same && me.on_device) {
        if (!again) me.floor = me.keeper->persistent();
        return go_on;
      }
      if (!me.is_ended) because("the broker at %s did not say which device its lanes are on", me.path);
      me.is_ended = true;
      hang_up();
      return ended;
    }
    because("the broker's page could not be mapped: %s", strerror(errno));
    hang_up();
    return nobody;
  }
  if (fd >= 0) close(fd);
  if (came == Came::packet || came == Came::other_version) {
    if (take_packet(came, packet, fds) == After::ended) return ended;
  }
  if (!me.is_ended) because("the broker at %s did not answer", me.path);
  hang_up();
  return nobody;
}

bool ask_for(std::size_t bytes) {
  if (!me.attached || me.lost || identity(me.socket) != me.socket_is) return false;
  Ask ask;
  ask.persistent = me.floor;
  ask.ephemeral = (bytes + ask_step - 1) / ask_step * ask_step;
  if (ask.ephemeral > me.lane.bytes()) return false;
  ++me.counts.asks;
  if (!send_packet(me.socket, ask.header, Kind::ask, sizeof ask)) return false;
  for (;;) {
    Packet packet;
    Descriptors fds;
    const Came came = receive_packet(me.socket, packet, fds, -1);
    const bool answer = came == Came::packet && packet.header.kind == Kind::lane;
    if (take_packet(came, packet, fds) != After::same) {
      if (me.is_ended) tell();
      return false;
    }
    if (answer) return me.lane_bytes >= bytes;
  }
}

int attach_again(std::uint64_t until) {
  for (;;) {
    pthread_mutex_lock(&me.lock);
    drop_lane();
    const int answer = say_hello(true);
    const bool stopped = answer == go_on && say_stopped();
    if (answer == go_on && !stopped) hang_up();
    pthread_mutex_unlock(&me.lock);
    if (stopped) return go_on;
    if (answer == ended) return ended;
    if (clock_ns() >= until) {
      Locked locked;
      char text[160];
      snprintf(text, sizeof text, "the broker at %s is gone, and no other came", me.path);
      go_alone(text);
      return alone;
    }
    const timespec pause{0, 100'000'000};
    if (nanosleep(&pause, nullptr) != 0) return interrupted;
  }
}

}  // namespace carillon::share::client
