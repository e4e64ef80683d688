#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <sched.h>
#include <sys/types.h>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"

namespace carillon::engine {

// Tells the processor that the thread looks again and again.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A thread that takes turns: it calls `turn`, which does something, or nothing, and says when the next is
// due. It sleeps on the monotonic clock until shortly before that time and spins the rest; wake() cuts the
// wait short. `clock` must go as CLOCK_MONOTONIC goes, or stand still. Nothing is allocated after start().
class TurnThread {
 public:
  // How long before a turn's time the thread stops sleeping: more than a timer's usual lateness, little
  // enough that the core is not missed.
  static constexpr Duration default_spin = std::chrono::microseconds{50};

  // `turn` returns TimePoint::min() where another is due at once, max() where none is before a wake. `spin`:
  // in place of default_spin; 0: it never spins, and is as late as timers are.
  TurnThread(const Clock& clock, std::function<TimePoint()> turn, Duration spin = default_spin);
  ~TurnThread() { stop(false); }
  TurnThread(const TurnThread&) = delete;
  TurnThread& operator=(const TurnThread&) = delete;

  // `name`: at most 15 characters (Linux). Error: the system has no more threads.
  Result<> start(const std::string& name);

  // The system's number of the thread; 0 before start().
  pid_t number() const { return number_.load(); }

  // There is something new to look at: a turn follows that begins after this call. From any thread.
  void wake();

  // As wake(), on the caller's core where the thread may run there, for a caller that will soon sleep: to
  // interrupt another core may take that core, and the one that does it, tens of microseconds (on a virtual
  // machine). From its next turn on the thread may run where it could before.
  void wake_here();

  // Runs `task` on the thread, between two turns, and waits for it. Not from the thread itself. False where
  // it has stopped: `task` was not run.
  bool call(const std::function<void()>& task);

  // Has `task` run on the thread, between two turns, and does not wait for it. False where it has stopped, or
  // another task that was posted has not begun yet.
  bool post(std::function<void()> task);

  // Ends the thread once it has finished its turn; with `finish`, once a turn says that there is nothing to
  // do at once. May be called again; not from the thread itself.
  void stop(bool finish);

 private:
  void loop();
  void wait(std::unique_lock<std::mutex>& lock, TimePoint until);
  void widen();

  const Clock& clock_;
  const std::function<TimePoint()> turn_;
  const Duration spin_;

  std::mutex mutex_;
  std::condition_variable wake_;       // for the thread
  std::condition_variable task_done_;  // for call()
  const std::function<void()>* task_ = nullptr;
  std::function<void()> posted_;
  bool stopping_ = false, finishes_ = false;
  // Counts what the thread must look at anew; read without the lock while spinning.
  std::atomic<std::uint64_t> news_{0};
  bool waits_ = false;     // for news alone
  cpu_set_t cores_{};      // where it may run,
  bool narrowed_ = false;  // but now on one of them only
  std::atomic<pid_t> number_{0};
  std::thread thread_;
};

}  // namespace carillon::engine
