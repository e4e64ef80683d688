#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/device/action.h"
#include "carillon/device/core.h"

namespace carillon::device {

// How long the steps of an action take in virtual time, and how it ends where it runs.
struct Work {
  std::uint64_t tag = 0;  // the owner's
  Duration input{0};      // INFER: until its rows are there, from its receipt on
  Duration time{0};       // EXEC, or LOAD's copy, alone and undisturbed
  int kernels = 100;      // EXEC: of equal length; a run is ended early between two of them, or inside one
  ActionStatus outcome = ActionStatus::success;  // or failed; INFER: no_memory, from INPUT
};

// What became of an action.
struct Done {
  std::uint64_t tag = 0;
  ActionStatus status{};
  Failure failure{};
  bool ran = false;      // EXEC, or LOAD's copy, began; UNLOAD: there was something to unload
  TimePoint start, end;  // of EXEC, or of LOAD's copy; else both now
  Duration busy{0};      // of these, the time in which it ran
};

// A device in virtual time: the core with executors that take as long as they are told. Whoever owns it keeps
// the calendar. Deterministic; not thread-safe; `now` never goes back. A device that dies is destroyed, and
// what is in the calendar for it must not be called.
class VirtualDevice {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    // event(what) is to be called at that time.
    virtual void plan(TimePoint at, std::uint64_t what) = 0;
    // EXEC or LOAD's copy begins, or resumes: how long it really takes, where `planned` is left of it.
    virtual Duration begins(std::uint64_t tag, Duration planned, bool resumes) = 0;
    // It has ended, and not only to resume, or was refused, in the order in which that happens. done()
    // follows.
    virtual void ends(std::uint64_t tag, ActionStatus status) = 0;
    // Called when the device has done all else that was to be done at that instant. May submit and evict.
    virtual void done(const Done& done) = 0;
  };

  // `clock`: what the device's clock shows beyond the true time. Windows go by it; all times here are true.
  // `stops_within`: a run that is to end early does so after that time, inside a kernel, which runs again
  // when the run resumes; none: before its next kernel.
  VirtualDevice(const Limits& limits, Duration clock, Host& host,
                std::optional<Duration> stops_within = std::nullopt);

  void add_model(ModelId id, std::uint64_t pages) { core_.add_model(id, pages); }
  void set_pages(ModelId id, std::uint64_t pages) { core_.set_pages(id, pages); }
  // False where as many as may be are open: then nothing comes of it.
  bool submit(const LoadAction& action, const Work& work, TimePoint now);
  bool submit(const UnloadAction& action, std::uint64_t tag, TimePoint now);
  bool submit(const InferAction& action, const Work& work, TimePoint now);
  void evict(ActionId id, After after, TimePoint order, TimePoint now);
  bool cancel(ActionId id, TimePoint now);
  // What was planned for now.
  void event(std::uint64_t what, TimePoint now);
  // What the executor runs (a stream, or LOAD) takes so much longer.
  void stall(Executor executor, Duration extra);

  // A run or copy under way, or a run that waits to resume, as if it ended now: for the account of a device
  // that dies.
  struct Running {
    std::uint64_t tag = 0;
    TimePoint start;
    Duration busy{0};
  };
  template <typename Visit>
  void visit_running(TimePoint now, Visit&& visit) const {
    for (Slot slot = 0; slot < runs_.size(); ++slot)
      if (const Run& run = runs_[slot]; run.ran && !run.told)
        visit(Running{run.work.tag, run.start, run.busy + (run.running ? now - run.segment : Duration{0})});
  }

  const Core& core() const { return core_; }

 private:
  struct Run {
    Work work;
    bool ran = false, running = false, told = false;
    TimePoint start, segment, end;  // the first, the present, and when that ends
    Duration busy{0};
    Duration kernel{0};       // each of the present segment
    int left = 0;             // of them, from its beginning on
    int next = 0;             // before which it ends, as far as is known
    std::uint32_t stamp = 0;  // an end that carries another one is void
  };
  enum class What : std::uint8_t { turn, gathered, end };

  TimePoint shown(TimePoint now) const { return saturating_add(now, clock_); }
  void handle(const Command& command, TimePoint now);
  void turn(Executor executor, TimePoint now);
  void begin(Slot slot, int kernel, TimePoint now);
  void gathered(Slot slot, TimePoint now);
  void cut(Slot slot, TimePoint now);
  void end(Run& run, ActionStatus status);
  void run(TimePoint now);
  void plan(TimePoint at, What what, std::uint32_t stamp, std::uint32_t detail);
  void take(Slot slot, const Work& work, TimePoint now);

  Core core_;
  Duration clock_;
  Host& host_;
  std::optional<Duration> stops_within_;
  std::vector<Run> runs_;  // by slot
  Commands commands_;
  std::size_t handled_ = 0;
  std::vector<Done> done_;
  std::size_t told_ = 0;
  Slot ended_ = no_slot;          // the INFER that has just run to its end,
  std::optional<Done> last_;      // which is told of after all else
  std::vector<TimePoint> turns_;  // by executor: the turn that is planned
};

}  // namespace carillon::device
