#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/door.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/wire/report.h"

namespace carillon::simulate {

// What the dispatcher is told.
using Heard = std::variant<schedule::RequestArrived, schedule::AllArrived, schedule::RequestCancelled,
                           schedule::Wake, wire::Report, wire::ProbeReport>;

// The thread that decides, where decisions take time: the dispatcher hears one thing after another, arrivals
// wait at a schedule::Door, and what is decided is on its way when that has taken its time.
class Decisions {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // Tells the dispatcher, and holds back what it sends. Returns what that takes.
    virtual Duration decide(const Heard& what) = 0;
    // decided() is to be called then, once what was held back is on its way.
    virtual void decided_at(TimePoint at) = 0;
    virtual void turned_away(RequestId id) = 0;
    // The request has no outcome yet.
    virtual bool open(RequestId id) const = 0;
  };

  // `shed_time`: what it takes to turn an arrival away.
  Decisions(Duration shed_time, Owner& owner) : shed_time_(shed_time), owner_(owner) {}

  // `shortest`: how long a request takes at the least.
  void add_model(Duration shortest) { door_.add_model(shortest); }
  void hear(Heard what, TimePoint now);
  void decided(TimePoint now) {
    thinking_ = false;
    think(now);
  }

 private:
  // What the dispatcher has yet to hear, and its place among all that.
  struct Mail {
    Heard what;
    std::uint64_t place = 0;
  };

  void think(TimePoint now);
  std::optional<Heard> next(TimePoint now);
  void turn_away(RequestId id);

  const Duration shed_time_;
  Owner& owner_;
  schedule::Door door_;                        // arrivals
  schedule::IdMap<RequestId, Mail> arrivals_;  // that wait there
  std::deque<Mail> cancels_;                   // not before the arrivals that came before them
  std::deque<Mail> reports_;                   // all else
  std::uint64_t next_place_ = 0;
  Duration owed_{0};                          // for what was turned away since the last decision
  std::vector<schedule::Door::Taken> taken_;  // scratch
  bool thinking_ = false;
};

}  // namespace carillon::simulate
