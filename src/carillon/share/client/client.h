#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <pthread.h>

#include "carillon/share/client/chooser.h"
#include "carillon/share/client/heap.h"
#include "carillon/share/client/shim.h"
#include "carillon/share/client/survivors.h"
#include "carillon/share/protocol.h"

// What the rooms of the preloaded library have in common: one process' state, and how it says what is wrong.
//
// The library stands before libc's allocator in every process of a run, so nothing in it may allocate by
// malloc, throw, or need libstdc++'s library.
#pragma GCC visibility push(hidden)
namespace carillon::share::client {

struct Client {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // heaps, survivors, lane
  Heap own, lane;
  Survivors survivors;
  BoundaryChooser chooser;
  bool prepared = false;
  bool in_lane = false;  // an iteration runs that was granted the lane

  // --- the broker
  int socket = -1, run_lock = -1, lane_fd = -1;
  std::uint64_t socket_is = 0, run_lock_is = 0, lane_is = 0;  // identity() of each, when it was opened
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
  std::uint64_t busy_when_told = 0;  // busy_ns when hello.remaining_ns was true
  int plant = 0;  // a fault, for tests: signals before the boundary are taken for one, and nothing is rescued

  // --- what is counted
  std::uint64_t started = 0, peak = 0, floor = 0, ephemeral = 0, dirty = 0;
  carillon_counters_t counts{};

  // --- a fork
  std::byte* copy = nullptr;
  std::size_t copy_bytes = 0;
};
extern constinit Client me;

// This thread is the one whose iterations are the job's. Known at load, so that reading it calls nothing.
extern constinit thread_local bool trains __attribute__((tls_model("initial-exec")));

std::uint64_t clock_ns();
// What this job has of the broker's device, by its lane's keeper where that is another device than the host.
std::uint64_t live_bytes();
void futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* longest);

// Which open file a descriptor is, 0 for none. A script may close what is not its own (os.closerange), and
// get the number again for a file of its own, which is not to be written to, mapped or closed.
std::uint64_t identity(int fd);
// Closes it, if it is still what it was, and forgets it.
void close_own(int& fd, std::uint64_t was);

// Sets carillon_why().
__attribute__((format(printf, 1, 2))) void because(const char* format, ...);
// Prints it.
void tell();

class Locked {
 public:
  Locked() { pthread_mutex_lock(&me.lock); }
  ~Locked() { pthread_mutex_unlock(&me.lock); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

}  // namespace carillon::share::client
#pragma GCC visibility pop
