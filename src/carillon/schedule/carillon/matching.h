#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "carillon/schedule/carillon/batches.h"
#include "carillon/schedule/carillon/lines.h"
#include "carillon/schedule/carillon/view.h"
#include "carillon/schedule/parts/keep_off.h"
#include "carillon/schedule/parts/kept.h"
#include "carillon/schedule/parts/overtake.h"

namespace carillon::schedule {

// Matches lines that may start with devices that can take a run. A line and a device are tried anew only if
// one of them has changed. A device takes the line that goes first, and a line goes to the fastest device
// that can run it in time. Long runs keep off where quick ones need the device. An event looks at a bounded
// number of lines and devices; each costs what Batches cost, and O(log lines + devices / 4096). Not
// thread-safe.
class Matching {
  using Choice = parts::Choice;
  using Times = parts::Times;
  using Waiting = parts::Waiting;

 public:
  Matching(const View& view, const Batches& batches, Lines& lines, parts::Life& life,
           parts::KeepOff& keep_off, parts::Free& free)
      : view_(view), batches_(batches), lines_(lines), life_(life), keep_off_(keep_off), free_(free) {}

  // Which devices an event has changed. O(those) moved times while a model keeps off, else O(log devices).
  void hear(const Event& event, const Orders& out);
  // Whether the device is alive, and how fast.
  void know(DeviceId device, const Orders& out);
  // What long runs kept from devices may go there now.
  void relieve() { kept_.relieve(); }
  // Sends what may start. Then what is more urgent than a run overtakes it.
  void step(Orders& out) {
    if (free_.next_at() <= out.time()) look_at_due(out);
    if (lines_.ready().any() || kept_.relieved()) {
      match_ready(out);
    } else {
      untried_.clear();
      free_.calm();
    }
    if (view_.overtakes) overtake(out);
  }

  // When step() has something to do by the clock alone.
  TimePoint wake_at() const { return lines_.ready().any() ? free_.next_at() : TimePoint::max(); }
  // It has more to do at once.
  bool busy() const { return kept_.relieved(); }
  std::uint64_t looked_at() const { return looked_at_; }

 private:
  void look_at(DeviceId device, const Orders& out);
  void look_at_due(const Orders& out);
  void match_ready(Orders& out);
  bool send_next(DeviceId device, Class streams, Orders& out);
  bool send_somewhere(std::uint32_t line, Orders& out);
  std::optional<Choice> may_start(std::uint32_t line, DeviceId device, const Times& times, TimePoint start,
                                  bool hope, Orders& out);
  bool keeps_off(DeviceId device, ModelId model, const Orders& out) const;
  void send(std::uint32_t line, DeviceId device, const Choice& choice, Orders& out);
  void overtake(Orders& out);
  Times times(Class streams, const Orders& out) const {
    return view_.in_time.times(streams, out.ledger(), out.time());
  }

  const View view_;
  const Batches& batches_;
  Lines& lines_;
  parts::Life& life_;
  parts::KeepOff& keep_off_;
  parts::Free& free_;
  parts::Kept kept_;
  std::vector<parts::Free::Stirred> untried_;  // devices that have more lines than were looked at
  std::vector<std::uint32_t> over_;            // lines to be taken out of those that may start
  parts::InTurn may_make_way_;
  std::uint64_t looked_at_ = 0;  // lines and devices
};

}  // namespace carillon::schedule
