#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/engine.h"
#include "carillon/workload/request.h"

namespace carillon::engine {

// What a stream is to run: kernels [first, last) of `plan`. What `binding` points to stays until it has
// completed.
struct Launch {
  std::uint64_t run = 0;  // a number of its own, not 0
  const Plan* plan = nullptr;
  KernelRange kernels;
  Binding binding;
  double share = 1;  // of the time of the stream's compute units, in (0, 1]
};

struct StreamOptions {
  const Clock& clock;
  std::string name;  // of its thread, where it has one
  Duration spin;     // see TurnThread
  Class cls{};       // whose runs it is for; normal ones' also for all where there is no other
  // Real-time runs may have a part of the device alone, and best-effort ones then the rest.
  bool parts = false;
};

// How a launch ended.
struct Completion {
  std::uint64_t run = 0;
  int next = 0;      // its first kernel that did not run; kernels.last where all did
  Result<> result;   // as of Plan::run; `unavailable` where the engine threw
  Duration lost{0};  // of its first kernel that did not run: how long it had, where it was stopped inside
};

// Runs launches on a device, one at a time and in order, beside other streams. None of its calls blocks, and
// all but launch() may come from any thread.
class Stream {
 public:
  class Client {
   public:
    virtual ~Client() = default;
    // Called on the stream's thread, and may launch: the next begins without a hand-over between threads.
    virtual void completed(const Completion& completion) = 0;
    // From streams that can have two runs with the device: nothing ends `run` early any more, and it is
    // expected to end at `end`. The client may launch what begins then: once. Returns when it wants to be
    // asked again; max() for not before wake().
    virtual TimePoint committed(std::uint64_t /*run*/, TimePoint /*end*/) { return TimePoint::max(); }
    // The stream has nothing to run; the client may launch. Returns when it wants to be asked again; max()
    // for not before wake().
    virtual TimePoint idle() = 0;
  };

  // Ends what runs, without a completion for what was launched and has not begun.
  virtual ~Stream() = default;
  virtual Result<> start(Client& client) = 0;

  // From the client's calls only, and not before the last has completed, or is committed.
  virtual void launch(const Launch& launch) = 0;
  // Ends that run before its next kernel; no effect where it does not run.
  virtual void evict(std::uint64_t run) = 0;
  // Likewise, where it hangs and nobody waits for it any more: what it runs on may be lost
  // (Interruptible::give_up).
  virtual void give_up(std::uint64_t run) = 0;
  // Client::idle() is to be called soon.
  virtual void wake() = 0;
  virtual void wake_here() = 0;  // as TurnThread's
  // Does what the stream's thread would do now on the calling thread, until there is nothing to do at once:
  // that thread may take tens of microseconds to wake. Nothing where somebody does it already. The caller is
  // none that the client's calls wait for.
  virtual void help() = 0;
  // Inside the engine: stop() would wait for it.
  virtual bool busy() const = 0;
  // The system's numbers of the threads that its runs need, appended to `out`: a run gets no further where
  // one of them has no processor. Teams' helpers are not among them.
  virtual void threads(std::vector<pid_t>& /*out*/) const {}
  // Grows while runs get on, with each kernel that is begun; 0 for ever where the stream cannot tell.
  virtual std::uint64_t steps() const { return 0; }

  // Runs `task` on the stream's thread between two launches, and waits for it, or does not: see TurnThread.
  virtual bool call(const std::function<void()>& task) = 0;
  virtual bool post(std::function<void()> task) = 0;
  // Ends the thread once what runs has completed, and what its completion launches.
  virtual void stop() = 0;
};

}  // namespace carillon::engine
