#include "carillon/schedule/leisure.h"

#include <type_traits>
#include <variant>

namespace carillon::schedule {

void Leisure::heard(const Event& event) {
  if (const auto* done = std::get_if<ActionDone>(&event)) {
    const auto ended = actions_.erase(done->id);
    if (!ended) return;
    Device& device = devices_[ended->device.index()];
    if (ended->life == device.life) --device.under_way;
  } else if (const auto* change = std::get_if<DeviceChanged>(&event)) {
    restarted(change->device, change->alive);
  }
}

void Leisure::said(std::span<const Action> actions, TimePoint wake) {
  wake_ = wake;
  for (const Action& action : actions)
    std::visit(
        [&](const auto& what) {
          using T = std::decay_t<decltype(what)>;
          if constexpr (std::is_same_v<T, Load> || std::is_same_v<T, Infer> || std::is_same_v<T, Profile>)
            sent(what.id, what.device);
          else if constexpr (std::is_same_v<T, GiveUp>)
            restarted(what.device, false);
        },
        action);
}

std::optional<TimePoint> Leisure::free_until(DeviceId device) const {
  if (device.index() >= devices_.size()) return std::nullopt;
  const Device& d = devices_[device.index()];
  if (!d.alive || d.under_way > 0) return std::nullopt;
  return wake_;
}

void Leisure::sent(ActionId action, DeviceId device) {
  if (device.index() >= devices_.size()) devices_.resize(device.index() + 1);
  Device& d = devices_[device.index()];
  if (actions_.insert(action, Sent{device, d.life})) ++d.under_way;
}

// What it had is not reported any more, but for reports that were on their way.
void Leisure::restarted(DeviceId device, bool alive) {
  if (device.index() >= devices_.size()) devices_.resize(device.index() + 1);
  Device& d = devices_[device.index()];
  d.alive = alive;
  d.under_way = 0;
  ++d.life;
}

}  // namespace carillon::schedule
