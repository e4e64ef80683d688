#include "carillon/share/client/shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "carillon/share/client/chooser.h"
#include "carillon/share/client/heap.h"
#include "carillon/share/client/survivors.h"
#include "carillon/share/client/wire.h"

// Stands before libc's allocator in every process of a run, so nothing here may allocate by malloc, throw, or need
// libstdc++'s library. Large blocks come from two heaps: `own`, private memory, and `lane`, the memfd that jobs of a
// lane use in turn. Which of the two: blocks that the training thread takes within an iteration, and that are not
// expected to outlive it, come from the lane.
namespace carillon::share::client {
namespace {

constexpr std::size_t large = 64 * 1024;
constexpr std::size_t ask_step = 2 * 1024 * 1024;
constexpr std::uint64_t boundaries_before_lane = 2;  // the first iterations make what stays

struct Reals {
  int (*posix_memalign)(void**, std::size_t, std::size_t);
  void* (*aligned_alloc)(std::size_t, std::size_t);
  void* (*memalign)(std::size_t, std::size_t);
  void* (*malloc)(std::size_t);
  void* (*realloc)(void*, std::size_t);
  void (*free)(void*);
  std::size_t (*malloc_usable_size)(void*);
};
constinit Reals reals{};

// Both heaps lie in one range, so that free() tells in one comparison that a block is not ours.
constinit std::uintptr_t range_start = 0;
constinit std::size_t range_bytes = 0;

struct Client {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // heaps, survivors, lane
  Heap own, lane;
  Survivors survivors;
  BoundaryChooser chooser;
  bool prepared = false;
  bool in_lane = false;  // an iteration runs that was granted the lane

  // --- the broker
  int socket = -1, run_lock = -1, lane_fd = -1;
  std::uint32_t lane_number = 0;
  std::size_t lane_bytes = 0;
  std::atomic<ControlPage*> page{nullptr};
  ControlPage nobody{};  // the page of a job that has no broker
  std::atomic<bool> lost{false};
  bool attached = false, is_ended = false, is_alone = false;
  const carillon_keeper_t* keeper = nullptr;
  bool on_device = false;  // its broker's lanes are the keeper's
  char path[108] = {}, why[512] = {};
  Hello hello{};
  std::uint64_t reattach_ns = 0, retry_at = 0;
  int plant = 0;  // a fault, for tests: signals before the boundary are taken for one, and nothing is rescued

  // --- what is counted
  std::uint64_t started = 0, peak = 0, floor = 0, ephemeral = 0, dirty = 0;
  carillon_counters_t counts{};

  // --- a fork
  std::byte* copy = nullptr;
  std::size_t copy_bytes = 0;
};
constinit Client me{};

__attribute__((tls_model("initial-exec"))) thread_local bool trains = false;

template <typename F>
void resolve(F& to, const char* name) {
  if (void* found = dlsym(RTLD_NEXT, name)) memcpy(&to, &found, sizeof to);
}

__attribute__((noinline, cold)) void resolve_all() {
  Reals found{};
  resolve(found.posix_memalign, "posix_memalign");
  resolve(found.aligned_alloc, "aligned_alloc");
  resolve(found.memalign, "memalign");
  resolve(found.malloc, "malloc");
  resolve(found.realloc, "realloc");
  resolve(found.malloc_usable_size, "malloc_usable_size");
  resolve(found.free, "free");
  reals = found;
}

bool ours(const void* p) { return reinterpret_cast<std::uintptr_t>(p) - range_start < range_bytes; }

std::uint64_t clock_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(t.tv_nsec);
}

__attribute__((format(printf, 1, 2))) void because(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(me.why, sizeof me.why, format, arguments);
  va_end(arguments);
}

void tell() {
  char line[600];
  const int n = snprintf(line, sizeof line, "carillon: %s\n", me.why);
  if (n > 0 && write(2, line, std::min(static_cast<std::size_t>(n), sizeof line - 1)) < 0) return;
}

void futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* longest) {
  syscall(SYS_futex, word, operation, value, longest, nullptr, 0);
}

