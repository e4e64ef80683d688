#include "carillon/dispatch/revivals.h"

#include <algorithm>
#include <cstdint>

#include "carillon/base/assert.h"

namespace carillon::dispatch {

void Revivals::down(DeviceId device, TimePoint now) {
  Device& d = devices_[device.index()];
  CARILLON_ASSERT(d.up);
  d.up = false;
  d.pause = std::min(now < d.soon_until ? 2 * d.pause : options_.pause, options_.longest_pause);
  d.probe_at = now + d.pause;
  find_first();
}

void Revivals::probed(DeviceId device, bool well, TimePoint now) {
  constexpr Duration soon = 30s;
  Device& d = devices_[device.index()];
  CARILLON_ASSERT(!d.up);
  if (well) {
    d.up = true;
    d.soon_until = now + soon;
  }
  d.probe_at = well ? TimePoint::max() : now + options_.pause;
  find_first();
}

std::vector<DeviceId> Revivals::due(TimePoint now) {
  std::vector<DeviceId> probes;
  if (first_ > now) return probes;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].probe_at > now) continue;
    devices_[i].probe_at = TimePoint::max();
    probes.push_back({static_cast<std::uint32_t>(i)});
  }
  find_first();
  return probes;
}

void Revivals::find_first() {
  first_ = TimePoint::max();
  for (const Device& d : devices_) first_ = std::min(first_, d.probe_at);
}

}  // namespace carillon::dispatch
