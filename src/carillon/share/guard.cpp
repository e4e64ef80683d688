#include "carillon/share/guard.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace carillon::share {
namespace {

std::unexpected<Error> no_guard(const char* what) {
  return fail(ErrorCode::resource_exhausted, std::string(what) + ": " + std::strerror(errno));
}

// Of the pipe, below all that is closed.
constexpr int end_of_pipe = 3;

// In the child of a program of many threads: nothing but system calls.
[[noreturn]] void stand_guard(int pipe, std::atomic<std::uint32_t>* pids) {
  setsid();
  prctl(PR_SET_NAME, "carillon-guard");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP}) std::signal(signal, SIG_IGN);
  if (pipe != end_of_pipe && dup2(pipe, end_of_pipe) < 0) _exit(1);
  // What the broker has open must not stay so for the guard's sake.
  syscall(SYS_close_range, end_of_pipe + 1, ~0U, 0U);
  for (int number = 0; number < end_of_pipe; ++number) close(number);
  char byte = 0;
  while (read(end_of_pipe, &byte, 1) < 0 && errno == EINTR) {}
  for (std::uint32_t i = 0; i < Guard::most; ++i)
    if (const std::uint32_t pid = pids[i].load(); pid != 0) kill(static_cast<pid_t>(pid), SIGCONT);
  _exit(0);
}

}  // namespace

Result<Guard> Guard::start() {
  int ends[2]{-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return no_guard("the guard's pipe");
  const Descriptor waits(ends[0]);
  Guard guard;
  guard.alive_ = Descriptor(ends[1]);
  void* const at = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return no_guard("the guard's table");
  guard.table_ = new (at) Table{};
  guard.process_ = fork();
  if (guard.process_ == 0) stand_guard(waits.number(), guard.table_->pids);
  if (guard.process_ < 0) return no_guard("the guard's process");
  return guard;
}

Guard::~Guard() {
  alive_.close();
  if (process_ > 0) {
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {}
  }
  if (table_ != nullptr) munmap(table_, sizeof(Table));
}

Guard::Guard(Guard&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)), alive_(std::move(other.alive_)),
      process_(std::exchange(other.process_, -1)), next_(other.next_) {}

Guard& Guard::operator=(Guard&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(alive_, other.alive_);
  std::swap(process_, other.process_);
  std::swap(next_, other.next_);
  return *this;
}

std::uint32_t Guard::watch(std::uint32_t pid) {
  if (table_ == nullptr) return none;
  for (std::uint32_t i = 0; i < most; ++i) {
    const std::uint32_t place = (next_ + i) % most;
    if (table_->pids[place].load(std::memory_order_relaxed) != 0) continue;
    table_->pids[place].store(pid);
    next_ = place + 1;
    return place;
  }
  return none;
}

void Guard::forget(std::uint32_t place) {
  if (table_ == nullptr || place >= most) return;
  table_->pids[place].store(0);
  next_ = place;  // so that few places are in use
}

}  // namespace carillon::share
