#include "carillon/share/client/shim.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "carillon/share/client/allocator.h"
#include "carillon/share/client/attach.h"
#include "carillon/share/client/client.h"
#include "carillon/share/client/lane.h"
#include "carillon/share/client/wire.h"

using namespace carillon::share;
using namespace carillon::share::client;

#define CARILLON_OUT extern "C" __attribute__((visibility("default")))

namespace {

// Whoever was woken while it is held is to be granted its lane any moment: it stays awake till then.
void stay_awake(const ControlPage* page) {
  const auto held = static_cast<std::uint32_t>(Lease::hold);
  while (page->lease.load(std::memory_order_acquire) == held &&
         clock_ns() < page->soon_ns.load(std::memory_order_acquire))
    sched_yield();  // there may be no processor but the broker's and the one of whoever leaves
}

}  // namespace

CARILLON_OUT int carillon_prepare() {
  Locked locked;
  if (me.prepared) return 0;
  if (const char* plant = getenv("CARILLON_SHIM_PLANT")) me.plant = strcmp(plant, "early") == 0;
  if (start_heaps()) {
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

CARILLON_OUT const char* carillon_why() {
  return me.why;
}

CARILLON_OUT int carillon_attach(const char* socket, const char* run, const char* name, std::uint32_t threads,
                                 std::uint64_t persistent, std::uint64_t ephemeral,
                                 std::uint64_t remaining_ns, double weight, double reattach_seconds) {
  Locked locked;
  if (!me.prepared) return nobody;  // carillon_why() says it already
  if (run[0] != 0 && me.run_lock < 0) {
    // A name that the kernel forgets with its process.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "carillon-run-%s", run);
    const int lock = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const auto bytes =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
    if (lock >= 0 && bind(lock, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 &&
        errno == EADDRINUSE) {
      close(lock);
      return follows;
    }
    me.run_lock = lock;
    me.run_lock_is = identity(lock);
  }
  snprintf(me.path, sizeof me.path, "%s", socket);
  const std::uint64_t told = me.hello.remaining_ns;  // by the script, before it came to be a job
  me.hello = Hello{};
  me.hello.pid = static_cast<std::uint32_t>(getpid());
  me.hello.threads = threads;
  me.hello.persistent = persistent;
  me.hello.ephemeral = ephemeral;
  me.hello.remaining_ns = told ? told : remaining_ns;
  me.hello.weight = weight;
  snprintf(me.hello.name, sizeof me.hello.name, "%s", name);
  me.reattach_ns = static_cast<std::uint64_t>(reattach_seconds * 1e9);
  me.floor = me.own.live();
  me.peak = me.floor;
  me.started = clock_ns();
  if (!told) me.busy_when_told = me.counts.busy_ns;
  trains = true;
  return say_hello(false);
}

CARILLON_OUT int carillon_signal(std::uint32_t kind, std::uint64_t which) {
  Locked locked;
  if (me.is_ended) return ended;
  ControlPage* page = me.page;
  if (!page) return not_attached;
  ++me.counts.signals;
  const bool boundary = me.chooser.on(static_cast<Signal>(kind), which, live_bytes());
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
  if (me.attached && lost_descriptors()) {
    rescue_all();
    go_alone("the script closed descriptors that are not its own (os.closerange?), among them the broker's");
    tell();
  }
  give_back_own();
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
  int stopped = 0;  // descendants
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
      stopped = signal_descendants(SIGSTOP);  // after `stopped` was said: nobody waits for this
      stood = true;
    }
    stay_awake(page);
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
        if (after == After::same && !me.is_ended) {
          answer = interrupted;  // by what may have come before the wait began
          break;
        }
      }
    }
  }
  if (me.is_ended) answer = ended;
  if (stopped > 0) signal_descendants(SIGCONT);
  if (answer == go_on || answer == alone) {
    Locked locked;
    me.started = clock_ns();
    me.peak = live_bytes();
    if (answer == go_on) {
      static_cast<ControlPage*>(me.page)->inside.store(1);
      empty_lane();
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
  me.hello.remaining_ns = nanoseconds ? nanoseconds : 1;  // 0 is not known
  me.busy_when_told = me.counts.busy_ns + (me.started ? clock_ns() - me.started : 0);
}

CARILLON_OUT void carillon_bye() {
  Locked locked;
  if (!me.attached) return;
  me.in_lane = false;
  rescue_all();
  if (!lost_descriptors()) {
    Header header;
    send_packet(me.socket, header, Kind::bye, sizeof header);
    shutdown(me.socket, SHUT_RDWR);
  }
  hang_up();
  drop_lane();
  me.is_alone = true;
  me.page = &me.nobody;
  me.nobody.lease = static_cast<std::uint32_t>(Lease::run);
}
