#include "carillon/engine/cpu/team.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "carillon/base/assert.h"
#include "carillon/engine/turn_thread.h"

// In place of TBB's own, in whatever this is linked into and the libraries that it loads: a task goes to
// nobody in particular. oneDNN divides its work with TBB's static partitioner, which sends part i to the
// thread in slot i of the arena by its mailbox, too. Most of our arenas' slots never have a thread: what lies
// in their mailboxes would stay there as long as the arena, some 250 bytes a part, and each part would cost
// up to eight times as much (measured: README.md). Slots are only TBB's advice, so that dropping it changes
// no result.
namespace tbb::detail::r1 {

void __TBB_EXPORTED_FUNC spawn(d1::task& task, d1::task_group_context& context, d1::slot_id) {
  r1::spawn(task, context);
}

}  // namespace tbb::detail::r1

namespace carillon::engine::cpu {
namespace {

void pin(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  // Where the system refuses, the thread runs where it may.
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

// The thread's register that says, among other things, how floats are rounded. A processor whose register is
// not known here keeps denormals.
#if defined(__x86_64__)
constexpr std::uint64_t flushes = 0x8040;  // results to zero; and denormals are zeros
std::uint64_t float_control() {
  return _mm_getcsr();
}
void set_float_control(std::uint64_t to) {
  _mm_setcsr(static_cast<unsigned>(to));
}
#elif defined(__aarch64__)
constexpr std::uint64_t flushes = 1U << 24;  // both
std::uint64_t float_control() {
  std::uint64_t now = 0;
  asm volatile("mrs %0, fpcr" : "=r"(now));
  return now;
}
void set_float_control(std::uint64_t to) {
  asm volatile("msr fpcr, %0" : : "r"(to));
}
#else
constexpr std::uint64_t flushes = 0;
std::uint64_t float_control() {
  return 0;
}
void set_float_control(std::uint64_t) {}
#endif

}  // namespace

FlushDenormals::FlushDenormals() : before_(float_control()) {
  set_float_control(before_ | flushes);
}
FlushDenormals::~FlushDenormals() {
  set_float_control(before_);
}

Arena::Arena(int parts) : parts_(parts), arena_(parts, static_cast<unsigned>(parts)) {
  CARILLON_ASSERT(parts >= 1);
  // An arena's tasks run with the floating-point settings of the thread that made it.
  const FlushDenormals here;
  arena_.initialize();
}

Arena& Arenas::of(int parts) {
  std::unique_ptr<Arena>& found = arenas_[parts];
  if (!found) found = std::make_unique<Arena>(parts);
  return *found;
}

CpuTeam::CpuTeam(const TeamOptions& options, std::shared_ptr<const UsableProcessors> processors)
    : numbers_(static_cast<std::size_t>(std::max(1, options.threads) - 1)),
      active_(options.threads),
      processors_(std::move(processors)),
      most_(options.threads),
      chosen_(options.threads, [this](int threads) { return room_for(threads); }) {
  CARILLON_ASSERT(options.threads >= 1);
  try {
    for (int i = 1; i < options.threads; ++i) {
      std::thread& added = helpers_.emplace_back([this, i] { help(i); });
      pthread_setname_np(added.native_handle(), ("carillon-kern" + std::to_string(i)).substr(0, 15).c_str());
      if (!options.cores.empty())
        pin(added, options.cores[static_cast<std::size_t>(i) % options.cores.size()]);
    }
  } catch (...) {
    end();
    throw;
  }
}

CpuTeam::~CpuTeam() {
  end();
}

void CpuTeam::end() {
  ending_.store(true);
  call(nullptr);
  active_.store(static_cast<int>(helpers_.size()) + 1);
  active_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

int CpuTeam::adapt() {
  if (!adapts()) return width();
  most_ = std::min(width(), processors_->now());
  chosen_.set_most(most_);
  const int wanted = chosen_.now(), before = active_.exchange(wanted);
  if (wanted > before) active_.notify_all();
  if (wanted < before) stays_.store(1 - stays_.load());
  return wanted;
}

// Where less than half of a processor is free for the last thread, that thread takes more than twice as long,
// and all wait for it: half of the threads would be as quick.
bool CpuTeam::room_for(int threads) const {
  return processors_ == nullptr || processors_->free() >= threads - 0.5;
}

Arena& CpuTeam::arena(int parts) {
  const std::lock_guard lock(mutex_);
  return arenas_.of(parts);
}

void CpuTeam::call(Arena* arena) {
  where_.store(arena, std::memory_order_release);
  calls_.fetch_add(1, std::memory_order_seq_cst);
  calls_.notify_all();
}

void CpuTeam::threads(std::vector<pid_t>& out) const {
  for (const auto& number : numbers_)
    if (const pid_t known = number.load(); known != 0) out.push_back(known);
}

void CpuTeam::help(int number) {
  numbers_[static_cast<std::size_t>(number - 1)] = ::gettid();
  const FlushDenormals here;
  const auto called_since = [this](int seen) {
    const auto until = std::chrono::steady_clock::now() + spin;
    for (int looks = 1;; ++looks) {
      if (calls_.load(std::memory_order_acquire) != seen) return;
      relax();
      if (looks % 32 == 0 && std::chrono::steady_clock::now() >= until) break;
    }
    calls_.wait(seen);
  };
  for (int seen = 0; !ending_.load();) {
    // One that takes no part is not woken for each run.
    if (const int active = active_.load(); active <= number) {
      active_.wait(active);
      continue;
    }
    called_since(seen);
    seen = calls_.load(std::memory_order_acquire);
    // Looked at before active_, which adapt() changes first: who comes late from a wider run leaves at once.
    const std::size_t stays = stays_.load();
    // A thread that finds no free slot would wait for one, so no more come than there are.
    if (Arena* const arena = where_.load(std::memory_order_acquire);
        arena != nullptr && number < std::min(arena->parts(), active_.load()))
      arena->execute([arena, stays] { arena->stay_[stays].wait(); });
  }
}

}  // namespace carillon::engine::cpu
