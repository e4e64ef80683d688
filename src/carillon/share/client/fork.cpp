#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "carillon/share/client/client.h"
#include "carillon/share/client/lane.h"

// A fork within an iteration: whoever of the two goes on, it finds its tensors.
namespace carillon::share::client {
namespace {

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
    if (mremap(me.copy + at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, me.lane.address(*b)) == MAP_FAILED)
      abort();
    me.lane.make_own(b);
    at += bytes;
  }
  me.copy = nullptr;
  close_own(me.socket, me.socket_is);
  close_own(me.run_lock, me.run_lock_is);
  close_own(me.lane_fd, me.lane_is);
  me.lane_bytes = 0;
  me.lane_number = 0;
  me.lane.set_limit(0);
  // The lane's pages are not the child's. What stays unmapped the kernel would give to libc for its own blocks,
  // which free() would take for ours.
  for (const Heap::Block* b = me.lane.first(); b; b = me.lane.after(*b))
    if (b->state != Heap::State::own)
      map_lane(std::size_t{b->start} * page_bytes, (std::size_t{b->start} + b->pages) * page_bytes);
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

__attribute__((constructor)) void watch_forks() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace
}  // namespace carillon::share::client
