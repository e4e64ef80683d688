#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/loads.h"
#include "carillon/schedule/parts/order.h"
#include "carillon/schedule/parts/overtake.h"
#include "carillon/schedule/policy.h"

namespace carillon::schedule {

// Earliest deadline first, by parts. A device takes the most urgent request whose model it has, and as many
// of that model's as are answered with it by its deadline. Real-time requests come before normal ones, and
// these before best effort: on streams of their own, where devices have such, else in one order. With
// Preemption::deadline a request goes before a longer run that has the time to wait. An event costs
// O(devices x lines that wait), times what parts::choose() costs where no request of a line is in time, and
// what Loads::step() costs.
class Edf final : public Policy {
 public:
  explicit Edf(const Environment& environment)
      : Policy(environment), life_(environment), overtakes_(environment.preemption == Preemption::deadline) {}
  std::string_view name() const override { return "edf"; }

 protected:
  TimePoint act(const Event& event, Orders& out) override {
    life_.hear(event, out);
    loads_.hear(event, life_, out);
    if (const auto* arrival = std::get_if<RequestArrived>(&event); arrival && arrival->more) return wake_;
    life_.expire(out);
    wake_ = TimePoint::max();
    alive_.clear();
    for (std::uint32_t i = 0; i < out.ledger().devices(); ++i) {
      const DeviceId device{i};
      if (!out.ledger().device(device).alive) continue;
      for (const Class streams : life_.all_streams())
        while (send_next(device, streams, out)) {
        }
      alive_.push_back(device);
    }
    if (overtakes_) parts::overtake(life_, alive_, parts::Times(out.ledger(), Class::normal), out);
    loads_.step(life_.waiting(), out);
    wake_ =
        std::max(std::min({wake_, life_.wake_at(out.time()), loads_.wake_at()}), out.time() + Duration{1});
    return wake_;
  }
  bool bring(const LoadAhead& wanted, Orders& out) override {
    loads_.load_ahead(wanted, out);
    return true;
  }

 private:
  bool runs_there(const Orders& out, DeviceId device, const parts::Waiting::Head& head, Class streams) const {
    return life_.streams(head.cls) == streams && parts::runs_there(out.ledger(), device, head.model);
  }
  // Sends what is most urgent of what runs on these streams, where they have room. False: nothing was sent.
  bool send_next(DeviceId device, Class streams, Orders& out) {
    const parts::Times times(out.ledger(), streams);
    const auto next = parts::next_run(out.ledger(), device, streams, times.dispatch(device), out.time());
    for (const parts::Waiting::Head& head : life_.waiting().heads()) {
      if (!runs_there(out, device, head, streams)) continue;
      if (next.at > out.time()) {
        wake_ = std::min(wake_, next.at);
        return false;
      }
      if (const auto choice = parts::choose(life_.waiting(), head, times, device, next.start, out)) {
        parts::send(life_, device, head, *choice, out.time(), out);
        return true;
      }
    }
    return false;
  }
  parts::Life life_;
  parts::Loads loads_;
  const bool overtakes_;
  std::vector<DeviceId> alive_;
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
