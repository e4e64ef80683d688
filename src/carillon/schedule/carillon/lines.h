#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/schedule/carillon/batches.h"
#include "carillon/schedule/carillon/deferral.h"
#include "carillon/schedule/carillon/turn.h"
#include "carillon/schedule/carillon/view.h"
#include "carillon/schedule/parts/ready.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {

// Which lines are looked at, and when: those of which an event changed something, and those whose time has
// come. A look finds the line's batch, as the fastest device could run it now, and from when on it may start.
// From then on the line is in ready(). A look costs what Batches and Deferral cost, and O(log lines). Not
// thread-safe.
class Lines {
  using Choice = parts::Choice;
  using Times = parts::Times;
  using Waiting = parts::Waiting;

 public:
  Lines(const View& view, const Batches& batches, Deferral& deferral, parts::Life& life,
        parts::Placing& placing, parts::Shortage& shortage, parts::Fair& fair)
      : view_(view),
        batches_(batches),
        deferral_(deferral),
        life_(life),
        placing_(placing),
        shortage_(shortage),
        fair_(fair),
        turn_(view) {}

  // Which lines an event has changed. O(those).
  void came(const Request& request) { come_.push_back(line_of(view_.kinds.of(request), request.cls)); }
  void hear(const Event& event, const Orders& out);
  // There is a new plan, or a device came or went: every line is looked at, in this event and the next ones.
  void look_at_changed() { changed_ = view_.plan.models(); }
  void look_soon(std::uint32_t line);
  // Looks at all lines that are to be looked at now.
  void step(Orders& out);

  // The lines that may start.
  parts::Ready& ready() { return ready_; }
  const parts::Ready& ready() const { return ready_; }
  // Sends the line's batch to the device. Then the line has to be looked at.
  void send(std::uint32_t line, DeviceId device, const Choice& choice, Orders& out);
  void look(std::uint32_t line, Orders& out);
  // The line is late on all devices that are free. It is looked at again soon, as their estimates may be
  // doubted then.
  void doubt(std::uint32_t line, TimePoint now);

  const Turn& turn() const { return turn_; }
  // When the line is looked at again, by the clock alone. None: not before something happens.
  std::optional<TimePoint> next_look(std::uint32_t line) const {
    return looks_.contains(line) ? std::optional(looks_.at(line)) : std::nullopt;
  }
  // When step() has something to do by the clock alone.
  TimePoint wake_at() const { return looks_.top_at(); }
  // It has more to do at once.
  bool busy() const { return changed_ > 0; }
  std::uint64_t looked_at() const { return looked_at_; }

 private:
  void look_at_all(ModelId model);
  void look_at_next();
  void comes(std::uint32_t line, Orders& out);
  bool waits_on(std::uint32_t line, Orders& out);
  void count(std::uint32_t line, const Waiting::Head* head, std::size_t rows, Orders& out);
  bool tells_too_late(Class cls, const Orders& out) const;
  void refuse_too_late(ModelId model, Class cls, Orders& out);

  const View view_;
  const Batches& batches_;
  Deferral& deferral_;
  parts::Life& life_;
  parts::Placing& placing_;
  parts::Shortage& shortage_;
  parts::Fair& fair_;
  const Turn turn_;
  parts::Ready ready_;
  TimerHeap looks_;                             // lines by when they are to be looked at again
  std::vector<std::uint32_t> come_;             // lines to which requests came
  std::vector<std::uint32_t> due_;              // lines that are to be looked at now
  std::vector<bool> due_now_;                   // by line: it is in due_
  std::size_t next_changed_ = 0, changed_ = 0;  // models that may do other things: from there on, so many
  std::uint64_t looked_at_ = 0;                 // lines and models
};

}  // namespace carillon::schedule
