#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/around.h"

namespace carillon::schedule {

// Says which devices hang: a ledger and the time go in, and verdicts come out.
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
// Reads what is under way, and what was reported, in the ledger. Costs are linear in the actions that are
// under way on the device. Not thread-safe; `now` never goes back.
class Watchdog {
 public:
  // `least` 0: nobody looks.
  explicit Watchdog(Duration least) : least_(least) {}
  // Before anything else.
  void reads(const ledger::Ledger& ledger) { ledger_ = &ledger; }

  // Something was sent to a device.
  void sent(TimePoint now);
  // Of the time since the last look.
  void excuse(const Excuse& excuse);

  // When look() wants to be called; max() for never: nothing is under way. It does not move but by a look.
  TimePoint wake_at() const { return due_; }
  // The devices that hang: each is to be taken out. Before wake_at() there are none.
  std::vector<DeviceId> look(TimePoint now);

 private:
  using Lane = schedule::Lane;
  struct Device {
    std::uint32_t incarnation = 0;  // of the ledger's device; of another one nothing of this holds
    struct Quiet {
      bool waited = false;  // at the last look it had an action whose window was open
      Duration time{0};
    };
    std::array<Quiet, schedule::lanes> lanes{};  // by Lane
    struct Slow {
      Duration starved{0};  // not counted yet
      bool moved = false;   // since the last look
    };
    std::array<Slow, schedule::lanes> slow{};     // by Lane
    std::array<Duration, schedule::lanes> ran{};  // by Lane: of the ledger's, as of the last look
    Duration urgent_ran{0}, all_ran{0};           // not counted yet: real-time runs; normal ones, too
  };
  struct Overdue {
    ActionId action;
    Duration time{0};
  };
  Duration tick() const { return least_ / 8; }
  Device& of(DeviceId id);
  Duration& overdue(std::uint32_t place);
  bool hangs(DeviceId id, TimePoint now);

  const ledger::Ledger* ledger_ = nullptr;
  Duration least_;
  std::vector<Device> devices_;
  std::vector<Overdue> overdue_;  // by place in the ledger
  std::uint64_t last_tick_ = 0;   // of the ledger at the last look
  TimePoint looked_ = TimePoint::min();
  TimePoint due_ = TimePoint::max();
};

// A policy whose devices are watched: one that hangs is given up (GiveUp), and the policy is told that it
// went. Wakes that are the watchdog's alone it does not hear of. Not thread-safe.
class Watched final : public Around {
 public:
  Watched(std::unique_ptr<Scheduler> policy, Duration hangs_after)
      : Around(std::move(policy)), watchdog_(hangs_after) {}

  void reads(ledger::Ledger& ledger) override {
    watchdog_.reads(ledger);
    Around::reads(ledger);
  }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) override {
    const std::size_t seen = out.size();
    const bool does = Around::load_ahead(wanted, now, out);
    if (watchdog_.wake_at() == TimePoint::max() && out.size() > seen) watchdog_.sent(now);
    return does;
  }

 private:
  Watchdog watchdog_;
  TimePoint policy_wake_ = TimePoint::max();
  TimePoint asked_ = TimePoint::max();  // a Wake
};

}  // namespace carillon::schedule
