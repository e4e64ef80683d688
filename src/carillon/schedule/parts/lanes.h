#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "carillon/ledger/ledger.h"
#include "carillon/schedule/state/executor.h"

// When a device is free for more, and whether something may go before what it has. All of it follows from the
// orders in the ledger.
namespace carillon::schedule::parts {

// The device may be sent INFERs of the model.
inline bool runs_there(const ledger::Ledger& ledger, DeviceId device, ModelId model) {
  return ledger.model(model).info->pages == 0 || ledger.residence(device, model) == ledger::Residence::loaded;
}

// When all that the device has in the lane should have ended; not before `now`. `dispatch`: what an order
// takes to get there. O(actions of the lane).
inline TimePoint free_at(const ledger::Ledger& ledger, DeviceId device, ledger::Lane lane, Duration dispatch,
                         TimePoint now) {
  const auto& d = ledger.device(device);
  TimePoint free = d.ended[static_cast<std::size_t>(lane)];
  for (const std::uint32_t place : d.under_way[static_cast<std::size_t>(lane)]) {
    const auto& action = ledger.at(place);
    free = std::max(free, saturating_add(std::max(action.sent, action.window.earliest), dispatch));
    free = saturating_add(free, action.expected);
  }
  return std::max(free, now);
}

// The next run of a lane.
struct Next {
  TimePoint at;     // when it is to be sent, so that the lane has no gap; max() where only a report can tell
  TimePoint start;  // of its EXEC, where it is sent then
};
// On the streams of a class: one at a time, but of best effort as many as the device runs. What should have
// ended tells nothing: only its report will.
inline Next next_run(const ledger::Ledger& ledger, DeviceId device, Class streams, Duration dispatch,
                     TimePoint now) {
  const auto& d = ledger.device(device);
  const ledger::Lane lane = ledger::lane_of(streams);
  const std::size_t has = d.under_way[static_cast<std::size_t>(lane)].size();
  if (has < (streams == Class::best_effort ? static_cast<std::size_t>(d.best_effort) : 1))
    return {now, now + dispatch};
  const TimePoint free = free_at(ledger, device, lane, dispatch, now);
  // Without a way to go, the report is as early as the clock.
  if (has > 1 || free <= now || dispatch == Duration{0}) return {TimePoint::max(), TimePoint::max()};
  const TimePoint start = std::max(free, now + dispatch);
  return {start - dispatch, start};
}

// How an order may go before the one run that a device has.
struct Overtaking {
  std::uint32_t run = 0;  // its place in the ledger
  TimePoint start;        // of what overtakes
  TimePoint behind;       // and where it does not
  TimePoint order;        // of what overtakes, as the device is told; the run's is to come next
};
// A run makes way within so large a share of its time: at the end of a kernel.
inline constexpr double kernel = 0.05;
// It makes way so often at most.
inline constexpr std::uint32_t most_preemptions = 8;

// Whether what takes `exec` may go before the device's run: that was sent before now, has longer to go, and
// has the time to wait. O(1).
inline std::optional<Overtaking> overtaking(const ledger::Ledger& ledger, DeviceId device, Duration exec,
                                            Duration dispatch, TimePoint now) {
  const auto& lane = ledger.device(device).under_way[static_cast<std::size_t>(ledger::Lane::exec)];
  if (lane.size() != 1) return std::nullopt;
  const auto& run = ledger.at(lane.front());
  if (!run.taken || run.stopped || run.profiled || run.preempted >= most_preemptions || run.sent == now)
    return std::nullopt;
  const TimePoint end = free_at(ledger, device, ledger::Lane::exec, dispatch, now);
  const Duration way = from_ns(kernel * static_cast<double>(run.expected.count()));
  const TimePoint start = now + dispatch + way;
  if (end <= start + exec ||
      saturating_add(end, exec + way) > saturating_add(run.window.latest, run.expected))
    return std::nullopt;
  // A device may have made way at this instant already.
  const TimePoint order = saturating_add(now, -any_clock);
  return Overtaking{lane.front(), start, end,
                    std::max(order, run.preempted > 0 ? run.order + Duration{1} : order)};
}

}  // namespace carillon::schedule::parts
