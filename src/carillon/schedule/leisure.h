#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/action.h"
#include "carillon/schedule/id_map.h"

namespace carillon::schedule {

namespace testing {
struct Audit;
}

// Until when a scheduler cannot want a device, so that others may have it: training jobs, between iterations
// or within (Salus beside serving). True of every policy by its contract: it acts when it hears of something,
// and of its own accord at its Wake alone. A device that has nothing under way is so free until that Wake, or
// until something comes from outside, whatever is first.
//
// A pure account of what went into decide() and came out. Not thread-safe.
class Leisure {
 public:
  // In the order in which it happened: what the policy heard, then what it said to that.
  void heard(const Event& event);
  void said(std::span<const Action> actions, TimePoint wake);

  // None: it is wanted, as a LOAD, an INFER or a Profile is under way there, or it is not alive. max(): until
  // something comes.
  std::optional<TimePoint> free_until(DeviceId device) const;
  std::size_t devices() const { return devices_.size(); }

 private:
  friend struct testing::Audit;
  struct Device {
    bool alive = false;
    std::uint32_t under_way = 0;
    std::uint32_t life = 0;  // what was sent in an earlier one is not under way any more
  };
  struct Sent {
    DeviceId device;
    std::uint32_t life = 0;
  };

  void sent(ActionId action, DeviceId device);
  void restarted(DeviceId device, bool alive);

  std::vector<Device> devices_;
  IdMap<ActionId, Sent> actions_;
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
