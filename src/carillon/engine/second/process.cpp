#include "carillon/engine/second/process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <future>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "carillon/engine/host/memory.h"
#include "carillon/engine/processor_wait.h"
#include "carillon/engine/second/hang_limit.h"

namespace carillon::engine::second {
namespace {

// By their numbers: the C library's header of them (2.36) is not for C++.
int open_pidfd(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}
void end_by(int pidfd) {
  ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
}

std::string system_text(int error) {
  return std::generic_category().message(error);
}

// What posix_spawn wants, given back at the end.
class SpawnActions {
 public:
  SpawnActions() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnActions() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  posix_spawn_file_actions_t files{};
  posix_spawnattr_t attributes{};
};

int spawn(const ProcessOptions& options, int socket, pid_t& pid) {
  SpawnActions actions;
  posix_spawn_file_actions_addopen(&actions.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions.files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions.files, socket, control_socket);
  posix_spawn_file_actions_addclosefrom_np(&actions.files, control_socket + 1);
  // A group of its own: what a terminal tells the server's is not for it. Signals as a program wants them,
  // and not as the server's threads have them.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&actions.attributes, &none);
  posix_spawnattr_setsigdefault(&actions.attributes, &all);
  posix_spawnattr_setpgroup(&actions.attributes, 0);
  posix_spawnattr_setflags(&actions.attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string program = options.program.string();
  std::string module = options.module.string();
  std::string server = std::to_string(::getpid());
  const std::array<char*, 4> arguments{program.data(), module.data(), server.data(), nullptr};
  return posix_spawn(&pid, program.c_str(), &actions.files, &actions.attributes, arguments.data(), environ);
}

std::string signal_text(int signal) {
  const char* const name = sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + (name == nullptr ? "" : " (SIG" + std::string(name) + ")") +
         (signal == SIGKILL ? ", as the system does where memory runs out" : "");
}

}  // namespace

std::int32_t nice_of_this_thread() {
  return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
}

Starter::Starter() : nice_(nice_of_this_thread()) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "carillon-start");
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return ended_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  });
}

Starter::~Starter() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Starter::run(const std::function<void()>& task) {
  std::promise<void> done;
  {
    const std::lock_guard lock(mutex_);
    tasks_.emplace_back([&] {
      task();
      done.set_value();
    });
  }
  wake_.notify_one();
  done.get_future().wait();
}

Result<std::shared_ptr<Process>> Process::start(const ProcessOptions& options, Starter& starter) {
  const std::string what = "a process of " + options.program.string() + " cannot be started: ";
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0)
    return fail(ErrorCode::unavailable, what + system_text(errno));
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(sockets[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  pid_t pid = 0;
  int error = 0;
  starter.run([&] { error = spawn(options, sockets[1], pid); });
  ::close(sockets[1]);
  if (error != 0) {
    ::close(sockets[0]);
    return fail(ErrorCode::unavailable, what + system_text(error));
  }
  const int pidfd = open_pidfd(pid);
  if (pidfd < 0) {
    error = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(sockets[0]);
    return fail(ErrorCode::unavailable, what + system_text(error));
  }
  Bytes memory{most_memory};
  if (options.memory)
    memory = *options.memory;
  else if (const auto there = available_memory(); there)
    memory = Bytes{there->count / 8 * 7};
  return std::shared_ptr<Process>(new Process(pid, pidfd, sockets[0], memory));
}

Process::~Process() {
  kill("it is not wanted any more");
  end();
  ::close(control_);
  ::close(pidfd_);
}

bool Process::ask(Ask kind, std::span<const std::byte> question, std::vector<std::byte>& answer,
                  Duration at_most, const std::string& taking, int descriptor) {
  const std::lock_guard lock(asking_);
  if (ended_) return false;
  if (!send_message(control_, kind, question, descriptor)) {
    end();
    return false;
  }
  HangLimit limit(at_most);
  ProcessorWait processor(pid_);
  auto looked = std::chrono::steady_clock::now();
  const std::string too_late = "it did not come back from " + taking + " within " +
                               std::to_string(at_most / std::chrono::milliseconds{1}) + " ms";
  Ask told{};
  int came = -1;
  const Received got = receive_message(control_, told, answer, came, [&] {
    const auto now = std::chrono::steady_clock::now();
    const Duration passed = now - std::exchange(looked, now);
    if (limit.looked(passed, processor.longest_of_all(TimePoint{now.time_since_epoch()})))
      return within_memory();
    kill(too_late);
    return false;
  });
  if (came >= 0) ::close(came);
  if (got == Received::whole && told == kind && came < 0) return true;
  if (got != Received::closed) kill("what it answered is no answer");
  end();
  return false;
}

bool Process::within_memory() {
  if (ended_) return false;
  const std::uint64_t has = resident();
  if (has <= memory_.count) return true;
  kill("it took " + to_text(Bytes{has}) + " of memory, and may have " + to_text(memory_));
  return false;
}

void Process::kill(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  if (killed_for_.empty()) killed_for_ = reason;
  end_by(pidfd_);
}

std::string Process::end() {
  pollfd waits{.fd = pidfd_, .events = POLLIN, .revents = 0};
  constexpr int patience_ms = 5000;  // a large process takes a while to go
  int gone = 0;
  do gone = ::poll(&waits, 1, patience_ms);
  while (gone < 0 && errno == EINTR);
  const std::lock_guard lock(mutex_);
  if (ended_) return how_;
  if (gone == 0) {
    if (killed_for_.empty()) killed_for_ = "it closed its socket and went on";
    end_by(pidfd_);
  }
  siginfo_t info{};
  while (::waitid(P_PIDFD, static_cast<id_t>(pidfd_), &info, WEXITED) != 0 && errno == EINTR) {
  }
  if (!killed_for_.empty())
    how_ = "it was ended: " + killed_for_;
  else if (info.si_code == CLD_EXITED)
    how_ = "it ended with status " + std::to_string(info.si_status);
  else
    how_ = "it ended with " + signal_text(info.si_status);
  ended_ = true;
  return how_;
}

std::uint64_t Process::resident() const {
  if (ended_) return 0;
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return file ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace carillon::engine::second
