#pragma once

#include <algorithm>
#include <optional>

#include "carillon/schedule/parts/free.h"
#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/parts/times.h"
#include "carillon/schedule/parts/waiting.h"

namespace carillon::schedule::parts {

// When the first request of a line would end on the device that is free first, if no device is free for it in
// time. None: one may be. `whole`: its model. `overtakes`: a run may make way for what is much shorter.
// O(devices).
inline std::optional<TimePoint> too_late(const Free& free, const Waiting::Head& head, ModelId whole,
                                         const Times& times, bool overtakes, const ledger::Ledger& ledger,
                                         TimePoint now) {
  if (head.deadline == TimePoint::max()) return std::nullopt;
  TimePoint ends = TimePoint::max();
  const bool may_be = free.visit_alive([&](DeviceId device) {
    if (!runs_there(ledger, device, whole)) return true;
    const Duration dispatch = times.dispatch(device);
    const auto alone = times.batch(device, head.model, 0);
    const TimePoint there = free_at(ledger, device, ledger::Lane::exec, dispatch, now);
    ends = std::min(ends, saturating_add(there, alone.span));
    if (there <= now || ends <= head.deadline) return true;
    const Duration way = from_ns((1 + kernel) * static_cast<double>(alone.exec.count()));
    return overtakes && dispatch + way < there - now;
  });
  return may_be ? std::nullopt : std::optional(ends);
}

}  // namespace carillon::schedule::parts
