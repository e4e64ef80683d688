#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/around.h"
#include "carillon/schedule/id_map.h"

namespace carillon::schedule {

// Says which devices hang: what was sent and what has ended go in, with the time, and verdicts come out.
//
// A device hangs that has reported nothing for `least`, or 20 times what the longest action that it has
// should take, whichever is longer. EXEC and LOAD are watched apart, each by how long it has reported nothing
// though it has an action whose window is open; and so is each action from when its window is over, or one
// that was sent after it, and comes after it, has ended. Between two looks no more time counts than was meant
// to pass: where the process was stopped, or the controller had no core to run on, the devices had none
// either.
//
// A device that is slow does not hang: whoever looks at its threads tells by Excuses for how long one of them
// had no processor, which is not counted, and whether its work got on since the last look; then nothing of
// that time is counted but against actions that others overtook. What computes for ever and gets nowhere
// hangs, and so does what sleeps.
//
// Of EXEC each class's streams are watched apart. What makes way for others is given the time that they ran;
// and best-effort runs, which have whatever nobody else on the machine wants, ten times as long as others,
// and for as long as the device reports anything: one on a core that another program keeps busy waits for it.
//
// Costs are linear in the actions that are under way on the device. Not thread-safe; `now` never goes back.
class Watchdog {
 public:
  using Lane = schedule::Lane;
  // One that was sent to the same lane after it, and not to go before it, has ended: since the last look, or
  // before.
  enum class Overtaken : std::uint8_t { no, lately, before };
  struct Action {
    ActionId id;
    Lane lane{};
    Window window;
    Duration expected{0};
    bool after_runs = false;  // an UNLOAD: it waits for the runs of its model
    // The watchdog's own.
    std::uint64_t place = 0;  // in the order of sending; ids may have another
    Overtaken overtaken{};
    bool may_wait = false;  // it makes way for others, for as long as they come
    Duration overdue{0};
  };

  // `least` 0: nobody looks.
  explicit Watchdog(Duration least) : least_(least) {}

  void sent(DeviceId device, const Action& action, TimePoint now);
  // Whatever is not under way any more, or never was, is not heeded. `took`: of a run.
  void ended(ActionId action, Duration took = Duration{0});
  // It makes way, to go on later.
  void preempted(ActionId action);
  // The device went, or started anew: it has nothing under way.
  void restarted(DeviceId device);

  // Of the time since the last look.
  void excuse(const Excuse& excuse);

  // When look() wants to be called; max() for never. It does not move but by a look.
  TimePoint wake_at() const { return due_; }
  // The devices that hang: each is to be taken out, and then restarted(). Before wake_at() there are none.
  std::vector<DeviceId> look(TimePoint now);

 private:
  friend struct testing::Audit;
  struct Device {
    std::vector<Action> actions;
    struct Quiet {
      bool fresh = true;  // something was reported, or nothing was to be done, since the last look
      Duration time{0};
    };
    std::array<Quiet, schedule::lanes> lanes;  // by Lane
    struct Slow {
      Duration starved{0};  // not counted yet
      bool moved = false;   // since the last look
    };
    std::array<Slow, schedule::lanes> slow;  // by Lane
    Duration urgent_ran{0}, all_ran{0};      // not counted yet: real-time runs; normal ones, too
    bool heard = false;                      // of anything since then
  };
  Duration tick() const { return least_ / 8; }
  bool hangs(Device& device, TimePoint now) const;

  Duration least_;
  std::vector<Device> devices_;
  IdMap<ActionId, DeviceId> under_way_;
  std::uint64_t sent_ = 0;
  TimePoint looked_ = TimePoint::min();
  TimePoint due_ = TimePoint::max();
};

// A policy whose devices are watched: one that hangs is given up (GiveUp), and the policy is told that it
// went. Wakes that are the watchdog's alone it does not hear of. Not thread-safe.
class Watched final : public Around {
 public:
  Watched(std::unique_ptr<Scheduler> policy, Duration hangs_after)
      : Around(std::move(policy)), watchdog_(hangs_after) {}

  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;

 private:
  friend struct testing::Audit;
  void watch(const Action& action, TimePoint now);

  Watchdog watchdog_;
  TimePoint policy_wake_ = TimePoint::max();
  TimePoint asked_ = TimePoint::max();  // a Wake
};

}  // namespace carillon::schedule
