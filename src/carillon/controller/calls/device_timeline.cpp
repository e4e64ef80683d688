#include "carillon/controller/calls/device_timeline.h"

#include <algorithm>
#include <tuple>

namespace carillon::controller {

void DeviceTimeline::read(std::uint64_t from, std::uint64_t to, std::vector<TimelineAction>& out) const {
  const std::uint64_t count = this->count();
  from = std::max(from, count - std::min<std::uint64_t>(count, ended_.size()));
  for (std::uint64_t number = from; number < std::min(to, count); ++number) {
    // One that was overwritten meanwhile has another's number.
    const auto action = ended_[number % ended_.size()].get();
    if (action && action->number == number) out.push_back(*action);
  }
}

void DeviceTimeline::read_open(std::vector<TimelineAction>& out) const {
  const auto first = static_cast<std::ptrdiff_t>(out.size());
  for (const auto& slot : open_)
    if (const auto action = slot.get(); action && action->open != 0) out.push_back(*action);
  // As devices take them: by window, then by age.
  std::ranges::sort(out.begin() + first, out.end(), {},
                    [](const TimelineAction& a) { return std::tie(a.device, a.exec_begin, a.id); });
}

}  // namespace carillon::controller
