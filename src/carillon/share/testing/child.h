#pragma once

#include <csignal>
#include <functional>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

// A process of a test's own.
namespace carillon::share::testing {

class Child {
 public:
  // `work` in a fork; its result is the exit status.
  explicit Child(const std::function<int()>& work) : pid_(fork()) {
    if (pid_ == 0) _exit(work());
  }
  ~Child() {
    if (pid_ > 0) {
      signal(SIGKILL);
      wait();
    }
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // Its exit status, or 128 and the signal that ended it.
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

// Lets one process wait for another to have come somewhere.
class Gate {
 public:
  Gate() {
    [[maybe_unused]] const int made = pipe(ends_);
  }
  ~Gate() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() const { [[maybe_unused]] const auto written = write(ends_[1], "x", 1); }
  void pass() const {
    char byte = 0;
    [[maybe_unused]] const auto got = read(ends_[0], &byte, 1);
  }

 private:
  int ends_[2]{-1, -1};
};

}  // namespace carillon::share::testing
