#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/schedule/carillon/batches.h"
#include "carillon/schedule/carillon/view.h"
#include "carillon/schedule/parts/punctual.h"

namespace carillon::schedule {

// When a line's batch may start. A batch waits for more requests while two conditions hold. Waiting saves
// more device time than the idle device loses. The batch will probably find a device in time (DeviceWaits, as
// in Symphony). O(1) but where said. Not thread-safe.
class Deferral {
  using Choice = parts::Choice;
  using Times = parts::Times;
  using Waiting = parts::Waiting;

 public:
  Deferral(const View& view, const Environment& environment, const Batches& batches,
           symphony::DeviceWaits& waits)
      : view_(view), batches_(batches), waits_(waits), punctual_(environment) {}

  // A model, or a kind under that name, comes or comes anew: it may have other batch sizes.
  void renew(ModelId as) {
    for (; models_ < view_.plan.models(); ++models_) waits_.add_model();
    if (as.index() < waiting_.size()) waiting_[as.index()] = {};
  }
  // There is a new plan.
  void planned() { ++plans_; }

  // From when on the line's batch may start; `choice` is what the fastest device could run of it from `start`
  // on. Where that is later, holds() tells whether the answer stays, and with_more() what it is with further
  // requests. O(planned batch size) once a plan and model.
  TimePoint starts(const Waiting::Head& head, const Choice& choice, const Times& times, TimePoint start,
                   const Orders& out);
  // What starts() would say of a line that waits() and has `rows` requests by now, if that is later than now.
  // None: something else is not as it was; the line has to be looked at, which costs more.
  std::optional<TimePoint> with_more(std::uint32_t line, const Waiting::Head& head, std::size_t rows,
                                     const Times& times, const Orders& out);
  // A batch of the line waits for more requests: with_more() may tell until when it does now.
  bool waits(std::uint32_t line) const { return line < deferred_.size() && deferred_[line].waits; }
  // holds() would be true, had the time not come.
  bool held(std::uint32_t line) const { return waits(line) && deferred_[line].until != TimePoint::min(); }
  // The line has nothing to start, or is to be asked of anew.
  void forget(std::uint32_t line) {
    if (line >= deferred_.size()) deferred_.resize(line + 1);
    deferred_[line].until = TimePoint::min();
    deferred_[line].waits = false;
  }
  // The time that starts() last gave for the line still holds. `rows` requests wait now; `head` is the first.
  bool holds(std::uint32_t line, const Waiting::Head& head, std::size_t rows, TimePoint now) const {
    if (line >= deferred_.size()) return false;
    const Deferred& d = deferred_[line];
    return d.until > now && d.pressed == view_.shortage.pressed() && head.id == d.head && rows < d.rows;
  }
  // A batch of so many requests got its device, or all requests of the line are gone.
  void answered(ModelId model, std::size_t rows, TimePoint now) {
    waits_.answered(model, static_cast<int>(rows), now);
  }
  void lost(ModelId model, TimePoint now) { waits_.lost(model, now, now); }
  // The policy wanted to be woken at `due`, and is now.
  void woken(TimePoint due, TimePoint now) { punctual_.looked(due, now); }

 private:
  // What the batches of a line have in common, as they wait for larger ones.
  struct Asking {
    ModelId model;
    TimePoint deadline, patience;
    bool early = true;             // batches of all sizes ask early for a device
    std::size_t small = 0;         // batches of fewer rows ask for no device before they have to start
    std::optional<Duration> lead;  // of the others; none: not asked yet
  };
  // Nothing starts of a line before then, unless it has so many requests, or another first one.
  struct Deferred {
    TimePoint until = TimePoint::min();
    std::size_t rows = 0;
    RequestId head;
    bool pressed = false;  // devices were short
    // A batch of the line waits for more requests, and asks early for a device whatever its size. That was
    // found by the plan of that number, for so many devices.
    bool waits = false;
    std::uint64_t plan = 0;
    std::size_t alive = 0;
    TimePoint patience;  // of `head`
  };
  // Batches from one place in a model's sizes to another, which wait for larger ones.
  struct WaitsWith {
    std::uint64_t plan = 0;
    bool pressed = false;
    bool stops = false;  // there, as the next does not
    int from = 0, last = -1;
  };
  bool in_the_way(ModelId model) const;
  bool starts_at_once(ModelId model, int index) const;
  bool known_to_wait(ModelId model, int index) const;
  int waits_with(ModelId model, int index);
  Asking asking(const Waiting::Head& head, TimePoint deadline, const Orders& out) const;
  TimePoint ready_at(Asking& asking, int index, const Times& times, const Orders& out);
  bool waited(Asking& asking, int index, const Times& times, const Orders& out);
  TimePoint asks_at(Asking& asking, int index, const Times& times, const Orders& out);
  TimePoint fits(const Asking& asking, int index, const Times& times) const;

  const View view_;
  const Batches& batches_;
  symphony::DeviceWaits& waits_;
  parts::Punctual punctual_;
  std::vector<Deferred> deferred_;  // by line
  std::vector<WaitsWith> waiting_;  // by model
  std::uint64_t plans_ = 1;         // that were made
  std::size_t models_ = 0;          // that waits_ knows
};

}  // namespace carillon::schedule
