#include "carillon/share/client/lane.h"

#include <algorithm>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "carillon/share/client/attach.h"
#include "carillon/share/client/client.h"

namespace carillon::share::client {
namespace {

constexpr std::uint64_t boundaries_before_lane = 2;  // the first iterations make what stays

// A page of its own for each of a private mapping, by writing what is there: what another thread writes
// meanwhile is in one page or the other, and never lost.
void copy_on_write(std::byte* at, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  for (std::size_t i = 0; i < bytes; i += page_bytes)
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(at + i), 0, __ATOMIC_RELAXED);
}

// Gives a shared block pages of its own, with what is in it, at its address. Others may read and write it
// meanwhile: the kernel swaps the mapping at once, to a private one of the same pages of the memfd, and
// copies those itself as they are written. (Copying to other memory, and moving that here, lost what was
// written in between.) The memfd, which never shrinks, stays open behind that mapping until the block is
// given back; the broker gives back what is in it.
//
// Where the script closed the memfd, a copy has to do.
void rescue(Heap::Block* b) {
  const std::size_t bytes = std::size_t{b->pages} * page_bytes;
  std::byte* const at = me.lane.address(*b);
  const bool open = identity(me.lane_fd) == me.lane_is;
  const int kind = open ? MAP_PRIVATE | MAP_FIXED : MAP_PRIVATE | MAP_ANONYMOUS;
  const auto from = open ? static_cast<off_t>(std::size_t{b->start} * page_bytes) : 0;
  void* const fresh =
      mmap(open ? at : nullptr, bytes, PROT_READ | PROT_WRITE, kind, open ? me.lane_fd : -1, from);
  bool done = fresh != MAP_FAILED;
  if (done && open) {
    copy_on_write(at, bytes);
  } else if (done) {
    memcpy(fresh, at, b->asked);
    done = mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED;
  }
  if (!done) {
    because("no memory for %zu bytes that outlive their iteration: %s", bytes, strerror(errno));
    tell();
    abort();
  }
  me.lane.make_own(b);
  ++me.counts.rescued;
  me.counts.rescued_bytes += b->asked;
}

}  // namespace

void map_lane(std::size_t from, std::size_t to) {
  std::byte* const base = me.lane.base();
  const std::size_t end = std::min(to, me.lane_fd < 0 ? 0 : me.lane_bytes);
  if (from < end) {
    // Until the next boundary private memory does, where the script closed the memfd.
    const bool open = identity(me.lane_fd) == me.lane_is;
    const int kind = (open ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_FIXED | MAP_NORESERVE;
    if (mmap(base + from, end - from, PROT_READ | PROT_WRITE, kind, open ? me.lane_fd : -1,
             open ? static_cast<off_t>(from) : 0) == MAP_FAILED) {
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

void rescue_all() {
  while (Heap::Block* b = me.lane.first_shared()) rescue(b);
}

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
    close_own(me.lane_fd, me.lane_is);
    me.lane_fd = fd;
    me.lane_is = identity(fd);
  }
  if (number == 0 && me.lane_fd >= 0) {
    close_own(me.lane_fd, me.lane_is);
    bytes = 0;
  }
  me.lane_number = number;
  me.lane_bytes = bytes;
  me.lane.set_limit(bytes);
  const std::size_t low = std::min(before, bytes), high = other ? me.lane.bytes() : std::max(before, bytes);
  for (const Heap::Block* b = me.lane.first(); b; b = me.lane.after(*b)) {
    if (b->state != Heap::State::free && b->state != Heap::State::gone) continue;
    const std::size_t start = std::size_t{b->start} * page_bytes,
                      end = start + std::size_t{b->pages} * page_bytes;
    const std::size_t from = std::max(start, low), to = std::min(end, high);
    if (from < to) map_lane(from, to);
  }
}

void drop_lane() {
  set_lane(0, -1, 0);
}

void give_back_own() {
  me.own.each_written([](std::byte* at, std::size_t bytes) { madvise(at, bytes, MADV_DONTNEED); });
  me.dirty = 0;
}

void empty_lane() {
  if (me.counts.boundaries >= boundaries_before_lane || me.lane_fd < 0) return;
  fallocate(me.lane_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(me.lane_bytes));
}

void enter_lane() {
  const bool has_lane = me.on_device ? me.lane_number != 0 : me.lane_fd >= 0;
  if (me.counts.boundaries < boundaries_before_lane || !has_lane) return;
  if (!me.in_lane && me.counts.boundaries == boundaries_before_lane) give_back_own();
  // What it is known to need, at once rather than piece by piece.
  if (!me.in_lane && me.ephemeral > me.lane_bytes) ask_for(me.ephemeral);
  me.in_lane = me.attached && !me.lost;
}

void end_iteration(std::uint64_t now) {
  ++me.counts.iterations;
  const std::uint64_t took = now - me.started;
  me.counts.busy_ns += took;
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
  page->boundary_ns.store(now, std::memory_order_relaxed);
  page->last_ns.store(took, std::memory_order_relaxed);
}

}  // namespace carillon::share::client
