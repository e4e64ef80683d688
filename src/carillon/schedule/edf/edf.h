#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <variant>

#include "carillon/schedule/parts/lanes.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/loads.h"
#include "carillon/schedule/parts/order.h"
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
    for (std::uint32_t i = 0; i < out.ledger().devices(); ++i) {
      const DeviceId device{i};
      if (!out.ledger().device(device).alive) continue;
      for (const Class streams : life_.all_streams())
        while (send_next(device, streams, out)) {
        }
      if (overtakes_) overtake(device, out);
    }
    loads_.step(life_.waiting(), out);
    wake_ =
        std::max(std::min({wake_, life_.wake_at(out.time()), loads_.wake_at()}), out.time() + Duration{1});
    return wake_;
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
        send(device, head, *choice, out.time(), out);
        return true;
      }
    }
    return false;
  }
  void send(DeviceId device, const parts::Waiting::Head& head, const parts::Choice& choice,
            TimePoint earliest, Orders& out) {
    const auto [cls, deadline, id, model] = head;
    const TimePoint latest = saturating_add(choice.deadline, -choice.batch.span);
    out.infer(device, model, life_.take(model, cls, choice.deadline, choice.batch.rows),
              {earliest, std::max(out.time(), latest)}, choice.batch.exec, life_.streams(cls));
  }
  // The most urgent request that would be late behind what runs goes before it, alone, where that may wait.
  void overtake(DeviceId device, Orders& out) {
    const parts::Times times(out.ledger(), Class::normal);
    for (const parts::Waiting::Head& head : life_.waiting().heads()) {
      if (!runs_there(out, device, head, Class::normal)) continue;
      const auto alone = times.batch(device, head.model, 0);
      const auto over =
          parts::overtaking(out.ledger(), device, alone.exec, times.dispatch(device), out.time());
      if (!over || saturating_add(over->behind, alone.span) <= head.deadline) return;
      if (saturating_add(over->start, alone.span) > head.deadline) continue;
      send(device, head, {alone, head.deadline}, over->order, out);
      return out.preempt(out.ledger().at(over->run), over->order + Duration{1});
    }
  }

  parts::Life life_;
  parts::Loads loads_;
  const bool overtakes_;
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
