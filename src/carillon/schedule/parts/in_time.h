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
  double accepted(DeviceId device, ModelId model, const Times& times, const ledger::Ledger& ledger) const {
    return takes_chances(device, times.streams(), ledger) ? accepted_of_idle(device, model, times) : 0;
  }
  bool takes_chances(DeviceId device, Class streams, const ledger::Ledger& ledger) const {
    const auto& has = ledger.device(device).under_way;
    return by_chance_ && has[static_cast<std::size_t>(ledger::lane_of(streams))].empty();
  }
  double accepted_of_idle(DeviceId device, ModelId model, const Times& times) const {
    if (!by_chance_) return 0;
    return 1 - std::clamp(std::min(shortage_.contention(), worth(device, model, times)), least_chance,
                          most_chance);
  }

 private:
  // How many requests the device could answer in time with the device time of this request. Instead of a run
  // that may be late, the device would wait for the next arrival and run that: load / (1 + load) is the share
  // that the run has of the wait and the run together. A request that takes longer than the average costs the
  // time of several. The next request may be late, too: it is as likely in time as a request of this model
  // that has just come.
  double worth(DeviceId device, ModelId model, const Times& times) const {
    const double each = shortage_.each();
    if (each <= 0) return 1;
    const double alone = to_seconds(times.exec(device, model, 0));
    const Duration slo = plan_.slo(model);  // since EXEC could start
    const double late = slo > Duration{0} ? times.late(device, model, 0, slo) : 0;
    return plan_.load() / (1 + plan_.load()) * alone / each * (1 - late);
  }

  // Bounds of the chance to be in time that a run needs on a device that idles, however little or much else
  // may come.
  static constexpr double least_chance = 0.1, most_chance = 0.9;

  const bool by_chance_;
  const Plan& plan_;
  const Shortage& shortage_;
};

}  // namespace carillon::schedule::parts
