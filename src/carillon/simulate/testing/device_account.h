#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/action.h"
#include "carillon/simulate/simulation.h"
#include "carillon/simulate/testing/problems.h"

namespace carillon::simulate::testing {

class ClassAccount;

// What one device must do with the messages that reach it, worked out from the messages alone: when each
// action starts, how it ends, how long it takes, what memory holds. A device is held against it as it tells
// of its starts and ends; where it does otherwise, that is a problem.
//
// EXEC and LOAD each take their actions by (earliest, id), of those whose message and inputs are there. The
// first starts as soon as it may: the executor is free, the window is open by the device's own clock. Where
// the window has closed or never opens, the weights are not there (INFER), or the pages (LOAD), it is refused
// at that moment, else it runs. An INFER whose window has closed when its message comes is refused then. An
// INFER without its weights waits while a LOAD of them is open that was sent before the INFER. It is left out
// of the line meanwhile, and is refused when its window closes. An
// UNLOAD is effective when its message comes, and done then, or when the model's run or copy under way has
// ended. LOAD takes its pages when it starts, and gives them back where it fails. A Stop ends a run before
// its next kernel, a hundredth of it. A Preempt ends one that runs so, once, when something is there that
// comes before its order; it goes on when it is the first in line again. Where there are
// streams by class, EXEC is ClassAccount's.
class DeviceAccount {
 public:
  struct Sent {
    ActionId id;
    schedule::ActionKind kind{};
    ModelId model;
    Window window;
    TimePoint heard, ready;  // the message is there; its inputs too
    Duration time{0};        // what it takes where nothing goes wrong
    std::uint64_t pages = 0;
    Class cls = Class::normal;
    TimePoint stopped = TimePoint::max();  // a Stop is there
    struct Preempted {
      TimePoint order, heard;
    };
    std::vector<Preempted>
        preempted;  // Preempts since it made way last, in the order in which they are there
  };
  struct Ended {
    TimePoint start;
    bool ran = false;  // INFER, LOAD: it was begun; UNLOAD: there was something to unload
    Duration busy{0};  // of the time from its start
  };

  // `stops_within`: it has streams by class.
  DeviceAccount(DeviceId id, const Faults& faults, Problems& problems,
                std::optional<Duration> stops_within = std::nullopt);
  DeviceAccount(DeviceAccount&&) noexcept;
  ~DeviceAccount();

  // When an INFER that waits for a LOAD is refused, on a device whose clock shows so much more.
  static TimePoint given_up(const Sent& action, Duration clock);

  // The device starts with empty memory of `pages`, or dies: what was sent to it is gone. Returns the INFERs
  // that ran, or waited to go on, by their ids.
  std::vector<std::pair<ActionId, Ended>> power(bool alive, Duration clock, std::uint64_t pages,
                                                TimePoint at);
  bool alive() const { return alive_; }
  Duration clock() const { return clock_; }

  void sent(const Sent& action);
  void stop(ActionId id, TimePoint heard);
  void preempt(ActionId id, TimePoint order, TimePoint heard);

  void started(ActionId id, TimePoint at);
  // None where it was not to end.
  std::optional<Ended> ended(ActionId id, schedule::ActionStatus status, TimePoint at);

  // Of all that is left: what should have started or ended before `now`.
  void finish(TimePoint now);

 private:
  struct Running {
    Sent action;
    TimePoint start;
    std::optional<schedule::ActionStatus> refusal;  // what it must come to at once, where it may not run
    Duration paused{0};
    int parts = 1;           // in which it ran
    TimePoint order, since;  // while it waits to go on
    bool cold = false;       // a LOAD was open that it had to wait for

    Duration ran(TimePoint at) const { return at - start - paused; }
  };
  struct Executor {
    std::vector<Sent> waiting;
    std::optional<Running> running;
    std::vector<Running> suspended;
    // When it was last free of one: the end of what ran, the turn of what was refused.
    TimePoint free_at = TimePoint::min();
    // What ran last.
    ModelId last_model{};
    TimePoint last_start = TimePoint::min(), last_end = TimePoint::min();
  };
  enum class Place : std::uint8_t { absent, loading, loaded };

  void problem(const std::string& kind, ActionId id, TimePoint at);
  Executor& executor(schedule::ActionKind kind) {
    return kind == schedule::ActionKind::infer ? exec_ : load_;
  }
  Place& place(ModelId model);
  ClassAccount& classes();
  TimePoint due(const Executor& executor, const Sent& action) const;
  bool load_comes(const Sent& infer) const;
  bool cold(const Sent& action, TimePoint at) const;
  void resume(Executor& executor, TimePoint at);
  void make_way(Executor& executor, const Sent& action, TimePoint at);
  bool should_have_made_way(const Executor& executor, const Running& run, TimePoint at) const;
  std::optional<schedule::ActionStatus> refusal(const Sent& action, TimePoint start);
  Ended unload(const Sent& action, schedule::ActionStatus status, TimePoint at);
  void judge(const Running& ran, schedule::ActionStatus status, TimePoint at);
  bool unloading(ModelId model, TimePoint at) const;
  Duration least(Duration time) const;
  std::optional<Duration> most(Duration time) const;

  DeviceId id_;
  Faults faults_;
  Problems& problems_;
  bool alive_ = false;
  Duration clock_{0};
  std::uint64_t pages_ = 0, used_ = 0;
  std::vector<Place> places_;  // by model
  Executor exec_, load_;
  std::unique_ptr<ClassAccount> classes_;
  std::optional<Running> at_input_;  // refused there
  std::vector<Sent> unloads_;
};

}  // namespace carillon::simulate::testing
