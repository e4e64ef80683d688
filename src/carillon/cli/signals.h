#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace carillon::cli {

// Waits for Ctrl-C or SIGTERM in a thread that may be the program's only one to see them: signals are blocked
// before any other thread starts, so make this first. Until hold() or wait() is called they end the program
// at once, as they do after wait() has returned: a second one does not wait for requests. A second one
// within 100 ms means nothing: timeout(1) signals the program, and then its process group.
//
// SIGHUP does what on_hangup() was given, on that thread. Without it, SIGHUP means nothing, as SIGUSR1 and
// SIGUSR2 do, and would end a program that does not take it: a terminal that closes, or a log rotation, ends
// no server. `log` is told, on that thread.
class SignalWait {
 public:
  explicit SignalWait(std::function<void(const std::string&)> log);
  ~SignalWait();
  SignalWait(const SignalWait&) = delete;
  SignalWait& operator=(const SignalWait&) = delete;

  // From here on a signal is kept for wait(). Call it before anybody is told that the program is ready.
  void hold() const;
  void wait() const;
  // wait() returns, as by a signal. Any thread.
  void end() const;
  // Any thread. What `act` uses must live until this ends.
  void on_hangup(std::function<void()> act);

 private:
  enum class State : std::uint8_t { starting, waiting, signalled, ended };
  void watch();
  bool hang_up();  // false: it means nothing

  const std::function<void(const std::string&)> log_;
  std::mutex mutex_;
  std::function<void()> on_hangup_;
  sigset_t set_{};
  mutable std::atomic<State> state_{State::starting};
  std::optional<std::chrono::steady_clock::time_point> first_;  // the watcher's: when it took the first
  std::thread watcher_;
};

}  // namespace carillon::cli
