#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/schedule/carillon/options.h"
#include "carillon/schedule/parts/backlog.h"
#include "carillon/schedule/parts/heads.h"
#include "carillon/schedule/parts/keep_off.h"
#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/overtake.h"
#include "carillon/schedule/parts/placing.h"
#include "carillon/schedule/parts/plan.h"
#include "carillon/schedule/parts/ready.h"
#include "carillon/schedule/policy.h"
#include "carillon/schedule/symphony/device_waits.h"

namespace carillon::schedule {

// One policy out of what the others do best, as a list of parts. docs/policy.md tells how it decides.
//
// - What waits, and until when (Life); what is loaded where (Placing).
// - What models ask for, how large their batches should be, and how short devices are (Plan, Backlog).
// - When a line may start its batch. The batch waits for more requests while this saves more device time than
//   the idle device loses, and while it can expect to find a device in time (DeviceWaits, as in Symphony).
// - Which line goes first (Ready): the one that has to start first; while devices are short, those come later
//   that take more device time for an answer than others.
// - Where: on the fastest free device. Long runs keep off where quick ones need it (KeepOff).
//
// An event costs O(devices + log lines), but for what Placing costs; planning costs what Plan and KeepOff
// say.
class Carillon final : public Policy {
 public:
  explicit Carillon(const Environment& environment, const CarillonOptions& options = {});
  std::string_view name() const override { return "carillon"; }

 protected:
  TimePoint act(const Event& event, Orders& out) override;

 private:
  void hear(const Event& event, Orders& out);
  void order_devices(const Orders& out);
  void look_at_all(ModelId model, Orders& out);
  void look(std::uint32_t line, Orders& out);
  TimePoint ready_at(const parts::Waiting::Head& head, const parts::Choice& choice, const parts::Times& times,
                     const Orders& out);
  TimePoint key(ModelId model, const parts::Choice& choice) const;
  void find_pressure(const Orders& out);
  std::size_t limit(ModelId model) const { return options_.limit > 0 ? plan_.limit(model) : 0; }
  std::optional<parts::Choice> choose(const parts::Waiting::Head& head, const parts::Times& times,
                                      DeviceId device, TimePoint start, Orders& out);
  std::optional<parts::Choice> first_batch(const parts::Waiting::Head& head, const parts::Times& times,
                                           DeviceId device, TimePoint start, TimePoint now) const;
  parts::Times times(Class streams, const Orders& out, double late = 0) const;
  double accepted(DeviceId device, Class streams, const Orders& out) const;
  bool send_next(DeviceId device, Class streams, Orders& out);
  bool keeps_off(DeviceId device, ModelId model, const Orders& out) const;
  void overtake(DeviceId device, Orders& out);

  const CarillonOptions options_;
  parts::Life life_;
  const bool overtakes_;
  parts::Placing placing_;
  parts::Plan plan_;
  parts::KeepOff keep_off_;
  parts::Backlog backlog_;
  symphony::DeviceWaits waits_;
  parts::Ready ready_;
  TimerHeap looks_;                 // lines by when they are to be looked at again
  std::vector<DeviceId> by_speed_;  // that are alive, the fastest first
  std::size_t models_ = 0;          // that waits_ knows
  bool pressed_ = false;            // devices are short
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
