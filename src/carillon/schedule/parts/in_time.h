#pragma once

#include <algorithm>
#include <cstddef>

#include "carillon/schedule/parts/plan.h"
#include "carillon/schedule/parts/shortage.h"
#include "carillon/schedule/parts/times.h"

namespace carillon::schedule::parts {

// When a run counts as in time: by the chances of what runs take, or by the longest of the last ten and by
// margins. By chances a device that idles also takes runs that may well be late. O(1). Not thread-safe.
class InTime {
 public:
  InTime(bool by_chance, const Plan& plan, const Shortage& shortage)
      : by_chance_(by_chance), plan_(plan), shortage_(shortage) {}

  bool by_chance() const { return by_chance_; }
  // `late`: the chance to be late that a run may have; 0: what is promised.
  Times times(Class streams, const ledger::Ledger& ledger, TimePoint now, double late = 0) const {
    return by_chance_ ? Times::by_chance(ledger, streams, &plan_.paces(), now, late)
                      : Times(ledger, streams, &plan_.paces(), now);
  }
  // How likely a run may be late if none on the device keeps the promise. An idle device takes nearly any
  // chance, and less if it may soon be wanted. A busy device takes none: 0.
  double accepted(DeviceId device, Class streams, const ledger::Ledger& ledger) const {
    const auto& has = ledger.device(device).under_way;
    return has[static_cast<std::size_t>(ledger::lane_of(streams))].empty() ? accepted_of_idle() : 0;
  }
  double accepted_of_idle() const {
    if (!by_chance_) return 0;
    return 1 - std::clamp(shortage_.contention(), least_chance, most_chance);
  }

 private:
  // The chance to be in time that a run needs on a device that idles: one in ten, and one in two however much
  // else may come. What comes may be no likelier to be in time, and where more were asked for, models whose
  // times vary much would never run.
  static constexpr double least_chance = 0.1, most_chance = 0.5;

  const bool by_chance_;
  const Plan& plan_;
  const Shortage& shortage_;
};

}  // namespace carillon::schedule::parts
