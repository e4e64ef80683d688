#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/worker/window_queue.h"

namespace carillon::worker {

// A thread that carries out what a WindowQueue decides. Wakes by sleeping on the monotonic clock until
// shortly before an entry's time and spinning the rest. `clock` must go as CLOCK_MONOTONIC goes, or stand
// still. The handler is called on the executor's thread with no lock held. Nothing is allocated after
// start().
class Executor {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void run(const Entry& entry, TimePoint now) = 0;     // `now` lies in the entry's window
    virtual void refuse(const Entry& entry, TimePoint now) = 0;  // the window has closed
    virtual void abandon(const Entry& entry) = 0;                // the executor stops
  };

  // How long before an entry's time the thread stops sleeping: more than a timer's usual lateness, little
  // enough that the core is not missed.
  static constexpr Duration default_spin = 50us;

  // `spin`: in place of default_spin; 0: it never spins, and starts as late as timers are.
  Executor(std::size_t capacity, const Clock& clock, Handler& handler, Duration spin = default_spin);
  ~Executor() { stop(Pending::abandon); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // `name`: at most 15 characters (Linux). Error: the system has no more threads.
  Result<> start(const std::string& name);

  // From any thread, the executor's own included. False: full, or stopped.
  bool push(const Entry& entry);

  // Runs `task` on the executor's thread, between two actions, and waits for it. Not from the executor's own
  // thread. False where the executor has stopped: `task` was not run.
  bool call(const std::function<void()>& task);

  // Has `task` run on the executor's thread, between two actions, and does not wait for it. False where the
  // executor has stopped, or another task that was posted has not begun yet.
  bool post(std::function<void()> task);

  // Abandons all that is queued, on the caller's thread; what runs goes on.
  void clear();

  // Ends the thread once it has finished what it runs; what is queued is abandoned, or run first regardless
  // of windows. push() returns false from here on. May be called again; not from the executor's own thread.
  enum class Pending : std::uint8_t { abandon, run };
  void stop(Pending pending);

 private:
  void loop();
  void wait(std::unique_lock<std::mutex>& lock, TimePoint until, TimePoint now);

  const Clock& clock_;
  Handler& handler_;
  const Duration spin_;

  std::mutex mutex_;
  std::condition_variable wake_;       // for the thread
  std::condition_variable task_done_;  // for call()
  WindowQueue queue_;
  const std::function<void()>* task_ = nullptr;
  std::function<void()> posted_;
  bool stopping_ = false;
  Pending pending_ = Pending::abandon;
  // Counts what the thread must look at anew; read without the lock while spinning.
  std::atomic<std::uint64_t> news_{0};
  std::thread thread_;
};

}  // namespace carillon::worker
