#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/door.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {

// The thread that decides: what the scheduler hears, and when. Where decisions take no time it is asked at
// once. Else it hears one event after another, arrivals wait at a schedule::Door, and what it decides is on
// its way when the decision has taken its time.
class Decisions {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // May leave `actions` changed; they are not looked at again.
    virtual void carry_out(schedule::Actions& actions) = 0;
    // The scheduler's next Wake is to be heard then, in place of any other; max() for never.
    virtual void wake_at(TimePoint at) = 0;
    // decided() is to be called then.
    virtual void decided_at(TimePoint at) = 0;
    virtual void turned_away(RequestId id) = 0;
    // The request has no outcome yet.
    virtual bool open(RequestId id) const = 0;
  };

  Decisions(schedule::Scheduler& scheduler, const Options& options, Figures& figures, Owner& owner)
      : scheduler_(scheduler),
        options_(options),
        figures_(figures),
        owner_(owner),
        charged_(options.decision_time > Duration{0} || options.measured_decisions) {}

  // `shortest`: how long a request takes at the least.
  void add_model(const schedule::ModelInfo& info, Duration shortest);
  void hear(const schedule::Event& event, TimePoint now);
  void decided(TimePoint now);
  // Decisions take time: requests that come together are decided one after another, as they would wait.
  bool charged() const { return charged_; }

 private:
  // What the scheduler has yet to hear, and its place among all that.
  struct Mail {
    schedule::Event event;
    std::uint64_t place = 0;
  };

  void call(const schedule::Event& event, TimePoint now, schedule::Actions& actions);
  void carry_out(schedule::Actions& actions);
  void queue(const schedule::Event& event, TimePoint now);
  void think(TimePoint now);
  std::optional<schedule::Event> next(TimePoint now);
  void turn_away(RequestId id);

  schedule::Scheduler& scheduler_;
  const Options& options_;
  Figures& figures_;
  Owner& owner_;
  bool charged_;
  schedule::Door door_;                        // arrivals
  schedule::IdMap<RequestId, Mail> arrivals_;  // that wait there
  std::deque<Mail> cancels_;                   // not before the arrivals that came before them
  std::deque<Mail> reports_;                   // all else
  std::uint64_t next_place_ = 0;
  Duration owed_{0};                          // for what was turned away since the last decision
  std::vector<schedule::Door::Taken> taken_;  // scratch
  bool thinking_ = false;
  schedule::Actions thought_;
  schedule::Actions spare_;                  // for reuse
  TimePoint asked_wake_ = TimePoint::max();  // as the scheduler said last
  std::optional<TimePoint> asks_wake_;       // that, where it is another and not yet told
};

}  // namespace carillon::simulate