class Locked {
 public:
  Locked() { pthread_mutex_lock(&me.lock); }
  ~Locked() { pthread_mutex_unlock(&me.lock); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

// --- the lane's pages -----------------------------------------------------------------------------------------

// What a range of the lane's addresses is made of: pages of the memfd within `lane_bytes`, nothing beyond.
void map_lane(std::size_t from, std::size_t to) {
  std::byte* const base = me.lane.base();
  const std::size_t end = std::min(to, me.lane_fd < 0 ? 0 : me.lane_bytes);
  if (from < end) {
    if (mmap(base + from, end - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, me.lane_fd,
             static_cast<off_t>(from)) == MAP_FAILED) {
      because("the lane's memory could not be mapped: %s", strerror(errno));
      tell();
      abort();  // the range is in an unknown state
    }
    madvise(base + from, end - from, MADV_DONTFORK);
  }
  from = std::max(from, end);
  if (from < to)
    mmap(base + from, to - from, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

// Gives a shared block pages of its own, with what is in it, at its address. Whoever reads it meanwhile sees no
// difference; what another thread writes meanwhile may be lost.
void rescue(Heap::Block* b) {
  const std::size_t bytes = std::size_t{b->pages} * page_bytes;
  void* fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::byte* const at = me.lane.address(*b);
  if (fresh != MAP_FAILED) {
    memcpy(fresh, at, b->asked);
    if (mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) {
      me.lane.make_own(b);
      ++me.counts.rescued;
      me.counts.rescued_bytes += b->asked;
      return;
    }
  }
  because("no memory for %zu bytes that outlive their iteration: %s", bytes, strerror(errno));
  tell();
  abort();
}

void rescue_all() {
  while (Heap::Block* b = me.lane.first_shared()) rescue(b);
}

// The lane is `bytes` of `fd` from now on, which is taken over (-1: the same memfd as before). Under the lock.
void set_lane(std::uint32_t number, int fd, std::size_t bytes) {
  if (me.on_device) {
    if (fd >= 0) close(fd);
    me.lane_number = number;
    me.lane_bytes = bytes;
    if (me.keeper->lane(number, bytes) || number == 0) return;
    because("this job's lane on the device cannot be used");
    me.is_ended = true;
    return;
  }
  const bool other = number != me.lane_number || me.lane_fd < 0;
  bytes = std::min(bytes / page_bytes * page_bytes, me.lane.bytes());
  if (other) rescue_all();
  const std::size_t before = other ? 0 : me.lane_bytes;
  if (!other && bytes < before) rescue_all();
  if (fd >= 0) {
    if (me.lane_fd >= 0) close(me.lane_fd);
    me.lane_fd = fd;
  }
  if (number == 0 && me.lane_fd >= 0) {
    close(me.lane_fd);
    me.lane_fd = -1;
    bytes = 0;
  }
  me.lane_number = number;
  me.lane_bytes = bytes;
  me.lane.set_limit(bytes);
  const std::size_t low = std::min(before, bytes), high = other ? me.lane.bytes() : std::max(before, bytes);
  for (const Heap::Block* b = me.lane.first(); b; b = me.lane.after(*b)) {
    if (b->state != Heap::State::free && b->state != Heap::State::gone) continue;
    const std::size_t start = std::size_t{b->start} * page_bytes, end = start + std::size_t{b->pages} * page_bytes;
    const std::size_t from = std::max(start, low), to = std::min(end, high);
    if (from < to) map_lane(from, to);
  }
}

void drop_lane() { set_lane(0, -1, 0); }

// --- packets ----------------------------------------------------------------------------------------------------

// What this job has of the broker's device, by its lane's keeper where that is another device than the host.
std::uint64_t live_bytes() { return me.on_device ? me.keeper->live() : me.own.live() + me.lane.live(); }

void hang_up() {
  if (me.socket >= 0) close(me.socket);
  me.socket = -1;
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

void end_by(const Packet& packet, const char* what) {
  const Refused& r = packet.refused;
  char text[sizeof r.why + 1] = {};
  memcpy(text, r.why, sizeof r.why);
  if (r.fits_persistent || r.fits_ephemeral)
    because("this job was %s by the broker at %s: %s (what fits: %.1f MiB that stay and %.1f MiB of an iteration)", what,
            me.path, text, static_cast<double>(r.fits_persistent) / 1048576,
            static_cast<double>(r.fits_ephemeral) / 1048576);
  else
    because("this job was %s by the broker at %s: %s", what, me.path, text);
  me.is_ended = true;
  me.in_lane = false;
  hang_up();
}

// Whether it goes on with this broker.
enum class After : std::uint8_t { same, lost, alone, ended };

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
    case Kind::refused: end_by(packet, "refused"); return After::ended;
    case Kind::evicted: end_by(packet, "evicted"); return After::ended;
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
    case Kind::listing: break;
  }
  if (fd >= 0) close(fd);
  return me.is_ended ? After::ended : After::same;  // not for us now; a later broker may know more
}

// Reads what has come. Under the lock.
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
  stopped.remaining_ns = me.hello.remaining_ns;
  return send_packet(me.socket, stopped.header, Kind::stopped, sizeof stopped);
}

// Sees to it that a job which nobody recalls any more learns that its broker is gone: without it the lease would
// say `run` for ever. Ends with its broker.
struct Watch {
  int socket;
  ControlPage* page;
};
void* watch(void* argument) {
  Watch w{};
  memcpy(&w, argument, sizeof w);
  munmap(argument, page_bytes);
  pollfd look{w.socket, 0, 0};
  while (poll(&look, 1, -1) < 0 && errno == EINTR) {}
  close(w.socket);
  me.lost = true;
  w.page->lease = static_cast<std::uint32_t>(Lease::look);
  futex(&w.page->lease, FUTEX_WAKE, 1 << 20, nullptr);
  return nullptr;
}

void start_watch(ControlPage* page) {
  void* argument = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (argument == MAP_FAILED) return;
  const Watch w{dup(me.socket), page};
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

// Connects, says hello and maps the page: after this the job is held. Under the lock.
int say_hello(bool again) {
  me.socket = connect_to(me.path);
  if (me.socket < 0) {
    because("no broker at %s (%s): start one with `carillon share`, name its socket with --socket, or run without "
            "one by --alone",
            me.path, strerror(errno));
    return nobody;
  }
  me.on_device = false;  // until it says so
  me.hello.again = again ? 1 : 0;
  me.hello.memories = me.keeper ? memory_of_cuda : 0;
  me.hello.iterations = me.counts.iterations;
  me.hello.busy_ns = me.counts.busy_ns;
  if (again) {
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

// More of the lane, where it does not suffice for `bytes` at once. Under the lock, which others wait for: the job is
// held until the answer.
bool ask_for(std::size_t bytes) {
  if (!me.attached || me.lost) return false;
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

// --- blocks -----------------------------------------------------------------------------------------------------

void note_peak() {
  const std::uint64_t live = me.own.live() + me.lane.live();
  if (live > me.peak) me.peak = live;
}

enum class Took : std::uint8_t { block, elsewhere, failed };

Took take(std::size_t bytes, void** out) {
  Locked locked;
  Heap* heap = &me.own;
  Heap::Block* b = nullptr;
  std::uint32_t key = 0, iteration = 0;
  if (trains && me.in_lane && !me.on_device) {
    key = me.survivors.key(bytes);
    iteration = me.survivors.iteration();
    if (me.plant || !me.survivors.expected(key)) {
      b = me.lane.take(bytes, Heap::State::shared);
      if (!b && ask_for(me.lane_bytes - me.lane.tail() + bytes)) b = me.lane.take(bytes, Heap::State::shared);
      if (!b && me.is_ended) return Took::failed;
      if (b) {
        heap = &me.lane;
        ++me.counts.lane_blocks;
      }
    }
  }
  if (!b) {
    b = me.own.take(bytes, Heap::State::own);
    if (!b) return Took::elsewhere;
    const std::uint64_t taken = std::uint64_t{b->pages} * page_bytes;
    me.dirty -= std::min(me.dirty, taken);
  }
  b->key = key;
  b->iteration = iteration;
  note_peak();
  *out = heap->address(*b);
  return Took::block;
}

void give(void* p) {
  Locked locked;
  if (Heap::Block* b = me.lane.find(p)) {
    const bool had_own = b->state == Heap::State::own;
    const std::size_t start = std::size_t{b->start} * page_bytes, end = start + std::size_t{b->pages} * page_bytes;
    me.lane.give(b);
    if (had_own) map_lane(start, end);
    return;
  }
  Heap::Block* b = me.own.find(p);
  if (!b) {
    because("free() of an address within a block: the program's memory is damaged");
    tell();
    abort();
  }
  if (b->iteration && b->iteration == me.survivors.iteration()) me.survivors.died(b->key);
  const std::size_t bytes = std::size_t{b->pages} * page_bytes;
  std::byte* const at = me.own.address(*b);
  me.own.give(b);
  // As malloc does, keep some of what is free, and give the rest back.
  me.dirty += bytes;
  if (me.dirty > (std::uint64_t{64} << 20U) + me.own.live() / 2) {
    madvise(at, bytes, MADV_DONTNEED);
    me.dirty -= bytes;
  }
}

std::size_t usable(void* p) {
  Locked locked;
  Heap::Block* b = me.lane.find(p);
  if (!b) b = me.own.find(p);
  return b ? b->asked : 0;
}

// Whether a request is one for the heaps; out: the block, or nullptr where there is no memory.
bool from_heaps(std::size_t alignment, std::size_t bytes, void** out) {
  if (bytes < large || !me.prepared || alignment > page_bytes || bytes > me.own.bytes()) return false;
  *out = nullptr;
  return take(bytes, out) != Took::elsewhere;
}

// --- a fork -----------------------------------------------------------------------------------------------------

// The child gets a copy of what is live in the lane, at the same address; the parent goes on as it was.
void before_fork() {
  pthread_mutex_lock(&me.lock);
  me.copy = nullptr;
  me.copy_bytes = me.lane.live_shared();
  if (!me.copy_bytes) return;
  void* copy = mmap(nullptr, me.copy_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) {
    because("no memory for a copy of %zu bytes at fork", me.copy_bytes);
    tell();
    abort();
  }
  me.copy = static_cast<std::byte*>(copy);
  std::size_t at = 0;
  for (Heap::Block* b = me.lane.first_shared(); b; b = me.lane.next_shared(*b)) {
    memcpy(me.copy + at, me.lane.address(*b), b->asked);
    at += std::size_t{b->pages} * page_bytes;
  }
}

void after_fork_in_parent() {
  if (me.copy) munmap(me.copy, me.copy_bytes);
  me.copy = nullptr;
  ++me.counts.forks;
  pthread_mutex_unlock(&me.lock);
}

void after_fork_in_child() {
  std::size_t at = 0;
  while (Heap::Block* b = me.lane.first_shared()) {
    const std::size_t bytes = std::size_t{b->pages} * page_bytes;
    if (mremap(me.copy + at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, me.lane.address(*b)) == MAP_FAILED) abort();
    me.lane.make_own(b);
    at += bytes;
  }
  me.copy = nullptr;
  if (me.socket >= 0) close(me.socket);
  if (me.run_lock >= 0) close(me.run_lock);
  if (me.lane_fd >= 0) close(me.lane_fd);
  me.socket = me.run_lock = me.lane_fd = -1;
  me.lane_bytes = 0;
  me.lane_number = 0;
  me.lane.set_limit(0);
  // Its parent may be killed while it stands still. Loaders are forked before their parent says hello.
  if (me.prepared) prctl(PR_SET_PDEATHSIG, SIGCONT);
  me.in_lane = me.attached = me.is_ended = me.is_alone = false;
  me.keeper = nullptr;  // a device's context does not go with a fork
  me.on_device = false;
  me.page = nullptr;
  me.chooser = BoundaryChooser{};
  me.counts = {};
  pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  me.lock = fresh;
}

__attribute__((constructor)) void load() {
  if (!reals.free) resolve_all();
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

// --- boundaries -------------------------------------------------------------------------------------------------

// Under the lock, after a boundary at which nothing holds the job.
void enter_lane() {
  const bool has_lane = me.on_device ? me.lane_number != 0 : me.lane_fd >= 0;
  if (me.counts.boundaries < boundaries_before_lane || !has_lane) return;
  // What it is known to need, at once rather than piece by piece.
  if (!me.in_lane && me.ephemeral > me.lane_bytes) ask_for(me.ephemeral);
  me.in_lane = me.attached && !me.lost;
}

void end_iteration(std::uint64_t now) {
  ++me.counts.iterations;
  me.counts.busy_ns += now - me.started;
  me.started = now;
  for (Heap::Block* b = me.lane.first_shared(); b && !me.plant; b = me.lane.next_shared(*b))
    if (b->iteration == me.survivors.iteration()) me.survivors.survived(b->key);
  me.survivors.next_iteration();
  const std::uint64_t live = live_bytes();
  me.floor = me.on_device ? me.keeper->persistent() : live;
  me.ephemeral = std::max(me.ephemeral, me.on_device ? me.keeper->ephemeral() : me.peak > live ? me.peak - live : 0);
  me.peak = live;
  if (me.on_device) me.keeper->iteration_ended();
  ControlPage* page = me.page;
  page->iterations.store(me.counts.iterations, std::memory_order_relaxed);
  page->busy_ns.store(me.counts.busy_ns, std::memory_order_relaxed);
  page->persistent.store(me.floor, std::memory_order_relaxed);
  page->ephemeral.store(me.ephemeral, std::memory_order_relaxed);
}

// Waits for a broker at the same place until `until`. Under the lock but for the waiting.
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

}  // namespace
}  // namespace carillon::share::client

using namespace carillon::share;
using namespace carillon::share::client;

#define CARILLON_OUT extern "C" __attribute__((visibility("default")))

CARILLON_OUT int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  if (void* p = nullptr; from_heaps(alignment, bytes, &p)) {
    if (!p) return ENOMEM;
    *out = p;
    return 0;
  }
  if (!reals.posix_memalign) resolve_all();
  return reals.posix_memalign(out, alignment, bytes);
}

CARILLON_OUT void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  if (void* p = nullptr; from_heaps(alignment, bytes, &p)) {
    if (!p) errno = ENOMEM;
    return p;
  }
  if (!reals.aligned_alloc) resolve_all();
  return reals.aligned_alloc(alignment, bytes);
}

CARILLON_OUT void* memalign(std::size_t alignment, std::size_t bytes) {
  if (void* p = nullptr; from_heaps(alignment, bytes, &p)) {
    if (!p) errno = ENOMEM;
    return p;
  }
  if (!reals.memalign) resolve_all();
  return reals.memalign(alignment, bytes);
}

CARILLON_OUT void free(void* p) {
  if (__builtin_expect(ours(p), 0)) {
    const int before = errno;
    give(p);
    errno = before;
    return;
  }
  if (!reals.free) resolve_all();
  reals.free(p);
}

CARILLON_OUT void* realloc(void* p, std::size_t bytes) {
  if (!reals.realloc) resolve_all();
  if (!ours(p)) return reals.realloc(p, bytes);
  const std::size_t had = usable(p);
  if (bytes == 0) {
    give(p);
    return nullptr;
  }
  void* to = reals.malloc(bytes);
  if (!to) return nullptr;
  memcpy(to, p, std::min(had, bytes));
  give(p);
  return to;
}

CARILLON_OUT void* reallocarray(void* p, std::size_t many, std::size_t bytes) {
  std::size_t all = 0;
  if (__builtin_mul_overflow(many, bytes, &all)) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(p, all);
}

CARILLON_OUT std::size_t malloc_usable_size(void* p) {
  if (!reals.malloc_usable_size) resolve_all();
  return ours(p) ? usable(p) : reals.malloc_usable_size(p);
}

CARILLON_OUT int carillon_prepare() {
  Locked locked;
  if (me.prepared) return 0;
  if (const char* plant = getenv("CARILLON_SHIM_PLANT")) me.plant = strcmp(plant, "early") == 0;
  for (std::size_t half = std::size_t{1} << 38U; half >= std::size_t{1} << 30U; half /= 2) {
    void* range = mmap(nullptr, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    auto* base = static_cast<std::byte*>(range);
    if (mmap(base, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
            MAP_FAILED ||
        !me.own.start(base, half) || !me.lane.start(base + half, half)) {
      munmap(range, 2 * half);
      continue;
    }
    me.own.set_limit(half);
    range_start = reinterpret_cast<std::uintptr_t>(range);
    range_bytes = 2 * half;
    me.prepared = true;
    return 0;
  }
  because("no range of addresses for a heap: is `ulimit -v` set?");
  return 1;
}

CARILLON_OUT void carillon_counters(carillon_counters_t* out) {
  Locked locked;
  *out = me.counts;
  out->lane_bytes = me.lane_bytes;
  out->own_live = me.own.live();
  out->lane_live = me.lane.live_shared();
  out->ephemeral = me.ephemeral;
  out->attached = me.attached;
  out->certain = me.chooser.certain();
}

CARILLON_OUT const char* carillon_why() { return me.why; }

CARILLON_OUT int carillon_attach(const char* socket, const char* run, const char* name, std::uint32_t threads,
                                 std::uint64_t persistent, std::uint64_t ephemeral, std::uint64_t remaining_ns,
                                 double weight, double reattach_seconds) {
  Locked locked;
  if (!me.prepared) return nobody;  // carillon_why() says it already
  if (run[0] != 0 && me.run_lock < 0) {
    // A name that the kernel forgets with its process.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "carillon-run-%s", run);
    const int lock = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
    if (lock >= 0 && bind(lock, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 && errno == EADDRINUSE) {
      close(lock);
      return follows;
    }
    me.run_lock = lock;
  }
  snprintf(me.path, sizeof me.path, "%s", socket);
  me.hello = Hello{};
  me.hello.pid = static_cast<std::uint32_t>(getpid());
  me.hello.threads = threads;
  me.hello.persistent = persistent;
  me.hello.ephemeral = ephemeral;
  me.hello.remaining_ns = remaining_ns;
  me.hello.weight = weight;
  snprintf(me.hello.name, sizeof me.hello.name, "%s", name);
  me.reattach_ns = static_cast<std::uint64_t>(reattach_seconds * 1e9);
  me.floor = me.own.live();
  me.peak = me.floor;
  me.started = clock_ns();
  trains = true;
  return say_hello(false);
}

CARILLON_OUT int carillon_signal(std::uint32_t kind, std::uint64_t which) {
  Locked locked;
  if (me.is_ended) return ended;
  ControlPage* page = me.page;
  if (!page) return not_attached;
  ++me.counts.signals;
  const bool boundary =
      me.chooser.on(static_cast<Signal>(kind), which, live_bytes());
  if (!boundary && !me.plant) return go_on;
  if (boundary) {
    ++me.counts.boundaries;
    end_iteration(clock_ns());
  }
  if (page->lease.load(std::memory_order_acquire) != static_cast<std::uint32_t>(Lease::run)) return hold;
  if (boundary && !me.in_lane) enter_lane();
  return me.is_ended ? ended : go_on;
}

CARILLON_OUT void carillon_leave_lane() {
  Locked locked;
  me.in_lane = false;
  if (!me.plant || (me.counts.signals && me.counts.iterations == 0)) rescue_all();
  if (!me.attached) return;
  ++me.counts.holds;
  ControlPage* page = me.page;
  // Where it has nothing to do it is the job that ends its lease.
  auto run = static_cast<std::uint32_t>(Lease::run);
  page->lease.compare_exchange_strong(run, static_cast<std::uint32_t>(Lease::hold));
  page->inside.store(0);
  if (!say_stopped()) me.lost = true;
}

CARILLON_OUT int carillon_wait() {
  int answer = go_on;
  bool stood = false;
  std::uint64_t until = 0;
  while (me.attached || (!me.is_alone && !me.is_ended)) {
    ControlPage* page = me.page;
    const std::uint32_t lease = page->lease.load(std::memory_order_acquire);
    After after = me.attached ? After::same : After::lost;
    if (me.attached && (lease != static_cast<std::uint32_t>(Lease::hold) || me.lost)) {
      Locked locked;
      after = read_all();
      if (after == After::same && lease == static_cast<std::uint32_t>(Lease::run)) break;
      if (after == After::same && me.lost) {
        hang_up();
        after = After::lost;
      }
    }
    if (after == After::ended) break;
    if (after == After::alone) {
      Locked locked;
      go_alone("the broker ended and lets its jobs go on");
      answer = alone;
      break;
    }
    if (after == After::lost) {
      if (!until) until = clock_ns() + me.reattach_ns;
      answer = attach_again(until);
      if (answer == go_on) continue;
      break;
    }
    if (!stood) {
      signal_descendants(SIGSTOP);  // after `stopped` was said: nobody waits for this
      stood = true;
    }
    const timespec second{1, 0};
    if (syscall(SYS_futex, &page->lease, FUTEX_WAIT, lease, &second, nullptr, 0) != 0) {
      if (errno == EINTR) {
        answer = interrupted;
        break;
      }
      if (errno == ETIMEDOUT) {
        Locked locked;
        after = read_all();
        if (after == After::lost) me.lost = true;
        if (after == After::alone) go_alone("the broker ended and lets its jobs go on"), answer = alone;
      }
    }
  }
  if (me.is_ended) answer = ended;
  if (stood || answer != interrupted) {
    if (stood) signal_descendants(SIGCONT);
  }
  if (answer == go_on || answer == alone) {
    Locked locked;
    me.started = clock_ns();
    me.peak = live_bytes();
    if (answer == go_on) {
      static_cast<ControlPage*>(me.page)->inside.store(1);
      enter_lane();
      if (me.is_ended) answer = ended;
    }
  }
  return answer;
}

CARILLON_OUT void carillon_keep(const carillon_keeper_t* keeper) {
  Locked locked;
  me.keeper = keeper;
}

CARILLON_OUT int carillon_in_lane() {
  Locked locked;
  return me.in_lane && me.on_device;
}

CARILLON_OUT int carillon_ask(std::uint64_t bytes) {
  Locked locked;
  const bool got = trains && ask_for(bytes);
  return me.is_ended ? 2 : got ? 0 : 1;
}

CARILLON_OUT void carillon_remaining(std::uint64_t nanoseconds) {
  Locked locked;
  me.hello.remaining_ns = nanoseconds;
}

CARILLON_OUT void carillon_bye() {
  Locked locked;
  if (!me.attached) return;
  me.in_lane = false;
  rescue_all();
  Header header;
  send_packet(me.socket, header, Kind::bye, sizeof header);
  shutdown(me.socket, SHUT_RDWR);
  hang_up();
  drop_lane();
  me.is_alone = true;
  me.page = &me.nobody;
  me.nobody.lease = static_cast<std::uint32_t>(Lease::run);
}
