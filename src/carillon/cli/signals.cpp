#include "carillon/cli/signals.h"

#include <chrono>
#include <utility>

#include <pthread.h>
#include <unistd.h>

namespace carillon::cli {

using namespace std::chrono_literals;

SignalWait::SignalWait(std::function<void(const std::string&)> log) : log_(std::move(log)) {
  sigemptyset(&set_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  watcher_ = std::thread([this] { watch(); });
}

SignalWait::~SignalWait() {
  state_ = State::ended;
  // NOLINTNEXTLINE(bugprone-bad-signal-to-kill-thread): it ends nothing where it is blocked and waited for
  pthread_kill(watcher_.native_handle(), SIGTERM);
  watcher_.join();
}

void SignalWait::watch() {
  for (;;) {
    int signal = 0;
    sigwait(&set_, &signal);
    if (signal == SIGHUP && hang_up()) continue;
    if (signal == SIGHUP || signal == SIGUSR1 || signal == SIGUSR2) {
      log_(std::string(signal == SIGHUP    ? "SIGHUP"
                       : signal == SIGUSR1 ? "SIGUSR1"
                                           : "SIGUSR2") +
           " means nothing here and is ignored");
      continue;
    }
    const State was = state_.exchange(State::signalled);
    if (was == State::ended) return;
    const auto now = std::chrono::steady_clock::now();
    if (was == State::signalled && first_ && now - *first_ < 100ms) continue;
    if (was != State::waiting) _exit(128 + signal);
    first_ = now;
    state_.notify_all();
  }
}

bool SignalWait::hang_up() {
  const std::lock_guard lock(mutex_);
  if (!on_hangup_) return false;
  on_hangup_();
  return true;
}

void SignalWait::on_hangup(std::function<void()> act) {
  const std::lock_guard lock(mutex_);
  on_hangup_ = std::move(act);
}

void SignalWait::hold() const {
  State expected = State::starting;
  state_.compare_exchange_strong(expected, State::waiting);
}

void SignalWait::wait() const {
  hold();
  state_.wait(State::waiting);
}

void SignalWait::end() const {
  state_ = State::signalled;
  state_.notify_all();
}

}  // namespace carillon::cli
